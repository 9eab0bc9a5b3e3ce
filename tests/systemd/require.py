"""Tools that a test needs: absent, the test is skipped with the reason, or fails where it must run."""

import os
import shutil
import sys
import typing

SKIP = 77


def skip(reason: str, feature: str) -> typing.NoReturn:
    """Ends the test. `feature` is its name in TENSORFOLD_REQUIRE."""
    wanted = feature in os.environ.get("TENSORFOLD_REQUIRE", "").split(",")
    print(f"{'failed' if wanted else 'skipped'}: {reason}")
    sys.exit(1 if wanted else SKIP)


def require(tools: list[str], feature: str) -> None:
    """Ends the test unless every tool is there."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        skip(f"not installed: {', '.join(missing)}", feature)


def report(problems: list[str], checked: int) -> int:
    for problem in problems:
        print(problem)
    print(f"{checked} checked, {len(problems)} wrong")
    return 1 if problems else 0
