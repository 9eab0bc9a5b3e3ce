"""Training batches: conversations tokenized, sorted into length buckets, made by worker processes.

A batch is (ids uint16 [B, L], kind uint8 [B, L]); kind 0 padding, 1 prompt, 2 reply. B * L is
constant. Batches come in an order that depends on the seed alone.
"""

import multiprocessing
import random

import numpy as np
from tokenizers import Tokenizer

import data

LENGTHS = (64, 96, 128, 192, 256, 384, 512, 768, 1536)
ROWS = 49152  # tokens in a batch, padding included
PAD_ID = 2
SHARD = 3000  # conversations per shard

_state = {}


def _start(folder):
    _state["tokenizer"] = Tokenizer.from_file(f"{folder}/tokenizer.json")


def shard(job):
    """One shard: (bucket, ids, kind) rows grouped by bucket."""
    seed, index = job
    rng = random.Random(f"shard {seed} {index}")
    rendered = list(data.training_text(f"{seed}.{index}", SHARD))
    for _ in range(SHARD // 150):  # a few long conversations without tools
        rendered.append(data.long_conversation(rng))
    texts = [text for conversation in rendered for text, _ in conversation]
    encoded = iter(_state["tokenizer"].encode_batch_fast(texts, add_special_tokens=False))
    buckets = {}
    for conversation in rendered:
        ids, kinds = [], []
        for _, reply in conversation:
            part = next(encoded).ids
            ids += part
            kinds += [2 if reply else 1] * len(part)
        length = next((n for n in LENGTHS if n >= len(ids)), None)
        if length is None:
            continue
        row = np.full((2, length), PAD_ID, np.uint16)
        row[0, :len(ids)], row[1] = ids, 0
        row[1, :len(ids)] = kinds
        buckets.setdefault(length, []).append(row)
    return {n: np.stack(rows) for n, rows in buckets.items()}


class Batches:
    """Iterator over batches; `skip` shards were used by earlier parts."""

    def __init__(self, folder, seed, workers, skip=0):
        context = multiprocessing.get_context("spawn")
        self.pool = context.Pool(workers, _start, (folder,))
        self.used = skip
        self.waiting = {n: [] for n in LENGTHS}
        jobs = ((seed, index) for index in range(skip, 10 ** 9))
        self.jobs, self.pending = jobs, []
        for _ in range(workers * 3):
            self.pending.append(self.pool.apply_async(shard, (next(jobs),)))

    def __iter__(self):
        ready = []
        rng = random.Random(self.used)
        while True:
            while len(ready) < 24:
                part = self.pending.pop(0).get()
                self.pending.append(self.pool.apply_async(shard, (next(self.jobs),)))
                self.used += 1
                for length, rows in part.items():
                    self.waiting[length].append(rows)
                    have = sum(len(r) for r in self.waiting[length])
                    need = ROWS // length
                    if have >= need:
                        whole = np.concatenate(self.waiting[length])
                        while len(whole) >= need:
                            ready.append((length, whole[:need]))
                            whole = whole[need:]
                        self.waiting[length] = [whole]
            yield ready.pop(rng.randrange(len(ready)))

    def close(self):
        self.pool.terminate()
