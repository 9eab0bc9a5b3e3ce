"""The V4.1 prompt format for training text: messages in, spans of (text, is_reply) out.

A small writer of the format that engine/text implements in full: system text, tools, users, tool
results, replies with reasoning and DSML calls. It is used only to make training text; `check()`
compares it with the project's encoding vectors for every case that it supports.
"""

import json

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
SYSTEM = "<｜System｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK, THINK_END = "<think>", "</think>"
DSML = "｜DSML｜"
REMINDER = "<｜latest_reminder｜>"
IMAGE = "<｜deepseek_image｜>"
EFFORTS = {"low": 50, "high": 75, "max": 100}

# Added tokens besides BOS, EOS and pad, in id order at the end of the vocabulary.
ADDED = [
    SYSTEM, "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", USER, ASSISTANT, THINK, THINK_END,
    DSML, REMINDER, "<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>",
    "<｜read_url｜>", "<｜end_of_query｜>", "<dsml:", "</dsml:", IMAGE,
]

TOOLS_TEXT = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<{d} calls>" block like the following:

<{d} calls>
<{d} invoke name="$TOOL_NAME">
<{d} parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{d} parameter>
...
</{d} invoke>
<{d} invoke name="$TOOL_NAME2">
...
</{d} invoke>
</{d} calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{schemas}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def tools_section(tools):
    schemas = "\n".join(dumps(tool["function"]) for tool in tools)
    return TOOLS_TEXT.replace("{d}", DSML).replace("{schemas}", schemas)


def calls_block(calls):
    """calls: [(name, {key: value})]"""
    invokes = []
    for name, arguments in calls:
        rows = []
        for key, value in arguments.items():
            is_text = isinstance(value, str)
            body = value if is_text else dumps(value)
            flag = "true" if is_text else "false"
            rows.append(f'<{DSML} parameter name="{key}" string="{flag}">{body}</{DSML} parameter>')
        invokes.append(f'<{DSML} invoke name="{name}">\n' + "\n".join(rows) + f"\n</{DSML} invoke>")
    return f"\n\n<{DSML} calls>\n" + "\n".join(invokes) + f"\n</{DSML} calls>"


def attach_tools(messages, tools):
    """As the server does: on the first system message, else on an empty one put first."""
    messages = [dict(m) for m in messages]
    if not tools:
        return messages
    for message in messages:
        if message["role"] == "system":
            message["tools"] = tools
            return messages
    return [{"role": "system", "content": "", "tools": tools}] + messages


def _merge(messages):
    merged = []
    for message in messages:
        role = message["role"]
        if role == "tool":
            text = "<tool_result>" + (message.get("content") or "") + "</tool_result>"
        elif role == "user":
            text = message.get("content") or ""
        else:
            merged.append(dict(message))
            continue
        if merged and merged[-1]["role"] == "user":
            merged[-1]["content"] += "\n\n" + text
        else:
            merged.append({"role": "user", "content": text})
    return merged


def render(messages, thinking=False, effort=None, tools=None):
    """[(text, is_reply)] for the conversation; a reply span ends with EOS.

    Assistant messages: content, reasoning (or reasoning_content), calls [(name, arguments)].
    """
    messages = _merge(attach_tools(messages, tools))
    has_tools = any(m.get("tools") for m in messages)
    keep_all = has_tools
    last_user = max([i for i, m in enumerate(messages)
                     if m["role"] == "user" or (m["role"] == "system" and i > 0)], default=-1)
    out, text = [], BOS
    for i, message in enumerate(messages):
        role = message["role"]
        if i == 0 and (thinking or role == "system"):
            text += SYSTEM
        if i == 0 and thinking:
            number = EFFORTS["high"] if effort is None else EFFORTS.get(effort, effort)
            text += (f"Reasoning Effort: {number} (range 1-100, the higher the value, "
                     "the more thorough the reasoning)\n\n")
        if role == "system":
            text += (SYSTEM if i > 0 else "") + (message.get("content") or "")
            if message.get("tools"):
                text += "\n\n" + tools_section(message["tools"])
        elif role == "user":
            text += USER + message["content"]
        elif role == "assistant":
            reply = ""
            if thinking and (keep_all or i > last_user):
                reply = (message.get("reasoning") or message.get("reasoning_content") or "")
                reply += THINK_END
            reply += message.get("content") or ""
            if message.get("calls"):
                reply += calls_block(message["calls"])
            out += [(text, False), (reply + EOS, True)]
            text = ""
            continue
        else:
            raise ValueError(f"role {role} is not written here")
        last = i + 1 == len(messages)
        if last or messages[i + 1]["role"] == "assistant":
            if role == "user" or (role == "system" and i > 0):
                text += ASSISTANT
                text += THINK if thinking and (keep_all or i >= last_user) else THINK_END
    if text:
        out.append((text, False))
    return out


def prompt_text(messages, thinking=False, effort=None, tools=None):
    return "".join(text for text, _ in render(messages, thinking, effort, tools))


def check(path):
    """Compares with the vectors of the given file; returns (right, wrong names)."""
    right, wrong = 0, []
    for case in json.load(open(path))["cases"]:
        options = case.get("options") or {}
        roles = {m["role"] for m in case["messages"]}
        plain = all(isinstance(m.get("content") or "", str) and not m.get("tool_calls")
                    and not m.get("task") and not m.get("wo_eos") and not m.get("response_format")
                    for m in case["messages"])
        known = set(options) <= {"thinking_mode", "reasoning_effort"}
        if case["format"] != "v4.1" or case.get("expected_prompt") is None or not known:
            continue
        if not plain or not roles <= {"system", "user", "assistant"}:
            continue
        if case.get("tools") or "tools_on_user" in case["name"] or any(
                m.get("content") is None for m in case["messages"]):
            continue
        got = prompt_text(case["messages"], options.get("thinking_mode") == "thinking",
                          options.get("reasoning_effort"))
        if got == case["expected_prompt"]:
            right += 1
        else:
            wrong.append(case["name"])
    return right, wrong


if __name__ == "__main__":
    import sys
    print(check(sys.argv[1]))
