"""A start that fails explains itself: one line of error that says what is wrong, where, and what to
do, and the exit status that the manual gives. What memory a start would take, --check-config says
before.

  start_lines.py DAEMON MODEL      MODEL: the embedded model's folder
"""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

from require import report

START_SECONDS = 120


def start(daemon: str, folder: pathlib.Path, settings: str, *options: str) -> tuple[int, list[str]]:
    """Exit status and lines of error of a start that should fail."""
    file = folder / "settings.toml"
    file.write_text(settings, encoding="utf-8")
    done = subprocess.run([daemon, "--config", str(file), *options], text=True, timeout=START_SECONDS,
                          env={k: v for k, v in os.environ.items() if k != "JOURNAL_STREAM"},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, [line for line in done.stdout.splitlines() if line.startswith("<3>")]


def damaged_model(model: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """A copy whose weights were cut in the middle."""
    out = folder / "damaged"
    shutil.copytree(model, out)
    with open(out / "model.safetensors", "r+b") as weights:
        weights.truncate(weights.seek(0, os.SEEK_END) // 2)
    return out


def cases(model: pathlib.Path, folder: pathlib.Path, port: int) -> list[tuple]:
    """Name, settings, options, exit status, what the line must say."""
    free = '[http]\nlisten = "127.0.0.1:0"\n'
    control = ("--control", str(folder / "control.sock"))
    taken = folder / "taken.sock"
    return [
        ("port", f'[http]\nlisten = "127.0.0.1:{port}"\n', control, 71,
         rf"127\.0\.0\.1:{port}: .* taken by python.* \(pid {os.getpid()}\).*another port"),
        ("control socket", free, ("--control", str(taken)), 69,
         rf"another tensorfoldd answers on {taken}.*tensorfoldd@NAME"),
        ("unknown key", free + "nonsense = 1\n", control, 78,
         r"settings\.toml:3:1: unknown key http\.nonsense; correct the settings"),
        ("value", free + "[engine]\nslots = -1\n", control, 78,
         r"settings\.toml:4.*slots.*correct the settings"),
        ("no keys", '[http]\nlisten = "0.0.0.0:0"\n', control, 78, r"keys_file"),
        ("no model", free + "[model]\npath = '/nowhere/model'\n", control, 78,
         r"/nowhere/model.*correct the settings"),
        ("more cache than memory", free + "[cache]\npool_tokens = 1000000000\n", control, 78,
         r"memory: weights .* cache .*1000000000 positions.* stay free\. cache\.pool_tokens = \d+ would fit, or free memory$"),
        ("damaged model", free + f"[model]\npath = '{damaged_model(model, folder)}'\n", control, None,
         r"model\.safetensors.*tfctl model verify"),
    ]


def checked(daemon: str, folder: pathlib.Path, settings: str) -> tuple[int, str]:
    """Exit status and words of --check-config."""
    file = folder / "checked.toml"
    file.write_text(settings, encoding="utf-8")
    done = subprocess.run([daemon, "--check-config", str(file)], text=True, timeout=START_SECONDS,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout


def started_plan(daemon: str, folder: pathlib.Path, settings: str) -> str:
    """The memory plan that a start logs."""
    file = folder / "started.toml"
    file.write_text(settings, encoding="utf-8")
    with subprocess.Popen([daemon, "--config", str(file), "--control", str(folder / "started.sock")],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={k: v for k, v in os.environ.items() if k != "JOURNAL_STREAM"}) as it:
        assert it.stdout is not None
        lines = []
        for line in it.stdout:
            lines.append(line.rstrip("\n").partition(">")[2])
            if "memory: " in line or " is ready " in line:
                break
        it.terminate()
        it.communicate(timeout=START_SECONDS)
    return lines[-1]


def memory_plans(daemon: str, model: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """--check-config says of memory what a start says, and refuses what a start refuses."""
    problems = []
    free = f'[http]\nlisten = "127.0.0.1:0"\n[model]\npath = "{model}"\n[engine]\ndevice = "cpu"\n'
    for more in ("slots = 3\n", "slots = 8\n[cache]\npool_tokens = 65536\nsnapshot_mib = 64\n"):
        code, said = checked(daemon, folder, free + more)
        plan = started_plan(daemon, folder, free + more)
        if code != 0 or not plan.startswith("memory: ") or plan not in said.splitlines():
            problems.append(f"--check-config ({code}) says {said!r}, a start {plan!r}")
    code, said = checked(daemon, folder, free + "[cache]\npool_tokens = 1000000000\n")
    if code != 78 or not re.search(r"stay free\. cache\.pool_tokens = \d+ would fit", said):
        problems.append(f"--check-config of what cannot fit: {code}, {said}")
    code, said = checked(daemon, folder, "[model]\npath = '/nowhere/model'\n")
    if code != 0 or not re.search(r"warning: a start would fail: .*/nowhere/model", said):
        problems.append(f"--check-config without the model: {code}, {said}")
    return problems


def main() -> int:
    daemon, model = sys.argv[1], pathlib.Path(sys.argv[2])
    problems, made = [], 0
    with tempfile.TemporaryDirectory() as name, socket.socket() as held, \
            socket.socket(socket.AF_UNIX) as other:
        folder = pathlib.Path(name)
        held.bind(("127.0.0.1", 0))
        held.listen()
        other.bind(str(folder / "taken.sock"))
        other.listen()
        for what, settings, options, status, wanted in cases(model, folder, held.getsockname()[1]):
            code, lines = start(daemon, folder, settings, *options)
            made += 1
            if len(lines) != 1:
                problems.append(f"{what}: {len(lines)} lines of error: {lines}")
            elif not re.search(wanted, lines[0]):
                problems.append(f"{what}: {lines[0]}")
            if code != status if status is not None else code in (0, 78):
                problems.append(f"{what}: exit status {code}, not {status}")
        problems += memory_plans(daemon, model, folder)
    return report(problems, made + 4)


if __name__ == "__main__":
    sys.exit(main())
