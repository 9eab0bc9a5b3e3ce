"""Lines up to 100 columns, functions up to 70 lines, files up to 500.

A ratchet: what is already longer stands in lengths_allowed.txt with its length and may not grow.
"""

import pathlib
import re
import sys

import tree

LINE_COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500

# The start of a function body at column 0 .. its closing brace at column 0.
BODY_OPEN = re.compile(r"^[^\s#/}{].*\)[^;=]*\{\s*$")


def functions(lines: list[str]):
    """Yields (first line number, name, length) of bodies that start at column 0."""
    start, head = None, ""
    signature = ""
    for number, line in enumerate(lines, 1):
        if start is None:
            signature = line if re.match(r"^[^\s#/}{]", line) else signature + line
            if BODY_OPEN.match(line) or (line.startswith(" ") and line.rstrip().endswith("{")
                                         and re.match(r"^\w.*\([^;]*$", signature)
                                         and ")" in line):
                if re.match(r"^(namespace|struct|class|enum|union|extern|template<>)\b", signature):
                    continue
                start, head = number, signature.strip()
        elif line.startswith("}"):
            yield start, head[:60], number - start + 1
            start = None


def load_allowed(path: pathlib.Path) -> dict[str, int]:
    allowed = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, length = line.rsplit(None, 1)
            allowed[name] = int(length)
    return allowed


def check_file(name: str, lines: list[str], allowed: dict[str, int]) -> list[str]:
    problems = []
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_COLUMNS_MAX and "http" not in line:
            problems.append(f"{name}:{number}: {len(line)} columns (at most {LINE_COLUMNS_MAX})")
    limit = max(FILE_LINES_MAX, allowed.get(name, 0))
    if len(lines) > limit:
        problems.append(f"{name}: {len(lines)} lines (at most {limit})")
    for number, head, length in functions(lines):
        limit = max(FUNCTION_LINES_MAX, allowed.get(f"{name}:{head.split('(')[0].split()[-1]}", 0))
        if length > limit:
            problems.append(f"{name}:{number}: function of {length} lines (at most {limit}): {head}")
    return problems


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    allowed = load_allowed(pathlib.Path(__file__).with_name("lengths_allowed.txt"))
    problems, files = [], tree.code(root)
    for path in files:
        name = path.relative_to(root).as_posix()
        problems += check_file(name, path.read_text(encoding="utf-8").splitlines(), allowed)
    return tree.report("lengths", problems, len(files))


if __name__ == "__main__":
    sys.exit(main())
