"""clang-tidy 14 has nothing to say about the sources of the product."""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

import tree

PRODUCT_DIRS = ("kernels", "engine", "daemon", "ctl")


FINDING = re.compile(r"^(.+?):(\d+):\d+: (?:error|warning): .*\[([\w.-]+)[],]")
WIDENING = "bugprone-implicit-widening-of-multiplication-result"


def matters(line: str) -> bool:
    """A product in a constexpr that overflowed would not compile; everywhere else it may."""
    found = FINDING.match(line)
    if not found or found[3] != WIDENING:
        return True
    number = int(found[2])
    lines = pathlib.Path(found[1]).read_text(encoding="utf-8").splitlines()
    return not any("constexpr" in text for text in lines[max(0, number - 2):number])


def check(tool: str, build: str, path: pathlib.Path) -> list[str]:
    out = subprocess.run([tool, "--quiet", "-p", build, "--extra-arg=-Wno-unknown-warning-option",
                          str(path)], capture_output=True, text=True)
    return sorted({line for line in out.stdout.splitlines()
                   if (" error: " in line or " warning: " in line) and matters(line)})


def main() -> int:
    root, build = pathlib.Path(sys.argv[1]), sys.argv[2]
    only = set(sys.argv[3:])  # paths from the root; none: every source
    tool = shutil.which("clang-tidy-14") or shutil.which("clang-tidy")
    if not tool:
        print("skipped: clang-tidy 14 is not installed")
        return 1 if "tidy" in os.environ.get("TENSORFOLD_REQUIRE", "") else 77
    files = [f for f in tree.code(root)
             if f.suffix == ".cc" and f.relative_to(root).parts[0] in PRODUCT_DIRS
             and (not only or f.relative_to(root).as_posix() in only)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = pool.map(lambda f: check(tool, build, f), files)
    problems = sorted({line for lines in found for line in lines})
    return tree.report("clang-tidy", problems, len(files))


if __name__ == "__main__":
    sys.exit(main())
