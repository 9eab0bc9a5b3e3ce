#!/usr/bin/env python3
"""Builds the Engram token map of a tokenizer.json: token id -> compressed id.

Tokens whose text is alike after normalizing (" The", "the", "THE") share a compressed id; the
Engram hash runs over compressed ids. The rule is that of the model's training: for each token id in
order, the text of that one token decides a key, and a new key takes the next compressed id. The
normalizer is that of the `tokenizers` library, whose Unicode tables the model was trained with;
other Unicode tables give other classes, so this script does not reimplement it.

  build_map.py TOKENIZER_JSON --vocab 129280 --classes 99092 --map OUT.i32
  build_map.py TOKENIZER_JSON --vocab 129280 --classes 99092 --packed OUT.map

--map writes little-endian int32, one per token: a model folder's engram_token_map.i32.
--packed writes the form that the program carries (engine/weights/token_map.h).
Needs: pip install tokenizers==0.23.2
"""

import argparse
import pathlib
import struct
import sys

LONE_SPACE = "\ue000"  # keeps a token that is one space from becoming empty
UNDECODABLE = "\ufffd"
MAGIC = b"TFEMAP1\n"


def make_normalizer():
    """The normalizer of the keys; a function from text to text."""
    from tokenizers import Regex, normalizers

    chain = normalizers.Sequence([
        normalizers.NFKC(),
        normalizers.NFD(),
        normalizers.StripAccents(),
        normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
        normalizers.Replace(Regex(r"^ $"), LONE_SPACE),
        normalizers.Strip(),
        normalizers.Replace(LONE_SPACE, " "),
    ])
    return chain.normalize_str


def key_of(text: str, vocabulary_string: str, normalize) -> str:
    if UNDECODABLE in text:
        return vocabulary_string  # part of a UTF-8 sequence: nothing to normalize
    return normalize(text) or text


def build_map(tokenizer, vocab: int) -> list[int]:
    normalize = make_normalizer()
    classes: dict[str, int] = {}
    token_map = []
    for token in range(vocab):
        name = tokenizer.id_to_token(token)
        if name is None:
            raise SystemExit(f"build_map: the tokenizer has no token {token}")
        text = tokenizer.decode([token], skip_special_tokens=False)
        token_map.append(classes.setdefault(key_of(text, name, normalize), len(classes)))
    return token_map


def pack(token_map: list[int]) -> bytes:
    """One bit per token (1: it begins a new class), then 3 bytes for each token that does not."""
    bits = bytearray((len(token_map) + 7) // 8)
    repeats = bytearray()
    classes = 0
    for token, value in enumerate(token_map):
        if value == classes:
            bits[token // 8] |= 1 << token % 8
            classes += 1
        else:
            repeats += value.to_bytes(3, "little")
    return MAGIC + struct.pack("<II", len(token_map), classes) + bytes(bits) + bytes(repeats)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("--vocab", type=int, required=True, help="entries of the map")
    parser.add_argument("--classes", type=int, help="fail unless there are exactly so many")
    parser.add_argument("--map", type=pathlib.Path, help="write little-endian int32")
    parser.add_argument("--packed", type=pathlib.Path, help="write the packed form")
    args = parser.parse_args()

    from tokenizers import Tokenizer

    token_map = build_map(Tokenizer.from_file(str(args.tokenizer)), args.vocab)
    classes = max(token_map) + 1
    print(f"{len(token_map)} tokens, {classes} classes")
    if args.classes is not None and classes != args.classes:
        print(f"build_map: {classes} classes, expected {args.classes}", file=sys.stderr)
        return 1
    if args.map:
        args.map.write_bytes(struct.pack(f"<{len(token_map)}i", *token_map))
    if args.packed:
        args.packed.write_bytes(pack(token_map))
    return 0


if __name__ == "__main__":
    sys.exit(main())
