"""Answers the exam with the PyTorch model: greedy, no cache, many questions at once.

generate.py --weights FILES --tokenizer FOLDER [--noise] [--compile]: the share of right answers
and the drafted tokens that a round would keep. Meant for a GPU; it tells how the trained weights do
before the engine serves them. --noise adds the noise that quantisation will bring.
"""

import argparse
import re
import time

import numpy as np
import torch
from tokenizers import Tokenizer

import checkers
import config
import data
import export
import model
import prompt
import train

TOKENS_MAX = 320


def parse_reply(text, finished, thinking):
    """The completion's text to a reply, by the plain rules of the format."""
    reasoning = ""
    if thinking:
        reasoning, _, text = text.partition(prompt.THINK_END)
    content, _, block = text.partition(f"\n\n<{prompt.DSML} calls>")
    calls = []
    for name, body in re.findall(rf'<{prompt.DSML} invoke name="(.*?)">\n(.*?)</{prompt.DSML} invoke>', block, re.S):
        arguments = {}
        for key, is_text, value in re.findall(
                rf'<{prompt.DSML} parameter name="(.*?)" string="(true|false)">(.*?)</{prompt.DSML} parameter>', body, re.S):
            try:
                arguments[key] = value if is_text == "true" else __import__("json").loads(value)
            except ValueError:
                arguments[key] = value
        calls.append((name, arguments))
    finish = "length" if not finished else "tool_calls" if calls else "stop"
    return {"content": content, "reasoning": reasoning, "calls": calls, "finish": finish}


@torch.no_grad()
def complete(m, prompts, limit):
    """Greedy continuations of lists of ids, and the position where each began."""
    rows = [list(p) for p in prompts]
    done = [False] * len(rows)
    for _ in range(limit):
        live = [i for i, d in enumerate(done) if not d]
        if not live:
            break
        width = -(-max(len(rows[i]) for i in live) // 64) * 64
        ids = torch.full((len(live), width), 2, dtype=torch.long, device=m.device)
        for k, i in enumerate(live):
            ids[k, :len(rows[i])] = torch.tensor(rows[i], device=m.device)
        hidden, _ = m.backbone(ids)
        last = torch.tensor([k * width + len(rows[i]) - 1 for k, i in enumerate(live)], device=m.device)
        best = m.head(hidden[last]).argmax(-1).tolist()
        for i, token in zip(live, best):
            rows[i].append(token)
            done[i] = token == 1
    return rows, done


@torch.no_grad()
def drafted(m, row, start):
    """(kept drafts, rounds) of greedy speculation over the reply row[start:]."""
    c = m.c
    width = -(-(len(row) + 8) // 64) * 64
    ids = torch.full((1, width), 2, dtype=torch.long, device=m.device)
    ids[0, :len(row)] = torch.tensor(row, device=m.device)
    _, taps = m.backbone(ids)
    anchors = torch.arange(start - 1, len(row) - 1, device=m.device)[None]
    base, _ = m.draft(ids, taps, anchors)
    previous, drafts = ids[0, start:len(row)], []
    for i in range(c.block):
        extra, _ = m.markov(previous)
        previous = (base[0, :, i].float() + extra.float()).argmax(-1)
        drafts.append(previous.tolist())
    kept = rounds = 0
    p = start - 1  # the target is done at p and row[p + 1] is known
    while p + 2 < len(row):
        n = 0
        while n < c.block and p + 2 + n < len(row) and drafts[n][p - start + 1] == row[p + 2 + n]:
            n += 1
        kept, rounds, p = kept + n, rounds + 1, p + n + 1
    return kept, rounds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--share", type=float, default=1.0)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(f"{args.tokenizer}/tokenizer.json")
    token_map = np.fromfile(f"{args.tokenizer}/engram_token_map.i32", "<i4")
    c = config.Config(config.tiny(int(token_map.max()) + 1))
    weights = {n: w.to(device) for n, w in export.load_checkpoint(args.weights).items()}
    if args.noise:
        for n, w in weights.items():
            if train.noise_bits(n):
                w += train.NOISE[train.noise_bits(n)] * w.pow(2).mean().sqrt() * torch.randn_like(w)
    m = model.Model(c, weights, token_map, select=True)
    questions, _ = data.exam()
    if args.share < 1:
        questions = questions[:: round(1 / args.share)]
    began, tally, speed = time.time(), checkers.Tally(), {}
    groups = {}
    for q in questions:
        groups.setdefault(bool(q["tools"]), []).append(q)
    for group in groups.values():
        prompts = [tokenizer.encode(prompt.prompt_text(q["messages"], q["thinking"], None, q["tools"]),
                                    add_special_tokens=False).ids for q in group]
        rows, done = complete(m, prompts, TOKENS_MAX)
        for q, p, row, finished in zip(group, prompts, rows, done):
            text = tokenizer.decode(row[len(p):len(row) - finished], skip_special_tokens=False)
            tally.add(q, parse_reply(text, finished, q["thinking"]))
            kept, rounds = drafted(m, row, len(p))
            total = speed.setdefault(q["kind"], [0, 0])
            total[0] += kept
            total[1] += rounds
    for wrong in tally.wrong[:25]:
        print("wrong:", *[str(part)[:160] for part in wrong], sep=" | ")
    print("\n".join(tally.lines()))
    print("drafted tokens a round:", {k: round(a / max(b, 1), 2) for k, (a, b) in speed.items()})
    print(f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
