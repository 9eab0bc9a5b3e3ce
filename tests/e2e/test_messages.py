"""The Anthropic Messages API through the official anthropic package, over the scripted engine."""

import json

import anthropic
import pytest

from conftest import MODEL_NAME, say

TOOLS = [{"name": "get_weather", "description": "the weather",
          "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]


@pytest.fixture
def claude(daemon):
    return anthropic.Anthropic(base_url=daemon.url, api_key="none", max_retries=0)


def create(claude, text, **options):
    options.setdefault("max_tokens", 500)
    return claude.messages.create(model=MODEL_NAME, messages=say(text), **options)


def test_whole(claude):
    reply = create(claude, "count 5", system="Be brief.")
    assert (reply.type, reply.role, reply.model) == ("message", "assistant", MODEL_NAME)
    assert reply.id.startswith("msg_")
    assert [b.type for b in reply.content] == ["text"]
    assert reply.content[0].text == "1 2 3 4 5"
    assert (reply.stop_reason, reply.stop_sequence) == ("end_turn", None)
    assert reply.usage.output_tokens == 10
    assert reply.usage.cache_read_input_tokens == 4 and reply.usage.input_tokens > 0


@pytest.mark.parametrize("text", ["count 30", "emoji", "chain",
                                  'call get_weather {"city": "Bern"}'])
@pytest.mark.parametrize("thinking", [None, {"type": "enabled", "budget_tokens": 100},
                                      {"type": "adaptive"}, {"type": "disabled"}])
def test_streamed_is_whole(claude, text, thinking):
    options = {"tools": TOOLS}
    if thinking:
        options["thinking"] = thinking
    whole = create(claude, text, **options)
    with claude.messages.stream(model=MODEL_NAME, messages=say(text), max_tokens=500,
                                **options) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_message()
    shown = lambda m: [(b.type, getattr(b, "text", None), getattr(b, "thinking", None),
                        getattr(b, "input", None), getattr(b, "name", None)) for b in m.content]
    assert shown(streamed) == shown(whole)
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_thinking_only_when_enabled(claude):
    assert [b.type for b in create(claude, "think yes").content] == ["text"]
    reply = create(claude, "think yes", thinking={"type": "enabled", "budget_tokens": 100})
    assert [b.type for b in reply.content] == ["thinking", "text"]
    assert (reply.content[0].thinking, reply.content[0].signature) == ("hmm", "")
    said = create(claude, "params", thinking={"type": "adaptive"},
                  extra_body={"output_config": {"effort": "max"}}).content[0].thinking
    assert "thinking=1 effort=100" in said
    text = create(claude, "params", extra_body={"output_config": {"effort": "max"}}).content[0].text
    assert "thinking=0" in text


def test_tool_loop(claude):
    reply = create(claude, 'call get_weather {"city": "Bern"}', tools=TOOLS)
    assert reply.stop_reason == "tool_use"
    call = reply.content[0]
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Bern"})
    again = claude.messages.create(
        model=MODEL_NAME, max_tokens=100, tools=TOOLS,
        messages=say("weather?") + [
            {"role": "assistant", "content": [b.model_dump(exclude_none=True)
                                              for b in reply.content]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"},
                {"type": "text", "text": "echo so it is sunny",
                 "cache_control": {"type": "ephemeral"}}]}])
    assert again.content[0].text == "so it is sunny"
    for choice, tools in (({"type": "none"}, 0), ({"type": "auto"}, 1)):
        text = create(claude, "params", tools=TOOLS, tool_choice=choice).content[0].text
        assert f"tools={tools}" in text
    text = create(claude, "params", tools=TOOLS, tool_choice={
        "type": "any", "disable_parallel_tool_use": True}).content[0].text
    assert "parallel=0" in text


def test_stop_sequences(claude):
    for stops, text, reason in ((["three"], "one two ", "stop_sequence"),
                                (["x", "two"], "one ", "stop_sequence"),
                                (["x"], "one two three four", "end_turn")):
        reply = create(claude, "echo one two three four", stop_sequences=stops)
        assert (reply.content[0].text, reply.stop_reason) == (text, reason)
        assert reply.stop_sequence == (stops[-1] if reason == "stop_sequence" else None)
    reply = create(claude, "echo abcdef", max_tokens=3)
    assert (reply.content[0].text, reply.stop_reason) == ("abc", "max_tokens")


def test_prefill(claude):
    reply = claude.messages.create(
        model=MODEL_NAME, max_tokens=500,
        messages=say("hi") + [{"role": "assistant", "content": "params"}])
    assert reply.content[0].text.endswith(" continues")


def test_count_tokens(claude):
    count = claude.messages.count_tokens(model=MODEL_NAME, messages=say("abc"), system="de")
    assert count.input_tokens == 4 + 5 + 4


def test_errors(claude, daemon):
    with pytest.raises(anthropic.NotFoundError) as error:
        claude.messages.create(model="claude", max_tokens=5, messages=say("hi"))
    assert error.value.body["type"] == "error"
    assert error.value.body["error"]["type"] == "not_found_error"
    image = [{"type": "image", "source": {"type": "url", "url": "http://x"}}]
    for options, words in (({"extra_body": {"temperature": 3}}, "temperature"),
                           ({"extra_body": {"nonsense": 1}}, "nonsense"),
                           ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
                           ({"tools": [{"name": "f", "input_schema": 5}]},
                            "tools[0].input_schema"),
                           ({"tools": [{"type": "web_search_20250305", "name": "s"}]},
                            "tools[0].type"),
                           ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
                           ({"thinking": {"type": "on"}}, "thinking.type"),
                           ({"messages": [{"role": "user", "content": image}]},
                            "messages[0].content[0]"),
                           ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
                           ({"messages": []}, "messages")):
        with pytest.raises(anthropic.BadRequestError) as error:
            claude.messages.create(**{"model": MODEL_NAME, "max_tokens": 5,
                                      "messages": say("hi"), **options})
        assert error.value.body["error"]["type"] == "invalid_request_error"
        assert words in error.value.body["error"]["message"], options
    # What the server refuses before a handler sees it has the same envelope.
    for method, path, body, status, kind in (
            ("GET", "/v1/messages", None, 405, "invalid_request_error"),
            ("POST", "/v1/messages/nope", {}, 404, "not_found_error"),
            ("POST", "/v1/messages", b"{", 400, "invalid_request_error")):
        got, _, reply = daemon.request(method, path, body)
        reply = json.loads(reply)
        assert (got, reply["type"], reply["error"]["type"]) == (status, "error", kind)


def test_failures(claude):
    with pytest.raises(anthropic.InternalServerError) as error:
        create(claude, "fail")
    assert error.value.body["error"]["type"] == "api_error"
    with pytest.raises(anthropic.BadRequestError):
        create(claude, "refuse", stream=True)
    text = ""
    with pytest.raises(anthropic.APIStatusError):
        for event in create(claude, "fail", stream=True):
            if event.type == "content_block_delta":
                text += event.delta.text
    assert text == "abc"


def test_pings_while_nothing_comes(start):
    daemon = start("[limits]\nkeepalive_s = 1\n")
    daemon.wait_ready()
    status, _, body = daemon.request("POST", "/v1/messages",
                                     {"messages": say("silent 2500"), "stream": True})
    assert status == 200
    assert body.count(b"event: ping\n") in (1, 2)
    assert body.index(b"event: message_start") < body.index(b"event: ping")
    assert b'data: {"type":"message_stop"}' in body


def test_requests_of_agents_are_taken(claude):
    """Members that clients send along and that change nothing."""
    reply = create(
        claude, "echo ok", metadata={"user_id": "u"}, service_tier="auto",
        system=[{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
        extra_body={"context_management": {"edits": [
            {"type": "clear_thinking_20251015", "keep": "all"}]}})
    assert reply.content[0].text == "ok"
    with pytest.raises(anthropic.BadRequestError):
        create(claude, "echo ok", extra_body={"context_management": {"edits": [
            {"type": "clear_tool_uses_20250919"}]}})
