"""Second moments of every projection's inputs, for `tfctl model quantize --hessian`.

moments.py OUT.safetensors --weights FILES --tokenizer FOLDER [--conversations N]: runs generated
text (a seed that training did not use) through the unquantised model on the CPU and sums x^T x per
input. Keys are those of docs/quantize.md.
"""

import argparse
import math

import numpy as np
import torch
from tokenizers import Tokenizer

import config
import data
import export
import model
import weights_io

SEED = "moments"


class Recorder(model.Model):
    """The exact model; every product adds its input rows to the moments of its key."""

    def __init__(self, c, weights, token_map):
        super().__init__(c, weights, token_map, exact=True)
        self.sums, self.counts, self.names = {}, {}, {}
        for name, w in weights.items():
            self.names[w.data_ptr()] = name
            if name.endswith("ffn.w2"):
                for e in range(w.shape[0]):
                    self.names[w[e].data_ptr()] = f"{name}.{e}"

    def add(self, key, x):
        x = x.reshape(-1, x.shape[-1]).float()
        x = x[x.abs().amax(1) > 0]  # an expert's rows that were not routed to it
        self.sums[key] = self.sums.get(key, 0) + x.t() @ x
        self.counts[key] = self.counts.get(key, 0) + len(x)

    def key(self, name):
        p, _, rest = name.rpartition(".attn.")
        if rest in ("wq_a.weight", "wkv.weight", "compressor.wkv.weight", "compressor.wgate.weight"):
            return p + ".attn.input"
        if rest in ("wq_b.weight", "indexer.wq_b.weight"):
            return p + ".attn.q_latent"
        if name.endswith("ffn.w13"):
            return name[: -len("w13")] + "input"
        if ".ffn.w2." in name:
            p, e = name.split(".ffn.w2.")
            shared = int(e) + 1 == self.w[p + ".ffn.w2"].shape[0]
            return p + (".ffn.shared_experts.w2" if shared else ".ffn.experts.w2")
        return name.removesuffix(".weight")

    def linear(self, x, w):
        self.add(self.key(self.names[w.data_ptr()]), x)
        return super().linear(x, w)

    def output(self, p, o):
        groups = o.reshape(-1, self.c.o_groups, o.shape[-1] * self.c.heads // self.c.o_groups)
        for g in range(self.c.o_groups):
            self.add(f"{p}attn.wo_a.slice.{g}", groups[:, g])
        return super().output(p, o)

    def head(self, hidden, norm="norm.weight"):
        self.add("head", model.rms_norm(hidden, self.w[norm], self.c.eps))
        return super().head(hidden, norm)


@torch.no_grad()
def record(m, tokenizer, conversations):
    for spans in data.training_text(SEED, conversations):
        ids, kinds = [], []
        for text, reply in spans:
            part = tokenizer.encode(text, add_special_tokens=False).ids
            ids += part
            kinds += [reply] * len(part)
        if not 16 <= len(ids) <= 768:
            continue
        row = torch.tensor(ids)[None]
        m.detail = {}  # the indexer's products too
        hidden, taps = m.backbone(row)
        m.detail = None
        m.head(hidden)
        at = [p for p in range(len(ids) - 7) if kinds[p + 2]][:: 4]
        if at:
            m.draft(row, taps, torch.tensor(at)[None])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--conversations", type=int, default=300)
    args = parser.parse_args()
    token_map = np.fromfile(f"{args.tokenizer}/engram_token_map.i32", "<i4")
    c = config.Config(config.tiny(int(token_map.max()) + 1))
    m = Recorder(c, export.load_checkpoint(args.weights), token_map)
    record(m, Tokenizer.from_file(f"{args.tokenizer}/tokenizer.json"), args.conversations)
    out = {}
    for key, value in m.sums.items():
        assert math.isfinite(float(value.sum()))
        out[key + ".hessian"] = ("F32", value.numpy())
        out[key + ".count"] = ("I64", np.array([m.counts[key]], np.int64))
    weights_io.write(args.out, out)
    print(f"{len(m.sums)} inputs, {m.counts['head']} rows")


if __name__ == "__main__":
    main()
