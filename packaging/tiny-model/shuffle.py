"""Writes the twin of a model folder whose weights are shuffled inside every tensor.

shuffle.py IN OUT: same names, shapes, types and value statistics, no knowledge. The exam must
fail on it: `evaluate --shuffled`. Standard library only.
"""

import json
import os
import random
import shutil
import sys

SIZES = {"BF16": 2, "F16": 2, "I16": 2, "F32": 4, "I32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1, "I8": 1}


def shuffled(raw, size, rng):
    units = [raw[i:i + size] for i in range(0, len(raw), size)]
    rng.shuffle(units)
    return b"".join(units)


def main():
    source, target = sys.argv[1:3]
    os.makedirs(target, exist_ok=True)
    for name in os.listdir(source):
        if not name.endswith(".safetensors"):
            shutil.copyfile(f"{source}/{name}", f"{target}/{name}")
            continue
        with open(f"{source}/{name}", "rb") as file:
            raw = file.read()
        start = 8 + int.from_bytes(raw[:8], "little")
        out = bytearray(raw)
        for tensor, info in sorted(json.loads(raw[8:start]).items()):
            if tensor == "__metadata__":
                continue
            begin, end = (start + offset for offset in info["data_offsets"])
            rng = random.Random(tensor)
            out[begin:end] = shuffled(raw[begin:end], SIZES[info["dtype"]], rng)
        with open(f"{target}/{name}", "wb") as file:
            file.write(out)


if __name__ == "__main__":
    main()
