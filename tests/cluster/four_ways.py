#!/usr/bin/env python3
"""Writes the embedded model anew so that it can be split over four ranks, with the same function.

usage: four_ways.py SOURCE TARGET

The embedded model has two o_groups, three experts and two in the drafter, which four ranks cannot
deal evenly. Here:

- four o_groups, one for each head: the parts of a group's wo_a that belong to one head each become
  a group, and the inputs of wo_b are repeated for both (a sum in another order, no other value);
- four experts: copies that the router's bias keeps from ever being chosen.

Nothing is computed: EXL3 weights are cut and repeated in blocks of 128, which is where they can be.
"""

import json
import pathlib
import re
import shutil
import struct
import sys

BLOCK = 128  # of EXL3's rotation
TILE = 16
GROUPS = 4
EXPERTS = 4
NEVER = -1e4  # a bias that no score makes up for


class Tensor:
    def __init__(self, dtype: str, shape: list[int], data: bytes):
        self.dtype, self.shape, self.data = dtype, shape, data

    def rows(self, begin: int, end: int) -> "Tensor":
        row = len(self.data) // self.shape[0]
        return Tensor(self.dtype, [end - begin] + self.shape[1:], self.data[begin * row:end * row])

    def then(self, other: "Tensor") -> "Tensor":
        return Tensor(self.dtype, [self.shape[0] + other.shape[0]] + self.shape[1:],
                      self.data + other.data)


def read(path: pathlib.Path) -> dict[str, Tensor]:
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            out[name] = Tensor(entry["dtype"], entry["shape"], data[8 + size + begin:8 + size + end])
    return out


def write(path: pathlib.Path, tensors: dict[str, Tensor]):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": [at, at + len(t.data)]}
        at += len(t.data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t.data for t in tensors.values()))


def split_groups(tensors: dict[str, Tensor], attention: str):
    """Group g of two becomes groups 2g and 2g + 1, one for each of its heads."""
    parts = {}
    for old in range(GROUPS // 2):
        name = f"{attention}.wo_a.slice.{old}."
        trellis, suh = tensors.pop(name + "trellis"), tensors.pop(name + "suh")
        svh, mul1 = tensors.pop(name + "svh"), tensors.pop(name + "mul1")
        for half in (0, 1):
            new = f"{attention}.wo_a.slice.{2 * old + half}."
            tiles = BLOCK // TILE
            parts[new + "trellis"] = trellis.rows(half * tiles, (half + 1) * tiles)
            parts[new + "suh"] = suh.rows(half * BLOCK, (half + 1) * BLOCK)
            parts[new + "svh"], parts[new + "mul1"] = svh, mul1
    tensors.update(parts)
    for suffix, unit in (("trellis", BLOCK // TILE), ("suh", BLOCK)):
        whole = tensors[f"{attention}.wo_b.{suffix}"]
        first, second = whole.rows(0, unit), whole.rows(unit, 2 * unit)
        tensors[f"{attention}.wo_b.{suffix}"] = first.then(first).then(second).then(second)


def add_experts(tensors: dict[str, Tensor], ffn: str):
    gate = tensors[f"{ffn}.gate.weight"]
    have = gate.shape[0]
    for number in range(have, EXPERTS):
        for name in [n for n in tensors if n.startswith(f"{ffn}.experts.0.")]:
            tensors[name.replace(".experts.0.", f".experts.{number}.")] = tensors[name]
    row = len(gate.data) // have
    more = EXPERTS - have
    tensors[f"{ffn}.gate.weight"] = gate.then(Tensor(gate.dtype, [more] + gate.shape[1:],
                                                     bytes(row * more)))
    for bias in (f"{ffn}.gate.bias", f"{ffn}.gate.bias_vl"):
        if bias in tensors:
            tensors[bias] = tensors[bias].then(Tensor("F32", [more], struct.pack("<f", NEVER) * more))


def make(source: pathlib.Path, target: pathlib.Path):
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix != ".safetensors" and file.name != "config.json":
            shutil.copy(file, target)
    config = json.loads((source / "config.json").read_text())
    text = config["text_config"]
    if (text["o_groups"], text["num_attention_heads"]) != (GROUPS // 2, GROUPS):
        sys.exit("the embedded model has another shape than this script was written for")
    text["o_groups"] = GROUPS
    text["n_routed_experts"] = text["dspark_n_routed_experts"] = EXPERTS
    (target / "config.json").write_text(json.dumps(config))
    tensors = read(source / "model.safetensors")
    for name in list(tensors):
        if match := re.fullmatch(r"(.*\.attn)\.wo_b\.trellis", name):
            split_groups(tensors, match[1])
        if match := re.fullmatch(r"(.*\.ffn)\.gate\.weight", name):
            add_experts(tensors, match[1])
    write(target / "model.safetensors", tensors)


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
