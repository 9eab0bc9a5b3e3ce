"""The Debian package: built from the tree, looked into, and its programs run from where it unpacks.

  deb.py ROOT WORK [OPTIONS OF packaging/build-deb]

A clean machine needs packaging/debian/control's build dependencies. It is not installed here, but by
tests/systemd/run.
"""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

from require import report, require

BUILD_SECONDS = 3600  # of one of the three builds
READY_SECONDS = 120
FILES = """
/etc/tensorfoldd/tensorfoldd.toml
/lib/systemd/system/tensorfoldd.service
/lib/systemd/system/tensorfoldd.socket
/lib/systemd/system/tensorfoldd@.service
/usr/bin/tensorfoldd
/usr/bin/tfctl
/usr/lib/modules-load.d/tensorfoldd.conf
/usr/lib/systemd/catalog/tensorfoldd.catalog
/usr/lib/sysusers.d/tensorfoldd.conf
/usr/lib/tmpfiles.d/tensorfoldd.conf
/usr/share/bash-completion/completions/tfctl
/usr/share/doc/tensorfoldd/examples/head.toml
/usr/share/doc/tensorfoldd/examples/worker.toml
/usr/share/fish/vendor_completions.d/tfctl.fish
/usr/share/man/man1/tfctl.1.gz
/usr/share/man/man5/tensorfoldd.toml.5.gz
/usr/share/man/man8/tensorfoldd.8.gz
/usr/share/tensorfoldd/tiny/config.json
/usr/share/tensorfoldd/tiny/model.safetensors
/usr/share/tensorfoldd/tiny/tokenizer.json
/usr/share/zsh/vendor-completions/_tfctl
""".split()


def output(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=300, check=False).stdout


def build(root: pathlib.Path, work: pathlib.Path, *options: str) -> list[pathlib.Path]:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    with open(work / "build.log", "w", encoding="utf-8") as log:
        subprocess.run([str(root / "packaging/build-deb"), *sys.argv[3:], *options, str(work)],
                       stdout=log, stderr=log, timeout=BUILD_SECONDS, check=True,
                       env=dict(os.environ, CCACHE_DISABLE="1"))
    return sorted(work.glob("*.deb"))


def check_again(root: pathlib.Path, work: pathlib.Path, debs: list[pathlib.Path]) -> list[str]:
    """Later builds make the same bytes: of tensorfoldd in any place, of the CUDA packages in the same
    place (nvcc puts a hash of the source's path into names)."""
    first = {deb.name: deb.read_bytes() for deb in debs}
    problems = []
    for where, options, cuda in ((work / "a-second-place/deeper", ("--cuda", "no"), False),
                                 (work, (), True)):
        again = {deb.name: deb.read_bytes() for deb in build(root, where, *options)}
        problems += [f"a build in {where} makes another {name}" for name, content in first.items()
                     if ("-cuda" in name) == cuda and again.get(name) != content]
    return problems


def check_contents(deb: pathlib.Path, unpacked: pathlib.Path) -> list[str]:
    # Newer debhelper puts units below /usr.
    problems = [f"the package lacks {name}" for name in FILES
                if not (unpacked / name[1:]).exists() and not (unpacked / "usr" / name[1:]).exists()]
    control = unpacked / "DEBIAN"
    if (control / "conffiles").read_text().split() != ["/etc/tensorfoldd/tensorfoldd.toml"]:
        problems.append(f"conffiles: {(control / 'conffiles').read_text()}")
    scripts = "".join((control / name).read_text() for name in ("postinst", "prerm", "postrm"))
    for wanted in ("systemd-sysusers", "systemd-tmpfiles", "deb-systemd-helper enable",
                   "in $state are kept"):
        if wanted not in scripts:
            problems.append(f"no maintainer script has '{wanted}'")
    prerm = (control / "prerm").read_text()
    postinst = (control / "postinst").read_text()
    if re.search(r"deb-systemd-invoke \S*restart", postinst):
        problems.append("an upgrade would restart the service")
    if not re.search(r'"\$1" = remove .*\n.*stop', prerm):
        problems.append("an upgrade would stop the service, or a removal would not")
    depends = output("dpkg-deb", "--field", str(deb), "Depends")
    if "libuv1" not in depends or "libsystemd0" not in depends:
        problems.append(f"Depends: {depends}")
    return problems


def check_purge(unpacked: pathlib.Path, work: pathlib.Path) -> list[str]:
    """Our part of postrm, with its folders below `work`: only what the service itself wrote goes."""
    script = (unpacked / "DEBIAN/postrm").read_text().split("# End automatically added section")[-1]
    root, problems = work / "purged", []
    keeps = [root / "var/lib/tensorfoldd" / name for name in ("models/flash", "model/engram", "prepared", "mine")]
    goes = [root / name for name in ("var/lib/tensorfoldd/spill/1", "var/lib/tensorfoldd-two/spill",
                                     "var/cache/tensorfoldd/x", "var/cache/tensorfoldd-two")]
    for folder in keeps + goes:
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    (root / "var/lib/tensorfoldd/row_costs.json").write_text("{}")
    for word in ("remove", "purge"):
        said = output("sh", "-ec", script.replace("/var/", f"{root}/var/"), "postrm", word)
        lost = [str(folder) for folder in keeps if not (folder / "file").exists()]
        left = [str(folder) for folder in goes if folder.exists()]
        right = left == ([] if word == "purge" else [str(folder) for folder in goes])
        if lost or not right or ("are kept" in said) != (word == "purge"):
            problems.append(f"{word}: lost {lost}, left {left}, said: {said}")
    if (root / "var/lib/tensorfoldd/row_costs.json").exists() or (root / "var/lib/tensorfoldd-two").exists():
        problems.append("purge leaves state")
    for folder in keeps:
        shutil.rmtree(folder)
    for folder in keeps[1:2]:
        folder.parent.rmdir()
    output("sh", "-ec", script.replace("/var/", f"{root}/var/"), "postrm", "purge")
    if (root / "var/lib/tensorfoldd").exists():
        problems.append("purge leaves empty folders")
    return problems


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def chat(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_SECONDS)
    connection.request("GET", "/v1/models")
    model = json.loads(connection.getresponse().read())["data"][0]["id"]
    body = json.dumps({"model": model, "max_tokens": 8, "temperature": 0,
                       "messages": [{"role": "user", "content": "Hello!"}]})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    return json.loads(connection.getresponse().read())["choices"][0]["message"]["content"]


def check_programs(unpacked: pathlib.Path, work: pathlib.Path) -> list[str]:
    """The packaged daemon answers a chat with the packaged model."""
    daemon, tfctl = str(unpacked / "usr/bin/tensorfoldd"), str(unpacked / "usr/bin/tfctl")
    settings, socket_path = unpacked / "etc/tensorfoldd/tensorfoldd.toml", work / "control.sock"
    port = free_port()
    if "right" not in output(daemon, "--check-config", str(settings)):
        return ["the packaged settings are refused"]
    process = subprocess.Popen([daemon, "--config", str(settings), "--control", str(socket_path),
                                "--listen", f"127.0.0.1:{port}", "--model",
                                str(unpacked / "usr/share/tensorfoldd/tiny")])
    try:
        output(tfctl, "--socket", str(socket_path), "health", "--wait", str(READY_SECONDS))
        problems = [] if chat(port) else ["an empty reply"]
        process.send_signal(signal.SIGTERM)
        if process.wait(READY_SECONDS) != 0:
            problems.append(f"SIGTERM ended it with {process.returncode}")
        return problems
    finally:
        process.kill()
        process.wait()


def check_lintian(debs: list[pathlib.Path]) -> list[str]:
    if shutil.which("lintian") is None:
        print("lintian is not installed: not run")
        return []
    said = output("lintian", "--fail-on=none", *map(str, debs))
    return [line for line in said.splitlines() if re.match(r"^[EW]:", line)]


def main() -> int:
    require(["dpkg-buildpackage", "dh", "scdoc", "cmake", "ninja"], "deb")
    root, work = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]) / "deb"
    started = time.monotonic()
    debs = build(root, work)
    print(f"built in {time.monotonic() - started:.0f} s: {', '.join(deb.name for deb in debs)}")
    main_debs = [deb for deb in debs if deb.name.startswith("tensorfoldd_")]
    if len(main_debs) != 1 or not any("dbgsym" in deb.name for deb in debs):
        return report([f"packages: {debs}"], 1)
    unpacked = work / "unpacked"
    output("dpkg-deb", "--raw-extract", str(main_debs[0]), str(unpacked))
    problems = check_contents(main_debs[0], unpacked)
    problems += check_purge(unpacked, work)
    problems += check_programs(unpacked, work)
    problems += check_lintian(debs)
    problems += check_again(root, work, debs)
    return report(problems, len(FILES))


if __name__ == "__main__":
    sys.exit(main())
