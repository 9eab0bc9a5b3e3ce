"""The embedded model up to its last position, the edges of a request, work that gives way, and
what waits: 429 and 503 before any header."""

import json
import os
import pathlib
import threading

import pytest

from conftest import Daemon

SOURCE = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = [pathlib.Path("/usr/share/tensorfoldd/tiny"), SOURCE / "packaging/tiny-model/model"]
CONTEXT = 8192
WINDOW = 128

pytestmark = pytest.mark.skipif(not any((f / "config.json").exists() for f in FOLDERS),
                                reason="the embedded model is not there")


def serve(tmp_path_factory, config: str):
    running = Daemon(tmp_path_factory.mktemp("context"), os.environ["TF_DAEMON"],
                     '[model]\nname = "tiny"\n' + config)
    running.wait_ready()
    return running


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    running = serve(tmp_path_factory, "")
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """One slot, one place in the queue, a second's patience."""
    running = serve(tmp_path_factory,
                    "[engine]\nslots = 1\n[limits]\nqueue_requests = 1\nqueue_wait_s = 1\n")
    yield running
    assert running.stop() == 0, running.log


def ids(count: int, start: int = 0) -> list[int]:
    """Ordinary tokens, in an order of their own."""
    return [300 + (start + i * 7919) % 1500 for i in range(count)]


def complete(daemon, prompt: list[int], max_tokens: int, **options):
    body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
            "ignore_eos": True, **options}
    status, headers, content = daemon.request("POST", "/v1/completions", body,
                                              timeout=300)
    return status, headers, json.loads(content)


def test_the_whole_context_and_not_one_more(daemon):
    status, _, reply = complete(daemon, ids(CONTEXT - 2), 2)
    assert status == 200, reply
    assert reply["usage"]["prompt_tokens"] == CONTEXT - 2
    assert reply["usage"]["completion_tokens"] == 2
    assert reply["choices"][0]["finish_reason"] == "length"
    status, _, reply = complete(daemon, ids(CONTEXT), 0)
    assert status == 200, reply
    assert reply["usage"]["completion_tokens"] == 0
    for prompt, reply_tokens in ((CONTEXT - 2, 3), (CONTEXT, 1), (CONTEXT + 1, 0)):
        status, _, reply = complete(daemon, ids(prompt), reply_tokens)
        assert status == 400
        error = reply["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["type"] == "invalid_request_error" and error["param"] == "prompt"
        assert error["message"].startswith(
            f"This server's maximum context length is {CONTEXT} tokens")
        assert str(prompt + reply_tokens) in error["message"]


@pytest.mark.parametrize("length", [1, WINDOW - 1, WINDOW, WINDOW + 1])
def test_prompts_around_the_window(daemon, length):
    prompt = ids(length, start=length)
    none = complete(daemon, prompt, 0)[2]
    assert none["usage"]["completion_tokens"] == 0
    assert none["choices"][0]["finish_reason"] == "length"
    one = complete(daemon, prompt, 1)[2]
    three = complete(daemon, prompt, 3, draft=False)[2]
    assert one["usage"]["completion_tokens"] == 1
    assert three["choices"][0]["text"].startswith(one["choices"][0]["text"])


def test_empty_prompts_are_refused(daemon):
    status, _, reply = complete(daemon, [], 5)
    assert status == 400 and reply["error"]["type"] == "invalid_request_error"


def test_background_gives_way_and_its_reply_is_the_same(narrow):
    prompt, steps = ids(500, start=5), 300
    alone = complete(narrow, prompt, steps)[2]
    results = {}
    worker = threading.Thread(target=lambda: results.update(
        background=complete(narrow, prompt, steps, priority="background")))
    worker.start()
    narrow.wait_status(lambda s: s["slots"]["busy"] == 1, timeout=30)
    status, _, quick = complete(narrow, ids(40, start=9), 4)
    assert status == 200 and quick["usage"]["completion_tokens"] == 4
    assert worker.is_alive()  # it was served out of the only slot
    worker.join(300)
    status, _, reply = results["background"]
    assert status == 200
    assert reply["tensorfold"]["token_sha"] == alone["tensorfold"]["token_sha"]
    assert reply["usage"]["completion_tokens"] == steps


def test_what_waits_is_told_before_any_header(narrow):
    body = json.dumps({"model": "tiny", "prompt": ids(50, start=77), "max_tokens": 8000,
                       "ignore_eos": True, "stream": True}).encode()
    with narrow.connect() as busy:  # as long as this is open
        busy.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
                     b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        narrow.wait_status(lambda s: s["slots"]["busy"] == 1, timeout=30)
        results = {}
        waiting = threading.Thread(target=lambda: results.update(
            late=complete(narrow, ids(20), 4, stream=True)))
        waiting.start()
        narrow.wait_status(lambda s: s["queue"]["waiting"] == 1, timeout=30)
        status, headers, reply = complete(narrow, ids(21), 4)
        assert status == 429 and int(headers["retry-after"]) > 0
        assert reply["error"]["code"] == "queue_full"
        waiting.join(60)
        status, headers, reply = results["late"]
        assert status == 503 and int(headers["retry-after"]) > 0
        assert reply["error"]["code"] == "queue_deadline"
    narrow.wait_status(lambda s: s["slots"]["busy"] == 0, timeout=30)
