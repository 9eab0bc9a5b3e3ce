#!/usr/bin/env python3
"""The Engram token map: the script's normalizer against recorded keys, and the shipped map rebuilt.

usage: engram_map.py BUILD_DIR PROJECT_DIR

Makes a virtual environment under BUILD_DIR with the pinned `tokenizers`, checks every case of
tests/data/weights/normaliser.json, builds the map of the V4.1 tokenizer.json again and compares it
with packaging/engram-map/v41.map byte for byte. Exit status: 0 equal, 1 a difference, 77 the
packages cannot be fetched (1 when TENSORFOLD_REQUIRE names pypi).
"""
import importlib.util
import json
import os
import pathlib
import struct
import subprocess
import sys

TOKENIZERS_VERSION = "0.23.2"
VOCABULARY = 129280
CLASSES = 99092
EXIT_SKIP = 77
STEP_TIMEOUT_S = 300


def unreachable(reason):
    print(f"skipped: {reason}", file=sys.stderr)
    required = os.environ.get("TENSORFOLD_REQUIRE", "").split(",")
    sys.exit(1 if "pypi" in required else EXIT_SKIP)


def ensure_environment(folder):
    """Run again inside a virtual environment that has the pinned package."""
    python = folder / "bin" / "python3"
    marker = folder / f"tokenizers-{TOKENIZERS_VERSION}"
    if not marker.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--no-deps",
             "--disable-pip-version-check", f"tokenizers=={TOKENIZERS_VERSION}"],
            capture_output=True, text=True, timeout=STEP_TIMEOUT_S)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["pip gave no reason"]
            unreachable(f"tokenizers {TOKENIZERS_VERSION} cannot be installed: {lines[-1]}")
        marker.touch()
    if os.path.realpath(sys.prefix) != os.path.realpath(folder):
        os.execv(str(python), [str(python)] + sys.argv)


def load_script(path):
    spec = importlib.util.spec_from_file_location("build_map", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wrong_keys(script, cases):
    """Cases whose key differs; a vocabulary string stands for the key of undecodable text."""
    normalize = script.make_normalizer()
    wrong = 0
    for case in cases:
        vocabulary_string = "\0the vocabulary string"
        key = script.key_of(case["text"], vocabulary_string, normalize)
        wanted = vocabulary_string if case["contains_fffd"] else case["key"]
        if key != wanted:
            wrong += 1
            print(f"{case['text']!r}: key {key!r}, expected {wanted!r}")
    print(f"{len(cases)} keys, {wrong} differ")
    return wrong


def rebuilt_differs(project, tokenizer, work):
    """Whether the map of `tokenizer` differs from the shipped one, in either form."""
    script = project / "packaging/engram-map/build_map.py"
    packed, plain = work / "v41.map", work / "v41.i32"
    command = [sys.executable, str(script), str(tokenizer), "--vocab", str(VOCABULARY)]
    done = subprocess.run(command + ["--classes", str(CLASSES), "--packed", str(packed), "--map",
                                     str(plain)], timeout=STEP_TIMEOUT_S)
    if done.returncode != 0:
        return True
    token_map = struct.unpack(f"<{VOCABULARY}i", plain.read_bytes())
    if max(token_map) + 1 != CLASSES or token_map[2] != 2:
        print("the plain map has other classes")
        return True
    if packed.read_bytes() != (project / "packaging/engram-map/v41.map").read_bytes():
        print("the map differs from packaging/engram-map/v41.map")
        return True
    refused = subprocess.run(command + ["--classes", str(CLASSES - 1)], capture_output=True,
                             timeout=STEP_TIMEOUT_S)
    if refused.returncode != 1:
        print("another number of classes was not refused")
        return True
    return False


def main():
    build, project = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    ensure_environment(build / "engram_map_venv")
    script = load_script(project / "packaging/engram-map/build_map.py")
    cases = json.loads((project / "tests/data/weights/normaliser.json").read_text("utf-8"))["cases"]
    if wrong_keys(script, cases):
        return 1
    data = build / "tokenizer_data"
    fetch = project / "packaging/tokenizer/fetch_base.py"
    status = subprocess.run([sys.executable, str(fetch), str(data)],
                            timeout=STEP_TIMEOUT_S).returncode
    if status == EXIT_SKIP:
        unreachable("the base vocabulary cannot be fetched")
    if status != 0:
        return 1
    return 1 if rebuilt_differs(project, data / "v4.1" / "tokenizer.json", data) else 0


if __name__ == "__main__":
    sys.exit(main())
