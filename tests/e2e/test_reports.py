"""What users of other servers have met, one test each: silent prefills, stalls, browsers, keys,
proxies, bodies that are not what they should be."""

import json
import re
import time

import pytest

from conftest import MODEL_NAME, say

CHAT = "/v1/chat/completions"


def chat(text, **options):
    return dict({"messages": say(text)}, **options)


def raw(daemon, data: bytes, pause: float = 0) -> bytes:
    """What comes back on one connection until it is closed."""
    with daemon.connect() as sock:
        sock.sendall(data)
        if pause:
            time.sleep(pause)
        reply = b""
        sock.settimeout(10)
        try:
            while part := sock.recv(65536):
                reply += part
        except ConnectionResetError:
            pass
        return reply


def send(daemon, body: bytes, path: str = CHAT):
    status, _, reply = daemon.request("POST", path, body, {"Content-Type": "application/json"})
    return status, json.loads(reply)


# ---------------------------------------------------------------- silence and stalls

def test_headers_and_comments_come_during_a_long_prefill(start):
    daemon = start("[limits]\nkeepalive_s = 1\n")
    daemon.wait_ready()
    body = json.dumps(chat("silent 4000", stream=True)).encode()
    with daemon.connect() as sock:
        sock.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                     % (CHAT.encode(), len(body), body))
        began, reply = time.monotonic(), b""
        while b"\n: keepalive, prefill " not in reply:
            reply += sock.recv(4096)
        assert reply.startswith(b"HTTP/1.1 200") and time.monotonic() - began < 3


def test_a_stalled_engine_ends_replies_and_comments(start):
    daemon = start("[limits]\nkeepalive_s = 1\nstall_s = 3\n")
    daemon.wait_ready()
    began = time.monotonic()
    status, _, body = daemon.request("POST", CHAT, chat("stall", stream=True))
    assert status == 200 and time.monotonic() - began < 8
    assert b"keepalive" not in body  # nothing hid that nothing happened
    assert b'"code":"engine_stalled"' in body and b"data: [DONE]" in body
    status, _, body = daemon.request("POST", CHAT, chat("stall"))
    assert status == 500 and json.loads(body)["error"]["code"] == "engine_stalled"
    assert daemon.request("POST", CHAT, chat("echo still here"))[0] == 200


def test_progress_when_asked_for(client):
    total, seen = None, []
    for chunk in client.chat.completions.create(model=MODEL_NAME, messages=say("silent 200"),
                                                stream=True, extra_body={"return_progress": True}):
        progress = chunk.model_extra.get("prompt_progress")
        if progress:
            assert chunk.choices == []
            seen.append(progress["processed"])
            total = progress["total"]
    assert seen == sorted(seen) and len(seen) > 5 and seen[-1] == total
    plain = client.chat.completions.create(model=MODEL_NAME, messages=say("silent 100"),
                                           stream=True)
    assert all("prompt_progress" not in c.model_extra for c in plain)


def test_cancel_by_id(daemon):
    body = json.dumps(chat("slow 20 5000", stream=True)).encode()
    with daemon.connect() as sock:
        sock.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                     % (CHAT.encode(), len(body), body))
        head = sock.recv(4096).decode()
        name = next(line for line in head.split("\r\n") if line.startswith("X-Request-Id: "))[14:]
        assert daemon.request("DELETE", "/v1/requests/" + name)[0] == 200
        reply = b""
        while b"[DONE]" not in reply:
            reply += sock.recv(4096)
        assert b'"code":"cancelled"' in reply
    daemon.wait_status(lambda s: s["slots"]["busy"] == 0)
    assert daemon.request("DELETE", "/v1/requests/" + name)[0] == 404
    assert any(name in line and "finish=cancelled" in line for line in daemon.log)


def test_many_aborts_leave_a_working_server(daemon):
    """Clients that leave at any moment, four streams at a time."""
    import concurrent.futures
    import random
    dice = random.Random(5)
    scripts = ["slow 1 200", "silent 50", "count 200", "call f {}", "queue 20", "burst 2000"]
    plans = [(dice.choice(scripts), dice.random() * 0.05, dice.random() < 0.5)
             for _ in range(300)]

    def abort(plan):
        text, wait, stream = plan
        body = json.dumps(chat(text, stream=stream)).encode()
        sock = daemon.connect()
        sock.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                     % (CHAT.encode(), len(body), body))
        time.sleep(wait)
        sock.close()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(abort, plans))
    daemon.wait_status(lambda s: s["slots"]["busy"] == 0 and s["queue"]["waiting"] == 0)
    status, _, body = daemon.request("POST", CHAT, chat("count 3"))
    assert status == 200 and json.loads(body)["choices"][0]["message"]["content"] == "1 2 3"


# ---------------------------------------------------------------- text

@pytest.mark.parametrize("most", range(1, 9))
def test_no_broken_characters_in_pieces(client, most):
    whole = client.chat.completions.create(model=MODEL_NAME, messages=say("emoji"),
                                           max_tokens=most)
    pieces = [c.delta.content or "" for chunk in client.chat.completions.create(
        model=MODEL_NAME, messages=say("emoji"), max_tokens=most, stream=True)
        for c in chunk.choices]
    assert "".join(pieces) == (whole.choices[0].message.content or "")
    assert "\ufffd" not in "".join(pieces[:-2])  # only a cut at the very end may leave one


def test_stop_strings_across_tokens(client):
    for stops, text in ((["own fox", "\nUser:"], "The quick br"), (["x jumps"], "The quick brown fo"),
                        (["T"], ""), (["nothing", "here", "of", "this"], None),
                        (["jumps"], "The quick brown fox ")):
        for stream in (False, True):
            reply = client.chat.completions.create(
                model=MODEL_NAME, messages=say("echo The quick brown fox jumps"), stop=stops,
                stream=stream)
            got = ("".join(c.delta.content or "" for k in reply for c in k.choices) if stream
                   else reply.choices[0].message.content or "")
            assert got == (text if text is not None else "The quick brown fox jumps")


@pytest.mark.parametrize("cut,shown", [(rb"cut \ud83d", "cut \ufffd"), (rb"\ude00", "\ufffd"),
                                       (rb"\ud83d\ud83d", "\ufffd\ufffd"),
                                       (rb"\ud83d\ude00", "\U0001f600")])
def test_half_of_a_surrogate_pair_becomes_a_replacement(daemon, cut, shown):
    """Agents cut long texts in the middle of an emoji."""
    body = rb'{"messages":[{"role":"user","content":"echo %s"}],"stop":["\ud800x"]}' % cut
    status, reply = send(daemon, body)
    assert status == 200 and reply["choices"][0]["message"]["content"] == shown
    status, reply = send(daemon, rb'{"messages":[{"role":"user","content":"x"}],"%s":1}' % cut)
    assert status == 400 and reply["error"]["param"] == shown


BAD_TEXTS = [rb'{"messages":[{"role":"user","content":"x"}],"\ud800":1}',
             b'{"model":"\xff\xfeabc","messages":[]}',
             b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
             b'{"messages":[{"role":"user","content":"a\x00b"}]}',
             b'{"messages":[{"role":"user","content":"x"}]}\x00',
             b'{"messages":[{"role":"user","content":"x"}]',
             b'{"messages":[{"role":"user","content":"x"}]}{}',
             b"{" * 5000, b"[" * 200000, b'{"a":' * 100000, b"", b"\x00" * 100]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses",
                                  "/tokenize", "/detokenize", "/v1/messages/count_tokens"])
def test_bodies_that_are_no_json(daemon, path):
    for body in BAD_TEXTS:
        status, reply = send(daemon, body, path)
        assert status == 400, body[:60]
        assert reply["error"]["type"] == "invalid_request_error"
    assert daemon.request("GET", "/health")[0] == 200


def test_escaped_nul_and_twice_the_same_key(daemon):
    status, reply = send(daemon, rb'{"messages":[{"role":"user","content":"echo a\u0000b"}]}')
    assert status == 200 and reply["choices"][0]["message"]["content"] == "a\0b"
    # As every JSON library: the last one counts.
    status, reply = send(daemon, b'{"max_tokens":1,"max_tokens":2,'
                                 b'"messages":[{"role":"user","content":"echo abc"}]}')
    assert status == 200 and reply["choices"][0]["message"]["content"] == "ab"


def test_legal_shapes_are_taken(client):
    reply = client.chat.completions.create(model=MODEL_NAME, messages=[
        {"role": "developer", "content": [{"type": "text", "text": "Sec"},
                                          {"type": "text", "text": "ret=7"}]},
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "ok"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "noted"}],
         "reasoning_content": "so"},
        {"role": "user", "content": "echo taken"}])
    assert reply.choices[0].message.content == "taken"


def test_no_call_without_tools(client):
    """Calls in the history, none offered now: a call that comes all the same is not shown."""
    history = [{"role": "user", "content": "?"},
               {"role": "assistant", "content": None, "tool_calls": [
                   {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
               {"role": "tool", "tool_call_id": "c1", "content": "call f {}"}]
    for stream in (False, True):
        reply = client.chat.completions.create(model=MODEL_NAME, messages=history, stream=stream)
        if stream:
            chunks = [c for k in reply for c in k.choices]
            assert not any(c.delta.tool_calls or c.delta.content for c in chunks)
            assert chunks[-1].finish_reason == "stop"
        else:
            assert reply.choices[0].message.tool_calls is None
            assert reply.choices[0].finish_reason == "stop"


def test_a_call_of_nobody_is_passed_on(client):
    """A call of a tool that was not offered: the agent can say so; whole and streamed are alike."""
    tools = [{"type": "function", "function": {"name": "known"}}]
    for stream in (False, True):
        reply = client.chat.completions.create(
            model=MODEL_NAME, messages=say('call unknown {"a": 1}'), tools=tools, stream=stream)
        if stream:
            pieces = [c for k in reply for c in k.choices]
            calls = [t.function for c in pieces for t in c.delta.tool_calls or []]
            name, finish = calls[0].name, pieces[-1].finish_reason
            arguments = "".join(f.arguments or "" for f in calls)
        else:
            made = reply.choices[0].message.tool_calls
            name, arguments = made[0].function.name, made[0].function.arguments
            finish = reply.choices[0].finish_reason
        assert (name, json.loads(arguments), finish) == ("unknown", {"a": 1}, "tool_calls")


# ---------------------------------------------------------------- HTTP

SMUGGLED = [b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n1c\r\nGET /health HTTP/1.1",
            b"Content-Length: 47\r\nContent-Length: 0\r\n\r\n",
            b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhelloo",
            b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
            b"Transfer-Encoding: chunked\t\r\nContent-Length: 3\r\n\r\nabc",
            b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
            b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
            b"Transfer-Encoding: chunked\r\n\r\n1;a\n\r\nx\r\n0\r\n\r\n"]


@pytest.mark.parametrize("rest", SMUGGLED)
def test_nothing_is_smuggled(daemon, rest):
    reply = raw(daemon, b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n" + rest +
                b"\r\nGET /health/live HTTP/1.1\r\nHost: a\r\n\r\n")
    assert reply.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501")), reply[:60]
    assert reply.count(b"HTTP/1.1 ") == 1


def test_pipelined_requests_are_answered_in_order(daemon):
    body = json.dumps(chat("echo one")).encode()
    post = (b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
            % (CHAT.encode(), len(body), body))
    reply = raw(daemon, b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n" + post +
                b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n" + post +
                b"GET /nope HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert re.findall(rb"HTTP/1\.1 (\d+)", reply) == [b"200"] * 4 + [b"404"]
    assert reply.index(b'"one"') < reply.index(b'{"status":"ok"}') < reply.rindex(b'"one"')


def test_trailing_slash_and_head(daemon):
    for path in ("/v1/models/", "/health/", CHAT + "/"):
        method = "POST" if path.startswith(CHAT) else "GET"
        body = chat("echo x") if method == "POST" else None
        assert daemon.request(method, path, body)[0] == 200
    assert daemon.request("HEAD", "/health")[2] == b""
    assert daemon.request("GET", "//v1/models")[0] == 404


def test_a_thousand_idle_connections(start):
    daemon = start("[limits]\nconnections = 1100\n")
    daemon.wait_ready()
    socks = []
    try:
        for _ in range(1000):
            socks.append(daemon.connect())
        began = time.monotonic()
        assert daemon.request("GET", "/health")[0] == 200
        assert daemon.request("POST", CHAT, chat("echo busy"))[0] == 200
        assert time.monotonic() - began < 5
        assert daemon.status()["http"]["connections"] >= 1000
    finally:
        for sock in socks:
            sock.close()
    daemon.wait_status(lambda s: s["http"]["connections"] < 10)


def test_a_body_that_drips_is_ended(start):
    daemon = start("[limits]\nheader_s = 1\nbody_s = 2\n")
    daemon.wait_ready()
    for data in (b"POST", b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{" %
                 CHAT.encode()):
        began = time.monotonic()
        reply = raw(daemon, data)
        assert reply.startswith(b"HTTP/1.1 408") and time.monotonic() - began < 6
    with daemon.connect() as sock:  # one byte at a time does not keep it open
        began = time.monotonic()
        try:
            for c in b"POST %s HTTP/1.1\r\nHost: x\r\n" % CHAT.encode() * 9:
                sock.sendall(bytes([c]))
                time.sleep(0.05)
        except OSError:
            pass
        assert time.monotonic() - began < 6


def test_huge_bodies_are_refused_before_they_are_read(start):
    daemon = start("[http]\nmax_body_bytes = 100000\n")
    daemon.wait_ready()
    for path, kind in ((CHAT, "invalid_request_error"), ("/v1/messages", "request_too_large")):
        head = b"POST %s HTTP/1.1\r\nHost: x\r\n" % path.encode()
        for rest in (b"Content-Length: 10000000000\r\nExpect: 100-continue\r\n\r\n",
                     b"Transfer-Encoding: chunked\r\n\r\n" + b"4000\r\n" + b"x" * 0x4000 + b"\r\n",
                     b"Content-Length: 100001\r\n\r\n"):
            with daemon.connect() as sock:
                sock.sendall(head + rest)
                if b"chunked" in rest:
                    for _ in range(7):
                        sock.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
                reply = b""
                while b"}}" not in reply:
                    part = sock.recv(65536)
                    assert part, reply
                    reply += part
            assert reply.startswith(b"HTTP/1.1 413")
            assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["type"] == kind


# ---------------------------------------------------------------- keys and browsers

@pytest.fixture
def keyed(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice: key-of-alice\nbusy: key-of-busy running=1 waiting=2\n"
                    "slow: key-of-slow background\n")
    keys.chmod(0o600)
    daemon = start(f'[model]\nname = "{MODEL_NAME}"\n[http]\nkeys_file = "{keys}"\n'
                   'cors = ["http://ui.local"]\n')
    daemon.wait_ready()
    daemon.keys = keys
    return daemon


def test_every_route_but_liveness_needs_the_key(keyed):
    open_paths = {"/health", "/v1/health", "/health/live"}
    document = json.loads(keyed.request("GET", "/openapi.json",
                                        headers={"X-Api-Key": "key-of-alice"})[2])
    for path, operations in document["paths"].items():
        for method in operations:
            status = keyed.request(method.upper(), path.replace("{id}", "x"), b"{}")[0]
            assert status == (200 if path in open_paths else 401), path
    for path in ("/v1", "/v1/../metrics", "//v1/models", "/V1/models", "/invocations", "/slots"):
        assert keyed.request("GET", path)[0] == 401
        assert keyed.request("GET", path, headers={"X-Api-Key": "key-of-alice"})[0] == 404
    assert set(json.loads(keyed.request("GET", "/health")[2])) == {"status", "state"}
    for headers in ({"Authorization": "Bearer key-of-alice"}, {"X-Api-Key": "key-of-alice"}):
        assert keyed.request("GET", "/metrics", headers=headers)[0] == 200
    for headers in ({"Authorization": "Bearer key-of-alic"}, {"X-Api-Key": "key-of-alice2"},
                    {"Authorization": "Basic key-of-alice"}, {"Authorization": "Bearer"}):
        status, fields, body = keyed.request("GET", "/metrics", headers=headers)
        assert status == 401 and fields["www-authenticate"] == "Bearer"
    assert not any("key-of-" in line for line in keyed.log)


def test_browsers(keyed):
    for path in (CHAT, "/v1/messages", "/v1/responses", "/v1/models"):
        status, headers, _ = keyed.request("OPTIONS", path, headers={
            "Origin": "http://ui.local", "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"})
        assert status == 204
        assert headers["access-control-allow-origin"] == "http://ui.local"
        assert "x-stainless-os" in headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in headers
    status, headers, _ = keyed.request("GET", "/v1/models", headers={"Origin": "http://ui.local"})
    assert status == 401 and headers["access-control-allow-origin"] == "http://ui.local"


def test_reload_of_keys(keyed):
    import signal
    keyed.keys.write_text("alice: key-of-alice-2\n")
    keyed.signal(signal.SIGHUP)
    keyed.wait_log("settings reloaded")
    assert keyed.request("GET", "/v1/models", headers={"X-Api-Key": "key-of-alice"})[0] == 401
    assert keyed.request("GET", "/v1/models", headers={"X-Api-Key": "key-of-alice-2"})[0] == 200
    keyed.keys.write_text("alice: short\n")  # a broken file changes nothing
    keyed.signal(signal.SIGHUP)
    keyed.wait_log("settings not reloaded")
    assert keyed.request("GET", "/v1/models", headers={"X-Api-Key": "key-of-alice-2"})[0] == 200


def test_a_busy_key_waits_for_itself_alone(keyed):
    def hold(text):
        body = json.dumps(chat(text)).encode()
        sock = keyed.connect()
        sock.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nX-Api-Key: key-of-busy\r\n"
                     b"Content-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body))
        return sock

    alice = {"X-Api-Key": "key-of-alice", "Content-Type": "application/json"}
    first = hold("hang")
    keyed.wait_status(lambda s: s["slots"]["busy"] == 1)
    second, third = hold("echo second"), hold("hang")
    time.sleep(0.2)
    status = keyed.status()
    assert status["slots"]["busy"] == 1 and status["queue"]["waiting"] == 0
    text = keyed.request("GET", "/metrics", headers=alice)[2].decode()
    assert "\ntensorfold_requests_waiting_at_key 2\n" in text
    assert 'tensorfold_requests_total{label="busy"} 3\n' in text
    busy = {"X-Api-Key": "key-of-busy", "Content-Type": "application/json"}
    status, headers, body = keyed.request("POST", CHAT, json.dumps(chat("hi")).encode(), busy)
    assert status == 429 and "retry-after" in headers
    assert json.loads(body)["error"]["code"] == "key_limit"
    assert keyed.request("POST", CHAT, json.dumps(chat("echo me")).encode(), alice)[0] == 200
    third.close()  # gone while it waited: never started
    first.close()
    second.settimeout(10)
    assert b"second" in second.recv(65536)
    keyed.wait_status(lambda s: s["slots"]["busy"] == 0)
    second.close()
    slow = keyed.client(api_key="key-of-slow").chat.completions.create(
        model=MODEL_NAME, messages=say("params"))
    assert "background=1" in slow.choices[0].message.content
    assert slow.choices[0].message.content.endswith("label=slow")


# ---------------------------------------------------------------- what the server says of itself

def test_metrics(daemon):
    daemon.request("POST", CHAT, chat("count 20"))
    status, headers, body = daemon.request("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    families, samples = {}, {}
    for line in body.decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in families
            families[name] = kind
        elif not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            samples[name] = float(value)
            base = name.partition("{")[0]
            assert any(base == f or base.startswith(f + "_") for f in families), name
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                 "vllm:kv_cache_usage_perc", "vllm:prompt_tokens_total",
                 "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds",
                 "vllm:e2e_request_latency_seconds", "vllm:request_success_total",
                 "tensorfold_requests_running", "tensorfold_time_to_first_token_seconds"):
        assert name in families
    assert samples["tensorfold_generation_tokens_total"] > 0
    count = samples["tensorfold_request_latency_seconds_count"]
    assert count == samples['tensorfold_request_latency_seconds_bucket{le="+Inf"}'] > 0
    stats = json.loads(daemon.request("GET", "/stats")[2])
    assert stats["state"] == "ready" and stats["live"]["connections"] >= 1


def test_openapi_matches_the_routes(daemon):
    document = json.loads(daemon.request("GET", "/openapi.json")[2])
    assert document["openapi"] == "3.1.0"
    ids = [o["operationId"] for p in document["paths"].values() for o in p.values()]
    assert len(ids) == len(set(ids)) > 15
    # Any value of any field of any body: an answer or a 400 that is an error object, never a crash.
    values = [None, True, -1, 0, 2**70, 1.5, "", "x", [], [None], {}, {"type": "x"}, [[]]]
    for path, operations in document["paths"].items():
        body = operations.get("post", {}).get("requestBody")
        if body is None:
            continue
        for field in body["content"]["application/json"]["schema"]["properties"]:
            for value in values:
                base = {"max_tokens": 1, "messages": say("hi"), "prompt": "a", "input": "a",
                        "tokens": [97]}
                fields = body["content"]["application/json"]["schema"]["properties"]
                sent = {k: v for k, v in base.items() if k in fields} | {field: value}
                status, _, reply = daemon.request("POST", path, sent)
                assert status in (200, 400, 404), (path, field, value, reply)
                if status != 200:
                    assert json.loads(reply)["error"]["message"]
    assert daemon.request("GET", "/health")[0] == 200
