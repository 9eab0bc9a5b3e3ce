"""README.md stays true: its commands exist, its links lead somewhere, docs too."""

import pathlib
import re
import sys

import tree

COMMAND = re.compile(r"^(?:\$ )?(packaging/[\w\-]+)((?: [\w\-]+)*)", re.M)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`((?:kernels|engine|daemon|ctl|packaging|systemd|etc|tests|docs)/[\w./\-]+)`")
TEST = re.compile(r"add_test\(NAME ([\w/.\-]+)")
REQUIRED = ("packaging/bootstrap run", "packaging/bootstrap test")


def named_tests(root: pathlib.Path) -> set[str]:
    """ctest names that are written out; the others follow from the file (x/y_test.cc)."""
    files = (root / "tests").rglob("CMakeLists.txt")
    return {name for file in files for name in TEST.findall(file.read_text(encoding="utf-8"))}


def check_document(root: pathlib.Path, path: pathlib.Path, tests: set[str]) -> list[str]:
    name = path.relative_to(root).as_posix()
    text = path.read_text(encoding="utf-8")
    problems = []
    for link in LINK.findall(text):
        if "://" not in link and not (path.parent / link).exists():
            problems.append(f"{name}: link to {link}, which does not exist")
    for target in PATH.findall(text):
        test = target in tests or list((root / "tests").glob(target + "_test.cc"))
        if not (root / target).exists() and not test and not list(
                root.glob(target.rstrip("/") + ".*")):
            problems.append(f"{name}: names {target}, which does not exist")
    for program, _ in COMMAND.findall(text):
        if not (root / program).exists():
            problems.append(f"{name}: runs {program}, which does not exist")
    return problems


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    documents = [f for f in tree.tracked(root) if f.suffix == ".md"]
    problems = []
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    for command in REQUIRED:
        if command not in text:
            problems.append(f"README.md: the command '{command}' is not there")
    usage = (root / "packaging/bootstrap").read_text(encoding="utf-8")
    for program, arguments in COMMAND.findall(text):
        verb = arguments.split()[0] if arguments.split() else ""
        if program == "packaging/bootstrap" and not re.search(rf"^  {verb}\)", usage, re.M):
            problems.append(f"README.md: bootstrap has no '{verb}'")
    tests = named_tests(root)
    for document in documents:
        problems += check_document(root, document, tests)
    return tree.report("documents", problems, len(documents))


if __name__ == "__main__":
    sys.exit(main())
