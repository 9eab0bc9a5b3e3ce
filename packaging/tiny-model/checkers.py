"""One checker per kind of exam question; and the tally. Standard library only.

A reply is {"content", "reasoning", "calls": [(name, arguments)], "finish"}; `check` returns None
when it is right, otherwise what is wrong.
"""

import ast
import json
import re

OVERALL_MIN, KIND_MIN, SHUFFLED_MAX = 0.90, 0.80, 0.10
DRAFTED_MIN = {"counting": 3.0, "story": 1.8}
STORY_WORDS_MIN = 30


def _words(reply, expect):
    missing = [w for w in expect["words"] if w not in reply["content"]]
    if missing:
        return f"missing {missing}"
    if len(reply["content"].split()) > 60:
        return "too long"
    return None


def _counting(reply, expect):
    text = reply["content"].strip().rstrip(".")
    if not re.fullmatch(r"-?\d+(, -?\d+)*", text):
        return "not a list of numbers"
    got = [int(n) for n in text.split(", ")]
    return None if got == expect["numbers"] else f"counted {got[:3]}.. {len(got)} numbers"


def _arithmetic(reply, expect):
    numbers = re.findall(r"-?\d+", reply["content"])
    if not numbers:
        return "no number"
    return None if int(numbers[-1]) == expect["value"] else f"said {numbers[-1]}"


def _story(reply, expect):
    text = reply["content"]
    words = re.findall(r"[A-Za-z']+", text)
    if len(words) < STORY_WORDS_MIN:
        return "too short"
    grams = [tuple(words[i:i + 8]) for i in range(len(words) - 7)]
    if len(set(grams)) != len(grams):
        return "repeats eight words"
    for name in expect["names"]:
        if text.count(name) < 2:
            return f"{name} is not kept"
    # A capitalized word inside a sentence is a name; the story may use only the two it was given.
    inside = set(re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", text))
    strange = inside - set(expect["names"])
    return f"other names {sorted(strange)}" if strange else None


ALLOWED_CALLS = {"max": max, "min": min, "abs": abs, "len": len}
SAMPLES = {"a, b": [(3, 8), (9, 2), (-4, 5)], "x": [(7,), (-6,), (10,)],
           "items": [([4, 1, 9],), ([7],)], "text": [("Some Text",), ("abc",)]}


def _run_python(source, name, arguments):
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.While, ast.For, ast.Pow)):
            raise ValueError("unexpected statement")
        if isinstance(node, ast.Attribute) and node.attr not in ("upper", "lower"):
            raise ValueError("unexpected attribute")
    scope = {"__builtins__": ALLOWED_CALLS}
    exec(compile(tree, "reply", "exec"), scope)  # a single expression of known shape
    return [scope[name](*a) for a in arguments]


def _code(reply, expect):
    match = re.search(r"```(\w+)\n(.*?)\n```", reply["content"], re.S)
    if not match:
        return "no code block"
    if match.group(1) != expect["language"]:
        return f"language {match.group(1)}"
    source = match.group(2)
    if expect["language"] == "python":
        parameters = re.search(r"\((.*?)\)", expect["code"]).group(1)
        try:
            want = _run_python(expect["code"], expect["function"], SAMPLES[parameters])
            got = _run_python(source, expect["function"], SAMPLES[parameters])
        except Exception as error:  # any failure of the code is the reply's
            return f"does not run: {error}"
        return None if got == want else "wrong results"
    same = " ".join(source.split()) == " ".join(expect["code"].split())
    return None if same else "not the expected function"


def _json(reply, expect):
    try:
        got = json.loads(reply["content"])
    except ValueError:
        return "not JSON"
    return None if got == expect["json"] else f"fields {got}"


def _calls(reply, expect):
    want = [(n, a) for n, a in expect["calls"]]
    got = [(n, a) for n, a in reply["calls"]]
    if got != want:
        return f"calls {got}"
    return None


def _no_calls(reply, expect):
    if reply["calls"]:
        return f"calls {reply['calls']}"
    for key, checker in (("words", _words), ("numbers", _counting), ("value", _arithmetic)):
        if key in expect:
            return checker(reply, expect)
    return "nothing to check"


BY_KIND = {"smalltalk": _words, "about": _words, "counting": _counting, "arithmetic": _arithmetic,
           "story": _story, "code": _code, "json": _json, "tool_one": _calls, "tool_several": _calls,
           "tool_none": _no_calls}


def check(question, reply):
    wanted = "tool_calls" if question["expect"].get("calls") else "stop"
    if reply["finish"] != wanted:
        return f"finish {reply['finish']}"
    if question["thinking"] and not reply["reasoning"]:
        return "no reasoning"
    return BY_KIND[question["kind"]](reply, question["expect"])


class Tally:
    def __init__(self):
        self.right, self.asked, self.wrong = {}, {}, []

    def add(self, question, reply):
        kind, wrong = question["kind"], check(question, reply)
        self.asked[kind] = self.asked.get(kind, 0) + 1
        self.right[kind] = self.right.get(kind, 0) + (wrong is None)
        if wrong:
            self.wrong.append((kind, question["messages"][-1]["content"], wrong, reply["content"]))

    def share(self, kind=None):
        if kind:
            return self.right[kind] / self.asked[kind]
        return sum(self.right.values()) / max(sum(self.asked.values()), 1)

    def worst(self):
        return min(self.asked, key=self.share)

    def lines(self):
        out = [f"{kind}: {self.right[kind]} of {self.asked[kind]}" for kind in self.asked]
        out.append(f"overall: {sum(self.right.values())} of {sum(self.asked.values())} "
                   f"({100 * self.share():.1f} %), worst {self.worst()} "
                   f"({100 * self.share(self.worst()):.1f} %)")
        return out
