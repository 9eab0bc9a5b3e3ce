"""What agents do all day, over the embedded model: tools forced, named, allowed, strict and
parallel, thinking levels, forms under four streams, and errors that end only themselves. Every
reply is checked by its own rules, whatever the model would rather have said."""

import concurrent.futures
import json
import re

import anthropic
import jsonschema
import openai
import pytest

from conftest import say
from test_model import daemon, pytestmark, sha  # noqa: F401 (fixtures)

CALL_MARK = "DSML"


def function(name, properties=None, required=(), **more):
    made = {"name": name, **more}
    if properties is not None:
        made["parameters"] = {"type": "object", "properties": properties,
                              "required": list(required), "additionalProperties": False}
    return {"type": "function", "function": made}


SEARCH = function("search", {"query": {"type": "string", "maxLength": 16},
                             "limit": {"type": "integer", "minimum": 1, "maximum": 20}},
                  ["query"], description="Looks something up.")
SET_LIGHT = function("set_light", {"room": {"enum": ["kitchen", "hall"]},
                                   "on": {"type": "boolean"},
                                   "level": {"type": "number", "minimum": 0, "maximum": 1}},
                     ["room", "on"], strict=True)
PING = function("ping")
TOOLS = [SEARCH, SET_LIGHT, PING]
BY_NAME = {t["function"]["name"]: t["function"] for t in TOOLS}
ORDER = {"type": "object", "properties": {
    "item": {"type": "string", "maxLength": 10}, "count": {"type": "integer", "minimum": 1,
                                                           "maximum": 99},
    "gift": {"type": "boolean"}}, "required": ["item", "count", "gift"],
    "additionalProperties": False}
OFF, ON = {"reasoning_effort": "none"}, {"reasoning_effort": "low",
                                         "extra_body": {"thinking_budget": 10}}
THINKING = pytest.mark.parametrize("thinking", [OFF, ON], ids=["plain", "thinking"])


@pytest.fixture(scope="module")
def client(daemon):  # noqa: F811
    return daemon.client(timeout=300)


def ask(client, text="Do it.", **options):
    extra = {**options.pop("extra_body", {})}
    options = {"max_tokens": 300, "temperature": 1.0, "seed": 3, **options}
    return client.chat.completions.create(model="tiny", messages=options.pop("messages", say(text)),
                                          extra_body=extra, **options)


def whole(stream):
    """(content, calls as [name, arguments], finish_reason) of a stream, by its pieces."""
    content, calls, finish, ids = "", {}, None, []
    for chunk in stream:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for piece in choice.delta.tool_calls or []:
                if piece.index not in calls:
                    assert piece.index == len(calls)  # opened in order
                    assert piece.id and piece.type == "function" and piece.function.name
                    calls[piece.index] = [piece.function.name, ""]
                    ids.append(piece.id)
                else:
                    assert piece.id is None and piece.function.name is None
                calls[piece.index][1] += piece.function.arguments or ""
    assert len(set(ids)) == len(ids)
    return content, list(calls.values()), finish


def check_calls(reply, names, most=None):
    """Every call is of these tools and its arguments are what its schema says."""
    choice = reply.choices[0]
    assert CALL_MARK not in (choice.message.content or "")
    calls = choice.message.tool_calls or []
    if choice.finish_reason == "length":
        return calls
    assert choice.finish_reason == "tool_calls" and calls
    assert most is None or len(calls) <= most
    assert len({c.id for c in calls}) == len(calls)
    for call in calls:
        assert call.function.name in names
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, BY_NAME.get(call.function.name, {}).get("parameters", {}))
    return calls


# ---------------------------------------------------------------- tools

@THINKING
def test_a_required_call(client, thinking):
    for seed in range(3):
        reply = ask(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False,
                    seed=seed, **thinking)
        check_calls(reply, BY_NAME, most=1)
        assert not (reply.choices[0].message.content or "").strip()


@THINKING
@pytest.mark.parametrize("name", ["search", "set_light", "ping"])
def test_a_named_call(client, name, thinking):
    choice = {"type": "function", "function": {"name": name}}
    reply = ask(client, tools=TOOLS, tool_choice=choice, **thinking)
    calls = check_calls(reply, {name}, most=1)
    if name == "ping" and reply.choices[0].finish_reason == "tool_calls":
        assert isinstance(json.loads(calls[0].function.arguments), dict)


@THINKING
def test_a_call_in_pieces_is_the_whole_call(client, thinking):
    options = dict(tools=TOOLS, temperature=0,
                   tool_choice={"type": "function", "function": {"name": "set_light"}}, **thinking)
    reply = ask(client, **options)
    content, calls, finish = whole(ask(client, stream=True, **options))
    assert finish == reply.choices[0].finish_reason == "tool_calls"
    assert content == (reply.choices[0].message.content or "")
    assert calls == [[c.function.name, c.function.arguments]
                     for c in reply.choices[0].message.tool_calls]


@THINKING
def test_allowed_tools(client, thinking):
    choice = {"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "ping"}},
                                      {"type": "function", "function": {"name": "search"}}]}}
    for seed in range(3):
        check_calls(ask(client, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False,
                        seed=seed, **thinking), {"ping", "search"}, most=1)


@THINKING
def test_calls_by_choice_are_whole_or_none(client, thinking):
    for seed in range(3):
        reply = ask(client, tools=TOOLS, seed=seed, max_tokens=120, **thinking)
        message = reply.choices[0].message
        assert CALL_MARK not in (message.content or "")
        if reply.choices[0].finish_reason == "tool_calls":
            check_calls(reply, BY_NAME)


@THINKING
def test_no_call_when_none_is_wanted(client, thinking):
    """The token that every tag of a call holds is never sampled, whatever the history suggests."""
    history = say("Do it.") + [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "ping", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "pong"}]
    extra = {**thinking.get("extra_body", {}), "return_token_ids": True}
    for tools in ({"tools": TOOLS, "tool_choice": "none"}, {}):
        reply = ask(client, messages=history, max_tokens=40, extra_body=extra,
                    reasoning_effort=thinking["reasoning_effort"], **tools)
        assert reply.choices[0].message.tool_calls is None
        assert reply.choices[0].finish_reason in ("stop", "length")
        assert CALL_MARK not in (reply.choices[0].message.content or "")


def test_the_token_of_calls_is_banned(client, daemon):  # noqa: F811
    """Even when it is the likeliest by far: a bias of +100 on it."""
    control = json.loads(daemon.request("POST", "/tokenize", {"prompt": "｜DSML｜"})[2])["tokens"]
    token = control[-1]
    assert len(control) == 2  # the begin token and this one
    options = dict(messages=say("x"), max_tokens=12, temperature=0, logit_bias={str(token): 100},
                   extra_body={"return_token_ids": True, "draft": True})
    free = ask(client, **options)
    assert token in free.model_extra["tensorfold"]["token_ids"]
    banned = ask(client, tools=TOOLS, tool_choice="none", **options)
    assert token not in banned.model_extra["tensorfold"]["token_ids"]
    serial = ask(client, tools=TOOLS, tool_choice="none", **{
        **options, "extra_body": {"return_token_ids": True, "draft": False}})
    assert sha(serial) == sha(banned)


def test_a_forced_call_is_written_as_the_encoder_writes_it(client, daemon):  # noqa: F811
    """Byte for byte: what is forced is what the prompt of the next turn holds of it."""
    tool = function("book", {"city": {"enum": ["Bern"]}, "n": {"type": "integer", "minimum": 7,
                                                              "maximum": 7}}, ["city", "n"])
    reply = ask(client, tools=[tool], temperature=0, extra_body={"return_token_ids": True},
                tool_choice={"type": "function", "function": {"name": "book"}})
    ids = reply.model_extra["tensorfold"]["token_ids"]
    forced = json.loads(daemon.request("POST", "/detokenize", {"tokens": ids})[2])["prompt"]
    call = reply.choices[0].message.tool_calls[0]
    messages = say("Do it.") + [{"role": "assistant", "content": None, "tool_calls": [
        call.model_dump()]}, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
    ids = json.loads(daemon.request("POST", "/tokenize", {
        "messages": messages, "tools": [tool]})[2])["tokens"]
    prompt = json.loads(daemon.request("POST", "/detokenize", {"tokens": ids})[2])["prompt"]
    rendered = prompt.rpartition("<｜Assistant｜></think>")[0].rpartition("<｜Assistant｜></think>")[2]
    rendered = rendered.partition("<｜end▁of▁sentence｜>")[0]
    assert forced.strip("\n") == rendered.strip("\n")
    assert forced.startswith("\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"book\">\n")


def test_calls_are_the_same_with_and_without_drafts(client):
    for seed in range(10):
        options = dict(text=f"Task {seed}: do it.", tools=TOOLS, max_tokens=60,
                       temperature=0 if seed % 2 else 1.0, seed=seed,
                       tool_choice="required" if seed % 3 else "auto")
        drafted = ask(client, **options)
        serial = ask(client, **options, extra_body={"draft": False})
        assert sha(drafted) == sha(serial)


def test_parallel_calls_have_places_and_names_of_their_own(client):
    most = 0
    for seed in range(6):
        content, calls, finish = whole(ask(client, tools=[PING, SET_LIGHT], tool_choice="required",
                                           temperature=1.5, seed=seed, stream=True,
                                           max_tokens=200))
        assert CALL_MARK not in content
        most = max(most, len(calls))
        for name, arguments in calls if finish == "tool_calls" else calls[:-1]:
            jsonschema.validate(json.loads(arguments), BY_NAME[name].get("parameters", {}))
    assert most >= 1  # how many it makes is the model's own choice


def test_one_of_many_tools(client):
    many = [function(f"tool_{i}", {"n": {"type": "integer"}}, ["n"]) for i in range(60)]
    reply = ask(client, tools=many, parallel_tool_calls=False,
                tool_choice={"type": "function", "function": {"name": "tool_57"}})
    assert [c.function.name for c in reply.choices[0].message.tool_calls] == ["tool_57"]
    assert isinstance(json.loads(
        reply.choices[0].message.tool_calls[0].function.arguments)["n"], int)


def test_a_call_that_is_cut_says_so(client):
    options = dict(tools=[SEARCH], temperature=0, max_tokens=9,
                   tool_choice={"type": "function", "function": {"name": "search"}})
    reply = ask(client, **options)
    assert reply.choices[0].finish_reason == "length"
    _, calls, finish = whole(ask(client, stream=True, **options))
    assert finish == "length"
    assert calls == [[c.function.name, c.function.arguments]
                     for c in reply.choices[0].message.tool_calls or []]


@pytest.mark.parametrize("turns", [1, 3])
def test_a_loop_of_calls_and_results(client, turns):
    messages = say("Look it up.")
    for turn in range(turns):
        reply = ask(client, messages=messages, tools=[SEARCH], tool_choice="required",
                    parallel_tool_calls=False, seed=turn, max_tokens=200, reasoning_effort="low",
                    extra_body={"thinking_budget": 6})
        message = reply.choices[0].message.model_dump(exclude_none=True)
        assert reply.usage.completion_tokens_details.reasoning_tokens <= 6
        messages.append(message)
        for call in message["tool_calls"]:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "found: 42"})
    final = ask(client, messages=messages, tools=[SEARCH], tool_choice="none", max_tokens=12)
    assert final.choices[0].message.tool_calls is None
    assert final.usage.prompt_tokens > 20 * turns


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "search"}])
def test_anthropic_tools(daemon, choice):  # noqa: F811
    claude = anthropic.Anthropic(base_url=daemon.url, api_key="none", max_retries=0, timeout=300)
    tool = {"name": "search", "input_schema": SEARCH["function"]["parameters"]}
    messages = say("Look it up.")
    first = claude.messages.create(model="tiny", max_tokens=300, messages=messages, tools=[tool],
                                   tool_choice=dict(choice, disable_parallel_tool_use=True))
    used = [b for b in first.content if b.type == "tool_use"]
    assert first.stop_reason == "tool_use" and len(used) == 1
    jsonschema.validate(used[0].input, tool["input_schema"])
    turn = [b.model_dump(exclude_none=True) for b in first.content]
    messages += [{"role": "assistant", "content": turn},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used[0].id,
                                               "content": "42"}]}]
    second = claude.messages.create(model="tiny", max_tokens=8, messages=messages, tools=[tool])
    assert second.stop_reason in ("end_turn", "max_tokens", "tool_use")


def test_responses_tools(client):
    tool = {"type": "function", **SET_LIGHT["function"]}
    first = client.responses.create(model="tiny", input="Light!", tools=[tool],
                                    tool_choice="required", parallel_tool_calls=False,
                                    max_output_tokens=300)
    made = [i for i in first.output if i.type == "function_call"]
    assert len(made) == 1
    jsonschema.validate(json.loads(made[0].arguments), SET_LIGHT["function"]["parameters"])
    second = client.responses.create(
        model="tiny", previous_response_id=first.id, max_output_tokens=8, tools=[tool],
        tool_choice="none", input=[{"type": "function_call_output", "call_id": made[0].call_id,
                                    "output": "done"}])
    assert second.status in ("completed", "incomplete")
    assert not any(i.type == "function_call" for i in second.output)


# ---------------------------------------------------------------- thinking

@pytest.mark.parametrize("effort,number", [
    ("none", None), ("minimal", 50), ("low", 50), ("medium", 75), ("high", 75), ("xhigh", 75),
    ("max", 100), (1, 1), (100, 100)])
def test_thinking_levels(client, daemon, effort, number):  # noqa: F811
    body = {"messages": say("Hello!"), "reasoning_effort": effort}
    ids = json.loads(daemon.request("POST", "/tokenize", body)[2])["tokens"]
    prompt = json.loads(daemon.request("POST", "/detokenize", {"tokens": ids})[2])["prompt"]
    assert prompt.endswith("</think>" if number is None else "<think>")
    stated = re.findall(r"Reasoning Effort: (\d+) ", prompt)
    assert stated == ([] if number is None else [str(number)])
    reply = ask(client, "Hello!", max_tokens=6, extra_body={"reasoning_effort": effort})
    assert (reply.usage.completion_tokens_details.reasoning_tokens > 0) == (number is not None)
    assert reply.usage.prompt_tokens == len(ids)


def test_a_budget_is_kept_to_the_token(client):
    for budget in (1, 7, 16):
        reply = ask(client, max_tokens=40, temperature=0, reasoning_effort="high", extra_body={
            "thinking_budget": budget, "logit_bias": {}, "return_token_ids": True})
        assert reply.usage.completion_tokens_details.reasoning_tokens <= budget
        drafted = sha(reply)
        serial = ask(client, max_tokens=40, temperature=0, reasoning_effort="high", extra_body={
            "thinking_budget": budget, "draft": False})
        assert sha(serial) == drafted


def test_a_budget_leaves_room_for_the_forced_call(client):
    reply = ask(client, tools=[SET_LIGHT], tool_choice="required", parallel_tool_calls=False,
                reasoning_effort="max", max_tokens=120, extra_body={"thinking_budget": 20})
    check_calls(reply, {"set_light"}, most=1)
    assert reply.choices[0].finish_reason == "tool_calls"


def test_loop_guard_leaves_ordinary_replies_alone(client):
    plain = ask(client, "Count from 1 to 10.", temperature=0, max_tokens=40)
    guarded = ask(client, "Count from 1 to 10.", temperature=0, max_tokens=40,
                  extra_body={"loop_guard": True})
    assert sha(plain) == sha(guarded)
    assert "loop_guard" not in guarded.model_extra["tensorfold"]


def test_loop_guard_ends_what_goes_round_in_circles(client):
    """One token is all that may be said: thinking is closed, then the answer is cut."""
    token = ask(client, "Hello!", max_tokens=1, temperature=0, extra_body={
        "return_token_ids": True}).model_extra["tensorfold"]["token_ids"][0]
    reply = ask(client, "Hello!", max_tokens=7000, reasoning_effort="low", extra_body={
        "loop_guard": True, "allowed_token_ids": [token]})
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 2 * 3 * 1024 + 1
    assert reply.usage.completion_tokens_details.reasoning_tokens == 3 * 1024
    assert reply.model_extra["tensorfold"]["loop_guard"] == ["closed_thinking", "ended"]


# ---------------------------------------------------------------- forms

FORMS = {
    "json_schema": ({"response_format": {"type": "json_schema", "json_schema": {
        "name": "order", "schema": ORDER, "strict": True}}},
        lambda t: jsonschema.validate(json.loads(t), ORDER)),
    "json_object": ({"response_format": {"type": "json_object"}},
                    lambda t: jsonschema.validate(json.loads(t), {"type": "object"})),
    "regex": ({"extra_body": {"guided_regex": r"[a-f]{2,4}-\d{2}"}},
              lambda t: jsonschema.validate(t, {"pattern": r"^[a-f]{2,4}-\d{2}$"})),
    "choice": ({"extra_body": {"guided_choice": ["yes", "no", "(maybe)"]}},
               lambda t: jsonschema.validate(t, {"enum": ["yes", "no", "(maybe)"]})),
    "grammar": ({"extra_body": {"guided_grammar": 'root ::= [0-9]{1,2} ("kg" | "lb")'}},
                lambda t: jsonschema.validate(t, {"pattern": "^[0-9]{1,2}(kg|lb)$"})),
}


@pytest.mark.parametrize("mixed", [False, True], ids=["alike", "mixed"])
@pytest.mark.parametrize("name", FORMS)
def test_forms_in_company_are_what_they_are_alone(client, name, mixed):
    """Four streams at once, of one form or of four; each equals its serial reply, alone."""
    names = [name] * 4 if not mixed else [n for n in FORMS if n != name][:3] + [name]

    def one(slot, draft=True):
        form, check = FORMS[names[slot]]
        form = {**form, "extra_body": {**form.get("extra_body", {}), "draft": draft}}
        reply = ask(client, "Say it.", max_tokens=90, temperature=1.3, seed=slot, **form)
        if reply.choices[0].finish_reason == "stop":
            check(reply.choices[0].message.content)
        return sha(reply)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(one, range(4)))
    assert together[3] == one(3, draft=False)
    assert together[0] == one(0, draft=False)


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
def test_a_form_after_thinking_in_every_api(client, daemon, api):  # noqa: F811
    if api == "chat":
        reply = ask(client, reasoning_effort="low", extra_body={"thinking_budget": 8}, response_format={
            "type": "json_schema", "json_schema": {"name": "order", "schema": ORDER}})
        text = reply.choices[0].message.content
    elif api == "messages":
        claude = anthropic.Anthropic(base_url=daemon.url, api_key="none", max_retries=0)
        reply = claude.messages.create(
            model="tiny", max_tokens=400, messages=say("An order."),
            thinking={"type": "enabled", "budget_tokens": 12},
            extra_body={"output_config": {"format": {"type": "json_schema", "schema": ORDER}}})
        text = next(b.text for b in reply.content if b.type == "text")
    else:
        reply = client.responses.create(
            model="tiny", input="An order.", max_output_tokens=300,
            text={"format": {"type": "json_schema", "name": "order", "schema": ORDER}})
        text = reply.output_text
    jsonschema.validate(json.loads(text), ORDER)


def test_the_schema_may_be_written_into_the_prompt(client, daemon):  # noqa: F811
    form = {"type": "json_schema", "json_schema": {"name": "order", "schema": ORDER}}
    plain = ask(client, max_tokens=60, response_format=form)
    shown = ask(client, max_tokens=60, response_format=form, extra_body={"schema_in_prompt": True})
    assert shown.usage.prompt_tokens > plain.usage.prompt_tokens
    body = {"messages": say("Do it."), "response_format": form, "schema_in_prompt": True}
    ids = json.loads(daemon.request("POST", "/tokenize", body)[2])["tokens"]
    assert len(ids) == shown.usage.prompt_tokens
    prompt = json.loads(daemon.request("POST", "/detokenize", {"tokens": ids})[2])["prompt"]
    assert ("\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
            + json.dumps(ORDER) + "<｜User｜>Do it.") in prompt
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, extra_body={"schema_in_prompt": True})
    assert error.value.param == "schema_in_prompt"


def test_white_space_ends(client, daemon):  # noqa: F811
    """A model that would rather write spaces and line ends for ever cannot."""
    blanks = {}
    for text in (" ", "  ", "    ", "\n", "\n\n", "\t"):
        for token in json.loads(daemon.request("POST", "/tokenize", {
                "prompt": text, "add_special_tokens": False})[2])["tokens"]:
            blanks[str(token)] = 100
    options = dict(max_tokens=900, temperature=0, logit_bias=blanks)
    assert not ask(client, **{**options, "max_tokens": 20}).choices[0].message.content.strip()
    reply = ask(client, **options, response_format={"type": "json_schema", "json_schema": {
        "name": "order", "schema": dict(ORDER, properties=dict(
            ORDER["properties"], item={"enum": ["cup", "pen"]}))}})
    text = reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop" and set(json.loads(text)) == set(ORDER["required"])
    assert max(len(gap) for gap in re.findall(r"\s+", text)) <= 66


# ---------------------------------------------------------------- errors end only themselves

BAD = {
    "a schema that cannot be": {"response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "object", "properties": {"a": {"type": "nonsense"}}}}}},
    "a cyclic schema": {"guided_json": {"$ref": "#"}},
    "a pattern that is none": {"guided_regex": "(["},
    "rules without a root": {"guided_grammar": 'other ::= "x"'},
    "an empty choice": {"guided_choice": []},
    "two forms": {"guided_regex": "a", "guided_choice": ["a"]},
    "a tool that is not there": {"tools": TOOLS, "tool_choice": {
        "type": "function", "function": {"name": "nobody"}}},
    "a call without tools": {"tool_choice": "required"},
    "an unknown field": {"no_such_field": 1},
    "a prompt past the context": {"messages": say("word " * 40000)},
    "a token out of range": {"logit_bias": {"99999999": 1}},
    "a role nobody has": {"messages": [{"role": "judge", "content": "x"}]},
}


@pytest.fixture(scope="module")
def alone(client):
    return sha(ask(client, "Tell me a short story.", temperature=0, max_tokens=120))


@pytest.mark.parametrize("name", BAD)
def test_an_error_ends_only_itself(client, daemon, alone, name):  # noqa: F811
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        beside = pool.submit(lambda: ask(client, "Tell me a short story.", temperature=0,
                                         max_tokens=120, extra_body={"cache_salt": name}))
        for stream in (False, True):
            body = {"messages": say("x"), "max_tokens": 5, "stream": stream, **BAD[name]}
            status, headers, reply = daemon.request("POST", "/v1/chat/completions", body)
            assert status == 400 and headers["content-type"].startswith("application/json")
            error = json.loads(reply)["error"]
            assert error["message"] and error["type"] == "invalid_request_error"
        assert sha(beside.result()) == alone


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_only_itself(client, daemon, alone, stream):  # noqa: F811
    body = json.dumps({"messages": say("Count from 1 to 10."), "max_tokens": 2000, "stream": stream,
                       "ignore_eos": True}).encode()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        beside = pool.submit(lambda: ask(client, "Tell me a short story.", temperature=0,
                                         max_tokens=120, extra_body={"cache_salt": "left"}))
        for _ in range(3):
            with daemon.connect() as sock:
                sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                             b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
                if stream:
                    sock.recv(1024)
        assert sha(beside.result()) == alone
    daemon.wait_status(lambda s: s["slots"]["busy"] == 0)


def test_four_agents_at_once(client):
    """Four conversations of several turns, each with its own tool, side by side."""
    def agent(i):
        tool = function(f"do_{i}", {"n": {"type": "integer", "minimum": i, "maximum": i}}, ["n"])
        messages = say(f"Agent {i}.")
        for _ in range(3):
            reply = ask(client, messages=messages, tools=[tool], tool_choice="required",
                        parallel_tool_calls=False, max_tokens=80, seed=i)
            made = reply.choices[0].message.tool_calls
            assert json.loads(made[0].function.arguments) == {"n": i}
            assert made[0].function.name == f"do_{i}"
            messages += [reply.choices[0].message.model_dump(exclude_none=True),
                         {"role": "tool", "tool_call_id": made[0].id, "content": str(i)}]
        return reply.usage.prompt_tokens_details.cached_tokens

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(agent, range(4)))) == 4
