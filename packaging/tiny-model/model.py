"""DeepSeek-V4.1's forward pass in PyTorch: what the embedded model is trained with.

Whole sequences at once, [B, L] token ids, positions 0..L-1. Formulas are those that
engine/model/ implements; verify_golden.py compares this file with the project's golden results.
Weights are a flat dict of float32 tensors named as in a checkpoint, except that a layer's experts
are stacked (ffn.w13 [N+1, 2I, H], ffn.w2 [N+1, H, I]; the last is the shared one) and Engram
tables are float32.

Modes: `exact` computes products in float32 and rounds to bfloat16 where the engine does (CPU,
comparisons); otherwise bfloat16 matrix products (training). `select` applies the indexer's lists;
without it every visible entry is attended to, which is the same up to index_topk entries.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

import quant
import sinkhorn

BF16 = torch.bfloat16
COMPILE = False


def maybe_compile(function, dynamic=False):
    """Compiles on first use when COMPILE is set (CUDA training).

    Token-wise functions see one or two row counts and are specialised; those over [B, L] see
    many lengths and are compiled once for all of them."""
    state = {}

    def call(*args):
        if not COMPILE:
            return function(*args)
        if "f" not in state:
            state["f"] = torch.compile(function, dynamic=dynamic)
        return state["f"](*args)

    return call


def compile_lengths(function):
    return maybe_compile(function, True)


# ---- token-wise functions: T rows


def rms_norm(x, weight, eps):
    f = x.float()
    f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps) * weight
    return f.to(BF16)


@maybe_compile
def norm_rows(x, weight, eps):
    return rms_norm(x, weight, eps)


@maybe_compile
def hc_parts(m, x, scale, base, hc_eps, eps):
    """m: fn . flatten(x) [T, 24]; x: [T, n, H] -> pre, post [T, n], comb's logits [T, n, n]."""
    n = x.shape[1]
    m = m.float() * torch.rsqrt(x.float().pow(2).mean((1, 2)) + eps)[:, None]
    pre = torch.sigmoid(m[:, :n] * scale[0] + base[:n]) + hc_eps
    post = 2.0 * torch.sigmoid(m[:, n:2 * n] * scale[1] + base[n:2 * n])
    return pre, post, (m[:, 2 * n:] * scale[2] + base[2 * n:]).view(-1, n, n)


@maybe_compile
def collapse(x, pre):
    return (pre[:, :, None] * x.float()).sum(1).to(BF16)


@maybe_compile
def collapse_norm(x, pre, weight, eps):
    return rms_norm((pre[:, :, None] * x.float()).sum(1).to(BF16), weight, eps)


@maybe_compile
def expand(x, y, post, comb):
    """X[k] = post[k] y + sum_j comb[j][k] X[j]"""
    f = x.float()
    n = x.shape[1]
    rows = []
    for k in range(n):
        row = post[:, k, None] * y.float()
        for j in range(n):
            row = row + comb[:, j, k, None] * f[:, j]
        rows.append(row)
    return torch.stack(rows, 1).to(BF16)


def _rope(x, cos, sin, inverse=False):
    """Adjacent pairs of the last 2*cos.shape[-1] channels. x: [..., D]; cos, sin broadcast."""
    r = cos.shape[-1] * 2
    plain, turned = x[..., :-r], x[..., -r:].float()
    a, b = turned[..., 0::2], turned[..., 1::2]
    s = -sin if inverse else sin
    out = torch.stack([a * cos - b * s, a * s + b * cos], -1).flatten(-2).to(x.dtype)
    return torch.cat([plain, out], -1)


@compile_lengths
def rope_rows(x, cos, sin):
    return _rope(x, cos, sin)


@compile_lengths
def rope_inverse(x, cos, sin):
    return _rope(x, cos, sin, True)


@compile_lengths
def window_latent(k, weight, cos, sin, eps):
    k = _rope(rms_norm(k, weight, eps), cos, sin)
    return quant.through(k, quant.fp8(k, 32))


@compile_lengths
def main_entry(latent, cos, sin):
    c = _rope(latent, cos, sin)
    return quant.through(c, quant.fp4_e4m3(c, 16))


@compile_lengths
def index_rows(x, cos, sin):
    x = _rope(x, cos, sin)
    return quant.through(x, quant.fp4_pow2(x, 32))


@compile_lengths
def masked_softmax(scores, mask, sink, scale):
    """scores [B, L, h, S], mask [L, 1, S] or [B, L, 1, S] (True: visible), sink [h]."""
    s = (scores.float() * scale).masked_fill(~mask, -1e30)
    top = torch.maximum(s.amax(-1, keepdim=True), sink[:, None]).detach()
    p = torch.exp(s - top)
    total = p.sum(-1, keepdim=True) + torch.exp(sink[:, None] - top)
    return (p / total).to(BF16)


@maybe_compile
def route(x, weight, bias, topk, scale):
    """Dense routing weights [T, N] (zero where not picked), float32; picked mask."""
    s = torch.sqrt(F.softplus(x.float() @ weight.float().t()))
    picked = torch.topk(s.detach() + bias, topk, -1).indices
    mask = torch.zeros_like(s).scatter(-1, picked, 1.0)
    w = s * mask
    return scale * w / (w.sum(-1, keepdim=True) + 1e-20), mask


@maybe_compile
def expert_gate(h, w, limit):
    """h [T, N+1, 2I] (w1 then w3), w [T, N] -> z [T, (N+1) I]"""
    g, u = h.float().chunk(2, -1)
    z = F.silu(g.clamp(max=limit)) * u.clamp(-limit, limit)
    w = torch.cat([w, torch.ones_like(w[:, :1])], 1)
    return (z * w[:, :, None]).to(BF16).flatten(1)


@maybe_compile
def stored_rows(e):
    """Engram rows as the table stores them (e4m3)."""
    return quant.through(e, quant.fp8(e, 32)).to(BF16).flatten(1)


@maybe_compile
def engram_add(x, kv, qw, kw, eps):
    """x [T, n, H]; kv [T, (n+1) H]"""
    n, hidden = x.shape[1], x.shape[2]
    k, v = kv[:, : n * hidden].view(-1, n, hidden).float(), kv[:, n * hidden:].float()
    f = x.float()
    dot = (f * (qw * kw) * k).sum(-1)
    dot = dot * torch.rsqrt(f.pow(2).mean(-1) + eps) * torch.rsqrt(k.pow(2).mean(-1) + eps)
    dot = dot * hidden ** -0.5
    gate = torch.sigmoid(torch.copysign(torch.sqrt(dot.abs().clamp(min=1e-6)), dot))
    return (f + gate[:, :, None] * v[:, None]).to(BF16)


@compile_lengths
def pool_pairs(a, g, weight, eps):
    """Ratio 2: a, g [G, 2, D] float32 -> latent [G, D]"""
    pooled = (torch.softmax(g, 1) * a).sum(1).to(BF16)
    return rms_norm(pooled, weight, eps)


def multipliers(layer, count, classes):
    bound = (2 ** 63 - 1) // classes // 2
    drawn = np.random.Generator(np.random.PCG64(10007 * layer)).integers(
        0, bound, size=count, dtype=np.int64)
    return (drawn * 2 + 1).tolist()


def rope_frequencies(config, ratio):
    d = config.rope_dim
    theta = config.theta if ratio == 0 else config.compress_theta
    freqs = 1.0 / (theta ** (torch.arange(0, d, 2, dtype=torch.float32) / d))
    if ratio == 0:
        return freqs
    y = config.yarn
    def bound(rotations):
        return d * math.log(y["original_max_position_embeddings"] / (rotations * 2 * math.pi)) / (
            2 * math.log(theta))
    low, high = max(math.floor(bound(y["beta_fast"])), 0), min(math.ceil(bound(y["beta_slow"])), d - 1)
    ramp = ((torch.arange(d // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return freqs * (1 - ramp) + freqs / y["factor"] * ramp


class Model:
    def __init__(self, config, weights, token_map, exact=False, select=False):
        self.c, self.w, self.exact, self.select = config, weights, exact, select
        self.device = weights["embed.weight"].device
        self.token_map = torch.as_tensor(token_map, dtype=torch.int64, device=self.device)
        self._cache = {}
        self.noise = {}       # name -> relative weight noise of this step
        self.loads = {}       # layer -> picked counts of this step
        self.detail = None    # a dict to fill with intermediate values, or None
        self.inject = None    # verify_golden: layer -> (X, pre) that replaces the streams

    # ---- weights

    def t(self, name):
        """The weight as used in products."""
        w = self.w[name]
        if name in self.noise:
            w = w * 1.0 + self.noise[name] * w.detach().pow(2).mean().sqrt() * torch.randn_like(w)
        return w if self.exact else w.to(BF16)

    def f32(self, name):
        """A float32 weight; in training rounded to bfloat16, as it is exported."""
        w = self.w[name]
        return w if self.exact else quant.through(w, w.to(BF16).float())

    def linear(self, x, w):
        if self.exact:
            return (x.float() @ w.float().t()).to(BF16)
        return x @ w.t()

    def cached(self, key, make):
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def tables(self, ratio, positions_key, positions):
        """cos, sin [positions, rope_dim / 2] float32."""
        def make():
            f = rope_frequencies(self.c, ratio)
            angle = positions.float().cpu()[:, None] * f
            return angle.cos().to(self.device), angle.sin().to(self.device)
        return self.cached(("rope", min(ratio, 1), positions_key), make)

    # ---- sublayers

    def hyper(self, name, x):
        c = self.c
        fn = self.f32(name + "_fn")
        flat = x.flatten(1)
        m = flat.float() @ fn.t() if self.exact else flat @ fn.to(BF16).t()
        pre, post, logits = hc_parts(m, x, self.w[name + "_scale"], self.w[name + "_base"], c.hc_eps,
                                     c.eps)
        return pre, post, sinkhorn.normalize(logits, c.sinkhorn, c.hc_eps)

    def moe(self, p, x, topk):
        c = self.c
        w, mask = route(x, self.t(p + "ffn.gate.weight"), self.w[p + "ffn.gate.bias"], topk, c.route_scale)
        if self.detail is not None:
            self.detail.setdefault("route", {})[p] = (w, mask)
        self.loads[p] = mask.detach().mean(0)
        w13, w2 = self.t(p + "ffn.w13"), self.t(p + "ffn.w2")
        n = w13.shape[0]
        h = self.linear(x, w13.flatten(0, 1)).view(-1, n, 2 * c.inter)
        z = expert_gate(h, w, c.swiglu_limit)
        if self.exact:  # every expert's output is rounded before the sum
            z = z.view(-1, n, c.inter)
            y = sum(self.linear(z[:, e], w2[e]).float() for e in range(n))
            return y.to(BF16)
        return z @ w2.permute(1, 0, 2).reshape(c.hidden, n * c.inter).t()

    def queries(self, p, x, cos, sin, shape):
        c = self.c
        qr = norm_rows(self.linear(x, self.t(p + "attn.wq_a.weight")), self.w[p + "attn.q_norm.weight"], c.eps)
        q = self.linear(qr, self.t(p + "attn.wq_b.weight")).view(*shape, c.heads, c.head_dim)
        return qr, rope_rows(q, cos, sin)

    def latents(self, p, x, cos, sin, shape):
        c = self.c
        k = self.linear(x, self.t(p + "attn.wkv.weight")).view(*shape, c.head_dim)
        return window_latent(k, self.w[p + "attn.kv_norm.weight"], cos, sin, c.eps)

    def output(self, p, o):
        """o [T, heads, D] after the inverse rotation -> [T, H]"""
        c = self.c
        per = c.heads // c.o_groups * c.head_dim
        wo_a = self.t(p + "attn.wo_a.weight").view(c.o_groups, c.o_lora, per)
        o = o.reshape(-1, c.o_groups, per)
        if self.exact:
            u = torch.einsum("tgi,goi->tgo", o.float(), wo_a.float()).to(BF16)
        else:
            u = torch.bmm(o.transpose(0, 1), wo_a.transpose(1, 2)).transpose(0, 1)
        return self.linear(u.reshape(-1, c.o_groups * c.o_lora), self.t(p + "attn.wo_b.weight"))

    def product(self, a, b):
        """Batched a @ b; float32 in exact mode."""
        return a.float() @ b.float() if self.exact else a @ b

    def compress(self, layer, x, B, L):
        """Main entries and index keys of a KV source: [B, E, D], [B, E, index_dim]."""
        c, p, r = self.c, f"layers.{layer}.", self.c.ratios[layer]
        E = L // r
        if r == 2:
            wkv, wg = self.t(p + "attn.compressor.wkv.weight"), self.t(p + "attn.compressor.wgate.weight")
            pairs = x.view(B, L, -1)[:, : 2 * E].reshape(-1, x.shape[-1])
            a, g = pairs.float() @ wkv.float().t(), pairs.float() @ wg.float().t()
            a, g = a.view(-1, 2, c.head_dim), g.view(-1, 2, c.head_dim)
            latent = pool_pairs(a, g, self.w[p + "attn.compressor.norm.weight"], c.eps)
        else:
            latent = norm_rows(self.linear(x, self.t(p + "attn.compressor.wkv.weight")),
                               self.w[p + "attn.compressor.norm.weight"], c.eps)
        latent = latent.view(B, E, c.head_dim)
        cos, sin = self.tables(r, ("entries", r, E), torch.arange(E) * r)
        entries = main_entry(latent, cos, sin)
        keys = None
        if self.select or self.detail is not None:
            ik = norm_rows(self.linear(latent, self.t(p + "attn.indexer.wk.weight")),
                           self.w[p + "attn.indexer.k_norm.weight"], c.eps)
            keys = index_rows(ik, cos, sin)
        return entries, keys

    def index_scores(self, layer, x, qr, keys, cos, sin, B, L):
        """[B, L, E] float32"""
        c, p = self.c, f"layers.{layer}."
        iq = self.linear(qr, self.t(p + "attn.indexer.wq_b.weight"))
        iq = index_rows(iq.view(B, L, c.index_heads, c.index_dim), cos, sin)
        w = self.linear(x, self.t(p + "attn.indexer.weights_proj.weight")).float()
        w = w * (c.index_dim * c.index_heads) ** -0.5
        if self.exact:
            w = w.to(BF16).float()
        s = F.relu(iq.float().view(B, L * c.index_heads, -1) @ keys.float().transpose(1, 2))
        return torch.einsum("blh,blhe->ble", w.view(B, L, -1), s.view(B, L, c.index_heads, -1))

    def visible(self, L, r):
        """[L, E] bool: entries that row p may see."""
        def make():
            p = torch.arange(L, device=self.device)
            return torch.arange(L // r, device=self.device)[None] < ((p + 1) // r)[:, None]
        return self.cached(("visible", L, r), make)

    def window_mask(self, L):
        def make():
            p = torch.arange(L, device=self.device)
            d = p[:, None] - p[None]
            return (d >= 0) & (d < self.c.window)
        return self.cached(("window", L), make)

    def pick(self, layer, scores, L, state):
        """Selected entries [B, L, E] bool, ties to the lower index."""
        c, r = self.c, self.c.ratios[layer]
        seen = self.visible(L, r)
        s = scores.masked_fill(~seen, -torch.inf)
        E = s.shape[-1]
        if layer > c.candidate_source and state.get("pool") is not None:
            s = s.masked_fill(~state["pool"], -torch.inf)
        if layer == c.candidate_source:
            n, size = -(-E // c.candidate_size), c.candidate_size
            padded = F.pad(s, (0, n * size - E), value=-torch.inf)
            best = padded.view(*s.shape[:-1], n, size).amax(-1)
            vis = seen.sum(-1)
            newest = ((vis - 1).clamp(min=0) // size)[None, :, None].expand(s.shape[0], -1, 1)
            best = best.scatter(-1, newest, torch.inf)
            kept = self.top(best, min(c.candidate_blocks, n)) & (best > -torch.inf)
            state["pool"] = kept.repeat_interleave(size, -1)[..., :E]
        return self.top(s, min(c.index_topk, E)) & seen

    @staticmethod
    def top(s, count):
        order = torch.sort(s, dim=-1, descending=True, stable=True).indices[..., :count]
        return torch.zeros_like(s, dtype=torch.bool).scatter(-1, order, True)

    def attention(self, layer, x, B, L, state):
        c, p, r = self.c, f"layers.{layer}.", self.c.ratios[layer]
        cos, sin = self.tables(r, ("rows", L), torch.arange(L))
        qcos, qsin = cos[:, None], sin[:, None]
        qr, q = self.queries(p, x, qcos, qsin, (B, L))
        keys = self.latents(p, x, cos, sin, (B, L))
        mask = self.window_mask(L)
        if r > 0:
            if layer in c.kv_sources:
                state["entries"], state["keys"] = self.compress(layer, x, B, L)
            entries = state["entries"]
            if layer in c.index_sources and (self.select or self.detail is not None):
                scores = self.index_scores(layer, x, qr, state["keys"], qcos, qsin, B, L)
                state["picked"] = self.pick(layer, scores, L, state)
                if self.detail is not None:
                    self.detail.setdefault("index", {})[layer] = (scores, state["picked"])
            seen = state["picked"] if self.select else self.visible(L, r)
            keys = torch.cat([keys, entries], 1)
            if seen.dim() == 3:
                mask = torch.cat([mask[None].expand(B, -1, -1), seen], -1)[:, :, None]
            else:
                mask = self.cached(("mask", L, r), lambda: torch.cat([mask, seen], -1)[:, None])
        else:
            mask = mask[:, None]
        s = self.product(q.reshape(B, L * c.heads, -1), keys.transpose(1, 2))
        s = s.view(B, L, c.heads, -1)
        prob = masked_softmax(s, mask, self.w[p + "attn.attn_sink"], c.head_dim ** -0.5)
        if self.detail is not None and r > 0:
            self.detail.setdefault("prob", {})[layer] = prob[..., L:]
        o = self.product(prob.view(B, L * c.heads, -1), keys).to(BF16).view(B, L, c.heads, -1)
        return self.output(p, rope_inverse(o, qcos, qsin).reshape(B * L, c.heads, -1))

    def block(self, p, x, pre, attend, topk):
        """One mHC block; attend(normed rows) -> rows. Returns X, pre."""
        c = self.c
        pre_a, post, comb = self.hyper(p + "hc_attn", x)
        h = collapse_norm(x, pre, self.w[p + "attn_norm.weight"], c.eps)
        y = attend(h)
        if self.detail is not None:
            self.detail.setdefault("attn_y", {})[p] = y
        x = expand(x, y, post, comb)
        pre_f, post, comb = self.hyper(p + "hc_ffn", x)
        h = collapse_norm(x, pre_a, self.w[p + "ffn_norm.weight"], c.eps)
        y = self.moe(p, h, topk)
        if self.detail is not None:
            self.detail.setdefault("ffn_y", {})[p] = y
        x = expand(x, y, post, comb)
        return x, pre_f

    def engram_index(self, index, ids):
        """Table rows [B, L, columns] of one Engram layer."""
        c = self.c
        t = self.token_map[ids]
        pad = int(self.token_map[c.pad])
        mult = self.cached(("mult", index), lambda: multipliers(
            c.engram_layers[index], c.max_ngram, c.engram_classes))
        h, out, offset = t * mult[0], [], 0
        for n in range(2, c.max_ngram + 1):
            back = F.pad(t, (n - 1, 0), value=pad)[:, : t.shape[1]]
            h = h ^ (back * mult[n - 1])
            for prime in c.primes[index][n - 2]:
                out.append(h % prime + offset)
                offset += prime
        return torch.stack(out, -1)

    def engram(self, index, x, ids):
        c, p = self.c, f"layers.{self.c.engram_layers[index]}.engram."
        rows = self.engram_index(index, ids)
        if self.detail is not None:
            self.detail.setdefault("engram_rows", {})[index] = rows
        e = stored_rows(F.embedding(rows.flatten(0, 1), self.w[p + "embed"]))
        kv = self.linear(e, self.t(p + "wkv.weight"))
        return engram_add(x, kv, self.w[p + "q_weight"], self.w[p + "k_weight"], c.eps)

    # ---- whole passes

    def streams(self, embedded):
        x = embedded.to(BF16)[:, None].expand(-1, self.c.hc, -1).contiguous()
        pre = torch.zeros(x.shape[0], self.c.hc, device=x.device)
        pre[:, 0] = 1.0
        return x, pre

    def backbone(self, ids):
        """ids [B, L] -> (hidden [T, H] before the final norm, taps [T, 3H])"""
        c = self.c
        B, L = ids.shape
        x, pre = self.streams(F.embedding(ids.flatten(), self.w["embed.weight"]))
        state, taps = {}, []
        for layer in range(c.layers):
            if self.inject is not None:
                x, pre = self.inject(layer)
            if layer in c.engram_layers:
                x = self.engram(c.engram_layers.index(layer), x, ids)
            if layer in c.taps:
                taps.append(x.detach().float().mean(1).to(BF16))
            x, pre = self.block(f"layers.{layer}.", x, pre,
                                lambda h, n=layer: self.attention(n, h, B, L, state), c.topk)
            if self.detail is not None:
                self.detail.setdefault("X", {})[layer] = x
                self.detail.setdefault("pre", {})[layer] = pre
        if self.detail is not None:
            self.detail["entries"], self.detail["keys"] = state.get("entries"), state.get("keys")
        return collapse(x, pre), torch.cat(taps, -1)

    def head(self, hidden, norm="norm.weight"):
        h = norm_rows(hidden, self.w[norm], self.c.eps)
        w = self.t("head.weight")
        return h.float() @ w.float().t() if self.exact else h @ w.t()

    def draft(self, ids, taps, anchors):
        """Drafts after anchor positions. anchors [B, K]: p; the block's first token is ids[p+1].

        Returns logits [B, K, block, V] without the Markov term, x [B, K, block, H]."""
        c = self.c
        B, L = ids.shape
        K, N = anchors.shape[1], c.block
        m = norm_rows(self.linear(taps, self.t("mtp.0.main_proj.weight")),
                      self.w["mtp.0.main_norm.weight"], c.eps)
        first = ids.gather(1, (anchors + 1).clamp(max=L - 1))
        block_ids = torch.full((B, K, N), c.noise, device=ids.device, dtype=ids.dtype)
        block_ids[:, :, 0] = first
        embed = F.embedding(block_ids.flatten(), self.w["embed.weight"].detach())
        x, pre = self.streams(embed)
        positions = anchors[:, :, None] + 1 + torch.arange(N, device=ids.device)
        row_cos, row_sin = self.tables(0, ("rows", L), torch.arange(L))
        all_cos, all_sin = self.tables(0, ("rows", L + 8), torch.arange(L + 8))
        cos, sin = all_cos[positions], all_sin[positions]           # [B, K, N, r/2]
        qcos, qsin = cos[:, :, :, None], sin[:, :, :, None]
        d = anchors[:, :, None] - torch.arange(L, device=ids.device)
        context = (d >= 0) & (d < c.window)                         # [B, K, L]
        mask = torch.cat([context, torch.ones(B, K, N, dtype=torch.bool, device=ids.device)], -1)
        mask = mask[:, :, None, None]
        for stage in range(c.stages):
            p = f"mtp.{stage}."
            ctx = self.latents(p, m, row_cos, row_sin, (B, L))
            def attend(h):
                _, q = self.queries(p, h, qcos, qsin, (B, K, N))
                own = self.latents(p, h, cos, sin, (B, K, N))
                flat = q.reshape(B, K * N * c.heads, -1)
                s_ctx = self.product(flat, ctx.transpose(1, 2)).view(B, K, N, c.heads, L)
                rows = q.reshape(B * K, N * c.heads, -1)
                o_keys = own.reshape(B * K, N, -1)
                s_own = self.product(rows, o_keys.transpose(1, 2)).view(B, K, N, c.heads, N)
                prob = masked_softmax(torch.cat([s_ctx, s_own], -1), mask,
                                      self.w[p + "attn.attn_sink"], c.head_dim ** -0.5)
                o = self.product(prob[..., :L].reshape(B, K * N * c.heads, L), ctx).view(B * K, N * c.heads, -1)
                o = o + self.product(prob[..., L:].reshape(B * K, N * c.heads, N), o_keys)
                o = rope_inverse(o.to(BF16).view(B, K, N, c.heads, -1), qcos, qsin)
                return self.output(p, o.reshape(B * K * N, c.heads, -1))
            x, pre = self.block(p, x, pre, attend, c.draft_topk)
        hidden = collapse(x, pre)
        h = norm_rows(hidden, self.w["mtp.2.norm.weight"], c.eps)
        w = self.t("head.weight").detach()
        logits = h.float() @ w.float().t() if self.exact else h @ w.t()
        return logits.view(B, K, N, -1), hidden.view(B, K, N, -1)

    def markov(self, previous):
        """(correction logits, embedding) for previous tokens of any shape."""
        e = F.embedding(previous, self.t("mtp.2.markov_head.embed.weight"))
        w = self.t("mtp.2.markov_head.head.weight")
        return (e.float() @ w.float().t() if self.exact else e @ w.t()), e

    def confidence(self, hidden, e):
        x = torch.cat([hidden.float(), e.float()], -1)
        return (x @ self.t("mtp.2.confidence_head.proj.weight").float().t()).squeeze(-1)


# ---- initial weights


def shapes(c):
    """name -> (shape, kind); kind: matrix fan-in, 'one', 'zero' or a marker."""
    out = {"embed.weight": ((c.vocab, c.hidden), "embed"), "head.weight": ((c.vocab, c.hidden), "matrix"),
           "norm.weight": ((c.hidden,), "one")}
    def block(p, experts):
        n = c.hc
        for part in ("attn", "ffn"):
            out[f"{p}hc_{part}_fn"] = ((2 * n + n * n, n * c.hidden), "hc_fn")
            out[f"{p}hc_{part}_base"] = ((2 * n + n * n,), "hc_base")
            out[f"{p}hc_{part}_scale"] = ((3,), "hc_scale")
            out[f"{p}{part}_norm.weight"] = ((c.hidden,), "one")
        per = c.heads // c.o_groups * c.head_dim
        out[p + "attn.wq_a.weight"] = ((c.q_lora, c.hidden), "matrix")
        out[p + "attn.wq_b.weight"] = ((c.heads * c.head_dim, c.q_lora), "matrix")
        out[p + "attn.wkv.weight"] = ((c.head_dim, c.hidden), "matrix")
        out[p + "attn.wo_a.weight"] = ((c.o_groups * c.o_lora, per), "matrix")
        out[p + "attn.wo_b.weight"] = ((c.hidden, c.o_groups * c.o_lora), "out")
        out[p + "attn.q_norm.weight"] = ((c.q_lora,), "one")
        out[p + "attn.kv_norm.weight"] = ((c.head_dim,), "one")
        out[p + "attn.attn_sink"] = ((c.heads,), "zero")
        out[p + "ffn.gate.weight"] = ((experts, c.hidden), "matrix")
        out[p + "ffn.gate.bias"] = ((experts,), "bias")
        out[p + "ffn.w13"] = ((experts + 1, 2 * c.inter, c.hidden), "matrix")
        out[p + "ffn.w2"] = ((experts + 1, c.hidden, c.inter), "out")
    for layer in range(c.layers):
        p = f"layers.{layer}."
        block(p, c.experts)
        a = p + "attn."
        if layer in c.kv_sources:
            out[a + "compressor.wkv.weight"] = ((c.head_dim, c.hidden), "matrix")
            if c.ratios[layer] == 2:
                out[a + "compressor.wgate.weight"] = ((c.head_dim, c.hidden), "matrix")
            out[a + "compressor.norm.weight"] = ((c.head_dim,), "one")
            out[a + "indexer.wk.weight"] = ((c.index_dim, c.head_dim), "matrix")
            out[a + "indexer.k_norm.weight"] = ((c.index_dim,), "one")
        if layer in c.index_sources:
            out[a + "indexer.wq_b.weight"] = ((c.index_heads * c.index_dim, c.q_lora), "matrix")
            out[a + "indexer.weights_proj.weight"] = ((c.index_heads, c.hidden), "matrix")
        if layer in c.engram_layers:
            i = c.engram_layers.index(layer)
            out[p + "engram.embed"] = ((c.engram_rows(i), c.engram_dim), "table")
            out[p + "engram.wkv.weight"] = (
                ((c.hc + 1) * c.hidden, c.engram_columns() * c.engram_dim), "matrix")
            out[p + "engram.q_weight"] = ((c.hc, c.hidden), "one")
            out[p + "engram.k_weight"] = ((c.hc, c.hidden), "one")
    for stage in range(c.stages):
        block(f"mtp.{stage}.", c.draft_experts)
    out["mtp.0.main_proj.weight"] = ((c.hidden, len(c.taps) * c.hidden), "matrix")
    out["mtp.0.main_norm.weight"] = ((c.hidden,), "one")
    out["mtp.2.norm.weight"] = ((c.hidden,), "one")
    out["mtp.2.markov_head.embed.weight"] = ((c.vocab, c.markov_rank), "table")
    out["mtp.2.markov_head.head.weight"] = ((c.vocab, c.markov_rank), "matrix")
    out["mtp.2.confidence_head.proj.weight"] = ((1, c.hidden + c.markov_rank), "matrix")
    return out


def initial_weights(c, seed):
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, (shape, kind) in shapes(c).items():
        normal = torch.randn(shape, generator=generator)
        if kind == "one":
            w = torch.ones(shape)
        elif kind in ("zero", "bias"):
            w = torch.zeros(shape)
        elif kind == "embed":
            w = normal
        elif kind == "table":
            w = normal * 0.5
        elif kind == "hc_fn":
            w = normal * 0.01
        elif kind == "hc_scale":
            w = torch.ones(shape)
        elif kind == "hc_base":
            n = c.hc
            w = torch.zeros(shape)
            w[:n] = -1.1 + 0.4 * normal[:n]
            w[n:2 * n] = 0.5 * normal[n:2 * n]
            w[2 * n:] = 0.2 * normal[2 * n:] + 3.0 * torch.eye(n).flatten()
        else:
            w = normal * shape[-1] ** -0.5
            if kind == "out":
                w *= 0.4
            if name.endswith("head.weight"):
                w *= 0.5
        out[name] = w
    return out


def parameter_count(c):
    return sum(math.prod(shape) for shape, _ in shapes(c).values())
