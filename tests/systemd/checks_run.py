"""Checks of the running service: start, readiness, protection, journal, control socket, reload."""

import ctypes
import json
import os
import re

from service import (UNIT, Checks, answers, chat, curl, events, journal, main_pid, show, wait_for)

EXPOSURE_TENTHS_MAX = 20
SECRET = "zanzibarmarmalade"  # typed by a client; must not be in the journal
MANAGER_STARTED = "39f53479d3a045ac8e11786248231fbf"  # systemd's own event: a unit has started
PACKAGE = "/package.deb"
LOOP_SLICE_NS = 100_000  # daemon/service/time_slice.h
SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}  # the C library has no name for it


def loop_slice_ns(pid: int) -> int:
    """The time slice that a process's first thread has asked for; 0: before Linux 6.12."""
    attr = (ctypes.c_uint64 * 8)()  # sched_attr in its first version: the fourth is the slice
    call = SCHED_GETATTR[os.uname().machine]
    failed = ctypes.CDLL(None).syscall(call, pid, attr, ctypes.sizeof(attr), 0) != 0
    return -1 if failed else attr[3]


def install(checks: Checks) -> None:
    """apt installs the package with its dependencies; when it returns the service answers."""
    done = checks.machine.run("apt-get", "install", "-y", "--no-install-recommends", PACKAGE)
    if not checks.that(done.returncode == 0, f"apt-get install: {done.stdout[-2000:]}"):
        raise SystemExit("the package cannot be installed")
    code, body = curl(checks.machine, "/health")
    checks.that(code == 200, f"installed, and /health is {code}: {body}")
    reply = chat(checks.machine)
    checks.that(re.search(r"[a-z]", reply) and not reply[:3].isdigit(), f"a chat gives {reply!r}")
    for word, wanted in (("is-enabled", "enabled"), ("is-active", "active")):
        said = checks.systemctl(word, UNIT).stdout.strip()
        checks.that(said == wanted, f"after the installation systemctl {word} says {said}")
    said = checks.systemctl("is-enabled", "tensorfoldd.socket").stdout.strip()
    checks.that(said == "disabled", f"the socket unit is {said}")


def readiness(checks: Checks) -> None:
    """The manager hears of readiness after the daemon says that it answers; the status line says
    what is going on."""
    facts = show(checks.machine)
    checks.that(facts["Type"] == "notify" and facts["SubState"] == "running", f"state: {facts}")
    counts = re.compile(r"ready: \d+ running, \d+ waiting")  # the first one only names the model
    checks.that(wait_for(lambda: bool(counts.match(show(checks.machine)["StatusText"])), 20),
                f"StatusText: {show(checks.machine)['StatusText']}")
    entries = journal(checks.machine)
    ready = [i for i, entry in enumerate(entries) if entry.get("TF_EVENT") == "ready"]
    started = [i for i, entry in enumerate(entries) if entry.get("MESSAGE_ID") == MANAGER_STARTED]
    checks.that(ready and started and ready[0] < started[0],
                f"ready at {ready}, started at {started}")
    stream, held = checks.held_stream()  # the line changes once in some seconds
    checks.that(wait_for(lambda: "1 running" in show(checks.machine)["StatusText"], 20),
                "the status line does not count a running reply")
    held.release()
    stream.leave()


def protection(checks: Checks) -> None:
    """Who the process is, what it may do, what its files look like."""
    machine, pid = checks.machine, main_pid(checks.machine)
    status = machine.run("cat", f"/proc/{pid}/status").stdout
    for line in ("NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000",
                 "CapBnd:\t0000000000000000"):
        checks.that(line in status, f"/proc/PID/status lacks {line!r}")
    owner = machine.run("id", "-u", "tensorfold").stdout.strip()
    checks.that(f"Uid:\t{owner}\t{owner}" in status, f"it does not run as tensorfold ({owner})")
    for path, wanted in (("/run/tensorfoldd/control.sock", "660 tensorfold tensorfold"),
                         ("/run/tensorfoldd", "755 tensorfold tensorfold"),
                         ("/var/lib/tensorfoldd", "750 tensorfold tensorfold"),
                         ("/var/lib/tensorfoldd/models", "750 tensorfold tensorfold"),
                         ("/var/cache/tensorfoldd", "750 tensorfold tensorfold"),
                         ("/etc/tensorfoldd/tensorfoldd.toml", "644 root root")):
        found = machine.run("stat", "-c", "%a %U %G", path).stdout.strip()
        checks.that(found == wanted, f"{path} is {found}, not {wanted}")
    slice_ns = loop_slice_ns(machine.host_pid(pid))
    checks.that(slice_ns in (0, LOOP_SLICE_NS), f"the loop's time slice is {slice_ns} ns")
    # What it cannot do, shown by its own mounts.
    done = machine.run("nsenter", "-t", str(pid), "--mount", "touch", "/usr/x", "/etc/x")
    checks.that(done.stdout.count("Read-only file system") == 2, f"the service may write: {done.stdout}")


def analysis(checks: Checks) -> None:
    """systemd's own judgment of the units as installed and running."""
    for unit in (UNIT, "tensorfoldd.socket", "tensorfoldd@.service"):
        done = checks.machine.run("systemd-analyze", "verify", "--man=no",
                                  f"/lib/systemd/system/{unit}")
        wrong = [line for line in done.stdout.splitlines() if "tensorfoldd" in line]
        checks.that(done.returncode == 0 and not wrong, f"verify {unit}: {done.stdout}")
    for unit in (UNIT, "tensorfoldd@two.service"):
        done = checks.machine.run("systemd-analyze", "security", "--no-pager",
                                  f"--threshold={EXPOSURE_TENTHS_MAX}", unit)
        print("  " + done.stdout.strip().splitlines()[-1])
        checks.that(done.returncode == 0, f"security {unit}: {done.stdout[-300:]}")


def journal_lines(checks: Checks) -> None:
    """One line for a request, with its fields; no text of a client; every event explained."""
    machine = checks.machine
    before = len(events(machine, "request_done"))
    chat(machine, 12, f"What is {SECRET}?")
    code, _ = curl(machine, "/v1/chat/completions", "-H", "Content-Type: application/json", "-d",
                   json.dumps({"model": "tiny", "messages": SECRET}))
    checks.that(code == 400, f"a wrong request gives {code}")
    wait_for(lambda: len(events(machine, "request_done")) > before, 10)
    lines = events(machine, "request_done")
    if checks.that(len(lines) == before + 1, f"{len(lines) - before} lines for one request"):
        line = lines[-1]
        for field in ("MESSAGE_ID", "PRIORITY", "TF_REQUEST_ID"):
            checks.that(line.get(field), f"the request's line has no {field}: {line}")
        checks.that(line.get("_SYSTEMD_UNIT") == UNIT and
                    line.get("SYSLOG_IDENTIFIER") == "tensorfoldd", f"identity: {line}")
        print("  " + line["MESSAGE"])
        for pattern in (r"prompt|in", r"12|tokens", r"tokens/s|/s"):
            checks.that(re.search(pattern, line["MESSAGE"]), f"no {pattern}: {line['MESSAGE']}")
    whole = machine.run("journalctl", "--output=export", "--no-pager").stdout
    checks.that(SECRET not in whole, "a client's text is in the journal")
    catalog = machine.run("journalctl", "--no-pager", "--list-catalog").stdout
    used = {entry["MESSAGE_ID"] for entry in journal(machine)
            if entry.get("TF_EVENT") and "MESSAGE_ID" in entry}
    checks.that(len(used) >= 3, f"only {len(used)} kinds of events in the journal")
    for ident in used:
        checks.that(ident in catalog, f"the catalog has no {ident}")
    said = machine.run("journalctl", "--no-pager", "--catalog", f"--unit={UNIT}").stdout
    checks.that("Subject: tensorfoldd answers requests" in said, "the journal explains no event")
    said = machine.run("tfctl", "logs", "--lines", "3").stdout
    checks.that("tensorfoldd" in said and len(said.splitlines()) >= 3, f"tfctl logs: {said}")


def control_socket(checks: Checks) -> None:
    """Who may connect, and who may change: by the peer's credentials."""
    machine = checks.machine
    for words in (("useradd", "alice"), ("useradd", "--groups", "tensorfold", "bob")):
        machine.run(*words)
    done = machine.run("tfctl", "status", user="alice")
    checks.that(done.returncode == 4, f"a stranger's tfctl status: {done.returncode} {done.stdout}")
    done = machine.run("tfctl", "status", user="bob")
    checks.that(done.returncode == 0, f"a member's tfctl status: {done.returncode} {done.stdout}")
    done = machine.run("tfctl", "log", "level", "debug", user="bob")
    checks.that(done.returncode == 0, f"a member changes: {done.returncode} {done.stdout}")
    bob = machine.run("id", "-u", "bob").stdout.strip()
    lines = events(machine, "control_change")
    checks.that(lines and lines[-1].get("TF_PEER_UID") == bob and
                int(lines[-1].get("TF_PEER_PID", "0")) > 1, f"no line names {bob}: {lines[-1:]}")
    # Somebody for whom the administrator opens the file may look, and still not change anything.
    machine.run("chmod", "666", "/run/tensorfoldd/control.sock")
    done = machine.run("tfctl", "status", user="alice")
    checks.that(done.returncode == 0, f"an admitted stranger looks: {done.returncode} {done.stdout}")
    done = machine.run("tfctl", "log", "level", "error", user="alice")
    checks.that(done.returncode == 4, f"a stranger changes: {done.returncode} {done.stdout}")
    machine.run("chmod", "660", "/run/tensorfoldd/control.sock")
    done = machine.run("tfctl", "log", "level", "info")
    checks.that(done.returncode == 0, f"root changes: {done.returncode} {done.stdout}")


def setting(checks: Checks, key: str) -> str:
    """A setting in use, by tfctl."""
    said = checks.machine.run("tfctl", "config", "show", "--all", "--json").stdout
    return str(json.loads(said)["settings"][key]["value"]) if said.startswith("{") else said


def reload(checks: Checks) -> None:
    """systemctl reload, through tfctl: takes a right file over, fails on a wrong one and keeps."""
    pid = main_pid(checks.machine)
    checks.settings("[limits]\ndrain_s = 77\n")
    done = checks.systemctl("reload", UNIT)
    checks.that(done.returncode == 0, f"systemctl reload: {done.returncode} {done.stdout}")
    checks.that(setting(checks, "limits.drain_s") == "77", "a reload did not take drain_s over")
    checks.that(len(events(checks.machine, "reloaded")) == 1, "no event of the reload")
    checks.settings("[limits]\ndrain_s = 78\nnonsense = 1\n")
    done = checks.systemctl("reload", UNIT)
    checks.that(done.returncode != 0, "systemctl reload is content with a wrong file")
    told = [str(entry["MESSAGE"]) for entry in events(checks.machine, "reload_rejected")]
    checks.that(len(told) == 1 and re.search(r"tensorfoldd\.toml:3.*nonsense", told[0]),
                f"the journal does not say where it is wrong: {told}")
    by_tfctl = [entry for entry in journal(checks.machine) if entry.get("_COMM") == "tfctl" or
                entry.get("SYSLOG_IDENTIFIER") == "tfctl"]
    checks.that(any("nonsense" in str(entry["MESSAGE"]) for entry in by_tfctl),
                f"the failed reload does not explain itself: {by_tfctl}")
    checks.that(setting(checks, "limits.drain_s") == "77", "a wrong file changed something")
    checks.that("not reloaded" in show(checks.machine)["StatusText"],
                f"StatusText: {show(checks.machine)['StatusText']}")
    facts = show(checks.machine)
    checks.that(facts["ActiveState"] == "active" and int(facts["MainPID"]) == pid and
                answers(checks.machine), f"after a failed reload: {facts['ActiveState']}")
    checks.settings("[limits]\ndrain_s = 60\n[engine]\nslots = 2\n")
    checks.systemctl("kill", "--signal=HUP", UNIT)
    checks.that(wait_for(lambda: setting(checks, "limits.drain_s") == "60", 20), "SIGHUP: no reload")
    checks.that(checks.journal_text(r"wait for a restart: engine\.slots"),
                "what needs a restart is not named")
    checks.that(main_pid(checks.machine) == pid, "a reload made another process")


def second_instance(checks: Checks) -> None:
    """tensorfoldd@two beside the first, with a socket, a state and a port of its own."""
    machine, unit = checks.machine, "tensorfoldd@two.service"
    checks.settings('[http]\nlisten = "127.0.0.1:8899"\n[engine]\ndrafts = "off"\n', "two")
    done = checks.systemctl("start", unit)
    checks.that(done.returncode == 0, f"the second instance: {done.stdout}")
    done = machine.run("tfctl", "--instance", "two", "status")
    checks.that(done.returncode == 0 and "tiny" in done.stdout, f"its tfctl: {done.stdout}")
    code = machine.run("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}",
                       "http://127.0.0.1:8899/health").stdout
    checks.that(code == "200" and answers(machine), f"the second says {code}")
    checks.systemctl("stop", unit)
    # On the first one's port it says who has it, and the manager gives up after the limit.
    checks.settings("", "two")
    checks.drop_in("[Service]\nRestartSec=100ms\n", unit)
    done = checks.systemctl("start", unit)
    checks.that(done.returncode != 0, "two instances on one port")
    wait_for(lambda: show(machine, unit)["ActiveState"] == "failed")
    facts = show(machine, unit)
    checks.that(facts["ActiveState"] == "failed" and facts["ExecMainStatus"] == "71" and
                int(facts["NRestarts"]) == 4, f"the start limit: {facts['ActiveState']}, exit status "
                f"{facts['ExecMainStatus']}, {facts['NRestarts']} restarts")
    told = events(machine, "start_failed", unit)
    pid = main_pid(machine)
    checks.that(len(told) == 4 and f"taken by tensorfoldd (pid {pid})" in told[0]["MESSAGE"],
                f"who has the port: {[entry['MESSAGE'] for entry in told]}")
    checks.systemctl("reset-failed", unit)
    checks.drop_in("", unit)
    machine.path("/etc/tensorfoldd/two.toml").unlink()
    checks.that(answers(machine), "the first instance suffered")
