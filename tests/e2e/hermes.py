"""hermes-agent, as its users run it, against the scripted engine: a tool loop of many turns, and what
a provider's plugin asks of the server meanwhile (/v1/models, /health, /stats).

usage: hermes.py --work DIR --scripted PROGRAM

Makes an environment of its own (the package pins its clients). Without a package index it is
skipped with status 77, unless TENSORFOLD_REQUIRE names pypi.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import urllib.request
import venv

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
LAST = 12

# Runs under the environment's python: one agent with one tool that looks at the server, too.
AGENT = """
import json, os, sys, urllib.request
from tools.registry import registry
from run_agent import AIAgent

url, last = sys.argv[1], int(sys.argv[2])
seen = []

def get(path):
    with urllib.request.urlopen(url + path, timeout=10) as reply:
        return json.load(reply)

def step(args, **more):
    seen.append({"n": args["n"], "stats": get("/stats"), "health": get("/health"),
                 "models": get("/v1/models")})
    n = args["n"]
    return 'call step {"n": %d}' % (n + 1) if n < last else "echo done after %d" % last

registry.register(name="step", toolset="steps", handler=step, schema={
    "name": "step", "description": "The next step.", "parameters": {
        "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}})
agent = AIAgent(base_url=url + "/v1", api_key="none", model="scripted", provider="custom",
                enabled_toolsets=["steps"], quiet_mode=True, skip_context_files=True,
                skip_memory=True, tool_delay=0, max_iterations=last + 4)
result = agent.run_conversation('call step {"n": 1}')
print("RESULT " + json.dumps({"said": result["final_response"], "calls": result["api_calls"],
                              "completed": result["completed"], "seen": seen,
                              "prompt_tokens": result["prompt_tokens"],
                              "completion_tokens": result["completion_tokens"]}))
"""


def install(work: pathlib.Path) -> pathlib.Path | None:
    python = work / "hermes-venv" / "bin" / "python"
    stamp = work / "hermes-installed"
    requirements = HERE / "requirements-hermes.txt"
    if stamp.exists() and stamp.read_text() == requirements.read_text() and python.exists():
        return python
    venv.create(work / "hermes-venv", with_pip=True, clear=True)
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check",
               "--retries", "2", "--timeout", "20", "-r", str(requirements)]
    if subprocess.run(command, check=False).returncode != 0:
        return None
    stamp.write_text(requirements.read_text())
    return python


def started(program: str, folder: pathlib.Path) -> tuple[subprocess.Popen, str]:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    # The agent refuses models whose context is below 64,000 tokens.
    (folder / "config.toml").write_text('[model]\nname = "scripted"\n[engine]\ncontext = 131072\n')
    process = subprocess.Popen(
        [program, "--config", str(folder / "config.toml"), "--control", str(folder / "c.sock"),
         "--model", str(folder / "model"), "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE, text=True)
    port = None
    for line in process.stderr:
        if match := re.search(r"listening on \S+:(\d+)", line):
            port = match.group(1)
        if "is ready after" in line:
            break
    threading.Thread(target=process.stderr.read, daemon=True).start()
    assert port, "the daemon did not start"
    return process, f"http://127.0.0.1:{port}"


def check(result: dict, url: str) -> None:
    assert result["completed"] and result["said"] == f"done after {LAST}", result["said"]
    assert result["calls"] == LAST + 1
    assert [s["n"] for s in result["seen"]] == list(range(1, LAST + 1))
    assert result["prompt_tokens"] > 0 and result["completion_tokens"] > 0
    before = -1
    for seen in result["seen"]:
        stats = seen["stats"]
        assert stats["state"] == "ready" and stats["model"] == "scripted"
        assert stats["requests_total"] > before
        before = stats["requests_total"]
        assert stats["live"]["connections"] >= 1 and stats["streams"]["max"] >= 1
        assert seen["health"]["status"] == "ok"
        assert seen["models"]["data"][0]["max_model_len"] == 131072
    with urllib.request.urlopen(url + "/stats", timeout=10) as reply:
        stats = json.load(reply)
    assert stats["requests_running"] == 0 and stats["http"]["failed_total"] == 0, stats


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--scripted", required=True)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    python = install(options.work)
    if python is None:
        print("skipped: the package index cannot be reached, so there is no hermes-agent")
        return 1 if "pypi" in os.environ.get("TENSORFOLD_REQUIRE", "").split(",") else SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        daemon, url = started(options.scripted, pathlib.Path(folder))
        try:
            environment = dict(os.environ, HERMES_HOME=folder + "/home", NO_PROXY="127.0.0.1",
                               no_proxy="127.0.0.1")
            done = subprocess.run([str(python), "-c", AGENT, url, str(LAST)], env=environment,
                                  capture_output=True, text=True, timeout=600, cwd=folder)
            lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            assert lines, done.stdout + done.stderr
            check(json.loads(lines[0][7:]), url)
        finally:
            daemon.terminate()
            daemon.wait(30)
    version = subprocess.run([str(python), "-m", "pip", "show", "hermes-agent"],
                             capture_output=True, text=True, check=False).stdout.splitlines()[1]
    print(f"hermes-agent {version}: {LAST} calls, {LAST + 1} requests, done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
