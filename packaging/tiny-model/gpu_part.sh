#!/bin/sh
# One training part on the machine with the GPU: gpu_part.sh STATE_FOLDER SECONDS [train.py options]
# Tries compiled kernels first and goes on without them when compiling fails.
here=$(cd "$(dirname "$0")" && pwd)
out=$1 seconds=$2
shift 2
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=4
python3 "$here/train.py" --out "$out" --tokenizer "$here/model" --seconds "$seconds" --compile "$@" ||
  python3 "$here/train.py" --out "$out" --tokenizer "$here/model" --seconds "$seconds" "$@"
