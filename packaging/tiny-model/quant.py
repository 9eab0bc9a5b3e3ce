"""Cache formats as the engine stores them, with straight-through gradients.

fp8(x, 32): e4m3 with a power-of-two scale per block; fp4_pow2(x, 32): e2m1 with a power-of-two
scale; fp4_e4m3(x, 16): e2m1 with an e4m3 scale. Results are exact in bfloat16.
"""

import torch


def _exponent(x):
    """floor(log2 |x|) of positive normal float32 by its bits."""
    return (x.view(torch.int32) >> 23) - 127


def _pow2(e):
    return ((e + 127) << 23).view(torch.float32)


def _ceil_pow2(x):
    bits = x.view(torch.int32)
    e = (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return _pow2(e)


def round_e4m3(y):
    """Round to nearest even on the e4m3 grid; |y| at most 448 after clipping."""
    y = y.clamp(-448.0, 448.0)
    step = _pow2(_exponent(y.abs().clamp(min=2.0 ** -6)) - 3)
    return torch.round(y / step) * step


def round_e2m1(y):
    y = y.clamp(-6.0, 6.0)
    step = _pow2(_exponent(y.abs().clamp(min=1.0)) - 1)
    return torch.round(y / step) * step


def _blocks(x, size):
    return x.float().reshape(*x.shape[:-1], x.shape[-1] // size, size)


def fp8(x, size=32):
    b = _blocks(x, size)
    amax = b.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scale = _ceil_pow2(amax * (1.0 / 448.0))
    return (round_e4m3(b / scale) * scale).reshape(x.shape).to(x.dtype)


def fp4_pow2(x, size=32):
    b = _blocks(x, size)
    amax = b.abs().amax(-1, keepdim=True).clamp(min=6.0 * 2.0 ** -126)
    scale = _ceil_pow2(amax * (1.0 / 6.0))
    return (round_e2m1(b / scale) * scale).reshape(x.shape).to(x.dtype)


def fp4_e4m3(x, size=16):
    b = _blocks(x, size)
    amax = b.abs().amax(-1, keepdim=True).clamp(min=6.0 * 2.0 ** -9)
    scale = round_e4m3(amax / 6.0)
    return (round_e2m1(b / scale) * scale).reshape(x.shape).to(x.dtype)


def through(x, rounded):
    """Value of `rounded`, gradient of x."""
    return x + (rounded - x).detach()
