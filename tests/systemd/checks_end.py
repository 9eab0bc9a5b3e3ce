"""Checks of how the service ends and comes back: drain, cut, crash, hang, wrong settings."""

import re
import time

from machine import Held
from service import (UNIT, Checks, answers, curl, events, journal, main_pid, show, wait_for)

RESTART_SOON = "RestartSec=200ms\n"
NO_DRAFTS = '[engine]\ndrafts = "off"\n'  # a steady speed, and no measuring at a start


def drain(checks: Checks) -> None:
    """systemctl stop while a reply streams: the reply comes whole, although it takes longer than the
    manager's timeout, because the daemon asks for more time."""
    checks.settings('[limits]\ndrain_s = 300\n' + NO_DRAFTS)
    checks.drop_in("[Service]\nTimeoutStopSec=2s\n")
    checks.restart()
    stream, held = checks.held_stream()
    began, stopping = time.monotonic(), checks.machine.start("systemctl", "stop", UNIT)
    checks.that(wait_for(lambda: show(checks.machine)["ActiveState"] == "deactivating", 20) and
                wait_for(lambda: "draining" in show(checks.machine)["StatusText"], 20),
                f"while it drains: {show(checks.machine)['StatusText']}")
    code, body = curl(checks.machine, "/health")
    checks.that(code in (0, 503), f"while it drains /health is {code}: {body}")
    time.sleep(max(0.0, began + 4 - time.monotonic()))  # past TimeoutStopSec
    checks.that(stream.running() and show(checks.machine)["ActiveState"] == "deactivating",
                "the drain did not wait for the stream")
    held.release()
    checks.that(stream.whole(), f"the drained stream is cut: {stream.tail()}")
    stopping.wait(120)
    facts, lasted = show(checks.machine), time.monotonic() - began
    checks.that(facts["ActiveState"] == "inactive" and facts["Result"] == "success",
                f"after the drain: {facts['ActiveState']}, {facts['Result']}")
    print(f"  drained for {lasted:.0f} s, TimeoutStopSec was 2 s")
    checks.that(events(checks.machine, "draining") and events(checks.machine, "stopped"),
                "draining or its end is not in the journal")
    checks.drop_in("")


def cut(checks: Checks) -> None:
    """The end of the drain time, and a second SIGTERM, cut replies with an error of their own."""
    for how in ("deadline", "second SIGTERM"):
        limit = 1 if how == "deadline" else 300
        checks.settings(f'[limits]\ndrain_s = {limit}\n' + NO_DRAFTS)
        checks.restart()
        stream, held = checks.held_stream()
        began = time.monotonic()
        checks.systemctl("stop", "--no-block", UNIT)
        checks.that(wait_for(lambda: "draining" in show(checks.machine)["StatusText"], 20),
                    f"{how}: no drain")
        if how == "deadline":
            checks.that(wait_for(lambda: events(checks.machine, "drain_timeout"), 20), "it is not cut")
        else:
            checks.systemctl("kill", "--signal=TERM", "--kill-who=main", UNIT)
            checks.that(wait_for(lambda: checks.journal_text("told to stop again"), 20),
                        "the second SIGTERM is not in the journal")
        held.release()
        checks.that(wait_for(lambda: show(checks.machine)["ActiveState"] == "inactive"),
                    f"{how}: the service goes on: {show(checks.machine)['ActiveState']}")
        took, text = time.monotonic() - began, stream.end()
        print(f"  {how}: ended after {took:.1f} s")
        checks.that("data: [DONE]" not in text or '"error"' in text, f"{how}: the reply was not cut")
        checks.that('"error"' in text or how != "deadline", f"no error in the stream: {text[-300:]}")
        checks.that(show(checks.machine)["Result"] == "success", f"{how}: {show(checks.machine)}")
    checks.that(len(events(checks.machine, "drain_timeout")) == 1, "no event of the cut")


def crash(checks: Checks) -> None:
    """kill -9: the manager starts it again, over the socket file that was left."""
    checks.settings(NO_DRAFTS)
    checks.drop_in("[Service]\n" + RESTART_SOON)
    checks.restart()
    pid = main_pid(checks.machine)
    checks.systemctl("kill", "--signal=KILL", UNIT)
    checks.that(wait_for(lambda: main_pid(checks.machine) not in (0, pid) and answers(checks.machine)),
                "killed, it does not come back")
    facts = show(checks.machine)
    checks.that(facts["NRestarts"] == "1", f"{facts['NRestarts']} restarts after one kill")
    done = checks.machine.run("tfctl", "status")
    checks.that(done.returncode == 0, f"after the restart tfctl says {done.stdout}")


def hang(checks: Checks) -> None:
    """The engine's threads stand still while the loop turns: the watchdog ends it, and it comes
    back. While it has nothing to do it is left alone."""
    checks.drop_in("[Service]\nWatchdogSec=4s\n" + RESTART_SOON)
    checks.restart()
    pid = main_pid(checks.machine)
    time.sleep(6)
    checks.that(main_pid(checks.machine) == pid, "the watchdog ends an idle service")
    stream, held = checks.held_stream()
    checks.that(len(held.threads) >= 2, f"only {len(held.threads)} threads could be held")
    code, _ = curl(checks.machine, "/health/live")
    checks.that(code == 200, f"the loop does not turn while the engine hangs: {code}")
    ended = wait_for(lambda: held.reap() and main_pid(checks.machine) != pid)
    if not ended:
        held.release()
    checks.that(ended, "the watchdog leaves a hung engine alone")
    checks.that(wait_for(lambda: answers(checks.machine)), "after the watchdog it does not come back")
    checks.that(any("atchdog" in str(entry["MESSAGE"]) for entry in journal(checks.machine)
                    if entry.get("_PID") == "1"), "the manager does not speak of its watchdog")
    stream.leave()
    checks.drop_in("")


def slow_load(checks: Checks) -> None:
    """A load that takes longer than TimeoutStartSec but moves on is waited for. The load is made
    slow by holding the loading threads."""
    checks.systemctl("stop", UNIT)
    checks.drop_in("[Service]\nTimeoutStartSec=4s\n")
    for _ in range(5):
        starting, held, began = checks.machine.start("systemctl", "start", UNIT), None, time.monotonic()
        while held is None and starting.poll() is None and time.monotonic() - began < 60:
            if re.match("loading", show(checks.machine)["StatusText"]):
                held = Held(checks.machine.host_pid(main_pid(checks.machine)))
        time.sleep(6)
        loading = show(checks.machine)["ActiveState"]
        if held is not None:
            held.release()
        starting.wait(120)
        if loading == "activating":
            break
        checks.systemctl("stop", UNIT)  # it was ready before it could be held
    checks.that(loading == "activating", f"held for 6 s it is {loading}")
    checks.that(starting.returncode == 0 and answers(checks.machine),
                f"a slow load is given up: {show(checks.machine)['Result']}")
    checks.drop_in("")


def wrong_settings(checks: Checks) -> None:
    """A wrong file: not tried again, one line that says where and what."""
    checks.systemctl("stop", UNIT)
    checks.systemctl("reset-failed", UNIT)  # the starts so far would count towards the limit
    checks.drop_in("[Service]\n" + RESTART_SOON)
    before = len(events(checks.machine, "config_rejected"))
    checks.settings("[engine]\nslots = -1\n")
    done = checks.systemctl("start", UNIT)
    checks.that(done.returncode != 0, "it starts with wrong settings")
    time.sleep(1)
    facts = show(checks.machine)
    checks.that(facts["ActiveState"] == "failed" and facts["ExecMainStatus"] == "78" and
                facts["NRestarts"] == "0", f"wrong settings: {facts['ActiveState']}, exit status "
                f"{facts['ExecMainStatus']}, {facts['NRestarts']} restarts")
    told = [str(entry["MESSAGE"]) for entry in events(checks.machine, "config_rejected")[before:]]
    checks.that(len(told) == 1 and re.search(r"tensorfoldd\.toml:2\b.*slots", told[0]),
                f"what the journal says of wrong settings: {told}")
    checks.systemctl("reset-failed", UNIT)
    checks.settings("[model]\npath = '/var/lib/tensorfoldd/models/none'\n")
    checks.systemctl("start", UNIT)
    told = [str(entry["MESSAGE"]) for entry in events(checks.machine, "config_rejected")[before + 1:]]
    checks.that(len(told) == 1 and "/var/lib/tensorfoldd/models/none" in told[0],
                f"what the journal says of a missing model: {told}")
    checks.settings(NO_DRAFTS)
    checks.drop_in("")
    checks.restart()
    checks.that(answers(checks.machine), "corrected, it does not answer")


def socket_activation(checks: Checks) -> None:
    """With the socket unit the manager holds the address: the first client starts the service, and
    none is refused while it starts."""
    machine = checks.machine
    checks.systemctl("stop", UNIT)
    done = checks.systemctl("start", "tensorfoldd.socket")
    checks.that(done.returncode == 0, f"the socket unit: {done.stdout}")
    checks.that(show(machine)["ActiveState"] == "inactive", "the service runs before a client comes")
    code, body = curl(machine, "/health/live")
    checks.that(code == 200, f"the first client gets {code}: {body}")
    checks.that(wait_for(lambda: answers(machine)), "started by a client it is never ready")
    checks.that(checks.journal_text(r"listening on 127\.0\.0\.1:8888 \(.*service manager"),
                "the journal does not say where the address comes from")
    first = main_pid(machine)
    checks.systemctl("restart", UNIT)
    code, _ = curl(machine, "/health")
    checks.that(code == 200 and main_pid(machine) not in (0, first), f"after a restart: {code}")
    # A name that it does not know is refused, in one line.
    checks.systemctl("stop", "tensorfoldd.socket", UNIT)
    checks.drop_in("[Socket]\nFileDescriptorName=other\n", "tensorfoldd.socket")
    checks.systemctl("start", "tensorfoldd.socket")
    curl(machine, "/health/live")
    wait_for(lambda: show(machine)["ActiveState"] == "failed", 20)
    told = [str(entry["MESSAGE"]) for entry in events(machine, "config_rejected")]
    checks.that(show(machine)["ExecMainStatus"] == "78" and "other" in told[-1] and
                "FileDescriptorName=http" in told[-1], f"an unknown socket: {told[-1:]}")
    checks.drop_in("", "tensorfoldd.socket")
    checks.systemctl("stop", "tensorfoldd.socket", UNIT)
    checks.restart()
