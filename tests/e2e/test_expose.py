"""The loopback side of docs/expose.md: a proxy such as a connector is, which puts our model id in the
place of a public name, checks the client's key and sends its own, and streams. The daemon has its
default listen address and a key for the connector alone."""

import http.client
import http.server
import json
import threading
import time

import openai
import pytest

from conftest import say

PUBLIC, INNER = "house-model", "scripted"
CLIENT_KEY, CONNECTOR_KEY = "sk-tok-0123456789abcdef", "connector-key-0123456789"


class Connector:
    """Rewrites what docs/expose.md's table says, in both directions, and nothing else."""

    def __init__(self, port: int):
        connector = self
        self.seen: list[dict] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.forward(b"")

            def do_POST(self):
                self.forward(self.rfile.read(int(self.headers["Content-Length"])))

            def forward(self, body):
                if self.headers.get("Authorization") != f"Bearer {CLIENT_KEY}":
                    return self.refuse()
                if body:
                    document = json.loads(body)
                    document["model"] = INNER if document.get("model") == PUBLIC else document.get("model")
                    body = json.dumps(document).encode()
                headers = {k: v for k, v in self.headers.items()
                           if k.lower() not in ("authorization", "host", "content-length", "connection")}
                headers |= {"Authorization": f"Bearer {CONNECTOR_KEY}", "Content-Length": str(len(body))}
                connector.seen.append(headers)
                inner = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                inner.request(self.command, self.path, body, headers)
                answer = inner.getresponse()
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers["Content-Type"])
                self.send_header("Connection", "close")
                self.close_connection = True
                self.end_headers()
                try:
                    while line := answer.readline():  # a JSON document, or event lines
                        self.wfile.write(line.replace(f'"{INNER}"'.encode(), f'"{PUBLIC}"'.encode()))
                        self.wfile.flush()
                except (BrokenPipeError, ConnectionResetError):
                    inner.sock.close() if inner.sock else answer.close()
                inner.close()

            def refuse(self):
                self.send_response(401)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def behind(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"connector: {CONNECTOR_KEY}\n")
    keys.chmod(0o600)
    daemon = start(f'[model]\nname = "{INNER}"\n[http]\nkeys_file = "{keys}"\n')
    daemon.wait_ready()
    connector = Connector(daemon.port)
    client = openai.OpenAI(base_url=connector.url, api_key=CLIENT_KEY, max_retries=0, timeout=60)
    yield daemon, connector, client
    client.close()
    connector.close()


def test_names_and_keys_are_rewritten(behind):
    daemon, connector, client = behind
    assert [m.id for m in client.models.list()] == [PUBLIC]
    reply = client.chat.completions.create(model=PUBLIC, messages=say("hi"))
    assert reply.model == PUBLIC and reply.choices[0].message.content
    assert all(CLIENT_KEY not in str(h) for h in connector.seen)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=connector.url, api_key="sk-tok-other", max_retries=0).models.list()
    # Inside, the public name is nobody's, and neither is the client's key anything.
    with pytest.raises(openai.NotFoundError):
        openai.OpenAI(base_url=daemon.url + "/v1", api_key=CONNECTOR_KEY, max_retries=0).chat.completions.create(
            model=PUBLIC, messages=say("hi"))
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=daemon.url + "/v1", api_key=CLIENT_KEY, max_retries=0).models.list()
    assert not any(CLIENT_KEY in line or CONNECTOR_KEY in line for line in daemon.log)


def test_streams_come_as_they_are_made(behind):
    _, _, client = behind
    times, text = [], ""
    for chunk in client.chat.completions.create(model=PUBLIC, messages=say("slow 10 40"), stream=True):
        assert chunk.model == PUBLIC
        times.append(time.monotonic())
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    assert len(text) == 40
    assert times[-1] - times[0] > 0.2  # 40 tokens of 10 ms are not held back to the end


def test_a_client_that_leaves_ends_the_reply_inside(behind):
    daemon, _, client = behind
    stream = client.chat.completions.create(model=PUBLIC, messages=say("slow 20 5000"), stream=True)
    next(iter(stream))
    stream.close()
    daemon.wait_status(lambda s: s["slots"]["busy"] == 0, timeout=60)
