"""The HTTP surface without a client library: methods, limits, cancelled and slow clients."""

import json
import os
import socket
import time

import pytest

from conftest import say


def chat(text, **options):
    return dict({"messages": say(text)}, **options)


def test_health_and_unknown_paths(daemon):
    status, _, body = daemon.request("GET", "/health")
    assert status == 200 and json.loads(body)["state"] == "ready"
    assert daemon.request("GET", "/health/live")[0] == 200
    status, _, body = daemon.request("GET", "/nope")
    assert status == 404 and json.loads(body)["error"]["code"] == "not_found"
    status, headers, _ = daemon.request("DELETE", "/v1/models")
    assert status == 405 and headers["allow"] == "GET, HEAD, OPTIONS"
    status, headers, body = daemon.request("HEAD", "/v1/models")
    assert status == 200 and int(headers["content-length"]) > 0 and body == b""
    status, headers, _ = daemon.request("OPTIONS", "/v1/chat/completions")
    assert status == 204 and headers["allow"] == "POST, OPTIONS"


def test_media_types(daemon):
    path, body = "/v1/chat/completions", json.dumps(chat("hi")).encode()
    for kind, status in (("application/json; charset=utf-8", 200), (None, 200),
                         ("APPLICATION/JSON", 200), ("text/plain", 415),
                         ("application/x-www-form-urlencoded", 415)):
        assert daemon.request("POST", path, body, {"Content-Type": kind})[0] == status
    assert daemon.request("POST", path, body, {"Content-Encoding": "gzip"})[0] == 415


def test_bad_bodies(daemon):
    for body in (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"messages": "\xed\xa0\x80"}',
                 b'{"messages":' + b"[" * 100000, b"{}"):
        status, _, reply = daemon.request("POST", "/v1/chat/completions", body)
        assert status == 400, body[:20]
        assert json.loads(reply)["error"]["type"] == "invalid_request_error"
    assert daemon.request("GET", "/health")[0] == 200


def test_long_bodies_go_through_a_worker(daemon):
    text = "x" * 300_000
    status, _, body = daemon.request("POST", "/v1/chat/completions", chat("echo " + text))
    assert status == 200
    assert json.loads(body)["choices"][0]["message"]["content"] == text


def test_chunked_and_expect(daemon):
    body = json.dumps(chat("echo chunked")).encode()
    with daemon.connect() as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                     b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        for i in range(0, len(body), 7):
            piece = body[i:i + 7]
            sock.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        sock.sendall(b"0\r\n\r\n")
        reply = b""
        while part := sock.recv(4096):
            reply += part
    assert b"chunked" in reply.partition(b"\r\n\r\n")[2]


def test_keep_alive(daemon):
    body = json.dumps(chat("echo again")).encode()
    head = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body))
    before = daemon.status()["http"]["requests_total"]
    with daemon.connect() as sock:
        for _ in range(5):
            sock.sendall(head + body)
            reply = b""
            while b'"accepted"' not in reply or not reply.endswith(b"}}"):
                reply += sock.recv(4096)
            assert reply.count(b"HTTP/1.1 200") == 1
    assert daemon.status()["http"]["requests_total"] == before + 5


def test_body_limit(start):
    daemon = start("[http]\nmax_body_bytes = 2000\n")
    daemon.wait_ready()
    status, _, body = daemon.request("POST", "/v1/chat/completions", chat("x" * 3000))
    assert status == 413 and "2000 bytes" in json.loads(body)["error"]["message"]
    assert daemon.request("POST", "/v1/chat/completions", chat("hi"))[0] == 200


@pytest.mark.parametrize("script,stream", [("queue 60000", False), ("queue 60000", True),
                                           ("hang", False), ("hang", True),
                                           ("slow 20 3000", False), ("slow 20 3000", True)])
@pytest.mark.parametrize("how", ["close", "half", "reset"])
def test_going_away_cancels(daemon, script, stream, how):
    before = daemon.status()["http"]["cancelled_total"]
    body = json.dumps(chat(script, stream=stream)).encode()
    sock = daemon.connect()
    sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                 % (len(body), body))
    daemon.wait_status(lambda s: s["slots"]["busy"] == 1)
    if stream and not script.startswith("queue"):
        assert sock.recv(4096)
    began = time.monotonic()
    if how == "half":
        sock.shutdown(socket.SHUT_WR)
    elif how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
    else:
        sock.close()
    daemon.wait_status(lambda s: s["slots"]["busy"] == 0
                       and s["http"]["cancelled_total"] == before + 1, timeout=2)
    assert time.monotonic() - began < 2
    sock.close()


def test_a_slow_reader_ends_only_itself(start):
    daemon = start("[limits]\nstream_backlog_bytes = 65536\n")
    daemon.wait_ready()
    body = json.dumps(chat("burst 400000", stream=True, logprobs=True)).encode()
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", daemon.port))
    slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                 % (len(body), body))
    daemon.wait_status(lambda s: s["http"]["slow_readers_total"] + s["http"]["failed_total"] >= 1)
    assert daemon.request("POST", "/v1/chat/completions", chat("echo me"))[0] == 200
    daemon.wait_status(lambda s: s["slots"]["busy"] == 0)
    slow.close()


def test_keepalive_comments(start):
    daemon = start("[limits]\nkeepalive_s = 1\n")
    daemon.wait_ready()
    status, headers, body = daemon.request("POST", "/v1/chat/completions",
                                           chat("silent 3500", stream=True))
    assert status == 200 and headers["content-type"] == "text/event-stream"
    assert body.count(b": keepalive") in (2, 3)
    assert body.index(b": keepalive") < body.index(b"at ")
    assert b"data: [DONE]" in body


def test_queue_full_is_429(start):
    daemon = start("[engine]\nslots = 1\n[limits]\nqueue_requests = 1\n")
    daemon.wait_ready()
    held = []
    for n in (1, 2):
        sock = daemon.connect()
        body = json.dumps(chat("hang")).encode()
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                     % (len(body), body))
        held.append(sock)
        daemon.wait_status(lambda s, n=n: s["slots"]["busy"] + s["queue"]["waiting"] == n)
    status, headers, body = daemon.request("POST", "/v1/chat/completions", chat("hi"))
    assert status == 429 and int(headers["retry-after"]) > 0
    assert json.loads(body)["error"]["type"] == "rate_limit_error"
    for sock in held:
        sock.close()
    daemon.wait_status(lambda s: s["slots"]["busy"] + s["queue"]["waiting"] == 0)
    assert daemon.request("POST", "/v1/chat/completions", chat("hi"))[0] == 200


def test_waiting_too_long_is_503(start):
    daemon = start("[engine]\nslots = 1\n[limits]\nqueue_wait_s = 1\n")
    daemon.wait_ready()
    with daemon.connect() as sock:
        body = json.dumps(chat("hang")).encode()
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                     % (len(body), body))
        daemon.wait_status(lambda s: s["slots"]["busy"] == 1)
        for stream in (False, True):
            status, headers, _ = daemon.request("POST", "/v1/chat/completions",
                                                chat("hi", stream=stream))
            assert status == 503 and "retry-after" in headers


def test_cors(start):
    daemon = start('[http]\ncors = ["https://app.example"]\n')
    daemon.wait_ready()
    _, headers, _ = daemon.request("OPTIONS", "/v1/chat/completions",
                                   headers={"Origin": "https://app.example"})
    assert headers["access-control-allow-origin"] == "https://app.example"
    assert "POST" in headers["access-control-allow-methods"]
    _, headers, _ = daemon.request("GET", "/health", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in headers


def test_many_connections(daemon):
    socks = [daemon.connect() for _ in range(200)]
    assert daemon.request("POST", "/v1/chat/completions", chat("echo busy"))[0] == 200
    for sock in socks:
        sock.close()
    assert os.environ["TF_SCRIPTED"]
