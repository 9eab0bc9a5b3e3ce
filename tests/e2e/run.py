"""Runs the end-to-end tests: real clients against the built daemon.

usage: run.py --work DIR --daemon PROGRAM --scripted PROGRAM --tfctl PROGRAM [-- PYTEST ARGS]

Makes a virtual environment with the official clients in DIR (kept between runs). Without a package
index the tests are skipped with status 77, unless TENSORFOLD_REQUIRE names pypi.
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77


def install(work: pathlib.Path) -> str | None:
    """The environment's python, or None if the packages cannot be had."""
    requirements = HERE / "requirements.txt"
    stamp = work / "installed"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest() + " " + sys.version
    python = work / "venv" / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return str(python)
    shutil.rmtree(work / "venv", ignore_errors=True)
    venv.create(work / "venv", with_pip=True)
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check",
               "--retries", "2", "--timeout", "20", "-r", str(requirements)]
    if subprocess.run(command, check=False).returncode != 0:
        return None
    stamp.write_text(wanted)
    return str(python)


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("work", "daemon", "scripted", "tfctl"):
        parser.add_argument("--" + name, required=True)
    options, rest = parser.parse_known_args()
    work = pathlib.Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    python = install(work)
    if python is None:
        print("skipped: the package index cannot be reached, so there is no openai package")
        return 1 if "pypi" in os.environ.get("TENSORFOLD_REQUIRE", "").split(",") else SKIPPED
    environment = dict(os.environ, TF_DAEMON=options.daemon, TF_SCRIPTED=options.scripted,
                       TF_CTL=options.tfctl, NO_PROXY="127.0.0.1,localhost",
                       no_proxy="127.0.0.1,localhost")
    # schemathesis is used as a library: its plugin does not know every pytest.
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis",
               "-rs", str(HERE)]
    return subprocess.run(command + [a for a in rest if a != "--"], env=environment,
                          check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
