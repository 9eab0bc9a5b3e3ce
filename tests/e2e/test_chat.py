"""Chat through the official openai package, over the scripted engine."""

import hashlib
import json

import openai
import pytest

from conftest import MODEL_NAME, say

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


def create(client, text, **options):
    return client.chat.completions.create(model=MODEL_NAME, messages=say(text), **options)


def collect(stream):
    """(content, reasoning, calls, finish, usage, chunks) of a stream."""
    content, reasoning, calls, finish, usage, chunks = "", "", {}, None, None, []
    for chunk in stream:
        chunks.append(chunk)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                entry = calls.setdefault(call.index, {"id": call.id, "name": call.function.name,
                                                      "arguments": ""})
                entry["arguments"] += call.function.arguments or ""
    return content, reasoning, calls, finish, usage, chunks


def test_whole(client):
    reply = create(client, "count 5")
    assert reply.object == "chat.completion"
    assert reply.id.startswith("chatcmpl-") and len(reply.id) == len("chatcmpl-") + 24
    assert reply.model == MODEL_NAME
    message = reply.choices[0].message
    assert (message.role, message.content) == ("assistant", "1 2 3 4 5")
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens == len("1 2 3 4 5") + 1
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details.cached_tokens == 4
    assert reply.usage.completion_tokens_details.reasoning_tokens == 0
    ids = [str(b) for b in b"1 2 3 4 5"] + ["256"]
    sha = hashlib.sha256(",".join(ids).encode()).hexdigest()[:12]
    assert reply.model_extra["tensorfold"]["token_sha"] == sha


@pytest.mark.parametrize("text", ["count 30", "emoji", "echo", "echo line\twith \"quotes\" \\ ü",
                                  'call get_weather {"city": "Bern"}'])
def test_streamed_is_whole(client, text):
    whole = create(client, text, tools=TOOLS).choices[0]
    content, _, calls, finish, usage, chunks = collect(
        create(client, text, tools=TOOLS, stream=True))
    assert content == (whole.message.content or "")
    assert finish == whole.finish_reason
    assert [c["name"] for c in calls.values()] == [
        c.function.name for c in whole.message.tool_calls or []]
    assert [c["arguments"] for c in calls.values()] == [
        c.function.arguments for c in whole.message.tool_calls or []]
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert usage is not None  # in the last chunk, though it was not asked for


def test_include_usage(client):
    *_, usage, chunks = collect(create(client, "count 3", stream=True,
                                       stream_options={"include_usage": True}))
    assert usage.completion_tokens == 6
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_tool_calls(client):
    reply = create(client, 'call get_weather {"city": "Bern"}', tools=TOOLS)
    assert reply.choices[0].finish_reason == "tool_calls"
    assert reply.choices[0].message.content is None
    call = reply.choices[0].message.tool_calls[0]
    assert call.type == "function" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Bern"}
    # The reply as the client library gives it is accepted back.
    again = client.chat.completions.create(
        model=MODEL_NAME, tools=TOOLS,
        messages=say("weather?") + [
            reply.choices[0].message.model_dump(),
            {"role": "tool", "tool_call_id": call.id, "content": "echo sunny"}])
    assert again.choices[0].message.content == "sunny"


def test_tool_choice_none(client):
    reply = create(client, 'call get_weather {}', tools=TOOLS, tool_choice="none")
    assert reply.choices[0].message.tool_calls is None
    assert reply.choices[0].finish_reason == "stop"
    assert "tools=0" in create(client, "params", tools=TOOLS,
                               tool_choice="none").choices[0].message.content


def test_stop(client):
    for stream in (False, True):
        reply = create(client, "echo one two three four", stop=["three"], stream=stream)
        content = collect(reply)[0] if stream else reply.choices[0].message.content
        assert content == "one two "
    assert create(client, "echo abc", stop="x").choices[0].message.content == "abc"


def test_max_tokens(client):
    for option in ("max_tokens", "max_completion_tokens"):
        reply = create(client, "echo abcdefgh", **{option: 3})
        assert reply.choices[0].message.content == "abc"
        assert reply.choices[0].finish_reason == "length"
        assert reply.usage.completion_tokens == 3


def test_seed_is_reported_and_random(client):
    seeds = [create(client, "hi").model_extra["tensorfold"]["sampling_seed"] for _ in range(2)]
    assert seeds[0] != seeds[1]
    for seed in (7, -1, 2**63 - 1, int(seeds[0])):
        reply = create(client, "hi", seed=seed)
        assert reply.model_extra["tensorfold"]["sampling_seed"] == str(seed)


def test_parameters_arrive(client):
    reply = create(client, "params", temperature=0.25, top_p=0.5, presence_penalty=1,
                   frequency_penalty=-1, max_tokens=4000,
                   extra_body={"top_k": 40, "min_p": 0.125, "repetition_penalty": 1.5,
                               "draft": False, "ignore_eos": True, "priority": "background"})
    assert reply.choices[0].message.content == (
        "temperature=0.25 top_p=0.5 top_k=40 min_p=0.125 presence=1 frequency=-1 repetition=1.5 "
        "max=4000 stop=0 draft=0 background=1 ignore_eos=1 top_logprobs=-1 tools=0 thinking=0 "
        "effort=75 parallel=1 label=")


def test_thinking(client):
    plain = create(client, "think yes").choices[0].message
    assert plain.content == "yes" and not hasattr(plain, "reasoning_content")
    reply = create(client, "think yes", reasoning_effort="low")
    message = reply.choices[0].message
    assert (message.content, message.reasoning_content, message.reasoning) == ("yes", "hmm", "hmm")
    assert reply.usage.completion_tokens_details.reasoning_tokens == 4
    content, reasoning, *_ = collect(create(client, "think yes", reasoning_effort="low",
                                            stream=True))
    assert (content, reasoning) == ("yes", "hmm")


def test_logprobs(client):
    for stream in (False, True):
        reply = create(client, "echo ab", logprobs=True, top_logprobs=1, stream=stream)
        if stream:
            entries = [e for chunk in reply for c in chunk.choices if c.logprobs
                       for e in c.logprobs.content]
        else:
            entries = reply.choices[0].logprobs.content
        assert [e.token for e in entries] == ["a", "b", ""]
        assert entries[0].bytes == [97] and entries[0].top_logprobs[0].token == "a"


def test_models(client):
    models = client.models.list().data
    assert [m.id for m in models] == [MODEL_NAME]
    assert models[0].model_extra["max_model_len"] == 4096
    assert client.models.retrieve(MODEL_NAME).id == MODEL_NAME
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors_name_their_field(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-4", messages=say("hi"))
    assert error.value.code == "model_not_found"
    for options, param in (({"temperature": 3}, "temperature"), ({"n": 17}, "n"),
                           ({"response_format": {"type": "xml"}}, "response_format.type"),
                           ({"tool_choice": "required"}, "tool_choice"),
                           ({"extra_body": {"nonsense": 1}}, "nonsense")):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as error:
                create(client, "hi", stream=stream, **options)
            assert error.value.param == param
            assert error.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL_NAME, messages=[
            {"role": "user", "content": [{"type": "text", "text": "what is this?"},
                                         {"type": "image_url", "image_url": {"url": "data:,"}}]}])
    assert error.value.param == "messages[0].content[1]"
    assert error.value.code == "unsupported_content"


def test_refusals_of_the_engine_have_their_status_before_the_headers(client):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as error:
            create(client, "refuse", stream=stream)
        assert error.value.code == "context_length_exceeded"
        assert error.value.param == "messages"


def test_failure_in_the_middle(client):
    with pytest.raises(openai.InternalServerError):
        create(client, "fail")
    content = ""
    with pytest.raises(openai.APIError) as error:
        for chunk in create(client, "fail", stream=True):
            content += "".join(c.delta.content or "" for c in chunk.choices)
    assert content == "abc"
    assert error.value.type == "server_error"
    assert create(client, "echo still here").choices[0].message.content == "still here"


def test_several_at_once(client):
    import concurrent.futures
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda n: create(client, f"count {n}").choices[0].message.content,
                              range(1, 41)))
    assert texts == [" ".join(str(i) for i in range(1, n + 1)) for n in range(1, 41)]
