"""docs/limits.md lists every bound that the code names, with the value that the code has.

A bound is a `constexpr ... k<Name>Max...` or one whose name ends in a unit, in a header of engine/
or daemon/. A row of the table is: | `kName` | value | what it bounds |
"""

import pathlib
import re
import sys

import tree

BOUND = re.compile(r"inline constexpr [\w:]+ (k\w*(?:Max|Bytes|Ms|Us|Seconds|Tokens|Rows|Depth|"
                   r"Items|Limit)\w*) = ([^;]+);")
ROW = re.compile(r"^\| `(k\w+)` \| ([^|]+) \|", re.M)


def code_bounds(root: pathlib.Path) -> dict[str, str]:
    bounds = {}
    for path in tree.code(root):
        name = path.relative_to(root).as_posix()
        if path.suffix == ".h" and name.split("/")[0] in ("engine", "daemon", "ctl"):
            for bound, value in BOUND.findall(path.read_text(encoding="utf-8")):
                bounds[bound] = " ".join(value.split())
    return bounds


def table_rows(text: str) -> dict[str, str]:
    return {name: value.strip().strip("`") for name, value in ROW.findall(text)}


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    bounds = code_bounds(root)
    rows = table_rows((root / "docs/limits.md").read_text(encoding="utf-8"))
    problems = [f"docs/limits.md: no row for {b} = {v}" for b, v in bounds.items() if b not in rows]
    problems += [f"docs/limits.md: {b} is {rows[b]} there and {v} in the code"
                 for b, v in bounds.items() if b in rows and rows[b] != v]
    problems += [f"docs/limits.md: {r} is not in the code" for r in rows if r not in bounds]
    return tree.report("bounds", problems, len(bounds))


if __name__ == "__main__":
    sys.exit(main())
