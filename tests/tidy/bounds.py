"""docs/limits.md lists every bound that the headers name: it is made from them.

A bound is an `inline constexpr` number in a header of engine/, daemon/, ctl/ or kernels/ whose name
contains Max or Least or ends in a unit. What it bounds is its comment, behind it or above it.

  bounds.py ROOT           fails when docs/limits.md is not what the headers say
  bounds.py ROOT --write   writes it
"""

import pathlib
import re
import sys

import tree

BOUND = re.compile(r"^inline constexpr [\w:]+ (k\w*(?:Max|Least)\w*|k\w*(?:Bytes|Ms|Us|Seconds|Tokens|"
                   r"Rows|Depth|Items|Positions))\s*=\s*([^;\"]+);[ ]*(?://[ ]*(.*))?$", re.M)
HEAD = """# Limits

Every queue, buffer, line, depth and wait has a bound with a name. Names end in their unit where it
is not a count. This page is made from the headers by `tests/tidy/bounds.py`; a test keeps the two
equal. Limits that can be configured are in `etc/tensorfoldd.toml`.

| bound | value | what |
|---|---|---|
"""


def comment_above(text: str, start: int) -> str:
    lines = text[:start].rstrip("\n").split("\n")
    words = []
    while lines and lines[-1].startswith("// "):
        words.insert(0, lines.pop()[3:])
    return " ".join(words)


def rows(root: pathlib.Path) -> list[str]:
    found = []
    for path in sorted(tree.code(root)):
        name = path.relative_to(root).as_posix()
        if path.suffix != ".h" or name.split("/")[0] not in ("engine", "daemon", "ctl", "kernels"):
            continue
        text = path.read_text(encoding="utf-8")
        for match in BOUND.finditer(text):
            bound, value, words = match.group(1), " ".join(match.group(2).split()), match.group(3)
            words = (words or comment_above(text, match.start())).replace("|", "\\|")
            found.append(f"| `{bound}` | `{value}` | {name}{': ' if words else ''}{words} |")
    return found


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    page = root / "docs/limits.md"
    found = rows(root)
    wanted = HEAD + "\n".join(found) + "\n"
    if sys.argv[2:] == ["--write"]:
        page.write_text(wanted, encoding="utf-8")
        print(f"docs/limits.md: {len(found)} bounds")
        return 0
    there = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
    problems = [f"docs/limits.md lacks: {r}" for r in found if r not in there]
    problems += [f"docs/limits.md has, the headers do not: {r}" for r in there
                 if r.startswith("| `k") and r not in found]
    if problems:
        problems.append("tests/tidy/bounds.py ROOT --write makes the page anew")
    return tree.report("bounds", problems, len(found))


if __name__ == "__main__":
    sys.exit(main())
