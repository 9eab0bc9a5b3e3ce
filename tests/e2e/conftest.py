"""A running daemon for the tests: over the scripted engine (tests/daemon/fake_engine.cc) or, where
a test asks for it, over the embedded model."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

import openai
import pytest

MODEL_NAME = "scripted"
START_S = 60


class Daemon:
    """One tensorfoldd process. Its log is in .log; .stop() gives its exit status."""

    def __init__(self, folder: pathlib.Path, program: str, config: str = "", args=(), env=None,
                 wait: bool = True):
        self.control = str(folder / "control.sock")
        self.config = folder / "tensorfoldd.toml"
        self.config.write_text(config)
        self.log: list[str] = []
        command = [program, "--config", str(self.config), "--control", self.control]
        if "--listen" not in args and "listen" not in config:
            command += ["--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command + list(args), stderr=subprocess.PIPE, text=True,
                                        env=dict(os.environ, **(env or {})))
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.port = 0
        if wait:
            self.port = int(self.wait_log(r"listening on \S+:(\d+)").group(1))

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line.rstrip())

    def wait_log(self, pattern: str, timeout: float = START_S) -> re.Match:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            for line in list(self.log):
                if match := re.search(pattern, line):
                    return match
            if self.process.poll() is not None and not self.reader.is_alive():
                break
            time.sleep(0.01)
        raise AssertionError(f"no {pattern!r} in the log:\n" + "\n".join(self.log))

    def wait_ready(self):
        self.wait_log(r"is ready after")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options) -> openai.OpenAI:
        options.setdefault("api_key", "none")
        options.setdefault("max_retries", 0)
        return openai.OpenAI(base_url=self.url + "/v1", **options)

    def request(self, method: str, path: str, body=None, headers=None, unix: bool = False,
                timeout: float = 30):
        """(status, headers, body) of one request, without a client library in between."""
        payload = body if isinstance(body, bytes) else b""
        head = {"Host": "x", "Connection": "close", "Content-Length": str(len(payload))}
        if body is not None and not isinstance(body, bytes):
            payload = json.dumps(body).encode()
            head.update({"Content-Type": "application/json", "Content-Length": str(len(payload))})
        head.update(headers or {})
        text = f"{method} {path} HTTP/1.1\r\n"
        text += "".join(f"{k}: {v}\r\n" for k, v in head.items() if v is not None)
        with self.connect(unix) as sock:
            sock.settimeout(timeout)
            sock.sendall(text.encode() + b"\r\n" + payload)
            reply = b""
            while chunk := sock.recv(65536):
                reply += chunk
        top, _, content = reply.partition(b"\r\n\r\n")
        lines = top.decode().split("\r\n")
        fields = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])}
        return int(lines[0].split()[1]), fields, content

    def connect(self, unix: bool = False) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        sock.settimeout(30)
        sock.connect(self.control if unix else ("127.0.0.1", self.port))
        return sock

    def status(self) -> dict:
        return json.loads(self.request("GET", "/status", unix=True)[2])

    def wait_status(self, condition, timeout: float = 10) -> dict:
        end = time.monotonic() + timeout
        while True:
            status = self.status()
            if condition(status):
                return status
            assert time.monotonic() < end, status
            time.sleep(0.01)

    def signal(self, number: int):
        self.process.send_signal(number)

    def stop(self, timeout: float = 30) -> int:
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def wait(self, timeout: float = 30) -> int:
        code = self.process.wait(timeout)
        self.reader.join(5)
        return code


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text("{}")  # the scripted engine does not look at it
    return str(folder)


@pytest.fixture
def start(tmp_path, model_folder):
    """start(config=..., args=..., env=...) -> a Daemon over the scripted engine."""
    running = []

    def make(config: str = "", args=(), env=None, wait: bool = True) -> Daemon:
        folder = tmp_path / f"instance{len(running)}"
        folder.mkdir()
        daemon = Daemon(folder, os.environ["TF_SCRIPTED"], config,
                        ["--model", model_folder, *args], env, wait)
        running.append(daemon)
        return daemon

    yield make
    for daemon in running:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.wait()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory, model_folder):
    """A daemon over the scripted engine that the tests of a file share; it must end well."""
    running = Daemon(tmp_path_factory.mktemp("daemon"), os.environ["TF_SCRIPTED"],
                     f'[model]\nname = "{MODEL_NAME}"\n', ["--model", model_folder])
    running.wait_ready()
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture
def client(daemon):
    return daemon.client()


def say(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]
