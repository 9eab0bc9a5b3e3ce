"""Tasks with tools: one call, several calls, none, and a call's result told to the user."""

import tasks
from words import CITIES, COLORS, NAMES, TOOL_NAMES

# parameter: (JSON type, description, how a value is drawn)
PARAMETERS = {
    "city": ("string", "The city", lambda rng: rng.choice(CITIES)),
    "owner": ("string", "The owner's name", None),  # a name, split by side
    "color": ("string", "The color", lambda rng: rng.choice(COLORS)),
    "limit": ("integer", "The largest number of rows", lambda rng: rng.randint(1, 99)),
    "days": ("integer", "The number of days", lambda rng: rng.randint(1, 30)),
    "year": ("integer", "The year", lambda rng: rng.randint(1950, 2040)),
    "urgent": ("boolean", "If it is urgent", lambda rng: rng.random() < 0.5),
    "size": ("integer", "The size", lambda rng: rng.randint(1, 500)),
}


def _tool(rng, exam, taken):
    while True:
        name = tasks.draw(rng, TOOL_NAMES, "tool", exam)
        verb, noun = name.split("_")
        if all(noun not in t and verb + "_" not in t for t in taken):
            break
    keys = rng.sample(list(PARAMETERS), rng.choice([1, 1, 2, 2, 3]))
    properties = {k: {"type": PARAMETERS[k][0], "description": PARAMETERS[k][1]} for k in keys}
    return {"type": "function", "function": {
        "name": name, "description": f"{verb.capitalize()} the {noun}.",
        "parameters": {"type": "object", "properties": properties, "required": keys}}}


def _tools(rng, exam):
    out = []
    for _ in range(rng.choice([1, 2, 2, 3])):
        out.append(_tool(rng, exam, [t["function"]["name"] for t in out]))
    return out


def _arguments(rng, tool, exam):
    out = {}
    for key in tool["function"]["parameters"]["properties"]:
        draw = PARAMETERS[key][2]
        out[key] = draw(rng) if draw else tasks.draw(rng, NAMES, "name", exam)
    return out


def _phrase(rng, tool, arguments):
    """The wish in words: verb, noun, then the arguments by name."""
    verb, noun = tool["function"]["name"].split("_")
    said = [f"{k} {str(v).lower() if isinstance(v, bool) else v}" for k, v in arguments.items()]
    joined = said[0] if len(said) == 1 else ", ".join(said[:-1]) + " and " + said[-1]
    return f"{verb} the {noun} with {joined}"


def _names_in(calls):
    return [v for _, a in calls for k, v in a.items() if k == "owner"]


def _call_turn(rng, tools, picked, exam):
    calls, phrases = [], []
    for tool in picked:
        arguments = _arguments(rng, tool, exam)
        calls.append((tool["function"]["name"], arguments))
        phrases.append(_phrase(rng, tool, arguments))
    wish = phrases[0] if len(phrases) == 1 else ", and ".join(phrases)
    question = rng.choice([f"Please {wish}.", f"Can you {wish}?", f"I want you to {wish}.",
                           wish[0].upper() + wish[1:] + "."])
    plan = " and then ".join(name for name, _ in calls)
    messages = [{"role": "user", "content": question},
                {"role": "assistant", "content": "", "reasoning": f"I call {plan}.", "calls": calls}]
    if not exam and rng.random() < 0.35:
        messages += _result_turn(rng, calls)
    return {"messages": messages, "tools": tools, "expect": {"calls": calls},
            "held": {"tool": [t["function"]["name"] for t in tools], "name": _names_in(calls)}}


def _result_turn(rng, calls):
    results, told = [], []
    for name, _ in calls:
        noun = name.split("_")[1]
        state = rng.choice(["ok", "done", "ready", "late", "open", "closed"])
        number = rng.randint(1, 999)
        results.append({"role": "tool", "content": f'{{"state": "{state}", "number": {number}}}'})
        told.append(f"The {noun} is {state}, number {number}.")
    return results + [{"role": "assistant", "content": " ".join(told),
                       "reasoning": "I tell the result."}]


def tool_one(rng, exam):
    tools = _tools(rng, exam)
    return _call_turn(rng, tools, [rng.choice(tools)], exam)


def tool_several(rng, exam):
    tools = _tools(rng, exam)
    count = rng.choice([2, 2, 3])
    if len(tools) == 1 or rng.random() < 0.3:
        picked = [rng.choice(tools)] * count
    else:
        picked = rng.sample(tools, min(count, len(tools)))
    return _call_turn(rng, tools, picked, exam)


def tool_none(rng, exam):
    tools = _tools(rng, exam)
    task = rng.choice([tasks.smalltalk, tasks.arithmetic, tasks.about, tasks.counting])
    item = task(rng, exam)
    item["tools"] = tools
    item["held"]["tool"] = [t["function"]["name"] for t in tools]
    item["expect"] = dict(item["expect"], calls=[])
    return item


def again(rng, tools, exam):
    """A further call in a conversation that has tools already."""
    return _call_turn(rng, tools, [rng.choice(tools)], exam)
