"""The style checks themselves: each must refuse a planted fault and accept a clean case."""

import sys

import include_direction
import lengths
import text


def main() -> int:
    long_function = ["int f(int a) {"] + ["  a += 1;"] * 80 + ["  return a;", "}"]
    wrapped = ["static Result<int> name(int first,", "                        int second) {"]
    wrapped += ["  first += second;"] * 75 + ["}"]
    cases = [
        ("upward include", not include_direction.allowed("engine/text/a.cc", "daemon/http/b.h")),
        ("kernel includes engine", not include_direction.allowed("kernels/a.h", "engine/text/b.h")),
        ("engine includes a backend", not include_direction.allowed("engine/model/a.cc",
                                                                    "kernels/cpu/b.h")),
        ("daemon past engine.h", not include_direction.allowed("daemon/main.cc",
                                                               "engine/text/b.h")),
        ("allowed include", include_direction.allowed("daemon/main.cc", "engine/engine.h")),
        ("long function", len(lengths.check_file("a.cc", long_function, {})) == 1),
        ("long wrapped function", len(lengths.check_file("a.cc", wrapped, {})) == 1),
        ("ratchet", lengths.check_file("a.cc", long_function, {"a.cc:f": 83}) == []),
        ("long line", len(lengths.check_file("a.cc", ["x" * 101], {})) == 1),
        ("long file", len(lengths.check_file("a.cc", ["x"] * 501, {})) == 1),
        ("mark", len(text.check_text("a.cc", "int a;  // TO" + "DO later\n")) == 1),
        ("path", len(text.check_text("a.cc", "// see /wo" + "rk/main/a\n")) == 1),
        ("clean", text.check_text("a.cc", "int a;\n") == []),
    ]
    wrong = [name for name, good in cases if not good]
    for name in wrong:
        print(f"self test: {name} went wrong")
    print(f"self test: {len(cases)} cases, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
