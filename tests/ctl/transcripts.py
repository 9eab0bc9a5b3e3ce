"""docs/transcripts.md: what tfctl status, watch, doctor and model fetch look like, from real runs: a
daemon with the embedded model, a recorded machine, a server of model files on this machine.

usage: transcripts.py ROOT TFCTL TENSORFOLDD           fails when a run has another shape than the page
       transcripts.py ROOT TFCTL TENSORFOLDD --write   writes the page

Shape: the same lines with every number alike; of doctor, whose machine is recorded, the same text.
"""

import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import urllib.request

import model_server as ms

WAIT_S = 300
DOCTOR = "tfctl doctor --fix-hints"
REPO, COMMIT = "example/small-model", "5f" * 20
HEAD = """# Transcripts

From real runs, written by `tests/ctl/transcripts.py`; a test runs the same again and compares the shape. Status and watch are of
the embedded model on a CPU, doctor of a recorded DGX Spark (`tests/data/preflight/good`) whose memory another program holds and whose
network card came back with a small MTU, fetch of a small repository on the same machine. On a terminal, fetch draws its
progress in place.
"""


class Runs:
    def __init__(self, root: pathlib.Path, tfctl: str, daemon: str, folder: pathlib.Path):
        self.root, self.tfctl, self.folder = root, tfctl, folder
        self.socket = str(folder / "control.sock")
        settings = folder / "tensorfoldd.toml"
        settings.write_text('[http]\nlisten = "127.0.0.1:0"\n[cache]\nspill_gib = 0\n')
        self.log = open(folder / "log", "w+", encoding="utf-8")
        self.process = subprocess.Popen([daemon, "--config", str(settings), "--control", self.socket], stderr=self.log)
        self.run("health", "--wait", str(WAIT_S))
        text = (folder / "log").read_text(encoding="utf-8")
        self.port = int(re.search(r"listening on \S+:(\d+)", text)[1])

    def run(self, *args: str, code: int = 0, local: bool = False) -> str:
        command = [self.tfctl, *([] if local else ["--socket", self.socket]), *args]
        clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=WAIT_S,
                             check=False, env=clean)
        if run.returncode != code:
            raise SystemExit(f"{command}: exit status {run.returncode}\n{run.stdout}")
        return run.stdout

    def chat(self, text: str):
        body = {"model": "tiny", "max_tokens": 40, "messages": [{"role": "user", "content": text}]}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=WAIT_S) as reply:
            reply.read()

    def all(self) -> dict:
        for text in ("Hello!", "Count from 1 to 12."):
            self.chat(text)
        out = {"tfctl status": self.run("status"),
               "tfctl watch --count 3": self.run("watch", "--interval", "0.2", "--count", "3")}
        out[DOCTOR] = self.doctor()
        out["sudo tfctl model fetch --repo example/small-model"] = self.fetch()
        return out

    def doctor(self) -> str:
        machine = self.folder / "machine"
        subprocess.run(["cp", "-r", str(self.root / "tests/data/preflight/good"), str(machine)], check=True)
        subprocess.run(["chmod", "-R", "u+w", str(machine)], check=True)
        (machine / "proc/meminfo").write_text("MemTotal: 127535104 kB\nMemAvailable: 62914560 kB\nCmaTotal: 131072 kB\n"
                                              "CmaFree: 130000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
        (machine / "sys/class/net/enP2p1s0f0np0/mtu").write_text("1500\n")
        return self.run("doctor", "--fix-hints", "--root", str(machine), code=1, local=True)

    def fetch(self) -> str:
        rng = random.Random(1)
        hub = ms.Hub()
        files = {"config.json": b'{"model_type": "example"}', "tokenizer.json": rng.randbytes(40_000),
                 "model-00001-of-00002.safetensors": rng.randbytes(1_500_000),
                 "model-00002-of-00002.safetensors": rng.randbytes(900_000)}
        hub.repos[REPO] = ms.Repo({COMMIT: files}, COMMIT)
        hub.faults["model-00001-of-00002.safetensors"] = [ms.drop_after(600_000)]
        text = self.run("model", "fetch", "--repo", REPO, "--dir", str(self.folder / "model"), "--base-url", hub.url,
                        "--parallel", "1", local=True)
        hub.close()
        return text

    def close(self):
        self.process.terminate()
        self.process.wait(WAIT_S)
        self.log.close()


def tidy(text: str, folder: pathlib.Path, root: pathlib.Path) -> str:
    text = text.replace(str(folder / "model"), "/var/lib/tensorfoldd/model").replace(str(folder), "/run/tensorfoldd")
    text = re.sub(r"\S*/(packaging/tiny-model/model|tiny)(?=[\s,)]|$)", "/usr/share/tensorfoldd/tiny", text)
    return text.replace(str(root), "").rstrip() + "\n"


def shape(name: str, text: str) -> list:
    if name == DOCTOR:
        return text.splitlines()
    # A number with its unit.
    text = re.sub(r"\d[\d.,:]*( ?([kMGT]?i?B|ms|us|min|h|s|C)\b)?", "0", text)
    lines = [re.sub(r"\s+", " ", line) for line in text.splitlines()]
    if name.startswith("tfctl status"):
        return [line.split(" ")[0] for line in lines]
    if name.startswith("tfctl watch"):
        return [line.split(",")[0] for line in lines]
    # Files end in any order, and each libcurl has its own words for a connection that broke.
    lines = [re.sub(r": [^/]*; again in", ": ...; again in", line) for line in lines]
    return sorted(line for line in lines if not line.startswith("fetching: ")) + ["fetching: " in " ".join(lines)]


def page_of(runs: dict) -> str:
    out = HEAD
    for command, text in runs.items():
        out += f"\n## {' '.join(command.replace('sudo ', '').split()[:3]).replace(' --count', '')}\n\n```\n$ {command}\n{text}```\n"
    return out


def blocks_of(page: str) -> dict:
    return {m[1]: m[2] for m in re.finditer(r"^```\n\$ ([^\n]*)\n(.*?)^```$", page, re.M | re.S)}


def main() -> int:
    root, tfctl, daemon = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
    page = root / "docs/transcripts.md"
    with tempfile.TemporaryDirectory(prefix="tf-transcripts-") as folder:
        runs = Runs(root, tfctl, daemon, pathlib.Path(folder))
        try:
            made = {name: tidy(text, pathlib.Path(folder), root) for name, text in runs.all().items()}
        finally:
            runs.close()
    if sys.argv[4:] == ["--write"]:
        page.write_text(page_of(made), encoding="utf-8")
        return 0
    there = blocks_of(page.read_text(encoding="utf-8"))
    problems = [] if list(there) == list(made) else [f"commands: {list(there)}, not {list(made)}"]
    for name in made:
        wanted, found = shape(name, made[name]), shape(name, there.get(name, ""))
        if wanted != found:
            problems += [f"{name}: the page and a run differ:"] + [f"  page: {a!r}\n  run:  {b!r}" for a, b in
                                                                   zip(found + [""] * 99, wanted) if a != b]
    # The comparison sees a line that is missing and a word that is another.
    status = "tfctl status"
    assert shape(status, made[status]) != shape(status, "\n".join(made[status].splitlines()[1:]))
    assert shape(DOCTOR, made[DOCTOR]) != shape(DOCTOR, made[DOCTOR].replace("FAIL", "ok"))
    print("\n".join(problems + [f"transcripts: {len(made)} compared, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
