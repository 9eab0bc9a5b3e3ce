"""Ranks for the cluster's tests: real daemons over the embedded model, each in a network namespace of
its own where root allows, joined by a veth pair; clients; and what may happen to them.

A script calls run(main): it is run again inside the head's namespace, so that the head's API is on its
loopback. Without root the ranks are at 127.0.0.1 and 127.0.0.2, and what needs a link of their own is
left out and said so; with netns in TENSORFOLD_REQUIRE that is a failure.
"""

import argparse
import hashlib
import http.client
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

SKIPPED = 77
WAIT_S = 240  # for anything, on a machine that is busy with other things
NOTICED_S = 5.0  # the promise, with the timers as they are
SERVES_S = 15.0
SLOTS = 3
SETTINGS = f"""[engine]
slots = {SLOTS}
threads = 1
prefill_rows = 256
prefill = "PREFILL"
[cache]
pool_tokens = 8192
snapshot_mib = 12
spill_gib = 1
[limits]
drain_s = 20
"""
QUESTIONS = ["Count from 1 to 12.", "What is 12 + 7?", "Tell me a short story.", "Hello!",
             "Count down from 9 to 1.", "Write a Python function that adds two numbers."]
PREFIX = "You are a careful assistant. " * 40


class Failed(Exception):
    pass


def check(condition, text: str):
    if not condition:
        raise Failed(text)


class Net:
    """Where ranks live. `own`: each has a namespace and, to each other one, a link that can be cut."""

    def __init__(self, own: bool, tag: str, ranks: int = 2):
        self.own, self.tag, self.ranks = own, tag, ranks
        self.addresses = [f"10.77.0.{r + 1}" if own else f"127.0.0.{r + 1}" for r in range(ranks)]

    def name(self, rank: int) -> str:
        return f"tf{self.tag}r{rank}"

    def device(self, rank: int, other: int) -> str:
        return f"v{self.tag}r{rank}x{other}"

    def command(self, rank: int) -> list[str]:
        return ["ip", "netns", "exec", self.name(rank)] if self.own and rank else []

    def make(self):
        for rank in range(self.ranks):
            ip("netns", "add", self.name(rank))
            ip("-n", self.name(rank), "link", "set", "lo", "up")
        for one, two in itertools.combinations(range(self.ranks), 2):
            ip("link", "add", self.device(one, two), "netns", self.name(one), "type", "veth",
               "peer", "name", self.device(two, one), "netns", self.name(two))
            for rank, other in ((one, two), (two, one)):
                # Of more than two, every rank has one address, and each other one at the end of a
                # link of its own.
                address = ([self.addresses[rank] + "/24"] if self.ranks == 2 else
                           [self.addresses[rank], "peer", self.addresses[other] + "/32"])
                device = self.device(rank, other)
                ip("-n", self.name(rank), "addr", "add", *address, "dev", device)
                ip("-n", self.name(rank), "link", "set", device, "up")

    def remove(self):
        for rank in range(self.ranks):
            subprocess.run(["ip", "netns", "del", self.name(rank)], stderr=subprocess.DEVNULL,
                           check=False)

    def link(self, up: bool, rank: int = 1, other: int = 0):
        ip("-n", self.name(rank), "link", "set", self.device(rank, other), "up" if up else "down")

    def drop(self, on: bool):
        """A firewall: what the head sends to the worker vanishes, without a word."""
        ip("-n", self.name(0), "route", "add" if on else "del", "blackhole",
           self.addresses[1] + "/32")


def ip(*args: str):
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"ip {' '.join(args)}: {done.stderr.strip()}")


class Delay:
    """A relay on the worker's side of the link that passes bytes on after a while."""

    def __init__(self, net: Net, seconds: float, port: int):
        code = RELAY.replace("SECONDS", repr(seconds)).replace("PORT", str(port))
        code = code.replace("HEAD", repr(net.addresses[0])).replace("HERE", repr(net.addresses[1]))
        self.process = subprocess.Popen(net.command(1) + [sys.executable, "-c", code],
                                        stdout=subprocess.PIPE, text=True)
        check(self.process.stdout.readline().strip() == "ready", "the relay did not start")

    def stop(self):
        self.process.kill()
        self.process.wait()


RELAY = """
import socket, threading, time
def pump(a, b):
    try:
        while data := a.recv(65536):
            time.sleep(SECONDS)
            b.sendall(data)
    except OSError:
        pass
    for s in (a, b):
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
listener = socket.create_server((HERE, PORT))
print("ready", flush=True)
while True:
    near, _ = listener.accept()
    try:
        far = socket.create_connection((HEAD, PORT), 2, source_address=(HERE, 0))
        far.settimeout(None)
    except OSError:
        near.close()
        continue
    for s in (near, far):
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=pump, args=(near, far), daemon=True).start()
    threading.Thread(target=pump, args=(far, near), daemon=True).start()
"""


class Rank:
    """One machine's daemon; start() may be called again after it ended."""

    def __init__(self, world: "World", rank: int | None, name: str, extra: str = "",
                 program: str = "", divisor: int = 10, head: str = "", key: str = "",
                 prefill: str = "exact"):
        self.world, self.rank, self.name = world, rank, name
        self.folder = world.folder / name
        (self.folder / "state").mkdir(parents=True)
        self.program = program or world.options.daemon
        self.control = str(self.folder / "control.sock")
        self.lines: list[str] = []
        self.process: subprocess.Popen | None = None
        self.port = 0
        text = SETTINGS.replace("PREFILL", prefill) + extra
        if world.device:
            device = world.device.replace("RANK", str(rank or 0))
            text = text.replace("[engine]\n", f'[engine]\ndevice = "{device}"\n')
        if rank is not None:
            net = world.net
            text += (f'[cluster]\nrole = "{"worker" if rank else "head"}"\nrank = {rank}\n'
                     f'world_size = {net.ranks}\nlink_address = "{net.addresses[rank]}"\n'
                     f'link_port = {world.port}\nkey_file = "{key or world.key}"\n'
                     f'timer_divisor = {divisor}\n')
            if rank:
                text += f'head = "{head or net.addresses[0]}"\n'
        (self.folder / "tensorfoldd.toml").write_text(text)
        world.ranks.append(self)

    def start(self, wait: bool = True) -> "Rank":
        self.lines = []
        command = self.world.net.command(self.rank or 0) + [
            self.program, "--config", str(self.folder / "tensorfoldd.toml"), "--control",
            self.control, "--state-dir", str(self.folder / "state"), "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **self.world.environment})
        threading.Thread(target=self._read, args=(self.process, self.lines), daemon=True).start()
        if wait:
            self.port = int(self.wait_log(r"listening on \S+:(\d+)").group(1))
        return self

    @staticmethod
    def _read(process, lines):
        for line in process.stderr:
            lines.append(line.rstrip())

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait_log(self, pattern: str, timeout: float = WAIT_S) -> re.Match:
        def found():
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match
            return None
        return wait_for(found, f"{self.name}: no {pattern!r} in the log", timeout, self)

    def status(self) -> dict:
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(WAIT_S)
            s.connect(self.control)
            s.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            data = b""
            while part := s.recv(65536):
                data += part
        return json.loads(data.partition(b"\r\n\r\n")[2])

    def wait_status(self, condition, what: str, timeout: float = WAIT_S) -> dict:
        def met():
            try:
                status = self.status()
            except (OSError, ValueError):
                return None
            return status if condition(status) else None
        return wait_for(met, f"{self.name}: {what}", timeout, self)

    def wait_state(self, state: str, timeout: float = WAIT_S) -> dict:
        return self.wait_status(lambda s: s["state"] == state, f"never {state}", timeout)

    def request(self, method: str, path: str, body=None) -> tuple[int, dict, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body).encode(),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def health(self) -> tuple[int, dict]:
        status, _, data = self.request("GET", "/health")
        return status, json.loads(data)

    def held(self) -> dict:
        proc = pathlib.Path(f"/proc/{self.pid()}")
        return {"descriptors": len(list((proc / "fd").iterdir())),
                "threads": len(list((proc / "task").iterdir()))}

    def resident(self) -> int:
        """Bytes of memory of its own."""
        text = pathlib.Path(f"/proc/{self.pid()}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", text).group(1)) << 10

    def unfinished(self) -> list[str]:
        """Files that a write left behind; when it is quiet there are none."""
        return [str(p) for p in (self.folder / "state").rglob("*.tmp")]

    def pid(self) -> int:
        return self.process.pid  # `ip netns exec` becomes the program

    def kill(self):
        if self.alive():
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        if self.process is not None:
            self.process.wait(WAIT_S)

    def freeze(self):
        os.kill(self.pid(), signal.SIGSTOP)

    def thaw(self):
        os.kill(self.pid(), signal.SIGCONT)

    def stop(self) -> int:
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


def wait_for(condition, what: str, timeout: float = WAIT_S, rank: Rank | None = None):
    end = time.monotonic() + timeout
    while True:
        if (value := condition()) is not None:
            return value
        ended = rank is not None and not rank.alive()
        if time.monotonic() >= end or ended:
            time.sleep(0.1)
            if (value := condition()) is not None:
                return value
            tail = "\n".join(rank.lines[-12:]) if rank else ""
            raise Failed(f"{what}{' (it has ended)' if ended else ''}\n{tail}")
        time.sleep(0.01)


class Reply:
    """What a client got: `sha` of the tokens, or the error; `whole`: it came to its end."""

    def __init__(self):
        self.status = 0
        self.sha = self.error = ""
        self.ids: list[int] = []
        self.whole = self.ended = False
        self.seconds = 0.0
        self.retry_after = False


def ask(rank: Rank, body: dict) -> Reply:
    """A chat request; streamed when the body says so. A connection that breaks is an error, too."""
    out = Reply()
    begin = time.monotonic()
    try:
        out.status, headers, data = rank.request("POST", "/v1/chat/completions", body)
        out.ended = True
        out.retry_after = "Retry-After" in headers
        read_reply(out, body, data)
    except (OSError, http.client.HTTPException) as error:
        out.error = f"{type(error).__name__}: {error}"
    out.seconds = time.monotonic() - begin
    return out


def read_reply(out: Reply, body: dict, data: bytes):
    if out.status != 200 or not body.get("stream"):
        answer = json.loads(data)
        if out.status == 200:
            out.sha, out.whole = answer["tensorfold"]["token_sha"], True
        else:
            out.error = answer["error"]["message"]
        return
    events = [e[6:] for e in data.decode().split("\n\n") if e.startswith("data: ")]
    check(events and events[-1] == "[DONE]", f"a stream that does not end: {data[-200:]!r}")
    last = json.loads(events[-2])
    if "error" in last:
        out.error = last["error"]["message"]
    else:
        out.sha, out.whole = last["tensorfold"]["token_sha"], True


def bodies(count: int, seed: int) -> list[dict]:
    """Requests of all kinds; the same seed gives the same ones."""
    rng = random.Random(seed)
    out = []
    for i in range(count):
        messages = [{"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]}]
        if i % 3 == 1:
            words = PREFIX.split()
            messages.insert(0, {"role": "system", "content": " ".join(words[:20 * (1 + i % 9)])})
        body = {"messages": messages, "max_tokens": rng.randrange(4, 24), "seed": rng.randrange(4),
                "temperature": 0 if i % 2 == 0 else 0.8, "stream": i % 4 == 3}
        if i % 5 == 4:
            body["draft"] = False
        out.append(body)
    return out


def key_of(body: dict) -> str:
    plain = {k: v for k, v in body.items() if k not in ("stream", "draft")}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


LONG = {"messages": [{"role": "user", "content": "Tell me a short story."}], "max_tokens": 4000,
        "ignore_eos": True, "stream": True, "temperature": 0}


class Asking:
    """A long reply in the background."""

    def __init__(self, rank: Rank, body: dict | None = None):
        self.reply = Reply()
        self.thread = threading.Thread(target=self._run, args=(rank, body or LONG), daemon=True)
        self.thread.start()

    def _run(self, rank, body):
        self.reply = ask(rank, body)

    def join(self) -> Reply:
        self.thread.join(WAIT_S)
        check(not self.thread.is_alive(), "a request hangs")
        return self.reply


class World:
    def __init__(self, options, net: Net, folder: pathlib.Path):
        self.options, self.net, self.folder = options, net, folder
        self.ranks: list[Rank] = []
        self.device, self.environment = "", {}  # of every rank that is made or started from now on
        self.port = 29620 if net.own else 20000 + os.getpid() % 20000
        self.key = self.make_key("key", "the key that both ranks of this test have")

    def make_key(self, name: str, words: str) -> str:
        path = self.folder / name
        path.write_text(hashlib.sha256(words.encode()).hexdigest() + "\n")
        path.chmod(0o600)
        return str(path)

    def end(self):
        for rank in self.ranks:
            rank.kill()


def pair(world: World, divisor: int = 10) -> tuple[Rank, Rank]:
    head = Rank(world, 0, "head", divisor=divisor)
    worker = Rank(world, 1, "worker", divisor=divisor)
    return head, worker


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser()
    out.add_argument("--daemon", required=True)
    out.add_argument("--tfctl", required=True)
    out.add_argument("--other", default="")  # a daemon of another version
    out.add_argument("--inside", default="")
    out.add_argument("--keep", action="store_true")
    return out


def inside(options, main, net: Net) -> int:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tf-cluster-"))
    world = World(options, net, folder)
    begin = time.monotonic()
    try:
        main(world)
        print(f"passed in {time.monotonic() - begin:.1f} s")
        return 0
    except Failed as error:
        for rank in world.ranks:
            if rank.lines and rank.alive():
                print(f"--- {rank.name}", *rank.lines[-25:], sep="\n")
        print(f"FAILED: {error}")
        return 1
    finally:
        world.end()
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def run(main, arguments: argparse.ArgumentParser | None = None, count: int = 2) -> int:
    """`count`: ranks that there are places for."""
    options = (arguments or parser()).parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    if options.inside:
        return inside(options, main, Net(True, options.inside, count))
    net = Net(True, f"{os.getpid() % 100000}", count)
    try:
        net.make()
    except (Failed, OSError) as error:
        net.remove()
        if "netns" in os.environ.get("TENSORFOLD_REQUIRE", "").split(","):
            print(f"FAILED: no network namespaces: {error}")
            return 1
        print(f"no network namespaces ({error}): loopback, and no fault of the link")
        return inside(options, main, Net(False, "", count))
    command = ["ip", "netns", "exec", net.name(0), sys.executable, *sys.argv, "--inside", net.tag]
    child = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        return child.wait()
    finally:
        net.remove()
