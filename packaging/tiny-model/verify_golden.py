"""Compares model.py with the golden results of the mini model: verify_golden.py GOLDEN_FOLDER

Teacher-forced rows layer by layer, then whole prefills and drafts. Weights: mini_native
dequantised, bfloat16 activations (configuration A). Exits 1 past a bound.
"""

import sys

import numpy as np
import torch

import model
import weights_io
from config import Config

LIMITS = {"X_out": 0.006, "pre_out": 1e-3, "attn_y": 0.02, "ffn_y": 0.02, "tap": 0.006,
          "lists": 0.15, "logits": 0.035, "X": 0.035, "base_logits": 0.01, "conf": 0.02}


def rel(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))


def mix(values):
    z = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def teacher_forced(m, c, gold, report):
    n, s = 304, np.uint64(1 << 32)
    t = np.arange(n, dtype=np.uint64)
    ids = 3 + (mix(s + np.uint64((1 << 31) + (1 << 30)) + t) >> np.uint64(32)) % np.uint64(900)
    assert (ids == gold["ids"][1]).all()
    rows = gold["rows"][1]

    def inject(layer):
        base = (np.uint64(layer * n) + t)[:, None] * np.uint64(4) + np.arange(4, dtype=np.uint64)
        at = base[:, :, None] * np.uint64(c.hidden) + np.arange(c.hidden, dtype=np.uint64)
        x = ((mix(s + at) >> np.uint64(56)).astype(np.float32) - 128) / 64
        pre = ((mix(s + np.uint64(1 << 31) + base) >> np.uint64(56)).astype(np.float32) + 1) / 256
        return torch.from_numpy(x).to(torch.bfloat16), torch.from_numpy(pre)

    m.inject, m.detail = inject, {}
    m.backbone(torch.from_numpy(ids.astype(np.int64))[None])
    d, m.inject = m.detail, None
    lists = different = 0
    equal = {}
    for layer in c.index_sources:
        picked = d["index"][layer][1][0].numpy()
        want = gold[f"bf16.topk.{layer}"][1]
        equal[layer] = [set(np.flatnonzero(picked[r])) == set(w[w >= 0].tolist())
                        for r, w in zip(rows, want)]
        lists += len(rows)
        different += equal[layer].count(False)
    report("lists", different / lists)
    for layer in range(c.layers):
        p = f"layers.{layer}."
        same = np.ones(len(rows), bool)
        if c.ratios[layer]:
            same = np.array(equal[c.source(c.index_sources, layer)])
        report("X_out", rel(d["X"][layer][rows].float(), gold["bf16.X_out"][1][layer]), layer)
        report("attn_y", rel(d["attn_y"][p][rows].float()[same], gold["bf16.attn_y"][1][layer][same]), layer)
        w, mask = d["route"][p]
        want = gold["bf16.route_ids"][1][layer]
        routed = np.array([set(np.flatnonzero(mask[r])) == set(i) for r, i in zip(rows, want)])
        both = same & routed  # a flipped choice moves the streams that pre is made from
        report("pre_out", rel(d["pre"][layer][rows][both], gold["bf16.pre_out"][1][layer][both]), layer)
        report("ffn_y", rel(d["ffn_y"][p][rows].float()[routed], gold["bf16.ffn_y"][1][layer][routed]), layer)
    m.detail = None


def prefill(m, c, gold, name, report):
    ids = gold[f"{name}.prompt"][1].astype(np.int64)
    tokens = gold[f"{name}.tokens"][1].astype(np.int64)
    whole = torch.from_numpy(np.concatenate([ids, tokens[:-1]]))[None]
    m.detail = {}
    hidden, taps = m.backbone(whole)
    logits, n = m.head(hidden), len(ids)
    for layer in range(c.layers):
        want = gold[f"{name}.prefill.X"][1][layer]
        report("X", rel(m.detail["X"][layer][n - want.shape[0]:n].float(), want), layer)
    want = gold[f"{name}.prefill.engram_rows"][1]
    got = np.stack([m.detail["engram_rows"][i][0].numpy()[:n] for i in range(len(c.engram_layers))])
    assert (got == want).all(), "Engram rows differ"
    m.detail = None
    want = gold[f"{name}.prefill.logits"][1]
    report("logits", rel(logits[n - want.shape[0]:n], want))
    report("logits", rel(logits[n:], gold[f"{name}.decode.logits"][1]))
    positions = torch.from_numpy(gold[f"{name}.draft.pos"][1].astype(np.int64))[None]
    base, x = m.draft(whole, taps, positions)
    if f"{name}.draft.base_logits" in gold:
        report("base_logits", rel(base[0], gold[f"{name}.draft.base_logits"][1]))
    drafted = torch.from_numpy(gold[f"{name}.draft.ids"][1].astype(np.int64))
    first = torch.from_numpy(gold[f"{name}.draft.in_id"][1].astype(np.int64))
    previous = torch.cat([first[:, None], drafted[:, :-1]], 1)
    extra, e = m.markov(previous)
    report("conf", rel(m.confidence(x[0], e), gold[f"{name}.draft.conf"][1]))
    agree = ((base[0].float() + extra).argmax(-1) == drafted).float().mean().item()
    print(f"  {name}: drafts equal {agree:.2f}, greedy equal "
          f"{(logits[n - 1:].argmax(-1)[:len(tokens)].numpy() == tokens).mean():.2f}")


def main():
    folder = sys.argv[1]
    torch.set_grad_enabled(False)
    c = Config.load(f"{folder}/mini_bf16/config.json")
    flat = weights_io.dequantized(weights_io.read(f"{folder}/mini_native/model.safetensors"))
    token_map = np.fromfile(f"{folder}/mini_bf16/engram_token_map.i32", "<i4")
    m = model.Model(c, weights_io.stacked(c, flat), token_map, exact=True, select=True)
    worst = {}

    def report(kind, value, layer=None):
        worst[kind] = max(worst.get(kind, 0.0), value)
        if value > LIMITS[kind]:
            print(f"  over: {kind} layer {layer}: {value:.4f}")

    def load(name):
        try:
            return weights_io.read(f"{folder}/{name}.xz")
        except FileNotFoundError:
            return weights_io.read(f"{folder}/{name}")

    teacher_forced(m, c, load("teacher_forced.safetensors"), report)
    gold = load("mini_bf16/golden.safetensors")
    for name in ("p7", "p31", "p300"):
        prefill(m, c, gold, name, report)
    for kind, value in worst.items():
        print(f"{kind}: {value:.5f} (bound {LIMITS[kind]})")
    sys.exit(any(value > LIMITS[kind] for kind, value in worst.items()))


if __name__ == "__main__":
    main()
