#!/usr/bin/env python3
"""Compare our JSON parser and Python-style writer with Python's own on generated texts.

usage: json_python.py JSON_LINES
"""
import json
import random
import re
import struct
import subprocess
import sys

TEXTS = 20000
SEED = 20262


def number(rng):
    kind = rng.random()
    if kind < 0.25:
        return str(rng.randint(-10 ** rng.randint(1, 60), 10 ** rng.randint(1, 60)))
    if kind < 0.55:  # every bit pattern of a double
        value = struct.unpack("<d", rng.randbytes(8))[0]
        return json.dumps(value)
    if kind < 0.75:
        return f"{rng.uniform(-1, 1):.{rng.randint(1, 25)}f}e{rng.randint(-330, 330)}"
    if kind < 0.9:
        return f"{rng.randint(0, 10 ** rng.randint(1, 22))}.{rng.randint(0, 10 ** rng.randint(1, 22))}"
    return rng.choice(["-0", "-0.0", "1e400", "-1e400", "1e-400", "1E+2", "NaN", "Infinity",
                       "-Infinity", "01", "1.", ".5", "+1", "1e", "-", "0x1", "1e22", "1e16",
                       "9007199254740993", "9007199254740993.0", "2.2250738585072014e-308"])


def string(rng):
    out = []
    for _ in range(rng.randint(0, 12)):
        kind = rng.random()
        if kind < 0.5:
            out.append(chr(rng.randint(0x20, 0x7E)).replace("\\", "\\\\").replace('"', '\\"'))
        elif kind < 0.7:
            out.append(rng.choice(['\\"', "\\\\", "\\/", "\\b", "\\f", "\\n", "\\r", "\\t"]))
        elif kind < 0.85:
            code = rng.choice([rng.randint(0, 0x1F), rng.randint(0, 0xD7FF), rng.randint(0xE000, 0xFFFF)])
            out.append(f"\\u{code:04x}" if rng.random() < 0.5 else f"\\u{code:04X}")
        elif kind < 0.9:
            code = rng.randint(0x10000, 0x10FFFF) - 0x10000
            out.append(f"\\ud{0x800 + (code >> 10):03x}\\ud{0xC00 + (code & 0x3FF):03x}")
        elif kind < 0.98:
            code = rng.choice([rng.randint(0xA0, 0x2FF), rng.randint(0x4E00, 0x9FFF), 0x2028, 0x7F,
                               rng.randint(0x1F300, 0x1FAFF)])
            out.append(chr(code))
        else:
            out.append(rng.choice(["\\x", "\\u12", "\\", "\t", "\\u00g0"]))
    return '"' + "".join(out) + '"'


def space(rng):
    return rng.choice(["", "", "", " ", "\t", "  "])


def value(rng, depth):
    kind = rng.random()
    if depth > 5 or kind < 0.35:
        return number(rng)
    if kind < 0.6:
        return string(rng)
    if kind < 0.7:
        return rng.choice(["true", "false", "null", "True", "nul"]) if rng.random() < 0.9 else ""
    items = rng.randint(0, 5)
    comma = space(rng) + "," + space(rng)
    if kind < 0.85:
        return "[" + comma.join(value(rng, depth + 1) for _ in range(items)) + space(rng) + "]"
    keys = [rng.choice(['"a"', '"b"', string(rng)]) for _ in range(items)]
    return "{" + comma.join(k + space(rng) + ":" + value(rng, depth + 1) for k in keys) + "}"


def theirs(text):
    try:
        decoded = json.loads(text)
    except ValueError:
        return "E", "N"
    dumped = json.dumps(decoded, ensure_ascii=False)
    dumped = re.sub("[\ud800-\udfff]", "\ufffd", dumped)  # our rule for lone surrogates

    def refuse(constant):
        raise ValueError(constant)
    try:
        json.loads(text, parse_constant=refuse)
        strict = "S"
    except ValueError:
        strict = "N"
    return "P " + dumped, strict


def main():
    rng = random.Random(SEED)
    texts = [value(rng, 0) for _ in range(TEXTS)]
    texts = [t for t in texts if "\n" not in t]
    done = subprocess.run([sys.argv[1]], input="\n".join(texts) + "\n", capture_output=True,
                          text=True, encoding="utf-8", timeout=100)
    # U+0085 and U+2028 are no line ends here.
    lines = done.stdout.split("\n")[:-1]
    if done.returncode != 0 or len(lines) != 2 * len(texts):
        sys.exit(f"{len(lines)} lines for {len(texts)} texts, exit status {done.returncode}")
    wrong = parsed = 0
    for i, text in enumerate(texts):
        wanted = theirs(text)
        parsed += wanted[0] != "E"
        if (lines[2 * i], lines[2 * i + 1]) != wanted:
            wrong += 1
            if wrong <= 5:
                print(f"{text!r}: expected {wanted}, found {lines[2 * i:2 * i + 2]}")
    print(f"{len(texts)} texts, {parsed} of them JSON, {wrong} differ")
    return 1 if wrong or parsed < TEXTS // 4 else 0


if __name__ == "__main__":
    sys.exit(main())
