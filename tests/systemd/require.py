"""Tools that a test needs: absent, the test is skipped with the reason, or fails where it must run."""

import os
import shutil
import sys

SKIP = 77


def require(tools: list[str], feature: str) -> None:
    """Ends the test unless every tool is there. `feature` is its name in TENSORFOLD_REQUIRE."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if not missing:
        return
    wanted = feature in os.environ.get("TENSORFOLD_REQUIRE", "").split(",")
    print(f"{'failed' if wanted else 'skipped'}: not installed: {', '.join(missing)}")
    sys.exit(1 if wanted else SKIP)


def report(problems: list[str], checked: int) -> int:
    for problem in problems:
        print(problem)
    print(f"{checked} checked, {len(problems)} wrong")
    return 1 if problems else 0
