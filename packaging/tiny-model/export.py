"""A training checkpoint to a model folder: config.json, model.safetensors, tokenizer, token map.

export.py OUT --weights CHECKPOINT.npz-or-pt | --random SEED, --tokenizer FOLDER. Projections are
BF16, Engram tables F8_E4M3 with UE8M0 scales as in the original checkpoint, hyper-connection
weights, sinks and biases F32. The result is what `tfctl model quantize` takes.
"""

import argparse
import json
import os
import shutil

import numpy as np
import torch

import config
import model
import quant
import weights_io

F32_NAMES = ("hc_attn_", "hc_ffn_", "attn_sink", "gate.bias")


def e4m3_bytes(values):
    """Exact e4m3 codes of values on the grid."""
    table = weights_io.e4m3_table()
    order = np.argsort(np.where(np.isnan(table), np.inf, table), kind="stable")[:254]
    at = order[np.searchsorted(table[order], values)]
    at = np.where(values == 0, np.where(np.signbit(values), 128, 0), at)
    assert (table[at] == values).all()
    return at.astype(np.uint8)


def table_bytes(table):
    """[rows, width] float32 -> (e4m3 bytes, UE8M0 bytes [rows, width / 32])"""
    blocks = table.detach().float().view(table.shape[0], -1, 32)
    amax = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scale = quant._ceil_pow2(amax * (1.0 / 448.0))
    codes = quant.round_e4m3(blocks / scale)
    exponents = (scale.view(torch.int32) >> 23).squeeze(-1).numpy().astype(np.uint8)
    return e4m3_bytes(codes.view(table.shape).numpy()), exponents


def tensors(c, weights):
    out = {}
    for name, w in weights_io.unstacked(c, weights).items():
        w = w.detach().float().cpu().contiguous()
        if any(mark in name for mark in F32_NAMES):
            if name.endswith("_fn"):  # training computes with these values
                w = w.to(torch.bfloat16).float()
            out[name] = ("F32", w.numpy())
            if name.endswith("gate.bias"):
                out[name + "_vl"] = ("F32", w.numpy())
        else:
            out[name] = ("BF16", weights_io.bf16_bits(w))
    for layer in c.engram_layers:
        p = f"layers.{layer}.engram.embed"
        codes, scales = table_bytes(weights[p].cpu())
        out[p + ".weight"], out[p + ".scale"] = ("F8_E4M3", codes), ("F8_E8M0", scales)
    return out


def write_folder(folder, whole, weights, tokenizer):
    os.makedirs(folder, exist_ok=True)
    c = config.Config(whole)
    weights_io.write(f"{folder}/model.safetensors", tensors(c, weights), {"format": "pt"})
    with open(f"{folder}/config.json", "w") as file:
        json.dump(whole, file, indent=1)
        file.write("\n")
    for name in ("tokenizer.json", "engram_token_map.i32"):
        if os.path.abspath(tokenizer) != os.path.abspath(folder):
            shutil.copyfile(f"{tokenizer}/{name}", f"{folder}/{name}")


def load_checkpoint(path):
    """float32 or bfloat16 weights saved by train.py, one or several files."""
    out = {}
    for part in sorted(path.split(",")):
        out.update(torch.load(part, map_location="cpu"))
    return {name: w.float() for name, w in out.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--weights")
    parser.add_argument("--random", type=int)
    parser.add_argument("--tokenizer", required=True)
    args = parser.parse_args()
    token_map = np.fromfile(f"{args.tokenizer}/engram_token_map.i32", "<i4")
    whole = config.tiny(int(token_map.max()) + 1)
    c = config.Config(whole)
    weights = (load_checkpoint(args.weights) if args.weights
               else model.initial_weights(c, args.random or 0))
    write_folder(args.out, whole, weights, args.tokenizer)


if __name__ == "__main__":
    main()
