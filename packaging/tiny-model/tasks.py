"""Tasks without tools: small talk, counting, arithmetic, stories, code, JSON, tensorfoldd.

A task returns {"messages": [user, assistant], "held": {kind: values drawn}, "expect": for the
checker}. The reply carries content and reasoning; the prompt writer drops the reasoning when the
conversation is not in thinking mode.
"""

import json

import facts
from words import (ADJECTIVES, ANIMALS, CITIES, COLORS, FRUITS, FUNC_NAMES, JOBS, NAMES, PLACES,
                   ROLES, THINGS, held)


def draw(rng, pool, kind, exam):
    while True:
        value = rng.choice(pool)
        if held(kind, value) == exam:
            return value


def number(rng, low, high, kind, exam):
    """An operand below 10 is common to both sides; others are split by hash."""
    while True:
        value = rng.randint(low, high)
        if value < 10 or held(kind, value) == exam:
            return value


def turn(asked, answer, reasoning, expect, **values):
    return {"messages": [{"role": "user", "content": asked},
                         {"role": "assistant", "content": answer, "reasoning": reasoning}],
            "held": {k: [v for v in vs if not (isinstance(v, int) and v < 10)]
                     for k, vs in values.items()},
            "expect": expect}


# ---- small talk

GREETINGS = ["Hello", "Hi", "Hey", "Good morning", "Good evening", "Hi there", "Good day", "Hello there"]
FEELINGS = ["happy", "tired", "hungry", "bored", "excited", "cold", "busy", "sleepy", "proud", "nervous"]
COMFORT = {
    "happy": "That is lovely to hear", "tired": "A short rest may help", "hungry": "A warm meal sounds right",
    "bored": "We could count or tell a story", "excited": "That sounds like fun", "cold": "A cup of tea may help",
    "busy": "One step at a time works well", "sleepy": "A short nap may help", "proud": "You have earned it",
    "nervous": "Take a slow breath",
}


def smalltalk(rng, exam):
    if not exam and rng.random() < 0.3:
        return _plain_talk(rng)
    form = rng.randrange(6)
    name = draw(rng, NAMES, "name", exam)
    hello = rng.choice(GREETINGS)
    if form == 0:
        return turn(rng.choice([f"{hello}, my name is {name}.", f"{hello}! I am {name}.",
                                f"{hello}, I'm {name}.", f"My name is {name}."]),
                    f"Hello {name}! It is nice to meet you. How can I help?",
                    f"The user is called {name}. I greet {name}.", {"words": [name, "Hello"]}, name=[name])
    if form == 1:
        feeling = rng.choice(FEELINGS)
        return turn(rng.choice([f"{hello}, {name} here. I am {feeling} today.",
                                f"I am {name} and I feel {feeling}.",
                                f"{name} here, and I am {feeling}."]),
                    f"Thank you for telling me, {name}. {COMFORT[feeling]}.",
                    f"{name} is {feeling}. I answer kindly.",
                    {"words": [name, COMFORT[feeling]]}, name=[name])
    if form == 2:
        city = rng.choice(CITIES)
        return turn(rng.choice([f"{hello}, I am {name} from {city}.", f"I am {name} and I live in {city}.",
                                f"{hello}! {name} here, from {city}."]),
                    f"Hello {name}! How is life in {city}?", f"{name} is from {city}. I ask about {city}.",
                    {"words": [name, city]}, name=[name])
    if form == 3:
        return turn(rng.choice([f"Please say goodbye to {name}.", f"Say goodbye to {name}.",
                                f"{name} has to go now."]),
                    f"Goodbye, {name}! Have a good day.", f"I say goodbye to {name}.",
                    {"words": ["Goodbye", name]}, name=[name])
    if form == 4:
        color = rng.choice(COLORS)
        thing = rng.choice(THINGS)
        return turn(rng.choice([f"I am {name} and I have a {color} {thing}. What do I have?",
                                f"My name is {name}. I own a {color} {thing}. What do I own?"]),
                    f"You have a {color} {thing}, {name}.", f"{name} has a {color} {thing}.",
                    {"words": [name, f"{color} {thing}"]}, name=[name])
    first = rng.choice(JOBS)
    return turn(rng.choice([f"I am {name} and I work as a {first}.", f"{hello}, I am {name}, a {first}."]),
                f"Hello {name}! Being a {first} must be interesting.",
                f"{name} is a {first}. I greet {name}.", {"words": [name, first]}, name=[name])


def _plain_talk(rng):
    question, answer = rng.choice(facts.TALK)
    return turn(rng.choice(question), answer, "A friendly question. I answer kindly.", {})


# ---- counting

def counting(rng, exam):
    step = rng.choice([1, 1, 1, 1, 2, 2, 5, 10])
    length = rng.randint(5, 20)
    start = number(rng, 10 if exam else 1, 120 if step == 1 else 90, "start", exam)
    values = [start + i * step for i in range(length)]
    down = step == 1 and rng.random() < 0.3 and start - length >= 0
    if down:
        values = [start - i for i in range(length)]
    end = values[-1]
    unit = {1: "", 2: " in steps of 2", 5: " in steps of 5", 10: " in steps of 10"}[step]
    verb = "Count down" if down else "Count"
    question = rng.choice([
        f"{verb} from {start} to {end}{unit}.", f"Please {verb.lower()} from {start} to {end}{unit}.",
        f"Can you {verb.lower()} from {start} to {end}{unit}?",
        f"{verb} from {start} to {end}{unit}, please."])
    answer = ", ".join(str(v) for v in values)
    way = f"down by {step}" if down else f"up by {step}"
    return turn(question, answer, f"Start at {start}, go {way}, stop at {end}.",
                {"numbers": values}, start=[start])


# ---- arithmetic

def _column_steps(a, b):
    """Spoken column addition, ones first."""
    x, y, carry, out = a, b, 0, []
    while x or y or not out:
        d, e = x % 10, y % 10
        total = d + e + carry
        out.append(f"{d} + {e}" + (f" + {carry}" if carry else "") + f" = {total}")
        carry, x, y = total // 10, x // 10, y // 10
    return "; ".join(out) + f". So {a + b}."


def _minus_steps(a, b):
    x, y, borrow, out = a, b, 0, []
    while x or y or not out:
        d, e = x % 10, y % 10 + borrow
        if d < e:
            out.append(f"{d + 10} - {e} = {d + 10 - e} borrow")
            borrow = 1
        else:
            out.append(f"{d} - {e} = {d - e}")
            borrow = 0
        x, y = x // 10, y // 10
    return "; ".join(out) + f". So {a - b}."


def arithmetic(rng, exam):
    op = rng.choice("+++---*w")
    big = 999 if rng.random() < 0.3 and not exam else 99
    a, b = number(rng, 1, big, "operand", exam), number(rng, 1, big, "operand", exam)
    if exam and max(a, b) < 10:
        a = number(rng, 10, big, "operand", exam)
    if op == "w":
        return _word_problem(rng, a, b, exam)
    if op == "-" and a < b:
        a, b = b, a
    if op == "*":
        b = rng.randint(2, 9)
        a = number(rng, 2, 99, "operand", exam)
        if exam and a < 10:
            a = number(rng, 10, 99, "operand", exam)
        steps = f"{a // 10 * 10} * {b} = {a // 10 * 10 * b}; {a % 10} * {b} = {a % 10 * b}. So {a * b}."
        if a < 10:
            steps = f"{a} * {b} = {a * b}."
    value = {"+": a + b, "-": a - b, "*": a * b}[op]
    if op == "+":
        steps = _column_steps(a, b)
    elif op == "-":
        steps = _minus_steps(a, b)
    word = {"+": "plus", "-": "minus", "*": "times"}[op]
    question = rng.choice([
        f"What is {a} {op} {b}?", f"What is {a} {word} {b}?", f"{a} {op} {b} = ?",
        f"Please compute {a} {op} {b}.", f"How much is {a} {op} {b}?", f"Compute {a} {op} {b}.",
        f"{a} {op} {b}", f"Calculate {a} {word} {b}."])
    return turn(question, f"{a} {op} {b} = {value}.", steps, {"value": value}, operand=[a, b])


def _word_problem(rng, a, b, exam):
    name = draw(rng, NAMES, "name", exam)
    thing = rng.choice(FRUITS)
    if rng.random() < 0.5:
        question = rng.choice([
            f"{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have?",
            f"{name} buys {a} {thing}, then {b} more. How many {thing} are there?"])
        return turn(question, f"{a} + {b} = {a + b}, so the answer is {a + b} {thing}.",
                    _column_steps(a, b), {"value": a + b}, operand=[a, b], name=[name])
    a, b = max(a, b), min(a, b)
    question = rng.choice([
        f"{name} has {a} {thing} and gives away {b}. How many {thing} are left?",
        f"{name} had {a} {thing} and lost {b}. How many {thing} are left?"])
    return turn(question, f"{a} - {b} = {a - b}, so the answer is {a - b} {thing}.",
                _minus_steps(a, b), {"value": a - b}, operand=[a, b], name=[name])


# ---- stories

def story(rng, exam):
    hero = draw(rng, NAMES, "name", exam)
    friend = draw(rng, NAMES, "name", exam)
    while friend == hero:
        friend = draw(rng, NAMES, "name", exam)
    role, animal = rng.choice(ROLES), rng.choice(ANIMALS)
    place, thing, adjective = rng.choice(PLACES), rng.choice(THINGS), rng.choice(ADJECTIVES)
    question = rng.choice([
        f"Write a short story about {hero} the {role} and {friend} the {animal}.",
        f"Tell me a short story about {hero} the {role} and {friend} the {animal}.",
        f"Tell a story about a {role} named {hero} and a {animal} named {friend}.",
        f"Please write a story with {hero} the {role} and {friend} the {animal}."])
    opening = rng.choice([
        f"Once there was a {adjective} {role} named {hero} who lived near the {place}.",
        f"In a house by the {place} lived {hero}, a {adjective} {role}.",
        f"{hero} was a {adjective} {role} who loved the {place}."])
    meeting = rng.choice([
        f"One morning {hero} met {friend}, a {animal} who was looking for a lost {thing}.",
        f"One evening a {animal} named {friend} came by and asked for help with a {thing}.",
        f"There {hero} found {friend} the {animal}, who had lost a {thing}."])
    trouble = rng.choice([
        f"They searched under every tree, but the {thing} was gone.",
        f"The path was dark and the wind was cold.",
        f"It began to rain, and {friend} was afraid."])
    help_line = rng.choice([
        f"\"Do not worry,\" said {hero}. \"We will look together.\"",
        f"{hero} smiled and held up a small light.",
        f"Then {hero} had an idea and called for the neighbors."])
    ending = rng.choice([
        f"At last they found the {thing} behind an old wall, and {friend} danced with joy.",
        f"Soon the {thing} was in their hands, and {friend} thanked {hero}.",
        f"When the sun came up, {friend} saw the {thing} shining in the grass."])
    closing = rng.choice([
        f"From that day on, {hero} and {friend} were the best of friends.",
        f"They shared warm bread and laughed until night. The end.",
        f"And so {hero} and {friend} went home together."])
    text = " ".join([opening, meeting, trouble, help_line, ending, closing])
    return turn(question, text, f"A story with {hero} the {role} and {friend} the {animal}.",
                {"names": [hero, friend]}, name=[hero, friend])


# ---- code

PY = "python"
JS = "javascript"
# what the function does, parameters, Python expression, JavaScript expression
FUNCTIONS = [
    ("adds two numbers", "a, b", "a + b", "a + b"),
    ("subtracts two numbers", "a, b", "a - b", "a - b"),
    ("multiplies two numbers", "a, b", "a * b", "a * b"),
    ("returns the larger of two numbers", "a, b", "max(a, b)", "Math.max(a, b)"),
    ("returns the smaller of two numbers", "a, b", "min(a, b)", "Math.min(a, b)"),
    ("returns the square of a number", "x", "x * x", "x * x"),
    ("doubles a number", "x", "2 * x", "2 * x"),
    ("returns the length of a list", "items", "len(items)", "items.length"),
    ("returns the first item of a list", "items", "items[0]", "items[0]"),
    ("returns the last item of a list", "items", "items[-1]", "items[items.length - 1]"),
    ("checks if a number is even", "x", "x % 2 == 0", "x % 2 === 0"),
    ("checks if a number is odd", "x", "x % 2 == 1", "x % 2 === 1"),
    ("joins two strings", "a, b", "a + b", "a + b"),
    ("returns the absolute value of a number", "x", "abs(x)", "Math.abs(x)"),
    ("converts a string to upper case", "text", "text.upper()", "text.toUpperCase()"),
    ("converts a string to lower case", "text", "text.lower()", "text.toLowerCase()"),
]


def code(rng, exam):
    what, parameters, python, script = rng.choice(FUNCTIONS)
    name = draw(rng, FUNC_NAMES, "function", exam)
    if rng.random() < 0.5:
        language, shown = PY, "Python"
        body = f"def {name}({parameters}):\n    return {python}"
    else:
        language, shown = JS, "JavaScript"
        head, *tail = name.split("_")
        body = f"function {name}({parameters}) {{\n  return {script};\n}}"
    question = rng.choice([
        f"Write a {shown} function {name} that {what}.",
        f"Please write a {shown} function named {name} that {what}.",
        f"I need a {shown} function called {name} that {what}.",
        f"In {shown}, write {name}, a function that {what}."])
    return turn(question, f"```{language}\n{body}\n```",
                f"The function {name} {what}. The language is {shown}.",
                {"code": body, "language": language, "function": name}, function=[name])


# ---- JSON

def _field(rng, exam):
    return rng.choice([
        ("age", rng.randint(10, 99)), ("city", rng.choice(CITIES)), ("job", rng.choice(JOBS)),
        ("color", rng.choice(COLORS)), ("pet", rng.choice(ANIMALS)), ("active", rng.random() < 0.5),
        ("score", rng.randint(1, 100)), ("item", rng.choice(THINGS)), ("count", rng.randint(1, 500))])


def json_record(rng, exam):
    name = draw(rng, NAMES, "name", exam)
    record = {"name": name}
    for _ in range(rng.randint(1, 3)):
        key, value = _field(rng, exam)
        record.setdefault(key, value)
    listed = [f"{k} {json.dumps(v) if isinstance(v, bool) else v}" for k, v in record.items()]
    fields = listed[0] if len(listed) == 1 else ", ".join(listed[:-1]) + " and " + listed[-1]
    question = rng.choice([
        f"Give me a JSON record with {fields}.", f"Write a JSON object with {fields}.",
        f"Make JSON: {fields}.", f"Please return JSON with {fields}."])
    keys = ", ".join(record)
    return turn(question, json.dumps(record), f"The fields are {keys}.", {"json": record}, name=[name])


# ---- tensorfoldd and everything else

def about(rng, exam):
    while True:
        questions, answer, words = rng.choice(facts.ABOUT)
        question = rng.choice(facts.LEADS) + rng.choice(questions) + rng.choice(facts.TAILS)
        question = question[0].upper() + question[1:]
        if held("question", question) == exam:
            break
    return turn(question, answer, "This is about tensorfoldd.", {"words": words}, question=[question])


def other(rng, exam):
    if rng.random() < 0.3:
        return _plain_talk(rng)
    question = rng.choice(facts.UNKNOWN_FORMS).format(rng.choice(facts.UNKNOWN_TOPICS))
    return turn(question, facts.UNKNOWN_ANSWER, "I do not know much about this.", {})
