"""Checks of the package's life: an upgrade under load, removal, purge."""

import pathlib
import re
import shutil
import subprocess

from service import UNIT, Checks, answers, main_pid, show, wait_for

NEXT = "/next.deb"
SECOND = "tensorfoldd@two.service"
TESTS = pathlib.Path(__file__).resolve().parents[2] / "packaging/debian/tests"
ASIDE = '[engine]\ndrafts = "off"\n'
OURS = '# ours\n[limits]\ndrain_s = 55\n[engine]\ndrafts = "off"\n'


def next_version(deb: pathlib.Path, out: pathlib.Path) -> None:
    """The same package under a later version, with another default settings file."""
    folder = out.with_suffix(".tree")
    subprocess.run(["dpkg-deb", "--raw-extract", deb, folder], check=True)
    control = folder / "DEBIAN/control"
    control.write_text(re.sub(r"(?m)^Version: (.*)$", r"Version: \1+next", control.read_text()))
    settings = folder / "etc/tensorfoldd/tensorfoldd.toml"
    settings.write_text("# The next version's.\n" + settings.read_text())
    sums = folder / "DEBIAN/md5sums"
    sums.write_text("".join(line for line in sums.read_text().splitlines(True) if "/toml" not in line))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", folder, out],
                   check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(folder)


def autopkgtest(checks: Checks) -> None:
    """The package's own tests (packaging/debian/tests), as autopkgtest would run them."""
    machine = checks.machine
    checks.settings(ASIDE)
    checks.restart()
    for name, user in (("programs", "bob"), ("service", "root")):
        shutil.copy(TESTS / name, machine.path(f"/usr/local/bin/autopkgtest-{name}"))
        done = machine.run(f"/usr/local/bin/autopkgtest-{name}", user=user)
        checks.that(done.returncode == 0, f"{name}: {done.returncode} {done.stdout[-1500:]}")
    listed = re.findall(r"(?m)^Tests: (.*)$", (TESTS / "control").read_text(encoding="utf-8"))
    found = sorted(path.name for path in TESTS.iterdir() if path.name != "control")
    checks.that(sorted(listed) == found, f"debian/tests/control lists {listed}, there are {found}")


def upgrade(checks: Checks) -> None:
    """Running replies are not cut, settings that were changed stay, a restart takes the new one."""
    machine = checks.machine
    checks.settings(OURS)
    checks.drop_in("[Service]\nWatchdogSec=10min\n")  # the engine stands still meanwhile
    checks.restart()
    pid, (stream, held) = main_pid(machine), checks.held_stream()
    done = machine.run("apt-get", "install", "-y", "-o", "Dpkg::Options::=--force-confold", NEXT)
    checks.that(done.returncode == 0 and "Unpacking tensorfoldd" in done.stdout,
                f"the upgrade: {done.stdout[-1500:]}")
    checks.that("systemctl restart tensorfoldd" in done.stdout, "the upgrade does not say what to do")
    checks.that(stream.running(), "the upgrade ended the stream")
    held.release()
    checks.that(main_pid(machine) == pid, "the upgrade restarted the service")
    checks.that(stream.whole(), f"the upgrade cut a reply: {stream.tail()}")
    settings = machine.path("/etc/tensorfoldd/tensorfoldd.toml")
    checks.that(settings.read_text() == OURS, "the upgrade replaced changed settings")
    theirs = settings.with_name(settings.name + ".dpkg-dist")
    checks.that(theirs.exists() and "The next version's" in theirs.read_text(),
                "the new default is not beside the changed settings")
    checks.drop_in("")
    done = checks.systemctl("reload", UNIT)
    checks.that(done.returncode == 0, f"the new tfctl and the running daemon: {done.stdout}")
    checks.systemctl("restart", UNIT)
    checks.that(answers(machine) and main_pid(machine) not in (0, pid), "no restart after an upgrade")


def purge(checks: Checks) -> None:
    """Removal stops it and keeps what is somebody's; a purge keeps models and images, and says so."""
    machine = checks.machine
    # Where tfctl model fetch and prepare put them, and a place of somebody's own.
    models = [machine.path(f"/var/lib/tensorfoldd/{name}/x.safetensors")
              for name in ("models/flash", "model", "prepared")]
    for model in models:
        model.parent.mkdir(parents=True)
        model.write_text("weights")
    spill = machine.path("/var/lib/tensorfoldd/spill/x")
    spill.parent.mkdir(parents=True, exist_ok=True)
    spill.write_text("x")
    # Everything that may run: the service under its socket, and a second instance.
    checks.systemctl("stop", UNIT)
    checks.settings('[http]\nlisten = "127.0.0.1:8899"\n' + ASIDE, "two")
    done = checks.systemctl("start", "tensorfoldd.socket", UNIT, SECOND)
    checks.that(done.returncode == 0, f"socket, service and second instance: {done.stdout}")
    done = machine.run("apt-get", "remove", "-y", "tensorfoldd")
    checks.that(done.returncode == 0, f"remove: {done.stdout[-1000:]}")
    checks.that(wait_for(lambda: not answers(machine), 10), "removed, and it answers")
    for unit in (UNIT, "tensorfoldd.socket", SECOND):
        checks.that(show(machine, unit)["ActiveState"] in ("inactive", "failed"),
                    f"removed, and {unit} is {show(machine, unit)['ActiveState']}")
    checks.that(machine.path("/etc/tensorfoldd/tensorfoldd.toml").exists(), "remove takes settings")
    checks.that("kept" not in done.stdout, "remove speaks of kept models")
    done = machine.run("apt-get", "purge", "-y", "tensorfoldd")
    checks.that(done.returncode == 0, f"purge: {done.stdout[-1000:]}")
    checks.that("Models and other files in /var/lib/tensorfoldd are kept" in done.stdout,
                f"purge does not say that models are kept: {done.stdout[-500:]}")
    for model in models:
        checks.that(model.exists() and model.read_text() == "weights", f"purge took {model}")
    left = sorted(path.name for path in machine.path("/var/lib/tensorfoldd").iterdir())
    checks.that(left == ["model", "models", "prepared"], f"purge leaves in /var/lib/tensorfoldd: {left}")
    for path in ("/etc/tensorfoldd/tensorfoldd.toml", "/var/cache/tensorfoldd", "/usr/bin/tensorfoldd",
                 "/lib/systemd/system/tensorfoldd.service",
                 "/etc/systemd/system/multi-user.target.wants/tensorfoldd.service"):
        checks.that(not machine.path(path).exists(), f"purge leaves {path}")
    checks.that(show(machine)["LoadState"] in ("not-found", "masked"), "the unit is still known")
