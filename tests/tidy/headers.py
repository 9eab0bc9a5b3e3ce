"""Every header compiles alone."""

import concurrent.futures
import os
import pathlib
import subprocess
import sys

import tree

PACKAGES = ["libuv", "tomlplusplus", "libsystemd", "simdjson", "libutf8proc", "libcrypto"]


def compile_header(compiler: str, flags: list[str], root: pathlib.Path, header: str) -> str:
    """The compiler's words, or nothing when the header is fine."""
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", f"-I{root}", *flags,
               '-DTF_VERSION="0"', '-DTF_SOURCE_DIR="."', "-x", "c++", "-"]
    out = subprocess.run(command, input=f'#include "{header}"\n', capture_output=True, text=True)
    if out.returncode == 0:
        return ""
    first = [line for line in out.stderr.splitlines() if "error" in line][:3]
    return f"{header}: does not compile alone: " + " | ".join(first)


def main() -> int:
    root, compiler = pathlib.Path(sys.argv[1]), sys.argv[2]
    found = subprocess.run(["pkg-config", "--cflags", *PACKAGES], capture_output=True, text=True)
    flags = found.stdout.split() + ["-I/usr/share/include/llhttp", "-I/usr/include/llhttp"]
    headers = [f.relative_to(root).as_posix() for f in tree.code(root) if f.suffix == ".h"]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = pool.map(lambda h: compile_header(compiler, flags, root, h), headers)
    return tree.report("headers", [r for r in results if r], len(headers))


if __name__ == "__main__":
    sys.exit(main())
