"""The embedded model's tokenizer: byte-level BPE with the V4.1 pre-tokenizer and added tokens.

Trained on generated text. Digits never merge (each stays one token), so that numbers which
training never saw are spelled like all others. build_token_map() makes the Engram token map by the
rule of the architecture: raw decode of each id, normalised by the tokenizers library.
"""

import array
import json
import sys

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

import data
import prompt

VOCAB = 2048
SPECIAL = {prompt.BOS, prompt.EOS, prompt.PAD, "<｜end_of_query｜>"}
SPLITS = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
]


def pre_tokenizer(single_digits):
    splits = list(SPLITS)
    if single_digits:
        splits[0] = r"\p{N}"
    steps = [pre_tokenizers.Split(Regex(s), "isolated", False) for s in splits]
    return pre_tokenizers.Sequence(
        steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train(seed, conversations):
    first = [prompt.BOS, prompt.EOS, prompt.PAD]
    base = VOCAB - len(prompt.ADDED)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(True)
    marks = sorted(first + prompt.ADDED, key=len, reverse=True)

    def texts():
        for spans in data.training_text(seed, conversations):
            text = "".join(t for t, _ in spans)
            for mark in marks:
                text = text.replace(mark, "\n\n\0")
            for piece in text.split("\n\n\0"):
                yield piece
        for piece in [chr(c) for c in range(32, 127)]:
            yield piece

    trainer = trainers.BpeTrainer(
        vocab_size=base, special_tokens=first, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts(), trainer)
    vocab = tokenizer.get_vocab_size()
    assert vocab == base, f"the corpus gave {vocab} of {base} entries"
    tokenizer.pre_tokenizer = pre_tokenizer(False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(
        add_prefix_space=True, trim_offsets=False, use_regex=True)
    tokenizer.normalizer = normalizers.Sequence([])
    for token in first + prompt.ADDED:
        entry = AddedToken(token, single_word=False, lstrip=False, rstrip=False, normalized=False,
                           special=token in SPECIAL)
        if token in SPECIAL:
            tokenizer.add_special_tokens([entry])
        else:
            tokenizer.add_tokens([entry])
    assert tokenizer.get_vocab_size() == VOCAB
    assert [tokenizer.token_to_id(t) for t in first] == [0, 1, 2]
    return tokenizer


def build_token_map(tokenizer):
    """int32 per token id: its compressed id; equal normalised texts share one."""
    lone = "\ue000"
    normaliser = normalizers.Sequence([
        normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "), normalizers.Replace(Regex(r"^ $"), lone),
        normalizers.Strip(), normalizers.Replace(lone, " ")])
    keys, out = {}, array.array("i")
    for token in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token], skip_special_tokens=False)
        if "\ufffd" in text:
            key = tokenizer.id_to_token(token)
        else:
            key = normaliser.normalize_str(text) or text
        out.append(keys.setdefault(key, len(keys)))
    return out, len(keys)


def check_normaliser(path):
    """The normaliser against golden/normaliser.json."""
    lone = "\ue000"
    normaliser = normalizers.Sequence([
        normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "), normalizers.Replace(Regex(r"^ $"), lone),
        normalizers.Strip(), normalizers.Replace(lone, " ")])
    cases = json.load(open(path))
    cases = cases["cases"] if isinstance(cases, dict) else cases
    wrong = [c for c in cases
             if (normaliser.normalize_str(c["text"]) or c["text"]) != c["normalized"]]
    return len(cases), wrong


if __name__ == "__main__":
    folder = sys.argv[1]
    made = train(seed=1, conversations=int(sys.argv[2]) if len(sys.argv) > 2 else 20000)
    made.save(f"{folder}/tokenizer.json")
    table, classes = build_token_map(made)
    if sys.byteorder == "big":
        table.byteswap()
    with open(f"{folder}/engram_token_map.i32", "wb") as out:
        out.write(table.tobytes())
    print(f"{made.get_vocab_size()} tokens, {classes} Engram classes")
