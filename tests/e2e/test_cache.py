"""The prefix cache through the real daemon on the embedded model: the second of two equal requests
is served from it with the same bytes, the next turn starts behind the reply, salts share nothing,
and tfctl shows and empties it while replies run."""

import json
import os
import pathlib
import threading

import pytest

from conftest import Daemon, say
from test_lifecycle import tfctl

SOURCE = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = [pathlib.Path("/usr/share/tensorfoldd/tiny"), SOURCE / "packaging/tiny-model/model"]
LONG = "Here are some words to read first: " + " ".join(f"word {i}" for i in range(120)) + ". "

pytestmark = pytest.mark.skipif(not any((f / "config.json").exists() for f in FOLDERS),
                                reason="the embedded model is not there")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    running = Daemon(tmp_path_factory.mktemp("cache"), os.environ["TF_DAEMON"],
                     '[model]\nname = "tiny"\n[cache]\nsnapshot_mib = 64\nspill_gib = 0\n')
    running.wait_ready()
    yield running
    assert running.stop() == 0, running.log


def ask(daemon, messages, **body):
    body = {"model": "tiny", "messages": messages, "max_tokens": 24, "temperature": 0, **body}
    status, _, reply = daemon.request("POST", "/v1/chat/completions", body, timeout=300)
    reply = json.loads(reply)
    assert status == 200, reply
    usage = reply["usage"]
    return reply, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def cache_of(daemon):
    shown = tfctl(daemon, "cache", "status", "--json")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def test_the_second_request_is_a_hit_with_the_same_bytes(daemon):
    messages = say(LONG + "What is 3 + 4?")
    first, prompt, cached = ask(daemon, messages)
    assert cached == 0
    second, _, cached = ask(daemon, messages)
    assert cached == prompt - 1
    assert second["choices"] == first["choices"]
    assert second["tensorfold"]["token_sha"] == first["tensorfold"]["token_sha"]
    totals = cache_of(daemon)["totals"]
    assert totals["hits"] >= 1 and totals["saved_tokens"] >= prompt - 1


def test_the_next_turn_computes_what_is_new(daemon):
    messages = say(LONG + "Count from 1 to 5.")
    first, prompt, _ = ask(daemon, messages)
    reply = first["choices"][0]["message"]["content"]
    longer = messages + [{"role": "assistant", "content": reply}] + say("And on to 8.")
    warm, whole, cached = ask(daemon, longer)
    assert cached >= prompt - 1
    cold, _, none = ask(daemon, longer, cache_salt="another")
    assert none == 0 and whole > cached
    assert warm["choices"] == cold["choices"]


def test_the_second_chat_starts_behind_the_system_text(daemon):
    system = [{"role": "system", "content": LONG}]
    assert ask(daemon, system + say("What is 2 + 9?"), cache_salt="head")[2] == 0
    asked = system + say("Count from 3 to 6.")
    warm, prompt, cached = ask(daemon, asked, cache_salt="head")
    cold, _, none = ask(daemon, asked, cache_salt="head, cold")
    assert none == 0 and cached > prompt // 2
    assert warm["choices"] == cold["choices"]


def test_salts_share_nothing(daemon):
    messages = say(LONG + "Who asks?")
    assert ask(daemon, messages, cache_salt="a")[2] == 0
    assert ask(daemon, messages, cache_salt="b")[2] == 0
    _, prompt, cached = ask(daemon, messages, cache_salt="a")
    assert cached == prompt - 1


def test_many_at_once_give_what_one_gives(daemon):
    asked = [say(LONG + f"Say {i}.") for i in range(4)]
    alone = [ask(daemon, m, cache_salt=f"alone {i}")[0]["choices"] for i, m in enumerate(asked)]
    got = [None] * 12
    def run(i):
        got[i] = ask(daemon, asked[i % 4])[0]["choices"]
    threads = [threading.Thread(target=run, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    assert tfctl(daemon, "cache", "flush").returncode == 0
    for thread in threads:
        thread.join()
    assert got == [alone[i % 4] for i in range(12)]


def test_flush_empties_it_and_is_logged(daemon):
    messages = say(LONG + "Is it still there?")
    _, prompt, _ = ask(daemon, messages)
    assert ask(daemon, messages)[2] == prompt - 1
    assert cache_of(daemon)["snapshots"]["count"] > 0
    flushed = tfctl(daemon, "cache", "flush")
    assert flushed.returncode == 0 and flushed.stdout.startswith("flushed: ")
    held = cache_of(daemon)
    assert held["snapshots"] == {"count": 0, "bytes": 0,
                                 "bytes_max": held["snapshots"]["bytes_max"]}
    assert held["pool"]["cached_tokens"] == 0 and held["blocks"] == 0
    assert ask(daemon, messages)[2] == 0
    daemon.wait_log(rf"cache flush \(uid {os.getuid()}, pid \d+\)")
    done = json.loads(tfctl(daemon, "cache", "flush", "--spill", "--json").stdout)
    assert done["done"] == "flush" and done["snapshots"] > 0
    text = tfctl(daemon, "cache", "status").stdout
    assert "pool" in text and "snapshots   0" in text and "flushes" in text
    assert daemon.request("POST", "/cache/flush?spill=2", unix=True)[0] == 400
