#!/bin/sh
# The embedded model's exam on the daemon as built: tiny_model_exam.sh SOURCE DAEMON [twin WORK]
# With `twin` the model with shuffled weights is asked instead, and must fail.
set -e
tiny=$1/packaging/tiny-model
if [ "$3" = twin ]; then
  rm -rf "$4/tiny-twin"
  python3 "$tiny/shuffle.py" "$tiny/model" "$4/tiny-twin"
  exec python3 "$tiny/evaluate" --daemon "$2" --model "$4/tiny-twin" --shuffled --limit 20
fi
exec python3 "$tiny/evaluate" --daemon "$2" --model "$tiny/model"
