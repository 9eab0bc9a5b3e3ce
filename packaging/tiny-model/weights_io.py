"""safetensors in and out without a library, checkpoint names to model.py's stacked weights."""

import json
import lzma

import numpy as np
import torch

NUMPY = {"F32": np.float32, "I32": np.int32, "I64": np.int64, "U8": np.uint8, "I8": np.int8,
         "F8_E4M3": np.uint8, "F8_E8M0": np.uint8, "BF16": np.uint16, "F16": np.float16, "I16": np.int16}


def read(path):
    """name -> (dtype, numpy array); BF16 becomes float32, F8 stays bytes."""
    opener = lzma.open if str(path).endswith(".xz") else open
    with opener(path, "rb") as file:
        raw = file.read()
    size = int.from_bytes(raw[:8], "little")
    header, out = json.loads(raw[8:8 + size]), {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        a = np.frombuffer(raw[8 + size + begin:8 + size + end], NUMPY[info["dtype"]])
        a = a.reshape(info["shape"])
        if info["dtype"] == "BF16":
            a = (a.astype(np.uint32) << 16).view(np.float32)
        out[name] = (info["dtype"], a)
    return out


def write(path, tensors, metadata=None):
    """tensors: name -> (dtype, array of NUMPY[dtype])"""
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name in sorted(tensors):
        dtype, a = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(a.shape), "data_offsets": [offset, offset + a.nbytes]}
        offset += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(tensors):
            file.write(np.ascontiguousarray(tensors[name][1]).tobytes())


def bf16_bits(w):
    return w.detach().cpu().to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def e4m3_table():
    out = np.zeros(256, np.float32)
    for b in range(256):
        sign, e, m = (-1.0 if b & 128 else 1.0), (b >> 3) & 15, b & 7
        out[b] = sign * (m * 2.0 ** -9 if e == 0 else (8 + m) * 2.0 ** (e - 10))
    out[0x7F] = out[0xFF] = np.nan
    return out


def e8m0(b):
    return np.exp2(b.astype(np.float32) - 127)


def dequantized(tensors):
    """Original storage to float32 values, by name without a trailing .scale."""
    table, out = e4m3_table(), {}
    e2m1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    for name, (dtype, a) in tensors.items():
        if name.endswith(".scale") and dtype == "F8_E8M0":
            continue
        stem = name[: -len(".weight")] if name.endswith(".weight") else name
        if dtype == "F8_E4M3":
            s = e8m0(tensors[stem + ".scale"][1])
            v = table[a]
            if s.shape[0] == a.shape[0]:
                out[name] = v * np.repeat(s, 32, 1)
            else:
                out[name] = v * np.repeat(np.repeat(s, 32, 0), 32, 1)[: a.shape[0], : a.shape[1]]
        elif dtype == "I8":
            u = a.view(np.uint8)
            v = np.stack([e2m1[u & 15], e2m1[u >> 4]], -1).reshape(a.shape[0], -1)
            out[name] = v * np.repeat(e8m0(tensors[stem + ".scale"][1]), 32, 1)
        else:
            out[name] = a
    return out


def stacked(c, flat):
    """Checkpoint names -> model.py's names, as float32 tensors."""
    import model
    out = {}
    for name in model.shapes(c):
        if name.endswith("ffn.w13") or name.endswith("ffn.w2"):
            p = name.rsplit(".", 1)[0] + "."
            n = c.draft_experts if name.startswith("mtp") else c.experts
            parts = [f"{p}experts.{e}." for e in range(n)] + [p + "shared_experts."]
            if name.endswith("w13"):
                rows = [np.concatenate([flat[q + "w1.weight"], flat[q + "w3.weight"]]) for q in parts]
            else:
                rows = [flat[q + "w2.weight"] for q in parts]
            out[name] = torch.from_numpy(np.stack(rows).astype(np.float32))
        else:
            key = name + ".weight" if name.endswith("engram.embed") else name
            out[name] = torch.from_numpy(np.array(flat[key], dtype=np.float32))
    return out


def unstacked(c, weights):
    """model.py's names -> checkpoint names, float32 tensors (Engram tables left out)."""
    out = {}
    for name, w in weights.items():
        if name.endswith("ffn.w13") or name.endswith("ffn.w2"):
            p = name.rsplit(".", 1)[0] + "."
            n = w.shape[0] - 1
            for e in range(n + 1):
                q = f"{p}experts.{e}." if e < n else p + "shared_experts."
                if name.endswith("w13"):
                    out[q + "w1.weight"], out[q + "w3.weight"] = w[e].chunk(2, 0)
                else:
                    out[q + "w2.weight"] = w[e]
        elif not name.endswith("engram.embed"):
            out[name] = w
    return out
