"""What the checks ask a machine about its tensorfoldd: systemd, the journal, the API, tfctl."""

import collections
import dataclasses
import json
import pathlib
import re
import subprocess
import tempfile
import time
import typing

from machine import Held, Machine

UNIT = "tensorfoldd.service"
API = "http://127.0.0.1:8888"
STREAM_SECONDS = 300
HELD_REPLY = 800  # tokens: more than come between two looks, and soon over once it is let go
HOLD_TRIES = 10
HOLD_GAP = 0.02  # seconds: threads that were let go get to another place, the reply not to its end
TURN_SECONDS = 1.5  # in which a loop that turns has answered, on a busy machine too
WAIT_SECONDS = 90
KILL_CURL = """for process in /proc/[0-9]*; do
  read -r name <$process/comm && [ "$name" = curl ] && kill "${process#/proc/}"
done"""
LATE_SECONDS = 600  # the same where a reply has to end on a busy machine


def show(machine: Machine, unit: str = UNIT) -> dict[str, str]:
    """systemd's facts of a unit; what it leaves out is empty."""
    out: dict[str, str] = collections.defaultdict(str)
    for line in machine.run("systemctl", "show", unit).stdout.splitlines():
        key, _, value = line.partition("=")
        out[key] = value
    return out


def main_pid(machine: Machine, unit: str = UNIT) -> int:
    return int(show(machine, unit)["MainPID"] or "0")


def wait_for(what: typing.Callable[[], bool], seconds: float = WAIT_SECONDS, gap: float = 0.1) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(gap)
    return False


def journal(machine: Machine, unit: str = UNIT, **fields: str) -> list[dict]:
    """Entries of the unit, the manager's own words about it included."""
    said = machine.run("journalctl", "--output=json", "--no-pager", f"--unit={unit}",
                       *(f"{key}={value}" for key, value in fields.items())).stdout
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def events(machine: Machine, event: str, unit: str = UNIT) -> list[dict]:
    return journal(machine, unit, TF_EVENT=event)


def curl(machine: Machine, path: str, *options: str) -> tuple[int, str]:
    """HTTP status, 0 if there is none, and body."""
    said = machine.run("curl", "-sS", "--max-time", "60", "-w", "\n%{http_code}", *options,
                       API + path).stdout
    body, _, code = said.rpartition("\n")
    return int(code) if code.isdigit() else 0, body


def body_of(tokens: int, text: str = "Tell me something long.", **more: object) -> str:
    return json.dumps({"model": "tiny", "max_tokens": tokens, "temperature": 0,
                       "messages": [{"role": "user", "content": text}], **more})


def chat(machine: Machine, tokens: int = 12, text: str = "Hello!", **more: object) -> str:
    """The text of a reply, or what came instead."""
    code, body = curl(machine, "/v1/chat/completions", "-H", "Content-Type: application/json", "-d",
                      body_of(tokens, text, **more))
    return json.loads(body)["choices"][0]["message"]["content"] if code == 200 else f"{code}: {body}"


def answers(machine: Machine) -> bool:
    return curl(machine, "/health")[0] == 200


class Stream:
    """A streamed reply of `tokens` tokens."""

    def __init__(self, machine: Machine, tokens: int):
        self.machine = machine
        self.file = tempfile.NamedTemporaryFile(prefix="stream-", suffix=".sse")
        self.curl = machine.start(
            "curl", "-sSN", "--max-time", str(STREAM_SECONDS), "-H", "Content-Type: application/json",
            "-d", body_of(tokens, ignore_eos=True, stream=True), API + "/v1/chat/completions",
            output=self.file)

    def text(self) -> str:
        return pathlib.Path(self.file.name).read_text(encoding="utf-8", errors="replace")

    def flows(self) -> bool:
        """Waits until tokens come."""
        return wait_for(lambda: self.text().count("\ndata:") >= 3, gap=0.02)

    def running(self) -> bool:
        return self.curl.poll() is None

    def end(self) -> str:
        self.curl.wait(LATE_SECONDS)
        return self.text()

    def leave(self) -> None:
        """The client goes away; its process is inside, behind the one that was started."""
        self.machine.run("sh", "-c", KILL_CURL)
        self.curl.wait(WAIT_SECONDS)

    def whole(self) -> bool:
        """Whether it came to its own end."""
        text = self.end()
        return "data: [DONE]" in text and '"finish_reason":"length"' in text.replace(": ", ":")

    def tail(self) -> str:
        return self.text()[-400:]


@dataclasses.dataclass
class Checks:
    """The machine, and what was found wrong in it."""

    machine: Machine
    problems: list[str] = dataclasses.field(default_factory=list)
    made: int = 0

    def that(self, right: object, problem: str) -> bool:
        self.made += 1
        if not right:
            self.problems.append(problem)
            print(f"  wrong: {problem}", flush=True)
        return bool(right)

    def held_stream(self) -> tuple[Stream, Held]:
        """A stream that flows, and its engine, which stands still until it is let go: however fast the
        machine is, the reply is not over before somebody looks. The watchdog bears that for a while."""
        pid = self.machine.host_pid(main_pid(self.machine))
        stream = Stream(self.machine, HELD_REPLY)
        flows = stream.flows()
        for _ in range(HOLD_TRIES):
            held = Held(pid)
            if turns := self.loop_turns():
                break
            print("  held with a lock: again", flush=True)
            held.release()
            time.sleep(HOLD_GAP)
        self.that(turns, f"held {HOLD_TRIES} times, the engine's threads stop the loop each time")
        self.that(flows, f"a stream does not begin: {stream.tail()}")
        self.that(held.threads and stream.running(), "the stream was over before it could be held")
        return stream, held

    def loop_turns(self) -> bool:
        """Whether the loop does each kind of thing that takes a lock: it answers the API, reads the
        engine's counters, writes to the journal."""
        def soon(*words: str) -> bool:
            return self.machine.run("timeout", str(TURN_SECONDS), *words).returncode == 0
        return (soon("curl", "-fsS", "-o", "/dev/null", API + "/health/live") and
                soon("tfctl", "status") and soon("tfctl", "log", "level", "info"))

    def drop_in(self, text: str, unit: str = UNIT) -> None:
        """Replaces the test's drop-in of a unit; an empty text takes it away."""
        folder = self.machine.path(f"/etc/systemd/system/{unit}.d")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "test.conf").write_text(text, encoding="utf-8")
        self.machine.run("systemctl", "daemon-reload")

    def settings(self, text: str, name: str = "tensorfoldd") -> None:
        path = self.machine.path(f"/etc/tensorfoldd/{name}.toml")
        path.write_text(text, encoding="utf-8")

    def systemctl(self, *words: str) -> subprocess.CompletedProcess:
        return self.machine.run("systemctl", *words)

    def restart(self) -> None:
        """A fresh and ready service, whatever was before."""
        self.systemctl("stop", UNIT)
        self.systemctl("reset-failed", UNIT)
        done = self.systemctl("start", UNIT)
        self.that(done.returncode == 0, f"the service does not start: {done.stdout}")

    def journal_text(self, pattern: str, unit: str = UNIT) -> bool:
        return any(re.search(pattern, str(entry.get("MESSAGE"))) for entry in
                   journal(self.machine, unit))
