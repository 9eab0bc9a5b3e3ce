"""A model that is unloaded while nobody asks, as a client meets it: it waits for a load, and is told
when that takes longer than it may wait."""

import json
import time

from conftest import MODEL_NAME, say

IDLE = f'[model]\nname = "{MODEL_NAME}"\n[engine]\nidle_unload_s = 1\n[limits]\nqueue_wait_s = 1\n'


def detail(daemon) -> str:
    return json.loads(daemon.request("GET", "/health")[2])["detail"]


def wait_unloaded(daemon) -> None:
    end = time.monotonic() + 60
    while not detail(daemon).startswith("unloaded"):
        assert time.monotonic() < end, detail(daemon)
        time.sleep(0.05)


def ask(daemon):
    return daemon.request("POST", "/v1/chat/completions",
                          {"model": MODEL_NAME, "messages": say("count 3")})


def test_a_request_waits_for_the_model_or_is_told_to_come_again(start):
    daemon = start(IDLE, env={"TF_FAKE_LOAD_MS": "400"})
    daemon.wait_ready()
    first = json.loads(ask(daemon)[2])["choices"][0]["message"]
    wait_unloaded(daemon)
    # Nothing else has gone: the model is listed, its state is told, text is counted after a load.
    assert daemon.request("GET", "/v1/models")[0] == 200
    assert daemon.request("GET", "/health")[0] == 200
    status, _, body = ask(daemon)
    assert status == 200 and json.loads(body)["choices"][0]["message"] == first
    wait_unloaded(daemon)
    status, headers, body = daemon.request("POST", "/tokenize", {"prompt": "some text"})
    assert status == 503 and int(headers["retry-after"]) > 0, body
    assert json.loads(body)["error"]["code"] == "loading"


def test_a_load_that_takes_longer_than_a_request_may_wait(start):
    daemon = start(IDLE, env={"TF_FAKE_LOAD_MS": "1500"})
    daemon.wait_ready()
    wait_unloaded(daemon)
    for _ in range(2):  # known from the first load: refused at once, and it is loaded all the same
        status, headers, body = ask(daemon)
        assert status == 503 and int(headers["retry-after"]) > 0, body
        assert json.loads(body)["error"]["code"] == "loading"
    end = time.monotonic() + 60
    while (status := ask(daemon)[0]) == 503 and time.monotonic() < end:
        time.sleep(0.1)
    assert status == 200
