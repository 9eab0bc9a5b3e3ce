"""The Responses API through the official openai package, over the scripted engine."""

import json

import openai
import pytest

from conftest import MODEL_NAME

TOOLS = [{"type": "function", "name": "get_weather", "description": "the weather",
          "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]


def create(client, text, **options):
    return client.responses.create(model=MODEL_NAME, input=text, **options)


def test_whole(client):
    reply = create(client, "count 5", instructions="Be brief.", metadata={"a": "b"})
    assert (reply.object, reply.status, reply.model) == ("response", "completed", MODEL_NAME)
    assert reply.id.startswith("resp_")
    assert reply.output_text == "1 2 3 4 5"
    assert [i.type for i in reply.output] == ["message"]
    assert reply.usage.output_tokens == 10 and reply.usage.total_tokens > 10
    assert reply.usage.input_tokens_details.cached_tokens == 4
    assert reply.metadata == {"a": "b"} and reply.instructions == "Be brief."
    assert reply.error is None and reply.incomplete_details is None


def test_logprobs(client):
    options = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    part = create(client, "echo ab", **options).output[0].content[0]
    assert [e.token for e in part.logprobs][:2] == ["a", "b"]
    assert part.logprobs[0].logprob == -0.5 and part.logprobs[0].top_logprobs[0].token == "a"
    assert create(client, "echo ab").output[0].content[0].logprobs == []
    events = list(create(client, "echo ab", stream=True, **options))
    streamed = [e.token for event in events if event.type == "response.output_text.delta"
                for e in event.logprobs]
    done = [e for e in events if e.type == "response.output_text.done"][0]
    assert streamed[:2] == ["a", "b"] and [e.token for e in done.logprobs] == streamed


ORDER = {
    "count 3": ["created", "in_progress", "output_item.added", "content_part.added",
                "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
                "completed"],
    "chain": ["created", "in_progress", "output_item.added", "content_part.added",
              "reasoning_text.delta", "reasoning_text.done", "content_part.done",
              "output_item.done", "output_item.added", "content_part.added", "output_text.delta",
              "output_text.done", "content_part.done", "output_item.done"] +
             ["output_item.added", "function_call_arguments.delta",
              "function_call_arguments.done", "output_item.done"] * 2 + ["completed"],
}


@pytest.mark.parametrize("text", list(ORDER))
def test_events_in_order(client, text):
    options = {"tools": TOOLS, "reasoning": {"effort": "low"}} if text == "chain" else {}
    events = list(create(client, text, stream=True, **options))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type.removeprefix("response.") for e in events]
    short = [k for i, k in enumerate(kinds) if i == 0 or kinds[i - 1] != k or "delta" not in k]
    assert short == ORDER[text]
    # The last event's output is what the items' own events said, and what a whole reply says.
    done = [e.item for e in events if e.type == "response.output_item.done"]
    assert [i.model_dump() for i in done] == [i.model_dump() for i in events[-1].response.output]
    texts = {}
    for event in events:
        if event.type.endswith(".delta"):
            texts[event.output_index] = texts.get(event.output_index, "") + event.delta
    for index, item in enumerate(done):
        said = item.arguments if item.type == "function_call" else item.content[0].text
        assert texts[index] == said
    whole = create(client, text, **options)
    assert whole.output_text == events[-1].response.output_text
    assert [i.type for i in whole.output] == [i.type for i in done]


def test_tool_loop(client):
    first = create(client, 'call get_weather {"city": "Bern"}', tools=TOOLS)
    call = first.output[0]
    assert (call.type, call.name, json.loads(call.arguments)) == (
        "function_call", "get_weather", {"city": "Bern"})
    items = [{"role": "user", "content": "weather?"}]
    items += [i.model_dump(exclude_none=True) for i in first.output]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "echo sunny"}]
    assert create(client, items, tools=TOOLS).output_text == "sunny"


def test_previous_response(client):
    first = create(client, "echo one")
    counted = create(client, "params")
    second = create(client, "params", previous_response_id=first.id)
    # Two messages more than without: "echo one" and "one".
    assert second.usage.input_tokens - counted.usage.input_tokens == len("echo one") + len("one") + 4
    assert second.previous_response_id == first.id
    third = create(client, "params", previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens
    got = client.responses.retrieve(first.id)
    assert got.output_text == "one" and got.id == first.id
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError) as error:
        create(client, "x", previous_response_id=first.id)
    assert error.value.param == "previous_response_id"
    unstored = create(client, "echo two", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


def test_instructions_are_not_passed_on(client):
    first = create(client, "echo a", instructions="x" * 100)
    second = create(client, "echo b", previous_response_id=first.id)
    third = create(client, "echo b", previous_response_id=first.id, instructions="y" * 10)
    assert second.usage.input_tokens < 60
    assert third.usage.input_tokens == second.usage.input_tokens + 12


def test_cut_short(client):
    reply = create(client, "echo abcdef", max_output_tokens=3)
    assert reply.status == "incomplete" and reply.output_text == "abc"
    assert reply.incomplete_details.reason == "max_output_tokens"
    events = list(create(client, "echo abcdef", max_output_tokens=3, stream=True))
    assert events[-1].type == "response.incomplete"


def test_failures(client):
    with pytest.raises(openai.InternalServerError):
        create(client, "fail")
    events = list(create(client, "fail", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.message
    with pytest.raises(openai.BadRequestError):
        create(client, "refuse", stream=True)


def test_errors_name_their_field(client):
    for options, param in (({"temperature": 3}, "temperature"),
                           ({"extra_body": {"nonsense": 1}}, "nonsense"),
                           ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
                           ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
                           ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
                           ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
                           ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
                            "input[0].content[0]"),
                           ({"input": [{"role": "assistant", "content": "x"}]}, "input"),
                           ({"input": []}, "input"),
                           ({"text": {"format": {"type": "xml"}}}, "text.format"),
                           ({"truncation": "auto"}, "truncation"),
                           ({"background": True}, "background"),
                           ({"include": ["file_search_call.results"]}, "include[0]"),
                           ({"conversation": "c"}, "conversation"),
                           ({"metadata": {str(i): "x" for i in range(17)}}, "metadata")):
        with pytest.raises(openai.BadRequestError) as error:
            client.responses.create(**{"model": MODEL_NAME, "input": "hi", **options})
        assert error.value.param == param, options


def test_stored_responses_belong_to_their_key(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("a: key-of-alice\nb: key-of-bob\n")
    keys.chmod(0o600)
    daemon = start(f'[model]\nname = "{MODEL_NAME}"\n[http]\nkeys_file = "{keys}"\n')
    daemon.wait_ready()
    alice, bob = daemon.client(api_key="key-of-alice"), daemon.client(api_key="key-of-bob")
    reply = create(alice, "echo mine")
    assert alice.responses.retrieve(reply.id).output_text == "mine"
    with pytest.raises(openai.NotFoundError):
        bob.responses.retrieve(reply.id)
    with pytest.raises(openai.NotFoundError):
        create(bob, "x", previous_response_id=reply.id)
