"""Trains the embedded model: backbone, DSpark drafter, then the indexer.

train.py --out FOLDER --tokenizer FOLDER [--steps N | --plan-seconds S] [--seconds S] [--seed N]

Resumable: a part stops after --seconds and writes FOLDER/state.pt (weights, optimizer, step); the
next call with the same --out goes on. With --plan-seconds the number of steps is set once from the
measured speed and kept in the state.

Backbone: cross entropy on the replies (prompts weigh PROMPT_WEIGHT). Drafter: cross entropy
against the model's own distribution at the drafted positions, on detached taps. From NOISE_FROM of
the steps on, weights carry the relative noise of their later quantisation. Indexer: in the last
part of the steps its own parameters alone learn the attention mass of the layers that read its
list (the backbone is frozen then).
"""

import argparse
import json
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

import batches
import config
import model

PROMPT_WEIGHT = 0.05
NOISE_FROM, NOISE_FULL = 0.35, 0.55
INDEX_SHARE = 0.03
ANCHOR_STRIDE = 16
PEAK_RATE = 3e-3
# relative noise of EXL3 by bits: about 2^-K
NOISE = {3: 0.13, 4: 0.065, 5: 0.035, 6: 0.018}


def noise_bits(name):
    if "ffn.w" in name:
        return 3
    if name.endswith(("wq_a.weight", "wkv.weight")) and ".attn." in name or name == "head.weight":
        return 6
    if ".attn.w" in name or "engram.wkv" in name or "compressor.w" in name or "main_proj" in name:
        return 5
    if "indexer.w" in name and "weights_proj" not in name:
        return 6
    return 0


def is_index(name):
    return ".indexer." in name


def is_matrix(name):
    return noise_bits(name) > 0 and name != "head.weight"


# ---- optimizer


def rate_factor(name):
    """Adam's rate relative to the schedule: small where one step moves many products at once."""
    if name.endswith("_fn"):
        return 0.1
    return 0.3 if "hc_" in name or "gate" in name else 1.0


def orthogonalize(g):
    """Newton-Schulz on a stack of matrices [n, a, b]."""
    x = g.to(torch.bfloat16)
    turned = x.shape[-2] > x.shape[-1]
    if turned:
        x = x.transpose(-1, -2)
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).to(x.dtype)
    for _ in range(5):
        a = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.transpose(-1, -2) if turned else x


def as_stack(name, w, c):
    """The independent matrices inside a stored tensor: a view [n, a, b]."""
    if name.endswith("w13"):
        return w.view(-1, c.inter, c.hidden)
    if name.endswith("wo_a.weight"):
        return w.view(c.o_groups, c.o_lora, -1)
    return w if w.dim() == 3 else w[None]


class Optimizer:
    """Muon for projections, Adam for the rest."""

    def __init__(self, c, weights):
        self.c = c
        self.matrices = {n: w for n, w in weights.items() if is_matrix(n)}
        self.momentum = {n: torch.zeros_like(w) for n, w in self.matrices.items()}
        groups = {}
        for n, w in weights.items():
            if not is_matrix(n) and w.requires_grad:
                groups.setdefault(rate_factor(n), []).append(w)
        self.adam = torch.optim.AdamW(
            [{"params": ws, "factor": factor} for factor, ws in groups.items()], lr=1.0,
            betas=(0.9, 0.97), eps=1e-10, weight_decay=0.0, fused=weights["embed.weight"].is_cuda)

    def step(self, rate):
        for group in self.adam.param_groups:
            group["lr"] = rate * group["factor"]
        self.adam.step()
        groups = {}
        for name, w in self.matrices.items():
            if w.grad is None:
                continue
            stack = as_stack(name, w.grad, self.c)
            groups.setdefault(tuple(stack.shape[1:]), []).append(name)
        for shape, names in groups.items():
            grads = [self.matrices[n].grad for n in names]
            moments = [self.momentum[n] for n in names]
            torch._foreach_lerp_(moments, grads, 1 - 0.95)
            ahead = torch._foreach_lerp(grads, moments, 0.95)
            stacks = [as_stack(n, g, self.c) for n, g in zip(names, ahead)]
            update = orthogonalize(torch.cat(stacks)).float()
            scale = 0.2 * math.sqrt(max(shape))
            start = 0
            for name, stack in zip(names, stacks):
                part = update[start:start + stack.shape[0]]
                start += stack.shape[0]
                w = self.matrices[name].data
                w.mul_(1 - rate * 0.05)
                w.add_(part.reshape(w.shape), alpha=-rate * scale)

    def zero(self):
        self.adam.zero_grad(set_to_none=True)
        for w in self.matrices.values():
            w.grad = None

    def state(self):
        return {"momentum": self.momentum, "adam": self.adam.state_dict()}

    def load(self, state):
        for name, m in state["momentum"].items():
            self.momentum[name].copy_(m)
        self.adam.load_state_dict(state["adam"])


# ---- losses


@model.maybe_compile
def token_loss(logits, targets, weights):
    logp = torch.log_softmax(logits.float(), -1)
    picked = logp.gather(1, targets[:, None]).squeeze(1)
    return -(picked * weights).sum() / weights.sum().clamp(min=1.0)


@model.maybe_compile
def draft_losses(logits, extra, target, confidence, weights):
    """Cross entropy to the target's distribution; confidence against 1 - |p_d - p_t|_1 / 2."""
    logp = torch.log_softmax(logits.float() + extra.float(), -1)
    p = torch.softmax(target.float(), -1)
    total = weights.sum().clamp(min=1.0)
    cross = -((p * logp).sum(-1) * weights).sum() / total
    overlap = 1 - 0.5 * (logp.detach().exp() - p).abs().sum(-1)
    bce = F.binary_cross_entropy_with_logits(confidence, overlap.clamp(0, 1), reduction="none")
    right = (logp.argmax(-1) == p.argmax(-1)).float()
    return cross, (bce * weights).sum() / total, (right * weights).sum() / total


def choose_anchors(kind, generator):
    """[B, K] positions p such that p + 2 is mostly a reply token."""
    B, L = kind.shape
    chance = torch.full((B, L), 1e-4, device=kind.device)
    chance[:, : L - 2] += (kind[:, 2:] == 2).float()
    chance[:, L - 7:] = 0
    return torch.multinomial(chance, max(L // ANCHOR_STRIDE, 1), generator=generator)


def losses(m, ids, kind, generator):
    c = m.c
    B, L = ids.shape
    hidden, taps = m.backbone(ids)
    logits = m.head(hidden)
    targets = torch.cat([ids[:, 1:], ids[:, :1]], 1).flatten()
    following = torch.cat([kind[:, 1:], torch.zeros_like(kind[:, :1])], 1).flatten()
    weights = (following == 2).float() + PROMPT_WEIGHT * (following == 1).float()
    main = token_loss(logits, targets, weights)

    anchors = choose_anchors(kind, generator)
    base, x = m.draft(ids, taps, anchors)
    steps = torch.arange(c.block, device=ids.device)
    at = (anchors[:, :, None] + 1 + steps).flatten(1)             # positions of the target's rows
    previous = ids.gather(1, at).view(B, -1, c.block)
    weight = (kind.gather(1, at + 1) == 2).float().flatten()
    rows = (at + L * torch.arange(B, device=ids.device)[:, None]).flatten()
    target = logits.detach()[rows]
    extra, e = m.markov(previous)
    sure = m.confidence(x.detach(), e.detach())
    cross, bce, right = draft_losses(base.flatten(0, 2), extra.flatten(0, 2), target, sure.flatten(), weight)
    return main, cross, bce, right


def index_loss(m, ids, kind):
    """KL between the attention mass on entries and the indexer's softmax, per index source."""
    c = m.c
    m.detail = {}
    m.backbone(ids)
    d, m.detail = m.detail, None
    B, L = ids.shape
    total = 0.0
    for layer, (scores, _) in d["index"].items():
        readers = [n for n in range(c.layers) if c.ratios[n] and c.source(c.index_sources, n) == layer]
        mass = sum(d["prob"][n].detach().float().sum(2) for n in readers)
        seen = m.visible(L, c.ratios[layer])
        use = (kind > 0) & (seen.sum(-1) > 1)[None]
        mass = mass / mass.sum(-1, keepdim=True).clamp(min=1e-6)
        logp = torch.log_softmax(scores.masked_fill(~seen, -1e9), -1)
        each = -(mass * logp).sum(-1)
        total = total + (each * use).sum() / use.sum()
    return total


# ---- the run


class Run:
    def __init__(self, args):
        self.args = args
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        token_map = np.fromfile(f"{args.tokenizer}/engram_token_map.i32", "<i4")
        self.c = config.Config(config.tiny(int(token_map.max()) + 1))
        path = f"{args.out}/state.pt"
        saved = torch.load(path, map_location="cpu") if os.path.exists(path) else None
        weights = saved["weights"] if saved else model.initial_weights(self.c, args.seed)
        self.w = {n: w.to(self.device).requires_grad_(not n.endswith("gate.bias"))
                  for n, w in weights.items()}
        self.m = model.Model(self.c, self.w, token_map)
        self.optimizer = Optimizer(self.c, self.w)
        self.step, self.total, self.shards, self.log = 0, args.steps, 0, []
        if saved:
            self.optimizer.load(saved["optimizer"])
            self.step, self.total = saved["step"], saved["total"]
            self.shards, self.log = saved["shards"], saved["log"]
        self.generator = torch.Generator(self.device).manual_seed(args.seed * 7919 + self.step)

    def save(self):
        os.makedirs(self.args.out, exist_ok=True)
        torch.save({"weights": {n: w.detach().cpu() for n, w in self.w.items()},
                    "optimizer": self.optimizer.state(), "step": self.step, "total": self.total,
                    "shards": self.shards, "log": self.log}, f"{self.args.out}/state.tmp")
        os.replace(f"{self.args.out}/state.tmp", f"{self.args.out}/state.pt")
        names = sorted(self.w)
        half = sum(w.numel() for w in self.w.values()) / 2
        parts, count = ({}, {}), 0
        for n in names:  # two files of bfloat16 weights, small tensors in float32
            w = self.w[n].detach().cpu()
            parts[count > half][n] = w.to(torch.bfloat16) if w.numel() > 65536 else w
            count += w.numel()
        for i, part in enumerate(parts):
            torch.save(part, f"{self.args.out}/weights{i}.pt")

    def rate(self, at):
        """Warm-up, then flat, then linear to nearly zero over the last 60 %."""
        warm = min(1.0, (self.step + 1) / 100)
        return PEAK_RATE * warm * min(1.0, max((1 - at) / 0.6, 0.0) + 0.005)

    def set_noise(self, at):
        ramp = min(max((at - NOISE_FROM) / (NOISE_FULL - NOISE_FROM), 0.0), 1.0)
        self.m.noise = {n: ramp * NOISE[noise_bits(n)] for n in self.w
                        if ramp and noise_bits(n) and not is_index(n)}

    def balance(self, at):
        rate = 1e-3 if at < 0.8 else 1e-4
        with torch.no_grad():
            for p, load in self.m.loads.items():
                self.w[p + "ffn.gate.bias"] += rate * torch.sign(load.mean() - load)

    def index_phase(self, at):
        return at >= 1 - INDEX_SHARE

    def train_step(self, ids, kind, at):
        self.optimizer.zero()
        self.m.loads = {}
        if self.index_phase(at):
            self.m.noise = {}
            loss = index_loss(self.m, ids, kind)
            names = [n for n in self.w if is_index(n)]
            grads = torch.autograd.grad(loss, [self.w[n] for n in names])
            for n, g in zip(names, grads):
                self.w[n].grad = g
            left = (1 - at) / INDEX_SHARE
            self.optimizer.step(1e-3 * min(1.0, left + 0.05))
            return {"index": loss.detach()}
        self.set_noise(at)
        main, cross, bce, right = losses(self.m, ids, kind, self.generator)
        (main + 0.5 * cross + 0.1 * bce).backward()
        grads = [w.grad for w in self.w.values() if w.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._foreach_mul_(grads, (1.0 / norm.clamp(min=1.0)))
        self.optimizer.step(self.rate(at))
        self.balance(at)
        return {"loss": main.detach(), "draft": cross.detach(), "conf": bce.detach(),
                "right": right, "norm": norm.detach()}

    def run(self):
        args = self.args
        source = batches.Batches(args.tokenizer, args.seed, args.workers, self.shards)
        began, timed, sums, count, tokens = time.time(), None, {}, 0, 0
        first = self.step
        for length, rows in source:
            at = self.step / self.total if self.total else 0.0
            if self.total and self.step >= self.total or time.time() - began > args.seconds:
                break
            if self.index_phase(at) and length < 384:
                continue
            batch = torch.from_numpy(rows.astype(np.int32)).to(self.device, non_blocking=True).long()
            for name, value in self.train_step(batch[:, 0], batch[:, 1], at).items():
                sums[name] = sums.get(name, 0.0) + value
            count, tokens, self.step = count + 1, tokens + batches.ROWS, self.step + 1
            self.shards = source.used
            done = self.step - first
            if done == args.settle and timed is None:
                self.sync()
                timed = (time.time(), self.step)
            if not self.total and timed and self.step - timed[1] == 150:
                self.sync()
                each = (time.time() - timed[0]) / 150
                self.total = self.step + int((args.plan_seconds - (time.time() - began)) / each)
                print(f"step {each * 1e3:.1f} ms, {batches.ROWS / each / 1e3:.0f}k tokens/s, "
                      f"{self.total} steps", flush=True)
            if self.step % args.every == 0:
                line = {n: round(float(v) / count, 4) for n, v in sums.items()}
                line.update(step=self.step, seconds=round(time.time() - began, 1))
                self.log.append(line)
                print(json.dumps(line), flush=True)
                sums, count = {}, 0
            if self.step % args.save_every == 0:
                self.save()
        source.close()
        self.save()
        print("done" if self.total and self.step >= self.total else "part ended", self.step, self.total,
              flush=True)

    def sync(self):
        if self.device == "cuda":
            torch.cuda.synchronize()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--plan-seconds", type=float, default=1200)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=1500)
    parser.add_argument("--settle", type=int, default=60)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    model.COMPILE = args.compile
    torch._dynamo.config.recompile_limit = 64
    Run(args).run()


if __name__ == "__main__":
    main()
