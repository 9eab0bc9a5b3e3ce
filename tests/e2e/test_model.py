"""Chat with the embedded model: the real engine under the real daemon. What the replies say is
measured elsewhere (packaging/tiny-model/evaluate); here it is that one request has one answer."""

import json
import os
import pathlib
import time

import openai
import pytest

from conftest import Daemon, say

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# Another folder with the embedded model's tokenizer, to try one before it is shipped.
OTHER = os.environ.get("TF_TINY_MODEL")
FOLDERS = [pathlib.Path("/usr/share/tensorfoldd/tiny"), SOURCE / "packaging/tiny-model/model"]
PROMPTS = ["Hello!", "Count from 1 to 10.", "What is 12 + 7?", "Tell me a short story."]

pytestmark = pytest.mark.skipif(not OTHER and not any((f / "config.json").exists() for f in FOLDERS),
                                reason="the embedded model is not there")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    running = Daemon(tmp_path_factory.mktemp("model"), os.environ["TF_DAEMON"],
                     '[model]\nname = "tiny"\n', ["--model", OTHER] if OTHER else [])
    running.wait_ready()
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture
def client(daemon):
    return daemon.client(timeout=300)


def ask(client, text, **options):
    options.setdefault("max_tokens", 24)
    return client.chat.completions.create(model="tiny", messages=say(text), **options)


def sha(reply):
    return reply.model_extra["tensorfold"]["token_sha"]


@pytest.mark.parametrize("text", PROMPTS[1:3])
def test_streamed_drafted_and_serial_agree(client, text):
    for options in ({"temperature": 0}, {"temperature": 0.8, "seed": 11}):
        whole = ask(client, text, **options)
        serial = ask(client, text, extra_body={"draft": False}, **options)
        assert sha(serial) == sha(whole)
        content, last = "", None
        for chunk in ask(client, text, stream=True, **options):
            content += "".join(c.delta.content or "" for c in chunk.choices)
            last = chunk
        assert content == (whole.choices[0].message.content or "")
        assert last.choices[0].finish_reason == whole.choices[0].finish_reason
        assert last.model_extra["tensorfold"]["token_sha"] == sha(whole)
        assert whole.choices[0].message.content


def test_a_reported_seed_gives_the_same_again(client):
    first = ask(client, PROMPTS[3], temperature=1.0)
    seed = int(first.model_extra["tensorfold"]["sampling_seed"])
    assert sha(ask(client, PROMPTS[3], temperature=1.0, seed=seed)) == sha(first)


def test_stop_usage_and_length(client):
    whole = ask(client, PROMPTS[1], temperature=0)
    text = whole.choices[0].message.content
    assert whole.usage.prompt_tokens > 0 and 0 < whole.usage.completion_tokens <= 24
    cut = ask(client, PROMPTS[1], temperature=0, max_tokens=4)
    assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 4
    assert text.startswith((cut.choices[0].message.content or "").rstrip("\ufffd"))
    stop = text[len(text) // 2:len(text) // 2 + 2]
    stopped = ask(client, PROMPTS[1], temperature=0, stop=[stop])
    assert stopped.choices[0].message.content == (text[:text.index(stop)] or None)
    assert stopped.choices[0].finish_reason == "stop"


def test_thinking_is_apart(client):
    reply = ask(client, PROMPTS[2], temperature=0, reasoning_effort="high", max_tokens=60)
    assert reply.choices[0].message.reasoning_content
    assert reply.usage.completion_tokens_details.reasoning_tokens > 0
    plain = ask(client, PROMPTS[2], temperature=0)
    assert not hasattr(plain.choices[0].message, "reasoning_content")


def test_a_second_time_the_prompt_is_cached(client):
    text = "Please remember these words. " * 40
    first = ask(client, text, temperature=0, max_tokens=8)
    again = ask(client, text, temperature=0, max_tokens=8)
    assert sha(again) == sha(first)
    assert again.usage.prompt_tokens_details.cached_tokens >= 0


def test_errors(client, daemon):
    context = client.models.list().data[0].model_extra["max_model_len"]
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, "word " * context, stream=True)
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, "hi", logit_bias={"99999999": 1})
    assert error.value.param == "logit_bias"
    assert daemon.request("GET", "/health")[0] == 200


def test_cancelled_while_it_writes(client, daemon):
    before = daemon.status()["http"]["cancelled_total"]
    body = json.dumps({"messages": say("Tell me a long story."), "stream": True, "ignore_eos": True,
                       "max_tokens": 4000}).encode()
    with daemon.connect() as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                     % (len(body), body))
        assert sock.recv(100)
    began = time.monotonic()
    daemon.wait_status(lambda s: s["slots"]["busy"] == 0
                       and s["http"]["cancelled_total"] == before + 1, timeout=10)
    assert time.monotonic() - began < 10
