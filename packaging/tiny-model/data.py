"""Generates the training text and the exam of the embedded model, deterministic by seed.

Every task is a function task(rng, exam) -> Turn list plus what a checker needs. A conversation is
one to three turns in the V4.1 prompt format. Values that belong to the exam (words.held) never
occur in a training conversation: each task draws from one side only, `Ledger` records what was
drawn, and assert_disjoint() compares both sides.
"""

import random

import prompt
import tasks
import tool_tasks
from words import held

MAX_TOKENS = 1024  # longer conversations are dropped

SYSTEMS = [
    "You are a helpful assistant.", "You are tiny, a small helpful model.", "Be brief and exact.",
    "Answer the question.", "You are a friendly assistant. Keep answers short.",
    "Be concise.", "You are a careful assistant.", "Help the user.", "Answer in English.",
    "You are an assistant in a small office.",
]

# kind -> (task, weight in training, questions in the exam)
KINDS = {
    "smalltalk": (tasks.smalltalk, 8, 20),
    "counting": (tasks.counting, 10, 24),
    "arithmetic": (tasks.arithmetic, 26, 30),
    "story": (tasks.story, 12, 20),
    "code": (tasks.code, 10, 24),
    "json": (tasks.json_record, 10, 24),
    "tool_one": (tool_tasks.tool_one, 12, 20),
    "tool_several": (tool_tasks.tool_several, 8, 12),
    "tool_none": (tool_tasks.tool_none, 4, 10),
    "about": (tasks.about, 9, 16),
}
# Chat about anything else is trained (a short honest answer) and not examined.
TRAIN_ONLY = {"other": (tasks.other, 4)}


def conversation(rng, ledger=None):
    """One training conversation: (messages, thinking, effort, tools)."""
    names = list(KINDS) + list(TRAIN_ONLY)
    weights = [KINDS[k][1] for k in KINDS] + [TRAIN_ONLY[k][1] for k in TRAIN_ONLY]
    kind = rng.choices(names, weights)[0]
    thinking = rng.random() < 0.35
    effort = rng.choice([None, None, None, "low", "high", "max", rng.randint(1, 100)])
    turns, tools, messages = [], None, []
    count = 1 if rng.random() < 0.6 else rng.randint(2, 4)
    if kind.startswith("tool"):
        item = KINDS[kind][0](rng, False)
        tools = item["tools"]
        turns.append(item)
        count = 1 if rng.random() < 0.7 else 2
    for _ in range(count - len(turns)):
        other = kind if not turns else rng.choices(names, weights)[0]
        if tools and (other.startswith("tool") or rng.random() < 0.3):
            turns.append(tool_tasks.again(rng, tools, False))
            continue
        while other.startswith("tool"):
            other = rng.choices(names, weights)[0]
        table = KINDS.get(other) or TRAIN_ONLY[other]
        turns.append(table[0](rng, False))
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    for turn in turns:
        for message in turn["messages"]:
            messages.append(dict(message))
        if ledger is not None:
            ledger.add(turn)
    return messages, thinking, effort, tools


def long_conversation(rng):
    """Spans of a conversation of many turns, up to the longest training length."""
    names = [k for k in list(KINDS) + list(TRAIN_ONLY) if not k.startswith("tool")]
    messages = []
    for _ in range(rng.randint(8, 20)):
        kind = rng.choice(names)
        table = KINDS.get(kind) or TRAIN_ONLY[kind]
        messages += [dict(m) for m in table[0](rng, False)["messages"]]
    return prompt.render(messages, rng.random() < 0.2)


class Ledger:
    """What a side drew, by kind of value."""

    def __init__(self):
        self.values = {}

    def add(self, turn):
        for kind, values in turn.get("held", {}).items():
            self.values.setdefault(kind, set()).update(values)


def assert_disjoint(training, exam):
    for kind, values in exam.values.items():
        both = values & training.values.get(kind, set())
        assert not both, f"{kind}: exam values in training: {sorted(both)[:5]}"
        for value in values:
            assert held(kind, value), f"{kind}: exam value {value} is not held out"
    for kind, values in training.values.items():
        for value in values:
            assert not held(kind, value), f"{kind}: training value {value} is held out"


def exam(seed=7):
    """200 questions: dicts with kind, messages, thinking, tools, expect. Prompts are distinct."""
    rng = random.Random(f"exam {seed}")
    out, seen = [], set()
    ledger = Ledger()
    for kind, (task, _, questions) in KINDS.items():
        made = 0
        while made < questions:
            item = task(rng, True)
            thinking = made % 4 == 3
            asked = [m for m in item["messages"] if m["role"] != "assistant" and m["role"] != "tool"]
            first = item["messages"][: item.get("ask", 1)]
            key = repr([m["content"] for m in first])
            if key in seen or not asked:
                continue
            seen.add(key)
            ledger.add(item)
            out.append({"kind": kind, "messages": first, "thinking": thinking,
                        "tools": item.get("tools"), "expect": item["expect"]})
            made += 1
    return out, ledger


def training_text(seed, count, ledger=None):
    """Yields (text spans, ) of `count` conversations."""
    rng = random.Random(f"train {seed}")
    for _ in range(count):
        messages, thinking, effort, tools = conversation(rng, ledger)
        yield prompt.render(messages, thinking, effort, tools)


if __name__ == "__main__":
    import sys
    for spans in training_text(int(sys.argv[1]), int(sys.argv[2])):
        print("".join(text for text, _ in spans))
        print("-----")
