"""The units and their companions, judged by systemd's own tools.

  units.py ROOT DAEMON

systemd-analyze verify must have nothing to say, systemd-analyze security must stay at 2.0 or
better, sysusers, tmpfiles and the journal catalog are carried out in a folder. Each tool is first
shown a planted fault, so that a tool that says nothing to anything is noticed.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

from require import report, require

EXPOSURE_TENTHS_MAX = 20
TOOLS = ["systemd-analyze", "systemd-sysusers", "systemd-tmpfiles", "journalctl"]
# The template differs from the service in these alone.
TEMPLATE_LINES = [
    (r"^#.*\n", ""),
    (r"^Description=.*", "Description=tensorfoldd instance %i"),
    (r"^ExecStart=.*", "ExecStart=/usr/bin/tensorfoldd --config /etc/tensorfoldd/%i.toml"),
    (r"^(Runtime|State|Cache)Directory=tensorfoldd$", r"\1Directory=tensorfoldd-%i"),
]


def run(*command: str) -> tuple[int, str]:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=60, check=False)
    return done.returncode, done.stdout


def verify(unit: pathlib.Path) -> list[str]:
    """What systemd-analyze verify says about this unit; other units of the machine are not ours."""
    _, said = run("systemd-analyze", "verify", "--man=no", str(unit))
    name = unit.name.split("@")[0].split(".")[0]
    return [line for line in said.splitlines() if name in line]


def exposure(unit: pathlib.Path) -> bool:
    code, _ = run("systemd-analyze", "security", "--offline=true",
                  f"--threshold={EXPOSURE_TENTHS_MAX}", str(unit))
    return code == 0


def installed_as(folder: pathlib.Path, source: pathlib.Path, name: str, daemon: str,
                 **changes: str) -> pathlib.Path:
    text = source.read_text(encoding="utf-8").replace("/usr/bin/tensorfoldd", daemon)
    text = text.replace("/usr/bin/tfctl", daemon)  # only has to be a program here
    for key, value in changes.items():
        text = re.sub(rf"^{key}=.*\n", value, text, flags=re.M)
    unit = folder / name
    unit.write_text(text, encoding="utf-8")
    return unit


def check_units(root: pathlib.Path, daemon: str, folder: pathlib.Path) -> list[str]:
    problems = []
    service, template = root / "systemd/tensorfoldd.service", root / "systemd/tensorfoldd@.service"
    for source, name in ((service, "tensorfoldd.service"), (template, "tensorfoldd@second.service")):
        unit = installed_as(folder, source, name, daemon)
        if name.count("@"):
            (folder / "tensorfoldd@.service").write_text(unit.read_text(encoding="utf-8"))
        problems += [f"{source.name}: verify: {line}" for line in verify(unit)]
        if not exposure(unit):
            problems.append(f"{source.name}: exposure above {EXPOSURE_TENTHS_MAX / 10}")
    (folder / "tensorfoldd.socket").write_bytes((root / "systemd/tensorfoldd.socket").read_bytes())
    problems += [f"tensorfoldd.socket: verify: {line}"
                 for line in verify(folder / "tensorfoldd.socket")]
    planted = installed_as(folder, service, "tensorfoldd.service", daemon, Type="Type=notfy\n")
    if not verify(planted):
        problems.append("verify says nothing about Type=notfy")
    planted = installed_as(folder, service, "tensorfoldd.service", daemon,
                           SystemCallFilter="", ProtectSystem="", CapabilityBoundingSet="")
    if exposure(planted):
        problems.append("security does not mind a unit without its filters")
    return problems


def check_template(root: pathlib.Path) -> list[str]:
    service = (root / "systemd/tensorfoldd.service").read_text(encoding="utf-8")
    template = (root / "systemd/tensorfoldd@.service").read_text(encoding="utf-8")
    for pattern, value in TEMPLATE_LINES:
        service = re.sub(pattern, value, service, flags=re.M)
    template = re.sub(r"^#.*\n", "", template, flags=re.M)
    if service == template:
        return []
    return [f"tensorfoldd@.service: not as the service: {line}" for line in
            sorted(set(service.splitlines()) ^ set(template.splitlines()))]


def check_socket(root: pathlib.Path) -> list[str]:
    """The socket unit holds the default address under the name that the daemon takes."""
    unit = (root / "systemd/tensorfoldd.socket").read_text(encoding="utf-8")
    header = (root / "daemon/service/listen_fds.h").read_text(encoding="utf-8")
    name = re.search(r'kListenName\[\] = "(\w+)"', header)
    address = re.search(r'#listen = "([\d.:]+)"', (root / "etc/tensorfoldd.toml").read_text())
    lines = unit.splitlines()
    wanted = [f"FileDescriptorName={name[1]}", f"ListenStream={address[1]}"]
    return [f"tensorfoldd.socket: no {line}" for line in wanted if line not in lines]


def check_daemon(root: pathlib.Path, daemon: str) -> list[str]:
    """What the units say of the program must be true of it."""
    problems = []
    _, help_text = run(daemon, "--help")
    for source in (root / "systemd").glob("*.service"):
        text = source.read_text(encoding="utf-8")
        for option in re.findall(r"^ExecStart=\S+(.*)", text, flags=re.M):
            for name in re.findall(r"--[a-z-]+", option):
                if f"  {name} " not in help_text:
                    problems.append(f"{source.name}: the daemon has no {name}")
        codes = (root / "daemon/service/exit_code.h").read_text(encoding="utf-8")
        config = re.search(r"kExitConfig = (\d+)", codes)
        if f"RestartPreventExitStatus={config.group(1)}\n" not in text:
            problems.append(f"{source.name}: RestartPreventExitStatus is not {config.group(1)}")
    for example in sorted((root / "etc/examples").glob("*.toml")):
        _, said = run(daemon, "--check-config", str(example))
        if "the settings are right" not in said and "which this version does not have" not in said:
            problems.append(f"{example.name}: {said}")
    bad = root / "tests/systemd/bad.toml"
    code, _ = run(daemon, "--config", str(bad))
    if code != 78:
        problems.append(f"a bad settings file ends the daemon with {code}, not 78")
    return problems


def check_companions(root: pathlib.Path, folder: pathlib.Path) -> list[str]:
    problems = []
    (folder / "etc").mkdir()
    code, said = run("systemd-sysusers", f"--root={folder}",
                     str(root / "systemd/sysusers.d/tensorfoldd.conf"))
    users = folder / "etc/passwd"
    if code != 0 or not users.exists() or "tensorfold:" not in users.read_text(encoding="utf-8"):
        problems.append(f"sysusers made no user tensorfold: {said}")
    code, said = run("systemd-tmpfiles", "--create", f"--root={folder}",
                     str(root / "systemd/tmpfiles.d/tensorfoldd.conf"))
    models = folder / "var/lib/tensorfoldd/models"
    if code != 0 or not models.is_dir() or models.stat().st_mode & 0o777 != 0o750:
        problems.append(f"tmpfiles made no folder for models: {said}")
    modules = (root / "systemd/modules-load.d/tensorfoldd.conf").read_text(encoding="utf-8")
    if [line for line in modules.splitlines() if not line.startswith("#")] != ["nvidia_uvm"]:
        problems.append("modules-load.d does not load nvidia_uvm alone")
    return problems


def check_catalog(root: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """Each journal event of the daemon has an entry, and each entry an event."""
    table = (root / "daemon/log/events.cc").read_text(encoding="utf-8")
    events = {ident: name for name, ident in re.findall(r'\{"(\w+)", "([0-9a-f]{32})"\}', table)}
    source = root / "systemd/catalog/tensorfoldd.catalog"
    place = folder / "usr/lib/systemd/catalog"
    place.mkdir(parents=True)
    (place / source.name).write_bytes(source.read_bytes())
    (folder / "var/lib/systemd/catalog").mkdir(parents=True, exist_ok=True)
    code, said = run("journalctl", f"--root={folder}", "--update-catalog")
    if code != 0:
        return [f"the catalog cannot be read: {said}"]
    _, listed = run("journalctl", f"--root={folder}", "--list-catalog")
    found = set(re.findall(r"^([0-9a-f]{32}) ", listed, flags=re.M))
    problems = [f"no catalog entry for the event {events[i]}" for i in events if i not in found]
    problems += [f"a catalog entry for no event: {i}" for i in found if i not in events]
    if len(events) < 8:
        problems.append(f"only {len(events)} events were found in daemon/log/events.cc")
    used = set()
    for path in [*(root / "daemon").rglob("*.cc"), *(root / "engine").rglob("*.cc")]:
        used |= set(re.findall(r'\{"TF_EVENT", "(\w+)"\}', path.read_text(encoding="utf-8")))
    problems += [f"the event {name} has no identity" for name in used - set(events.values())]
    problems += [f"the event {name} is never logged" for name in set(events.values()) - used]
    return problems


def main() -> int:
    require(TOOLS, "systemd")
    root, daemon = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        problems += check_units(root, daemon, pathlib.Path(folder))
    problems += check_template(root)
    problems += check_socket(root)
    problems += check_daemon(root, daemon)
    with tempfile.TemporaryDirectory() as folder:
        problems += check_companions(root, pathlib.Path(folder))
        problems += check_catalog(root, pathlib.Path(folder))
    return report(problems, 5)


if __name__ == "__main__":
    sys.exit(main())
