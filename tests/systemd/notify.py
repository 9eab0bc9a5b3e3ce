"""What the service manager hears from the real daemon with the embedded model.

  notify.py DAEMON

Takes the manager's place at $NOTIFY_SOCKET: READY only when a request is answered, the watchdog is
fed, a reload is announced with its time and ended, a bad file is told and changes nothing, SIGTERM
says STOPPING. An idle model that is unloaded changes none of this.
"""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

from require import report

READY_SECONDS = 120
WAIT_SECONDS = 30
WATCHDOG_US = 3_000_000


class Manager:
    """Collects the daemon's datagrams."""

    def __init__(self, folder: pathlib.Path):
        self.path = str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.heard: list[str] = []

    def wait(self, pattern: str, seconds: float) -> bool:
        """Whether a message with the pattern comes; what comes before it is taken off."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                message = self.socket.recv(4096).decode()
            except TimeoutError:
                return False
            self.heard.append(message)
            if re.search(pattern, message, flags=re.M):
                return True
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def health(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
    connection.request("GET", "/health")
    return connection.getresponse().status


def write_settings(path: pathlib.Path, port: int, more: str = "") -> None:
    path.write_text(f'[http]\nlisten = "127.0.0.1:{port}"\n{more}', encoding="utf-8")


def watch(daemon: str, folder: pathlib.Path) -> list[str]:
    problems = []
    manager, port, settings = Manager(folder), free_port(), folder / "settings.toml"
    write_settings(settings, port)
    environment = dict(os.environ, NOTIFY_SOCKET=manager.path, WATCHDOG_USEC=str(WATCHDOG_US))
    command = [daemon, "--config", str(settings), "--control", str(folder / "control.sock")]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        if not manager.wait(r"^READY=1$", READY_SECONDS):
            return [f"no READY: {manager.heard}"]
        if health(port) != 200:
            problems.append("READY, and /health does not answer 200")
        if not manager.wait(r"^WATCHDOG=1$", WAIT_SECONDS):
            problems.append("the watchdog is not fed while idle")
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        process.send_signal(signal.SIGHUP)
        if not manager.wait(r"^RELOADING=1$", WAIT_SECONDS):
            problems.append("no RELOADING")
        stamp = re.search(r"^MONOTONIC_USEC=(\d+)$", manager.heard[-1], flags=re.M)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        if stamp is None or not before <= int(stamp[1]) <= after:
            problems.append(f"RELOADING without its time: {manager.heard[-1]!r}")
        if not manager.wait(r"^READY=1$", WAIT_SECONDS):
            problems.append("no READY after the reload")
        write_settings(settings, port, "nonsense = 1\n")
        process.send_signal(signal.SIGHUP)
        if not manager.wait(r"^STATUS=.*settings not reloaded: .*nonsense", WAIT_SECONDS):
            problems.append("the status line does not say that the file is wrong")
        if health(port) != 200:
            problems.append("a bad file changed something")
        process.send_signal(signal.SIGTERM)
        if not manager.wait(r"^STOPPING=1$", WAIT_SECONDS):
            problems.append("no STOPPING")
        if process.wait(WAIT_SECONDS) != 0:
            problems.append(f"SIGTERM ended it with {process.returncode}")
    finally:
        process.kill()
        process.wait()
    return problems


def chat(port: int) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
    body = json.dumps({"model": "tiny", "max_tokens": 8, "temperature": 0,
                       "messages": [{"role": "user", "content": "Hello!"}]})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    said = json.loads(answer.read())
    return answer.status, said["choices"][0]["message"]["content"] if answer.status == 200 else ""


def idle(daemon: str, folder: pathlib.Path) -> list[str]:
    """An idle model is unloaded and the status line says so; the daemon stays ready and fed, and the
    next request is answered as before, by a model that was loaded again."""
    problems = []
    manager, port, settings = Manager(folder), free_port(), folder / "idle.toml"
    write_settings(settings, port, "[engine]\nidle_unload_s = 1\n")
    environment = dict(os.environ, NOTIFY_SOCKET=manager.path, WATCHDOG_USEC=str(WATCHDOG_US))
    command = [daemon, "--config", str(settings), "--control", str(folder / "idle.sock")]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        if not manager.wait(r"^READY=1$", READY_SECONDS):
            return [f"with idle_unload_s: no READY: {manager.heard}"]
        first = chat(port)
        if not manager.wait(r"^STATUS=ready: unloaded: no request for 1 s", WAIT_SECONDS):
            return [f"an idle model stays: {manager.heard[-3:]}"]
        if not manager.wait(r"^WATCHDOG=1$", WAIT_SECONDS):
            problems.append("the watchdog is not fed while the model is unloaded")
        if health(port) != 200:
            problems.append("without its model the daemon is not ready")
        if chat(port) != first or first[0] != 200:
            problems.append(f"loaded again it does not answer as before: {first}")
        if not manager.wait(r"^STATUS=ready: \d+ running", WAIT_SECONDS):
            problems.append("loaded again, the status line does not say so")
        process.terminate()
        if process.wait(WAIT_SECONDS) != 0:
            problems.append(f"SIGTERM ended it with {process.returncode}")
        log = process.stderr.read() if process.stderr else ""
        if "the model is unloaded" not in log or "the model is loaded again after" not in log:
            problems.append(f"the log does not tell: {log[-400:]}")
    finally:
        process.kill()
        process.wait()
    return problems


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        first, second = pathlib.Path(name) / "a", pathlib.Path(name) / "b"
        first.mkdir()
        second.mkdir()
        return report(watch(sys.argv[1], first) + idle(sys.argv[1], second), 15)


if __name__ == "__main__":
    sys.exit(main())
