"""Who may include whom (docs/architecture.md, "Folders")."""

import pathlib
import re
import sys

import tree

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def allowed(source: str, target: str) -> bool:
    """Whether a file `source` may include the project header `target`."""
    top = source.split("/")[0]
    if top == "tests":
        return True
    if top == "kernels":
        return target.startswith("kernels/") or target.startswith("engine/base/")
    if top == "engine":
        if target.startswith("kernels/"):
            return target.count("/") == 1  # the operations' headers, not a backend's
        return target.startswith("engine/")
    if top == "daemon":
        return (target in ("engine/engine.h", "engine/planned_memory.h")
                or target.startswith("engine/base/")
                or target.startswith("daemon/"))
    if top == "ctl":
        return (target == "daemon/control/protocol.h" or target.startswith("daemon/api/")
                or target.startswith("daemon/config/")
                or target.startswith("daemon/preflight/") or target.startswith("engine/") or target.startswith("ctl/")
                or (target.startswith("kernels/") and target.count("/") == 1))
    return False


def libuv_free(source: str, text: str) -> bool:
    """daemon/api translates JSON; the event loop stays out of it."""
    return not (source.startswith("daemon/api/") and re.search(r"#include\s+<uv\.h>", text))


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    problems, files = [], tree.code(root)
    for path in files:
        source = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        for target in INCLUDE.findall(text):
            if not (root / target).exists():
                problems.append(f"{source}: includes \"{target}\", which is not a path from the root")
            elif not allowed(source, target):
                problems.append(f"{source}: must not include {target}")
        if not libuv_free(source, text):
            problems.append(f"{source}: daemon/api must not use libuv")
    return tree.report("include direction", problems, len(files))


if __name__ == "__main__":
    sys.exit(main())
