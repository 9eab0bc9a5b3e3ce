#!/usr/bin/env python3
"""Soak: a real daemon over the embedded model under random clients for a while.

usage: soak.py --daemon PROGRAM --tfctl PROGRAM --seconds N [--seed N]

Several clients at once chat (streamed or whole, drafted or serial, with shared beginnings), break
off anywhere, flood past the queue's bound, send what is wrong, and flush the cache. What must hold:

- every answer has the status that its request deserves; a prompt with the same seed always gets
  the same tokens, whatever else went on, whatever was cached, dropped or drafted;
- nothing in the log is a warning or an error;
- whenever all is quiet: no busy slot, no waiting request, no block in use after a flush, no more
  descriptors and threads than before, no file left behind;
- resident memory does not grow after the warm-up, but for the allocator's noise.

--leak plants a fault (a descriptor and a slot that stay in use), which the checks must notice.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

SLOTS = 4
QUEUE = 8
CLIENTS = 6
ANSWER_S = 240  # for one answer on a machine that is busy with other things
QUIET_S = 120  # for all to end
LOOKS = 20  # a tenth of a second apart
GROWTH_BYTES = 3 << 20  # of resident memory, beside cache pages that are touched for the first time
LONG_ROUNDS = 8
CONFIG = f"""[engine]
slots = {SLOTS}
threads = 1
prefill_rows = 256
[cache]
pool_tokens = 8192
snapshot_mib = 12
[limits]
queue_requests = {QUEUE}
"""
QUESTIONS = ["Count from 1 to 12.", "What is 12 + 7?", "Tell me a short story.", "Hello!",
             "Count down from 9 to 1.", "Write a Python function that adds two numbers."]
PREFIX = ("You are a careful assistant. " * 12).strip()
WRONG = [(b"{", 400), (b"[]", 400), (b'{"messages": []}', 400),
         (b'{"messages": [{"role": "user", "content": "x"}], "no_such_field": 1}', 400),
         (b'{"messages": [{"role": "user", "content": "x"}], "temperature": 99}', 400),
         (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}', 400)]


class Daemon:
    def __init__(self, program: str, folder: pathlib.Path):
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir()
        (folder / "tensorfoldd.toml").write_text(CONFIG)
        self.control = str(folder / "control.sock")
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [program, "--config", str(folder / "tensorfoldd.toml"), "--control", self.control,
             "--state-dir", str(self.state), "--listen", "127.0.0.1:0"],
            stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()
        self.port = int(self._wait(r"listening on \S+:(\d+)").group(1))
        self._wait(r"is ready after")

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    def _wait(self, pattern: str) -> re.Match:
        end = time.monotonic() + ANSWER_S
        while time.monotonic() < end and self.process.poll() is None:
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match
            time.sleep(0.02)
        raise SystemExit(f"no {pattern!r} in the log:\n" + "\n".join(self.lines))

    def status(self) -> dict:
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(30)
            s.connect(self.control)
            s.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            data = b""
            while part := s.recv(65536):
                data += part
        return json.loads(data.partition(b"\r\n\r\n")[2])

    def held(self) -> dict:
        """What the process holds; compared between quiet times."""
        proc = pathlib.Path(f"/proc/{self.process.pid}")
        return {"descriptors": len(list((proc / "fd").iterdir())),
                "threads": len(list((proc / "task").iterdir()))}

    def resident(self) -> int:
        pages = int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


class Soak:
    def __init__(self, daemon: Daemon, tfctl: str, seed: int):
        self.daemon, self.tfctl, self.seed = daemon, tfctl, seed
        self.stop_at = 0.0
        self.lock = threading.Lock()
        self.shas: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.faults: list[str] = []

    # ---- bookkeeping

    def count(self, what: str):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def fault(self, text: str):
        with self.lock:
            self.faults.append(text)
        print("FAULT:", text, flush=True)

    # ---- requests

    def body(self, rng: random.Random) -> dict:
        text = rng.choice(QUESTIONS)
        messages = [{"role": "user", "content": text}]
        if rng.random() < 0.5:
            words = PREFIX.split()
            messages.insert(0, {"role": "system",
                                "content": " ".join(words[:rng.randrange(1, len(words))])})
        body = {"messages": messages, "max_tokens": rng.randrange(1, 16), "seed": rng.randrange(3),
                "temperature": rng.choice([0, 0.8])}
        if rng.random() < 0.2:
            body["logit_bias"] = {str(rng.randrange(40, 60)): 1}
        if rng.random() < 0.2:
            body["frequency_penalty"] = 0.5
        if rng.random() < 0.2:
            body["stop"] = ["3"]
        return body

    def post(self, payload: bytes) -> tuple[int, dict, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.daemon.port, timeout=ANSWER_S)
        try:
            connection.request("POST", "/v1/chat/completions", payload,
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def chat(self, rng: random.Random, crowded: bool = False):
        """One whole or streamed reply. `crowded`: a refusal for want of room is deserved."""
        body = self.body(rng)
        key = json.dumps(body, sort_keys=True)
        if rng.random() < 0.3:
            body["draft"] = False
        stream = rng.random() < 0.5
        if stream:
            body["stream"] = True
        if rng.random() < 0.2:
            body["priority"] = "background"
        status, headers, data = self.post(json.dumps(body).encode())
        if crowded and status in (429, 503):
            if status == 503 and "Retry-After" not in headers:
                self.fault("a 503 without Retry-After")
            return self.count("refused in a flood")
        if status != 200:
            return self.fault(f"{status} for {body}: {data[:200]!r}")
        if stream:
            events = [e[6:] for e in data.decode().split("\n\n") if e.startswith("data: ")]
            if not events or events[-1] != "[DONE]":
                return self.fault(f"a stream that does not end: {data[-200:]!r}")
            last = json.loads(events[-2])
        else:
            last = json.loads(data)
        if not any(c.get("finish_reason") for c in last.get("choices", [])):
            return self.fault(f"no finish_reason: {json.dumps(last)[:200]}")
        sha = last["tensorfold"]["token_sha"]
        with self.lock:
            expected = self.shas.setdefault(key, sha)
        if sha != expected:
            return self.fault(f"two replies to {key}: {expected} and {sha}")
        self.count("streamed" if stream else "whole")

    def break_off(self, rng: random.Random):
        body = self.body(rng)
        body.update({"stream": True, "max_tokens": 400, "ignore_eos": True})
        payload = json.dumps(body).encode()
        # A refusal is shorter than what is waited for: the server ends it, not an idle connection's time.
        request = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                   b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                   % len(payload)) + payload
        with socket.create_connection(("127.0.0.1", self.daemon.port), ANSWER_S) as s:
            if rng.random() < 0.3:  # in the middle of its own request
                s.sendall(request[:rng.randrange(len(request))])
                return self.count("broken off while sending")
            s.sendall(request)
            wanted = rng.choice([0, 1, 200, 1500])
            got = 0
            while got < wanted:
                part = s.recv(4096)
                if not part:
                    break
                got += len(part)
            if rng.random() < 0.5:  # a reset instead of a farewell
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.count("broken off while reading")

    def flood(self, rng: random.Random):
        seeds = [rng.random() for _ in range(SLOTS + QUEUE + 8)]
        threads = [threading.Thread(target=self.guarded, args=(self.chat, random.Random(s), True))
                   for s in seeds]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.count("floods")

    def wrong(self, rng: random.Random):
        payload, expected = rng.choice(WRONG)
        status, _, data = self.post(payload)
        if status != expected:
            self.fault(f"{status} instead of {expected} for {payload!r}: {data[:200]!r}")
        self.count("wrong requests")

    def flush(self, rng: random.Random):
        args = [self.tfctl, "--socket", self.daemon.control, "cache", "flush"]
        if rng.random() < 0.5:
            args.append("--spill")
        done = subprocess.run(args, capture_output=True, text=True, timeout=ANSWER_S)
        if done.returncode != 0:
            self.fault(f"tfctl cache flush: {done.returncode}: {done.stderr}")
        self.count("flushes")

    # ---- running

    def guarded(self, what, *args):
        try:
            what(*args)
        except Exception as error:  # a refused or reset connection is a fault of the daemon
            self.fault(f"{what.__name__}: {type(error).__name__}: {error}")

    def client(self, number: int, round_number: int):
        rng = random.Random(f"{self.seed}/{number}/{round_number}")
        acts = [(self.chat, 50), (self.break_off, 20), (self.wrong, 10), (self.flush, 4),
                (self.flood, 1)]
        # One client floods; two floods at once would leave the others nothing but refusals.
        weights = [w if number == 0 or act != self.flood else 0 for act, w in acts]
        while time.monotonic() < self.stop_at and not self.faults:
            act = rng.choices([a for a, _ in acts], weights)[0]
            # While the queue may be full, a refusal is deserved.
            self.guarded(act, *((rng, True) if act == self.chat else (rng,)))

    def run(self, seconds: float, round_number: int):
        self.stop_at = time.monotonic() + seconds
        threads = [threading.Thread(target=self.client, args=(i, round_number))
                   for i in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def quiet(self, base: dict | None) -> dict:
        """Waits until nothing runs; then nothing may be left over."""
        status: dict = {}
        end = time.monotonic() + QUIET_S
        held = self.daemon.held()
        looks: list[dict] = []
        while time.monotonic() < end:
            status = self.daemon.status()
            held = self.daemon.held()
            idle = status["slots"]["busy"] == 0 and status["queue"]["waiting"] == 0
            # Connections that were broken off take a moment to be noticed, and this look's own one
            # comes and goes: the least of some looks counts.
            looks = looks + [self.daemon.held()] if idle else []
            held = {k: min(one[k] for one in looks[-LOOKS:]) for k in held} if looks else held
            if len(looks) >= LOOKS and (base is None or all(held[k] <= base[k] for k in base)):
                break
            time.sleep(0.1)
        else:
            self.fault(f"not quiet after {QUIET_S} s: {status['slots']} {status['queue']} "
                       f"holds {held}, before {base}")
        self.guarded(self.flush, random.Random(0))
        used = self.daemon.status()["cache"]["used_tokens"]
        if used != 0:
            self.fault(f"{used} positions in use after a flush")
        left = [p.name for p in self.daemon.state.rglob("*") if ".tmp" in p.name]
        if left:
            self.fault(f"files left behind: {left}")
        return held


def check_log(soak: Soak):
    for line in soak.daemon.lines:
        # The priority that the service manager reads: 3 error, 4 warning.
        if re.match(r"<[0-4]>", line):
            soak.fault("in the log: " + line)


def plant_leak(daemon: Daemon) -> socket.socket:
    payload = json.dumps({"messages": [{"role": "user", "content": "Hello!"}], "stream": True,
                          "ignore_eos": True, "max_tokens": 3000}).encode()
    s = socket.create_connection(("127.0.0.1", daemon.port), ANSWER_S)
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n%s" % (len(payload), payload))
    return s


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--tfctl", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--leak", action="store_true")
    options = parser.parse_args()
    rounds = max(2, round(options.seconds / 60))
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(options.daemon, pathlib.Path(folder))
        try:
            soak = Soak(daemon, options.tfctl, options.seed)
            soak.run(options.seconds / 4, 0)  # the warm-up
            base = soak.quiet(None)
            resident = [daemon.resident()]
            if options.leak:
                global QUIET_S
                QUIET_S = 5
                leak = plant_leak(daemon)
            for number in range(1, rounds + 1):
                soak.run(options.seconds * 3 / 4 / rounds, number)
                soak.quiet(base)
                resident.append(daemon.resident())
                if soak.faults:
                    break
            # A short run does not touch all of the cache in its warm-up. A long one is judged from
            # its middle on, when it has.
            status = daemon.status()
            totals = status["totals"]
            first, room = (resident[0], status["memory"]["cache_bytes"]) if rounds < LONG_ROUNDS \
                else (resident[rounds // 2], 0)
            growth = resident[-1] - first
            if growth > room + GROWTH_BYTES and not soak.faults:
                soak.fault(f"resident memory grew by {growth} bytes: {resident}")
            if options.leak:
                leak.close()
                QUIET_S = 60
            daemon.process.send_signal(signal.SIGTERM)
            code = daemon.process.wait(QUIET_S)
            if code != 0:
                soak.fault(f"the daemon ended with {code}")
            check_log(soak)
        finally:
            daemon.process.kill()
            daemon.process.wait()
    for what, n in sorted(soak.counts.items()):
        print(f"{n:8} {what}")
    print(f"{totals['requests']:8} requests that ran, {totals['completion_tokens']} tokens, "
          f"{totals['cached_tokens']} of {totals['prompt_tokens']} prompt tokens cached, "
          f"{totals['accepted']} of {totals['drafted']} drafts kept")
    print(f"resident: {[r >> 10 for r in resident]} KiB; faults: {len(soak.faults)}")
    if options.leak:
        return 0 if soak.faults else 1
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
