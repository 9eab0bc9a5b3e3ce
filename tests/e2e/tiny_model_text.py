"""The embedded model's text: its prompt writer against the encoding vectors, its exam against what
training uses, its checkers against right and damaged replies. Standard library only.

tiny_model_text.py TINY_MODEL_FOLDER ENCODING_CASES
"""

import random
import sys

sys.path.insert(0, sys.argv[1])
import checkers  # noqa: E402
import data  # noqa: E402
import prompt  # noqa: E402

EACH = 40  # questions of every kind


def reply_of(item):
    said = item["messages"][1]
    return {"content": said.get("content") or "", "reasoning": said.get("reasoning") or "",
            "calls": said.get("calls") or [], "finish": "tool_calls" if said.get("calls") else "stop"}


def damaged(reply, expect, rng):
    """Replies that differ in what the question asked for."""
    text = reply["content"]
    yield dict(reply, finish="length")
    yield dict(reply, content="", calls=[])
    if reply["calls"]:
        name, arguments = reply["calls"][0]
        key = rng.choice(list(arguments))
        yield dict(reply, calls=[(name + "s", arguments)] + reply["calls"][1:])
        yield dict(reply, calls=[(name, {**arguments, key: "other"})] + reply["calls"][1:])
        yield dict(reply, calls=reply["calls"] * 2)
        return
    yield dict(reply, calls=[("get_weather", {"city": "Oslo"})], finish="tool_calls")
    if "value" in expect:
        yield dict(reply, content=text.replace(str(expect["value"]), str(expect["value"] + 1)))
    for word in expect.get("words", []) + expect.get("names", []):
        yield dict(reply, content=text.replace(word, "Somebody"))
    if "numbers" in expect or "json" in expect or "code" in expect or "names" in expect:
        yield dict(reply, content=text[: len(text) // 3])
    if "names" in expect:
        yield dict(reply, content=text + " " + text)


def main():
    right, wrong = prompt.check(sys.argv[2])
    assert right >= 30 and not wrong, (right, wrong)

    questions, exam = data.exam()
    assert len(questions) == 200 and {q["kind"] for q in questions} == set(checkers.BY_KIND)
    assert [q["messages"] for q in questions] == [q["messages"] for q in data.exam()[0]]
    training = data.Ledger()
    for _ in data.training_text("1.0", 5000, training):
        pass
    data.assert_disjoint(training, exam)
    assert all(exam.values.get(k) for k in ("operand", "start", "name", "tool", "function"))
    leaked = data.Ledger()
    leaked.values = {"operand": set(list(exam.values["operand"])[:1])}
    try:
        data.assert_disjoint(leaked, exam)
    except AssertionError:
        pass
    else:
        raise SystemExit("a leaked operand was not noticed")

    rng = random.Random(5)
    refused = 0
    for kind, (task, _, _) in data.KINDS.items():
        for _ in range(EACH):
            item = task(rng, True)
            question = {"kind": kind, "messages": item["messages"][:1], "thinking": False,
                        "tools": item.get("tools"), "expect": item["expect"]}
            reply = reply_of(item)
            verdict = checkers.check(question, reply)
            assert verdict is None, (kind, reply, verdict)
            assert checkers.check(dict(question, thinking=True), dict(reply, reasoning="")), kind
            for bad in damaged(reply, item["expect"], rng):
                assert checkers.check(question, bad), (kind, bad)
                refused += 1
    print(f"{right} prompts, {len(questions)} questions, {refused} damaged replies refused")


if __name__ == "__main__":
    main()
