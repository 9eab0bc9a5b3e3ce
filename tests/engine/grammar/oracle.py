"""Replies drawn from masks against a validator that is not ours (PyPI's jsonschema).

usage: oracle.py --work DIR --walks PROGRAM --tokenizer FILE --schemas DIR --count N [--plant]

Schemas: the JSON-Schema-Test-Suite's in tests/data and, when $TENSORFOLD_TEST_DATA has them, those
of real projects. Every reply must be JSON and valid. --plant validates each reply by another
schema: that must be noticed.
"""

import argparse
import decimal
import json
import math
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "e2e"))
from run import SKIPPED, install  # noqa: E402


def schemas(folder: pathlib.Path):
    out = []
    for file in sorted(folder.rglob("*.json")):
        content = json.loads(file.read_text())
        if isinstance(content, list):
            out += [g["schema"] for g in content if isinstance(g, dict) and "schema" in g]
    data = os.environ.get("TENSORFOLD_TEST_DATA")
    if data:
        for file in sorted((pathlib.Path(data) / "schemas/maskbench").glob("*.json")):
            content = json.loads(file.read_text())
            if "schema" in content and file.stat().st_size < 100_000:
                out.append(content["schema"])
    return out


class Undecided(Exception):
    """Where the validator's Python differs from the specification."""


def number(text):
    """A number as the validator's float, unless that is another number altogether."""
    value, exact = float(text), decimal.Decimal(text)
    if math.isinf(value) or value.is_integer() != (exact == exact.to_integral_value()) or \
            (value == 0) != (exact == 0):
        raise Undecided
    return value


def as_ecma(schema):
    """The schema with \\w, \\d and \\s as ECMA-262 has them: the first two are ASCII, where Python
    takes all of Unicode; white space has U+FEFF in it and not U+001C to U+001F or U+0085."""
    spelled = {"w": "a-zA-Z0-9_", "d": "0-9",
               "s": r"\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"}

    def pattern(text):
        out, inside, at = "", False, 0
        while at < len(text):
            pair = text[at:at + 2]
            if pair[0] == "\\" and len(pair) == 2:
                low = pair[1].lower()
                if low in spelled and inside and pair[1] == low:
                    out += spelled[low]
                elif low in spelled and not inside:
                    out += f"[{'^' if pair[1] != low else ''}{spelled[low]}]"
                else:
                    out += pair
                at += 2
                continue
            inside = pair[0] == "[" or (inside and pair[0] != "]")
            out += pair[0]
            at += 1
        return out

    if isinstance(schema, list):
        return [as_ecma(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, value in schema.items():
        if key == "pattern" and isinstance(value, str):
            out[key] = pattern(value)
        elif key == "patternProperties" and isinstance(value, dict):
            out[key] = {pattern(k): as_ecma(v) for k, v in value.items()}
        else:
            out[key] = value if key in ("enum", "const") else as_ecma(value)
    return out


def check(options) -> int:
    import jsonschema
    from jsonschema import validators
    every = schemas(pathlib.Path(options.schemas))
    lines = options.work / "schemas.jsonl"
    lines.write_text("".join(json.dumps(s) + "\n" for s in every))
    run = subprocess.run([options.walks, str(lines), options.tokenizer, str(options.count), "7"],
                         capture_output=True, text=True, check=False)
    if run.returncode != 0:
        print(run.stderr[-2000:])
        return 1
    known, bad, checked, silent = {}, 0, 0, 0
    # Not splitlines(): replies hold other line ends of Unicode.
    replies = [json.loads(line) for line in run.stdout.split("\n") if line]
    for at, reply in enumerate(replies):
        index = replies[at - 1]["schema"] if options.plant else reply["schema"]
        if index not in known:
            kind = validators.validator_for(every[index], default=jsonschema.Draft202012Validator)
            known[index] = kind(as_ecma(every[index]))
        try:
            value = json.loads(reply["reply"], parse_float=number)
            error = next(known[index].iter_errors(value), None)
        except json.JSONDecodeError as broken:
            error = broken
        except Exception:  # it cannot resolve a reference that only the suite's server has
            silent += 1
            continue
        checked += 1
        if error is not None:
            bad += 1
            if bad <= 5:
                print(f"schema {json.dumps(every[index])[:600]}\nreply {reply['reply'][:300]!r}\n"
                      f"{str(error)[:300]}\n")
    print(f"{checked} replies of {len(known)} schemas checked, {bad} refused, {silent} not decided")
    if options.plant:
        return 0 if bad > checked // 10 else 1
    return 1 if bad or checked < options.count // 2 else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True, type=pathlib.Path)
    for name in ("walks", "tokenizer", "schemas"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--plant", action="store_true")
    parser.add_argument("--inside", action="store_true")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.inside:
        return check(options)
    python = install(options.work)
    if python is None:
        print("skipped: the package index cannot be reached, so there is no jsonschema package")
        return SKIPPED
    return subprocess.run([python, __file__, *sys.argv[1:], "--inside"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
