"""The commands of the pages that lead a person: those that need one machine and no root are run, as
they stand there, against a daemon with the embedded model. What the others look like is checked by
tests/ctl/docs_commands.py."""

import json
import os
import pathlib
import re
import subprocess

import pytest

from conftest import Daemon

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
PAGES = ["install", "operations", "network", "staged-validation", "expose"]
MODEL = "DeepSeek-V4.1-Flash-1017"
# Verbs that are run; the rest needs another machine, hours, or a service manager.
VERBS = re.compile(r"^tfctl (status|health|watch|metrics|verify|version|config show|request list|cache status|"
                   r"bench ready|log level)\b")
PLAIN = re.compile(r"^(uname -r|grep \w+ /proc/meminfo|ip -br (link|-4 addr))$")


def code_lines(page: str) -> list[str]:
    """Commands of a page: lines of indented code."""
    text = re.sub(r"^```.*?^```$", "", (DOCS / f"{page}.md").read_text(), flags=re.M | re.S)
    return [line.strip() for line in text.splitlines() if re.match(r"^(    |      )\S", line)]


def runnable() -> list[str]:
    found = []
    for page in PAGES:
        for line in code_lines(page):
            if line.startswith("curl ") or VERBS.match(line) or PLAIN.match(line):
                found.append(f"{page}: {line}")
    return sorted(set(found))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    running = Daemon(tmp_path_factory.mktemp("docs"), os.environ["TF_DAEMON"], f'[model]\nname = "{MODEL}"\n')
    running.wait_ready()
    yield running
    assert running.stop() == 0, running.log


def test_there_are_commands():
    commands = runnable()
    assert len(commands) >= 20, commands
    assert any("stream" in c for c in commands) and any("tools" in c for c in commands)


@pytest.mark.parametrize("command", runnable())
def test_command(daemon, command, tmp_path):
    line = command.split(": ", 1)[1].replace("127.0.0.1:8888", f"127.0.0.1:{daemon.port}")
    if line.startswith("tfctl watch") and "--count" in line:
        line = re.sub(r"--count \d+", "--count 2 --interval 0.2", line)
    elif line == "tfctl watch":
        line += " --count 1"
    if re.match(r"^tfctl (verify|bench)", line):
        line += f" --url http://127.0.0.1:{daemon.port}"
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "tfctl").write_text(f'#!/bin/sh\nexec {os.environ["TF_CTL"]} --socket {daemon.control} "$@"\n')
    (tools / "tfctl").chmod(0o755)
    run = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=600,
                         env=dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}"))
    assert run.returncode == 0 or line.startswith(("ip ", "grep Cma")), run.stderr + run.stdout
    if line.startswith("curl "):
        if "-N" in line.split():
            events = [e for e in run.stdout.splitlines() if e.startswith("data: ")]
            assert events[-1] == "data: [DONE]" and len(events) > 3
            assert "error" not in run.stdout
        else:
            document = json.loads(run.stdout)
            assert "error" not in document, document
            if "tool_choice" in line:
                assert document["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"
    elif line.startswith("tfctl"):
        assert run.stdout.strip()
