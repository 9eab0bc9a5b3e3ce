"""Sinkhorn normalisation of the hyper-connection mixes: one GPU kernel forward, one backward.

Twenty passes written out would be thousands of operations for the compiler; here they are a loop.
normalize() falls back to plain operations on the CPU. Rows are independent; [T, 4, 4] float32.
"""

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU only
    triton = None

BLOCK = 64


def plain(a, passes, eps):
    """a: [T, n, n] logits [j][k] -> doubly stochastic, columns last."""
    a = torch.softmax(a, -1) + eps
    a = a / (a.sum(-2, keepdim=True) + eps)
    for _ in range(passes - 1):
        a = a / (a.sum(-1, keepdim=True) + eps)
        a = a / (a.sum(-2, keepdim=True) + eps)
    return a


if triton is not None:

    @triton.jit
    def _offsets(rows, BLOCK: tl.constexpr):
        t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        j, k = tl.arange(0, 4), tl.arange(0, 4)
        at = t[:, None, None] * 16 + j[None, :, None] * 4 + k[None, None, :]
        return at, (t[:, None, None] + 0 * (j[None, :, None] + k[None, None, :])) < rows

    @triton.jit
    def _forward(logits, out, rows, passes: tl.constexpr, eps, BLOCK: tl.constexpr):
        at, inside = _offsets(rows, BLOCK)
        a = tl.load(logits + at, mask=inside, other=0.0)
        a = tl.exp(a - tl.max(a, axis=2, keep_dims=True))
        a = a / tl.sum(a, axis=2, keep_dims=True) + eps
        a = a / (tl.sum(a, axis=1, keep_dims=True) + eps)
        for _ in range(passes - 1):
            a = a / (tl.sum(a, axis=2, keep_dims=True) + eps)
            a = a / (tl.sum(a, axis=1, keep_dims=True) + eps)
        tl.store(out + at, a, mask=inside)

    @triton.jit
    def _backward(logits, grad, out, scratch, rows, passes: tl.constexpr, eps, BLOCK: tl.constexpr):
        # scratch [2 passes - 1, T, 16]: the matrix after every normalisation
        at, inside = _offsets(rows, BLOCK)
        slot = rows.to(tl.int64) * 16
        a = tl.load(logits + at, mask=inside, other=0.0)
        a = tl.exp(a - tl.max(a, axis=2, keep_dims=True))
        p = a / tl.sum(a, axis=2, keep_dims=True)
        a = p + eps
        a = a / (tl.sum(a, axis=1, keep_dims=True) + eps)
        tl.store(scratch + at, a, mask=inside)
        for i in range(passes - 1):
            a = a / (tl.sum(a, axis=2, keep_dims=True) + eps)
            tl.store(scratch + (2 * i + 1) * slot + at, a, mask=inside)
            a = a / (tl.sum(a, axis=1, keep_dims=True) + eps)
            tl.store(scratch + (2 * i + 2) * slot + at, a, mask=inside)
        tl.debug_barrier()
        g = tl.load(grad + at, mask=inside, other=0.0)
        for n in range(passes - 1):
            i = passes - 2 - n
            b = tl.load(scratch + (2 * i + 2) * slot + at, mask=inside, other=1.0)
            before = tl.load(scratch + (2 * i + 1) * slot + at, mask=inside, other=1.0)
            g = (g - tl.sum(g * b, axis=1, keep_dims=True)) / (tl.sum(before, axis=1, keep_dims=True) + eps)
            first = tl.load(scratch + 2 * i * slot + at, mask=inside, other=1.0)
            g = (g - tl.sum(g * before, axis=2, keep_dims=True)) / (tl.sum(first, axis=2, keep_dims=True) + eps)
        b = tl.load(scratch + at, mask=inside, other=1.0)
        before = p + eps
        g = (g - tl.sum(g * b, axis=1, keep_dims=True)) / (tl.sum(before, axis=1, keep_dims=True) + eps)
        g = p * (g - tl.sum(g * p, axis=2, keep_dims=True))
        tl.store(out + at, g, mask=inside)


class Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, passes, eps):
        logits = logits.contiguous()
        out = torch.empty_like(logits)
        rows = logits.shape[0]
        _forward[(triton.cdiv(rows, BLOCK),)](logits, out, rows, passes, eps, BLOCK=BLOCK)
        ctx.save_for_backward(logits)
        ctx.passes, ctx.eps = passes, eps
        return out

    @staticmethod
    def backward(ctx, grad):
        logits, = ctx.saved_tensors
        out = torch.empty_like(logits)
        rows = logits.shape[0]
        scratch = torch.empty(2 * ctx.passes - 1, rows, 16, device=logits.device)
        _backward[(triton.cdiv(rows, BLOCK),)](
            logits, grad.contiguous(), out, scratch, rows, ctx.passes, ctx.eps, BLOCK=BLOCK)
        return out, None, None


def normalize(a, passes, eps):
    if a.is_cuda and triton is not None:
        return Normalize.apply(a, passes, eps)
    return plain(a, passes, eps)
