"""Socket activation without a service manager: the real daemon, started with sockets as a manager
passes them.

  listen_fds.py DAEMON

It answers on the socket it is given and leaves http.listen alone; what it cannot take is refused with
exit status 78 and a line that says why.
"""

import http.client
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

from require import report

READY_SECONDS = 120
FIRST_FD = 3  # where a service manager puts them
CONFIG_ERROR = 78
# The shell's process becomes the daemon: LISTEN_PID must name the process that takes the sockets.
EXEC = 'export LISTEN_PID=$$; exec "$@"'


def listener(address: str = "127.0.0.1", family: int = socket.AF_INET) -> socket.socket:
    out = socket.socket(family)
    out.bind(address if family == socket.AF_UNIX else (address, 0))
    out.listen(16)
    return out


class Passed:
    """The daemon with these sockets under these names."""

    def __init__(self, daemon: str, folder: pathlib.Path, sockets: list[socket.socket], names: str,
                 settings: str = ""):
        file = folder / "settings.toml"
        file.write_text(f'[http]\nlisten = "127.0.0.1:1"\n{settings}', encoding="utf-8")
        spare = [os.dup(one.fileno()) for one in sockets]  # away from the numbers they go to
        high = [os.dup2(fd, 100 + i) for i, fd in enumerate(spare)]

        def place() -> None:
            for i, fd in enumerate(high):
                os.dup2(fd, FIRST_FD + i)
        self.process = subprocess.Popen(
            ["sh", "-c", EXEC, "sh", daemon, "--config", str(file), "--control",
             str(folder / "control.sock")],
            env=dict(os.environ, LISTEN_FDS=str(len(sockets)), LISTEN_FDNAMES=names), text=True,
            stderr=subprocess.PIPE, preexec_fn=place,
            pass_fds=range(FIRST_FD, FIRST_FD + len(sockets)))
        for fd in (*spare, *high):
            os.close(fd)

    def refusal(self) -> str:
        """What it says when it ends by itself, or that it does not."""
        try:
            _, said = self.process.communicate(timeout=READY_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "it goes on"
        return f"{self.process.returncode} {said}"


def check_taken(daemon: str, folder: pathlib.Path) -> list[str]:
    problems = []
    with listener() as held:
        port = held.getsockname()[1]
        passed = Passed(daemon, folder, [held], "http")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_SECONDS)
            connection.request("GET", "/health/live")  # before it looks: the manager's queue holds it
            if connection.getresponse().status != 200:
                problems.append("the passed socket does not answer")
            connection.close()
            passed.process.send_signal(signal.SIGTERM)
            _, said = passed.process.communicate(timeout=READY_SECONDS)
        finally:
            passed.process.kill()
            passed.process.wait()
        if f"listening on 127.0.0.1:{port} (held by the service manager)" not in said:
            problems.append(f"it does not say where it listens: {said}")
        if passed.process.returncode != 0:
            problems.append(f"SIGTERM ended it with {passed.process.returncode}")
        # The socket outlives the daemon: a client that comes now waits for the next one.
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
    return problems


def check_refused(daemon: str, folder: pathlib.Path) -> list[str]:
    unix = listener(str(folder / "some.sock"), socket.AF_UNIX)
    wide, one, two = listener("0.0.0.0"), listener(), listener()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))
    cases = [([one], "other", "named 'other'"), ([one, two], "http:http", "2 sockets"),
             ([unix], "http", "no listening TCP socket"),
             ([datagrams], "http", "no listening TCP socket"),
             ([wide], "http", "reachable from other machines")]
    problems = []
    for sockets, names, wanted in cases:
        said = Passed(daemon, folder, sockets, names).refusal()
        if not said.startswith(f"{CONFIG_ERROR} ") or wanted not in said:
            problems.append(f"{names} ({wanted}): {said}")
    for one_socket in (unix, wide, one, two, datagrams):
        one_socket.close()
    return problems


def check_wide_with_keys(daemon: str, folder: pathlib.Path) -> list[str]:
    keys = folder / "keys"
    keys.write_text("somebody: sk-0123456789abcdef0123\n", encoding="utf-8")
    keys.chmod(0o600)
    with listener("0.0.0.0") as wide:
        passed = Passed(daemon, folder, [wide], "http", f'keys_file = "{keys}"\n')
        connection = http.client.HTTPConnection("127.0.0.1", wide.getsockname()[1],
                                                timeout=READY_SECONDS)
        connection.request("GET", "/v1/models")
        status = connection.getresponse().status
        passed.process.kill()
        passed.process.communicate()
        return [] if status == 401 else [f"off loopback without a key: {status}, not 401"]


def main() -> int:
    daemon, started = sys.argv[1], time.monotonic()
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        problems += check_taken(daemon, pathlib.Path(folder))
        problems += check_refused(daemon, pathlib.Path(folder))
        problems += check_wide_with_keys(daemon, pathlib.Path(folder))
    print(f"{time.monotonic() - started:.1f} s")
    return report(problems, 9)


if __name__ == "__main__":
    sys.exit(main())
