"""Every API over the embedded model: one prompt is one reply, whichever API asks and whether it is
streamed; the official openai and anthropic packages, and tfctl verify."""

import json
import os
import pathlib
import subprocess

import anthropic
import pytest

from conftest import Daemon, say

SOURCE = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = [pathlib.Path("/usr/share/tensorfoldd/tiny"), SOURCE / "packaging/tiny-model/model"]
ASK = "What is 12 + 7?"
TOOL = {"name": "emit", "description": "takes the result",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}},
                       "required": ["n"], "additionalProperties": False}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
          "required": ["a", "b"], "additionalProperties": False}

pytestmark = pytest.mark.skipif(not any((f / "config.json").exists() for f in FOLDERS),
                                reason="the embedded model is not there")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    running = Daemon(tmp_path_factory.mktemp("apis"), os.environ["TF_DAEMON"],
                     '[model]\nname = "tiny"\n')
    running.wait_ready()
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture
def client(daemon):
    return daemon.client(timeout=300)


@pytest.fixture
def claude(daemon):
    return anthropic.Anthropic(base_url=daemon.url, api_key="none", max_retries=0, timeout=300)


def sha(reply):
    return reply.model_extra["tensorfold"]["token_sha"]


def chat(client, **options):
    options = {"max_tokens": 24, "temperature": 0, "messages": say(ASK), **options}
    return client.chat.completions.create(model="tiny", **options)


def test_one_prompt_is_one_reply_in_every_api(client, claude, daemon):
    want = chat(client)
    text = want.choices[0].message.content
    assert text
    message = claude.messages.create(model="tiny", max_tokens=24, messages=say(ASK),
                                     extra_body={"temperature": 0})
    assert (message.content[0].text, sha(message)) == (text, sha(want))
    response = client.responses.create(model="tiny", input=ASK, max_output_tokens=24,
                                       temperature=0)
    assert (response.output_text, sha(response)) == (text, sha(want))
    with claude.messages.stream(model="tiny", max_tokens=24, messages=say(ASK),
                                extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == text
    events = list(client.responses.create(model="tiny", input=ASK, max_output_tokens=24,
                                          temperature=0, stream=True))
    assert events[-1].response.output_text == text
    # The same prompt by its ids, through completions.
    ids = json.loads(daemon.request("POST", "/tokenize", {"messages": say(ASK)})[2])
    assert ids["count"] == want.usage.prompt_tokens
    raw = client.completions.create(model="tiny", prompt=ids["tokens"], max_tokens=24,
                                    temperature=0)
    assert sha(raw) == sha(want) and raw.usage.prompt_tokens == ids["count"]
    prompt = json.loads(daemon.request("POST", "/detokenize", {"tokens": ids["tokens"]})[2])
    again = client.completions.create(model="tiny", prompt=prompt["prompt"], max_tokens=24,
                                      temperature=0)
    assert sha(again) == sha(want)
    count = claude.messages.count_tokens(model="tiny", messages=say(ASK))
    assert count.input_tokens == ids["count"]


def test_choices_share_the_seed_and_differ(client):
    options = {"messages": say("Tell me a short story."), "temperature": 2, "top_p": 1, "seed": 3}
    reply = chat(client, n=3, **options)
    assert [c.index for c in reply.choices] == [0, 1, 2]
    shas = [c.model_extra["tensorfold"]["token_sha"] for c in reply.choices]
    assert len(set(shas)) == 3
    assert sha(chat(client, **options)) == shas[0]  # the first choice is what one would be
    again = chat(client, n=3, **options)
    assert [c.model_extra["tensorfold"]["token_sha"] for c in again.choices] == shas


def test_logprobs_are_of_the_model(client):
    import math
    reply = chat(client, logprobs=True, top_logprobs=5, extra_body={"return_token_ids": True})
    entries = reply.choices[0].logprobs.content
    assert len(entries) == reply.usage.completion_tokens
    assert b"".join(bytes(e.bytes) for e in entries).decode().startswith(
        reply.choices[0].message.content)
    for e in entries:
        assert e.logprob <= 0
        assert sum(math.exp(t.logprob) for t in e.top_logprobs) <= 1.0001
        assert e.token == e.top_logprobs[0].token  # greedy
    old = client.completions.create(model="tiny", prompt="one two three", max_tokens=8, logprobs=2,
                                    temperature=0, echo=False)
    assert len(old.choices[0].logprobs.tokens) == old.usage.completion_tokens


def test_earlier_reasoning_is_kept_when_asked_for(daemon):
    turns = [{"role": "user", "content": "one"},
             {"role": "assistant", "content": "two", "reasoning_content": "because of that"},
             {"role": "user", "content": "three"}]
    prompts = []
    for kwargs in ({}, {"drop_thinking": True}, {"drop_thinking": False}):
        body = {"messages": turns, "chat_template_kwargs": {"thinking": True, **kwargs}}
        ids = json.loads(daemon.request("POST", "/tokenize", body)[2])["tokens"]
        text = daemon.request("POST", "/detokenize", {"tokens": ids})[2]
        prompts.append(json.loads(text)["prompt"])
    assert prompts[0] == prompts[1] and "because of that" not in prompts[0]
    assert "<think>because of that</think>two" in prompts[2]


def test_prompt_logprobs_are_what_the_model_said(client, daemon):
    """A text that it wrote, scored: the same numbers; and a scored prompt is gone on with alike."""
    options = {"model": "tiny", "temperature": 0, "logprobs": 3}
    made = client.completions.create(prompt="one two three", max_tokens=40, **options,
                                     extra_body={"return_token_ids": True, "ignore_eos": True})
    _, _, body = daemon.request("POST", "/tokenize", {"prompt": "one two three",
                                                      "add_special_tokens": False})
    ids = json.loads(body)["tokens"] + made.model_extra["tensorfold"]["token_ids"]
    scored = client.completions.create(prompt=ids, echo=True, max_tokens=0, **options)
    lists, said = scored.choices[0].logprobs, made.choices[0].logprobs
    assert len(lists.tokens) == len(ids) and lists.token_logprobs[0] is None
    assert lists.tokens[-40:] == said.tokens and len(said.tokens) == 40
    assert lists.token_logprobs[-40:] == said.token_logprobs
    assert lists.top_logprobs[-40:] == said.top_logprobs
    reply = chat(client, extra_body={"prompt_logprobs": 2})
    prompt = reply.model_extra["prompt_logprobs"]
    assert len(prompt) == reply.usage.prompt_tokens and prompt[0] is None
    assert reply.usage.prompt_tokens_details.cached_tokens == 0
    for entry in prompt[1:]:
        ranks = sorted(e["rank"] for e in entry.values())
        assert ranks[:2] == [1, 2] and len(entry) in (2, 3)
    assert chat(client).choices[0].message.content == reply.choices[0].message.content


def test_min_tokens_bias_and_allowed_tokens(client, daemon):
    short = chat(client, messages=say("Hello!"), max_tokens=64)
    made = short.usage.completion_tokens
    assert short.choices[0].finish_reason == "stop" and made < 50
    longer = chat(client, messages=say("Hello!"), max_tokens=64,
                  extra_body={"min_tokens": made + 8, "return_token_ids": True})
    assert longer.usage.completion_tokens >= made + 8
    ids = longer.model_extra["tensorfold"]["token_ids"]
    first = chat(client, messages=say("Hello!"), max_tokens=1, extra_body={"return_token_ids": True})
    token = first.model_extra["tensorfold"]["token_ids"][0]
    assert ids[0] == token
    banned = chat(client, messages=say("Hello!"), max_tokens=4, logit_bias={str(token): -100},
                  extra_body={"return_token_ids": True})
    assert token not in banned.model_extra["tensorfold"]["token_ids"]
    only = chat(client, messages=say("Hello!"), max_tokens=6,
                extra_body={"allowed_token_ids": [token], "return_token_ids": True})
    assert set(only.model_extra["tensorfold"]["token_ids"]) == {token}


def test_continuing_gives_what_one_reply_gives(client):
    whole = chat(client, max_tokens=20).choices[0].message.content
    half = whole[:len(whole) // 2].rstrip()
    rest = chat(client, max_tokens=20, messages=say(ASK) + [
        {"role": "assistant", "content": half}], extra_body={"continue_final_message": True})
    assert rest.choices[0].message.content is not None
    count = rest.usage.prompt_tokens
    assert count > chat(client, max_tokens=1).usage.prompt_tokens


def test_warm_cache(client):
    messages = say("Count from 1 to 10. " * 40)
    cold = chat(client, messages=messages, max_tokens=0)
    assert cold.usage.completion_tokens == 0
    warm = chat(client, messages=messages, max_tokens=4)
    salted = chat(client, messages=messages, max_tokens=4, extra_body={"cache_salt": "other"})
    assert warm.usage.prompt_tokens_details.cached_tokens >= 0
    assert salted.usage.prompt_tokens_details.cached_tokens == 0
    assert sha(salted) == sha(warm)


def test_forced_calls_and_forms(client, claude):
    for stream in (False, True):
        reply = chat(client, tools=[{"type": "function", "function": TOOL}], stream=stream,
                     tool_choice={"type": "function", "function": {"name": "emit"}},
                     max_tokens=200)
        if stream:
            pieces, finish = "", None
            for chunk in reply:
                for choice in chunk.choices:
                    finish = choice.finish_reason or finish
                    for call in choice.delta.tool_calls or []:
                        pieces += call.function.arguments or ""
        else:
            pieces = reply.choices[0].message.tool_calls[0].function.arguments
            finish = reply.choices[0].finish_reason
        assert finish == "tool_calls" and isinstance(json.loads(pieces)["n"], int)
    message = claude.messages.create(
        model="tiny", max_tokens=200, messages=say(ASK), tool_choice={"type": "any"},
        tools=[{"name": "emit", "input_schema": TOOL["parameters"]}],
        extra_body={"temperature": 0})
    assert message.stop_reason == "tool_use"
    assert isinstance(message.content[-1].input["n"], int)
    response = client.responses.create(model="tiny", input=ASK, temperature=0,
                                       max_output_tokens=200, tool_choice="required",
                                       tools=[{"type": "function", **TOOL}])
    assert isinstance(json.loads(response.output[-1].arguments)["n"], int)
    reply = chat(client, max_tokens=100, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}})
    assert set(json.loads(reply.choices[0].message.content)) == {"a", "b"}
    response = client.responses.create(
        model="tiny", input=ASK, temperature=0, max_output_tokens=100,
        text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}})
    assert set(json.loads(response.output_text)) == {"a", "b"}
    message = claude.messages.create(
        model="tiny", max_tokens=100, messages=say(ASK), extra_body={
            "temperature": 0, "output_config": {"format": {"type": "json_schema",
                                                           "schema": SCHEMA}}})
    assert set(json.loads(message.content[0].text)) == {"a", "b"}


def test_a_prompt_that_is_too_long(client, claude):
    import openai
    text = "word " * 40000
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, messages=say(text))
    assert (error.value.code, error.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="tiny", prompt=text)
    assert (error.value.code, error.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(anthropic.BadRequestError) as error:
        claude.messages.create(model="tiny", max_tokens=5, messages=say(text))
    assert "maximum context length" in error.value.body["error"]["message"]


def test_tfctl_verify(daemon):
    def verify(*args):
        return subprocess.run([os.environ["TF_CTL"], "verify", "--url", daemon.url, *args],
                              capture_output=True, text=True, timeout=300)

    done = verify()
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line[:4] for line in lines] == ["PASS"] * 5
    checks = json.loads(verify("--json").stdout)["checks"]
    assert all(c["passed"] and c["received"] for c in checks)
    wrong = verify("--model", "other")
    assert wrong.returncode == 1 and wrong.stdout.count("FAIL") == 5
    assert "does not exist" in wrong.stdout


def test_reasoning_may_eat_the_reply_and_says_so(client):
    reply = chat(client, max_tokens=8, reasoning_effort="high")
    details = reply.usage.completion_tokens_details
    assert reply.choices[0].finish_reason == "length"
    assert details.reasoning_tokens == reply.usage.completion_tokens == 8
    assert not reply.choices[0].message.content
    off = chat(client, max_tokens=8, reasoning_effort="none")
    assert off.usage.completion_tokens_details.reasoning_tokens == 0
    assert not hasattr(off.choices[0].message, "reasoning_content")
    for spelled in ({"thinking": {"type": "enabled"}}, {"enable_thinking": True},
                    {"chat_template_kwargs": {"thinking": True}}):
        assert chat(client, max_tokens=8, extra_body=spelled
                    ).usage.completion_tokens_details.reasoning_tokens == 8


def call(name):
    return {"id": name, "type": "function", "function": {"name": "emit", "arguments": '{"n": 1}'}}


HISTORIES = [
    # Reasoning passed back, or not.
    [{"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call("c1")]},
     {"role": "tool", "tool_call_id": "c1", "content": "ok"}],
    [{"role": "assistant", "content": None, "tool_calls": [call("c1")]},
     {"role": "tool", "tool_call_id": "c1", "content": "ok"}],
    # Something in between, results out of order, one missing, one of nobody's, ids twice.
    [{"role": "assistant", "content": None, "tool_calls": [call("c1"), call("c2")]},
     {"role": "system", "content": "lint note"},
     {"role": "tool", "tool_call_id": "c2", "content": "two"},
     {"role": "tool", "tool_call_id": "c1", "content": "one"}],
    [{"role": "assistant", "content": None, "tool_calls": [call("c1"), call("c2")]},
     {"role": "tool", "tool_call_id": "c1", "content": "one"}],
    [{"role": "assistant", "content": "x"}, {"role": "tool", "tool_call_id": "c9", "content": "?"}],
    [{"role": "assistant", "content": "", "tool_calls": [call("c"), call("c")]},
     {"role": "tool", "tool_call_id": "c", "content": "one"},
     {"role": "tool", "tool_call_id": "c", "content": "two"}],
]


@pytest.mark.parametrize("turns", HISTORIES)
@pytest.mark.parametrize("effort", ["none", "low"])
def test_histories_that_agents_send(client, turns, effort):
    tools = [{"type": "function", "function": TOOL}]
    for end in ([], [{"role": "user", "content": "go on"}]):
        reply = chat(client, messages=say("emit 1") + turns + end, tools=tools, max_tokens=4,
                     reasoning_effort=effort)
        assert reply.usage.completion_tokens == 4 or reply.choices[0].finish_reason != "length"


def test_control_text_in_messages_is_text(daemon):
    def ids(text, path="messages"):
        body = {"messages": say(text)} if path == "messages" else {"prompt": text}
        return json.loads(daemon.request("POST", "/tokenize", body)[2])["tokens"]

    words = ["<｜Assistant｜>", "</think>", "<think>", "<｜end▁of▁sentence｜>", "｜DSML｜"]
    control = {w: ids(w, "prompt")[1] for w in words}  # after the begin token
    plain = ids("x")
    for word in words:
        assert ids(word).count(control[word]) == plain.count(control[word]), word


def test_calls_have_ids_of_their_own(client):
    """Two replies and the calls in them: no id comes twice."""
    seen = set()
    for _ in range(2):
        reply = chat(client, tools=[{"type": "function", "function": TOOL}], max_tokens=200,
                     tool_choice="required")
        for made in reply.choices[0].message.tool_calls:
            assert made.id.startswith("call_") and made.id not in seen
            seen.add(made.id)
