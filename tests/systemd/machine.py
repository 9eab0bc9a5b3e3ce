"""A Debian with a real systemd in it: made with mmdebstrap, booted with systemd-nspawn, cut off from
the network, thrown away afterwards.

Owns: the folder of its files, the processes in it, a control group of its own where the host has no
systemd that would make one. Root only. Works with control groups of version 1, 2 and both (hybrid).
"""

import contextlib
import ctypes
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import time
import typing

PACKAGES = ["systemd", "systemd-sysv", "curl", "ca-certificates", "passwd"]
SMALL = ["--aptopt=Acquire::Languages \"none\"", "--dpkgopt=force-unsafe-io",
         *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "locale", "man"))]
DPKG = "force-unsafe-io\n"
ROOT_SECONDS = 900
BOOT_SECONDS = 120
COMMAND_SECONDS = 180
STOP_SECONDS = 30
CGROUP = pathlib.Path("/sys/fs/cgroup")
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8",
               "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0", "DEBIAN_FRONTEND": "noninteractive"}
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 17, 0x4206, 0x4207, 0x40000000
# What would only take time or reach for the network.
MASKED = ["apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer",
          "fstrim.timer", "systemd-networkd-wait-online.service", "console-getty.service"]


class CannotBoot(Exception):
    """Why there is no machine here."""


def os_release(key: str) -> str:
    for line in pathlib.Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
        if line.startswith(key + "="):
            return line.split("=", 1)[1].strip('"')
    return ""


def base_root(cache: pathlib.Path, given: pathlib.Path | None = None) -> pathlib.Path:
    """A root of the host's own release, or a copy of the one that is given; made once for a list of
    packages."""
    suite = os_release("VERSION_CODENAME") if given is None else f"given-{given.resolve().name}"
    root = cache / f"root-{suite}-{_key(suite, *PACKAGES, *MASKED, *SMALL, DPKG)}"
    if root.is_dir():
        return root
    cache.mkdir(parents=True, exist_ok=True)
    making = cache / f"making-{os.getpid()}"
    shutil.rmtree(making, ignore_errors=True)
    if given is None:
        _make_root(suite, making)
    else:
        subprocess.run(["cp", "-a", "--reflink=auto", given, making], check=True)
    for unit in MASKED:
        link = making / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    # What was left out of the system is not left out of the package that is tested.
    (making / "etc/dpkg/dpkg.cfg.d/99mmdebstrap").write_text(DPKG, encoding="ascii")
    making.rename(root)
    return root


def _make_root(suite: str, making: pathlib.Path) -> None:
    command = ["mmdebstrap", "--quiet", "--variant=apt", "--mode=root", "--skip=cleanup/apt/lists",
               f"--include={','.join(PACKAGES)}", *SMALL]
    if os_release("ID") == "ubuntu":
        command.append("--components=main,universe")
    _make(command + [suite, str(making)], "mmdebstrap")


def download_depends(root: pathlib.Path, deb: pathlib.Path) -> None:
    """What `deb` depends on goes into the root's archive of packages: a booted machine has no
    network. Done once for a list of dependencies."""
    depends = subprocess.run(["dpkg-deb", "--field", deb, "Depends", "Architecture"], text=True,
                             stdout=subprocess.PIPE, check=True).stdout
    done = root.with_name(f"{root.name}-has-{_key(depends)}")
    if done.exists():
        return
    shutil.copy(deb, root / "package.deb")
    _make(["chroot", str(root), "apt-get", "install", "-qq", "-y", "--no-install-recommends",
           "--download-only", "/package.deb"], "apt-get --download-only")
    (root / "package.deb").unlink()
    done.touch()


def _key(*words: str) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _make(command: list[str], what: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=ROOT_SECONDS, check=False)
    if done.returncode != 0:
        raise CannotBoot(f"{what} failed: {' | '.join(done.stdout.splitlines()[-3:])}")


class Machine:
    """One booted system. `with Machine(...) as machine:`."""

    def __init__(self, base: pathlib.Path, work: pathlib.Path):
        self.name = f"tensorfold-{os.getpid()}"
        self.root = work / self.name
        self.log = work / "console.log"
        self.groups: list[pathlib.Path] = []
        self.nspawn: subprocess.Popen | None = None
        self.leader = 0
        work.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "--reflink=auto", base, self.root], check=True)

    def __enter__(self) -> "Machine":
        try:
            self._boot()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _boot(self) -> None:
        command = ["systemd-nspawn", "--quiet", f"--directory={self.root}", f"--machine={self.name}",
                   "--private-network", "--register=no", "--console=pipe", "--boot"]
        if not os.path.isdir("/run/systemd/system"):  # nobody makes a scope: the caller's group is used
            command.insert(1, "--keep-unit")
            self._make_groups()
        with open(self.log, "w", encoding="utf-8") as log:
            self.nspawn = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                           preexec_fn=self._enter_groups)
        end = time.monotonic() + BOOT_SECONDS
        while time.monotonic() < end:
            if self.nspawn.poll() is not None:
                raise CannotBoot("systemd-nspawn ended: " + self.last_words())
            self.leader = self.leader or self._find_leader()
            if self.leader and self.run("systemctl", "is-system-running").stdout.strip() in (
                    "running", "degraded"):
                return
            time.sleep(0.2)
        raise CannotBoot(f"no booted system after {BOOT_SECONDS} s: {self.last_words()}")

    def last_words(self) -> str:
        return " | ".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-4:])

    def _make_groups(self) -> None:
        places = [CGROUP] if (CGROUP / "cgroup.procs").exists() else [
            place for place in (CGROUP / "systemd", CGROUP / "unified") if place.is_dir()]
        if not places:
            raise CannotBoot("no control groups are mounted in /sys/fs/cgroup")
        for place in places:
            group = place / self.name
            try:
                group.mkdir()
            except OSError as error:
                raise CannotBoot(f"no control group can be made: {error}") from error
            self.groups.append(group)

    def _enter_groups(self) -> None:
        for group in self.groups:
            (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    def _find_leader(self) -> int:
        assert self.nspawn is not None
        pid = self.nspawn.pid
        with contextlib.suppress(OSError):
            for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                if pathlib.Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                    return int(child)
        return 0

    def command(self, *words: str, user: str = "root") -> list[str]:
        """The command line that runs `words` inside."""
        inside = ["nsenter", f"--target={self.leader}", "--mount", "--uts", "--ipc", "--net", "--pid",
                  "--root", "--wd", "env", "-i", *(f"{k}={v}" for k, v in ENVIRONMENT.items())]
        if user != "root":
            inside += ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        return inside + list(words)

    def run(self, *words: str, user: str = "root") -> subprocess.CompletedProcess:
        """Runs it to its end; stdout has both streams."""
        return subprocess.run(self.command(*words, user=user), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=COMMAND_SECONDS, check=False)

    def start(self, *words: str, output: typing.IO | int = subprocess.DEVNULL) -> subprocess.Popen:
        """Starts it; the caller waits for its end."""
        return subprocess.Popen(self.command(*words), stdin=subprocess.DEVNULL, stdout=output,
                                stderr=subprocess.STDOUT)

    def path(self, inside: str) -> pathlib.Path:
        """A file of the machine's disk; what is mounted inside (/run, /proc) is not there."""
        return self.root / inside.lstrip("/")

    def host_pid(self, inside: int) -> int:
        """The host's number of a process of the machine."""
        for status in pathlib.Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                for line in status.read_text().splitlines():
                    if line.startswith("NSpid:"):
                        numbers = line.split()[1:]
                        if len(numbers) == 2 and int(numbers[1]) == inside:
                            return int(numbers[0])
        return 0

    def stop(self) -> None:
        if self.nspawn is not None:
            if self.leader and self.nspawn.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.leader, signal.SIGRTMIN + 4)  # systemd: power off
            try:
                self.nspawn.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                if self.leader:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self.leader, signal.SIGKILL)
                self.nspawn.kill()
                self.nspawn.wait()
        for group in self.groups:
            for folder in [*sorted(group.rglob("*/"), reverse=True), group]:
                with contextlib.suppress(OSError):
                    folder.rmdir()
        shutil.rmtree(self.root, ignore_errors=True)


class Held:
    """All threads of a process but its first stand still, as in a hung engine: its loop, the first
    thread, goes on. Ends with the object's `release`, or with the process.

    A thread is stopped wherever it is, so perhaps with a lock that every thread takes for a moment
    (the allocator's, a counter's): whoever needs the loop meanwhile makes sure that it turns."""

    def __init__(self, pid: int):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.threads: list[int] = []
        for name in os.listdir(f"/proc/{pid}/task"):
            thread = int(name)
            if thread == pid:
                continue
            if self.libc.ptrace(PTRACE_SEIZE, thread, 0, 0) != 0:
                continue  # it has ended
            self.libc.ptrace(PTRACE_INTERRUPT, thread, 0, 0)
            self.threads.append(thread)
        self.threads = [thread for thread in self.threads if self._stands(thread)]

    @staticmethod
    def _stands(thread: int) -> bool:
        """Waits until it does; false if it ended instead."""
        with contextlib.suppress(OSError):
            return os.WIFSTOPPED(os.waitpid(thread, WALL)[1])
        return False

    def reap(self) -> bool:
        """Lets go of threads that were killed: until then their process cannot end."""
        for thread in self.threads:
            with contextlib.suppress(OSError):
                os.waitpid(thread, os.WNOHANG | WALL)
        return True

    def release(self) -> None:
        for thread in self.threads:
            self.libc.ptrace(PTRACE_DETACH, thread, 0, 0)
        self.threads = []
