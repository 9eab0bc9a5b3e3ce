"""Words and marks that have no place in the tree."""

import pathlib
import re
import sys

import tree

# Left-over marks. The words are put together here so that this file passes its own check.
MARKS = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX"]) + r")\b")
# Paths of one developer's machine.
PATHS = re.compile(r"(?<![\w.])/(" + "|".join(["wo" + "rk", "ro" + "ot", "ho" + "me/\\w+"]) + r")/")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
BINARY_DIRS = ("tests/data/", "packaging/tiny-model/model/", "packaging/engram-map/")
TEXT_SUFFIXES = (".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".md", ".txt", ".toml", ".cmake", ".json",
                 ".service", ".socket", ".conf", ".yml", "")


def check_text(name: str, text: str) -> list[str]:
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if MARKS.search(line):
            problems.append(f"{name}:{number}: a left-over mark: {line.strip()[:80]}")
        if PATHS.search(line):
            problems.append(f"{name}:{number}: a path of somebody's machine: {line.strip()[:80]}")
        if CONTROL.search(line):
            problems.append(f"{name}:{number}: a control character")
        if line.rstrip() != line and not name.endswith(".md"):
            problems.append(f"{name}:{number}: white space at the end")
        if "\t" in line and name.endswith((".h", ".cc", ".cu", ".cuh", ".py")):
            problems.append(f"{name}:{number}: a tab")
    if text and not text.endswith("\n"):
        problems.append(f"{name}: no newline at the end")
    return problems


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    problems, checked = [], 0
    for path in tree.tracked(root):
        name = path.relative_to(root).as_posix()
        if path.suffix not in TEXT_SUFFIXES or name.startswith(BINARY_DIRS) or name == "LICENSE":
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            problems.append(f"{name}: not UTF-8")
            continue
        checked += 1
        problems += check_text(name, text)
    return tree.report("text", problems, checked)


if __name__ == "__main__":
    sys.exit(main())
