#!/usr/bin/env python3
"""Compare our tokenizer with the `tokenizers` package, id for id.

usage: tokenizer_differential.py TOKENIZE_FRAMES BUILD_DIR FETCH_BASE_PY

Makes a virtual environment under BUILD_DIR, installs the pinned `tokenizers` there, and compares
at least 20,000 generated strings plus every code point and a few long runs, for the V4.1 and V4
tokenizer.json. Exit status: 0 equal, 1 a difference, 77 the packages cannot be fetched (1 when
TENSORFOLD_REQUIRE names pypi).
"""
import os
import random
import struct
import subprocess
import sys

TOKENIZERS_VERSION = "0.23.3"  # its Unicode version is 16.0, the one unicode_class.cc fixes
STRINGS = 24000
SEED = 20261
EXIT_SKIP = 77
STEP_TIMEOUT_S = 300


def unreachable(reason):
    print(f"skipped: {reason}", file=sys.stderr)
    required = os.environ.get("TENSORFOLD_REQUIRE", "").split(",")
    sys.exit(1 if "pypi" in required else EXIT_SKIP)


def ensure_environment(folder):
    """Run again inside a virtual environment that has the pinned package."""
    python = os.path.join(folder, "bin", "python3")
    marker = os.path.join(folder, f"tokenizers-{TOKENIZERS_VERSION}")
    if not os.path.exists(marker):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        done = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check",
             f"tokenizers=={TOKENIZERS_VERSION}"],
            capture_output=True, text=True, timeout=STEP_TIMEOUT_S)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["pip gave no reason"]
            unreachable(f"tokenizers {TOKENIZERS_VERSION} cannot be installed: {lines[-1]}")
        open(marker, "w").close()
    if os.path.realpath(sys.prefix) != os.path.realpath(folder):
        os.execv(python, [python] + sys.argv)


ENGLISH = """The quick brown fox jumps over the lazy dog. It's what we'd expect, isn't it? Prices
rose 3.14% to $1,299.00 in 2024; see https://example.org/a?b=c&d=e#f or write to me@example.com.
def main(argv: list[str]) -> int:\n    for i, a in enumerate(argv):\n\t\tprint(f"{i}: {a!r}")
{"name": "get_weather", "arguments": {"location": "Zürich", "days": [1, 2, 3]}}
<tool_result>ok</tool_result> #include <vector>\r\nint x = a->b[i]++ << 2;""".split(" ")
RANGES = {
    "ascii": [(0x20, 0x7E)], "control": [(0x00, 0x1F), (0x7F, 0x9F)], "latin": [(0xA0, 0x24F)],
    "greek_cyrillic": [(0x370, 0x52F)], "hebrew_arabic": [(0x590, 0x6FF)],
    "indic_thai": [(0x900, 0xE5B)], "cjk": [(0x4E00, 0x9FFF), (0x3400, 0x4DBF)],
    "kana": [(0x3040, 0x30FF), (0x31F0, 0x31FF)], "hangul": [(0xAC00, 0xD7A3)],
    "cjk_punctuation": [(0x3000, 0x303F), (0xFF00, 0xFFEF)], "marks": [(0x300, 0x36F)],
    "emoji": [(0x1F300, 0x1FAFF), (0x2600, 0x27BF), (0xFE0F, 0xFE0F), (0x200D, 0x200D)],
    "spaces": [(0x2000, 0x200F), (0x2028, 0x202F), (0x205F, 0x2064), (0x1680, 0x1680)],
    "symbols": [(0x2190, 0x23FF), (0x20A0, 0x20CF)], "numbers": [(0x2150, 0x218F), (0x660, 0x669)],
    "rare": [(0x10000, 0x1FFFF)], "private": [(0xE000, 0xE0FF), (0x10FFF0, 0x10FFFF)],
    "any": [(0, 0xD7FF), (0xE000, 0x10FFFF)],
}


def generate(rng, specials):
    """One string of 1 to 12 parts of different kinds."""
    parts = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.30:
            parts.append(" ".join(rng.choices(ENGLISH, k=rng.randint(1, 8))))
        elif kind < 0.40:
            parts.append(rng.choice(" \n\t\r\u00a0\u3000") * rng.choice([1, 2, 3, 5, 17, 80, 300]))
        elif kind < 0.46:
            parts.append("".join(rng.choices(" \n\t\r", k=rng.randint(1, 30))))
        elif kind < 0.52:
            parts.append(str(rng.randint(0, 10 ** rng.randint(1, 25))))
        elif kind < 0.58:
            parts.append(rng.choice("aA1.,你é\u0301-=") * rng.choice([2, 7, 40, 400]))
        elif kind < 0.64:
            token = rng.choice(specials)
            parts.append(token if rng.random() < 0.6 else token[:rng.randint(1, len(token))])
        else:
            ranges = RANGES[rng.choice(list(RANGES))]
            for _ in range(rng.randint(1, 24)):
                low, high = rng.choice(ranges)
                parts.append(chr(rng.randint(low, high)))
                if rng.random() < 0.15:
                    parts.append(rng.choice([" ", "\n", "a", "\u0301", "1", "!"]))
    return "".join(parts)


def texts(specials, everything):
    rng = random.Random(SEED)
    for _ in range(STRINGS if everything else STRINGS // 8):
        yield generate(rng, specials)
    if not everything:
        return
    # Every code point beside a letter, a space, punctuation and a line end.
    code_points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    for at in range(0, len(code_points), 2048):
        chunk = [chr(c) for c in code_points[at:at + 2048]]
        yield "".join(c + f for c in chunk for f in ("a", " "))
        yield "".join(c + f for c in chunk for f in ("", "!"))
        yield "".join(f + c for c in chunk for f in (" ", "\n"))
    yield "a" * 1_000_000
    yield "ab" * 500_000
    yield " " * 100_000 + "x"
    yield "\n" * 50_000 + " " * 50_000 + "\n"
    yield "你好" * 100_000
    yield "<｜" * 100_000
    yield "1" * 300_001


def ours(tool, path, batch):
    frames = b"".join(struct.pack("<I", len(b)) + b for b in batch)
    done = subprocess.run([tool, path], input=frames, capture_output=True, timeout=STEP_TIMEOUT_S)
    if done.returncode != 0:
        sys.exit(f"{tool}: {done.stderr.decode(errors='replace')}")
    at, out = 0, []
    while at < len(done.stdout):
        (count,) = struct.unpack_from("<I", done.stdout, at)
        out.append(list(struct.unpack_from(f"<{count}I", done.stdout, at + 4)))
        at += 4 + 4 * count
    return out


def compare(tool, path, name, everything):
    from tokenizers import Tokenizer
    theirs = Tokenizer.from_file(path)
    specials = [t.content for t in theirs.get_added_tokens_decoder().values()]
    # Mostly tokens of the format, some of the hundreds of placeholders.
    specials = [s for s in specials if "place" not in s] + [s for s in specials if "place" in s][:20]
    all_texts = list(texts(specials, everything))
    mine = ours(tool, path, [t.encode() for t in all_texts])
    if len(mine) != len(all_texts):
        sys.exit(f"{name}: {len(mine)} answers to {len(all_texts)} texts")
    wrong = 0
    for text, got in zip(all_texts, mine):
        wanted = theirs.encode(text, add_special_tokens=False).ids
        if got != wanted:
            wrong += 1
            if wrong <= 5:
                at = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b),
                          min(len(got), len(wanted)))
                before = theirs.decode(wanted[:at], skip_special_tokens=False)
                print(f"{name}: differs at token {at}: ours {got[at:at + 8]}, "
                      f"theirs {wanted[at:at + 8]}, after {before[-30:]!r} of {text[:60]!r}")
    tokens = sum(map(len, mine))
    print(f"{name}: {len(all_texts)} texts, {tokens} tokens, {wrong} differ")
    return wrong


def main():
    tool, build, fetch = (os.path.abspath(a) for a in sys.argv[1:4])
    ensure_environment(os.path.join(build, "tokenizers_venv"))
    data = os.path.join(build, "tokenizer_data")
    status = subprocess.run([sys.executable, fetch, data], timeout=STEP_TIMEOUT_S).returncode
    if status == EXIT_SKIP:
        unreachable("the base vocabulary cannot be fetched")
    if status != 0:
        return 1
    wrong = 0
    # The two differ in their added tokens only, so one of them gets everything.
    for name, everything in (("v4.1", True), ("v4", False)):
        wrong += compare(tool, os.path.join(data, name, "tokenizer.json"), name, everything)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
