"""The source tree as the style tests see it: tracked files by kind."""

import pathlib
import subprocess

SOURCE_DIRS = ("kernels", "engine", "daemon", "ctl", "tests")
CODE_SUFFIXES = (".h", ".cc", ".cu", ".cuh")


def tracked(root: pathlib.Path) -> list[pathlib.Path]:
    """Every file under version control, or every file where there is no git."""
    if (root / ".git").exists():
        out = subprocess.run(
            ["git", "-C", str(root), "-c", f"safe.directory={root}", "ls-files", "-z"],
            capture_output=True, check=True).stdout
        files = [root / p for p in out.decode().split("\0") if p]
        return [f for f in files if f.is_file()]
    skip = {"build", ".git"}
    return [f for f in root.rglob("*")
            if f.is_file() and not skip & set(f.relative_to(root).parts[:1])]


def code(root: pathlib.Path) -> list[pathlib.Path]:
    """C++ and CUDA files of the project."""
    return [f for f in tracked(root)
            if f.suffix in CODE_SUFFIXES and f.relative_to(root).parts[0] in SOURCE_DIRS]


def report(name: str, problems: list[str], checked: int) -> int:
    """Prints what is wrong; the exit status of the test."""
    for problem in problems:
        print(problem)
    if checked == 0:
        print(f"{name}: nothing to check: the tree was not found")
        return 1
    print(f"{name}: {checked} checked, {len(problems)} wrong")
    return 1 if problems else 0
