"""The man pages say what the tables say: options, verbs, keys, events and exit codes.

  man.py ROOT TFCTL TENSORFOLDD           fails when a page differs, or scdoc or man refuse it
  man.py ROOT TFCTL TENSORFOLDD --write   writes the parts of the pages that the tables make

A part stands between the comments "; NAME begin" and "; NAME end" of a page.
"""

import json
import pathlib
import re
import subprocess
import sys

from require import report, require

PAGES = ["tensorfoldd.8", "tfctl.1", "tensorfoldd.toml.5"]


def output(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout


def plain(text: str) -> str:
    """Text of a table as scdoc shall show it: no letter of it means anything."""
    return re.sub(r"([\\*_])", r"\\\1", text)


def entry(head: str, *body: str) -> str:
    return head + "\n" + "".join(f"\t{line}\n" for line in body) + "\n"


def option(name: str, value: str) -> str:
    return f"*{name}*" + (f" {plain(value)}" if value else "")


def daemon_options(daemon: str) -> str:
    out = ""
    for name, value, words in re.findall(r"^  (--[\w-]+)(?: (\S+))?  +(.*)$",
                                         output(daemon, "--help"), flags=re.M):
        out += entry(option(name, value), plain(words[0].upper() + words[1:]) + ".")
    return out


def verbs(tfctl: str) -> str:
    out = ""
    for block in re.split(r"\n(?=  \S)", output(tfctl, "--help"))[1:]:
        head, summary, *options = block.strip("\n").split("\n")
        words = head.split()
        upper = [i for i, word in enumerate(words) if re.match(r"[\[A-Z]", word)] + [len(words)]
        name, arguments = " ".join(words[:upper[0]]), " ".join(words[upper[0]:])
        out += option(f"tfctl {name}", arguments) + "\n"
        summary = summary.strip()
        out += f"\t{plain(summary[0].upper() + summary[1:])}.\n\n"
        for line in options:
            found = re.match(r"^      (--?[\w-]+)(?: (\S+))?  (.*)$", line)
            if found is None:
                raise SystemExit(f"tfctl --help: not understood: {line!r}")
            out += f"\t{option(found[1], found[2] or '')}\n\t\t{plain(found[3])}\n\n"
    return out


def keys(root: pathlib.Path) -> str:
    """From etc/tensorfoldd.toml, which a test holds equal to the table of keys."""
    out, section, words = "", "", []
    for line in (root / "etc/tensorfoldd.toml").read_text(encoding="utf-8").splitlines():
        if table := re.match(r"^\[([\w.]+)\]$", line):
            section, words = table[1], []
        elif key := re.match(r"^#(\w+) = (.*)$", line):
            text = " ".join(words).replace("(Taken over by a reload.)", "(_reload_)")
            text = "(_reload_)".join(plain(part) for part in text.split("(_reload_)"))
            out += entry(f"*{section}.{key[1]}* = {plain(key[2])}", text)
            words = []
        elif section and line.startswith("# "):
            words.append(line[2:])
    return out


def events(root: pathlib.Path) -> str:
    table = (root / "daemon/log/events.cc").read_text(encoding="utf-8")
    catalog = (root / "systemd/catalog/tensorfoldd.catalog").read_text(encoding="utf-8")
    subjects = dict(re.findall(r"^-- (\w{32})\nSubject: (.*)$", catalog, flags=re.M))
    out = ""
    for name, ident in re.findall(r'\{"(\w+)", "([0-9a-f]{32})"\}', table):
        out += entry(f"*{name}*", plain(subjects[ident]) + ".")
    return out


def checks(root: pathlib.Path, tfctl: str) -> str:
    """From the doctor itself, which a recorded machine keeps from reading this one."""
    machine = root / "tests/data/preflight/good"
    document = json.loads(output(tfctl, "doctor", "--json", "--root", str(machine)))
    return "".join(entry(f"*{check['name']}*", plain(check["why"])) for check in document["checks"])


def exits(header: pathlib.Path) -> str:
    words = {"Ok": "no error", "Failed": "", "Usage": "wrong arguments", "Internal": "a fault of ours",
             "Io": "", "Permission": "no permission", "Config": "the settings are wrong",
             "Timeout": "no answer in time", "NotReady": "not ready yet"}
    out = ""
    for name, code, comment in re.findall(r"^  kExit(\w+) = (\d+),(?:  // (.*))?$",
                                          header.read_text(encoding="utf-8"), flags=re.M):
        out += entry(f"*{code}*", plain(comment or words[name]))
    return out


def parts(root: pathlib.Path, tfctl: str, daemon: str) -> dict[str, dict[str, str]]:
    return {
        "tensorfoldd.8": {"options": daemon_options(daemon), "events": events(root),
                          "exits": exits(root / "daemon/service/exit_code.h")},
        "tfctl.1": {"verbs": verbs(tfctl), "checks": checks(root, tfctl),
                    "exits": exits(root / "ctl/verb.h")},
        "tensorfoldd.toml.5": {"keys": keys(root)},
    }


def filled(text: str, made: dict[str, str]) -> str:
    for name, body in made.items():
        text, count = re.subn(rf"^; {name} begin\n.*?^; {name} end\n",
                              lambda _, n=name, b=body: f"; {n} begin\n\n{b}; {n} end\n", text,
                              flags=re.M | re.S)
        if count != 1:
            raise SystemExit(f"no place for {name}")
    return text


def check_rendered(name: str, source: str) -> list[str]:
    """scdoc must take the page, and what it makes must hold no unknown macro."""
    done = subprocess.run(["scdoc"], input=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=60, check=False)
    if done.returncode != 0:
        return [f"{name}: scdoc: {done.stderr.strip()}"]
    return [] if ".SH NAME" in done.stdout and len(done.stdout) > 1000 else [f"{name}: too short"]


def check_tables(made: dict[str, dict[str, str]]) -> list[str]:
    """The parts are not empty: a parser that finds nothing must not pass."""
    least = {"options": 7, "events": 8, "exits": 7, "verbs": 10, "keys": 40, "checks": 30}
    return [f"{page}: only {body.count(chr(10) + '*')} {name}" for page, some in made.items()
            for name, body in some.items() if ("\n" + body).count("\n*") < least[name]]


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    made = parts(root, sys.argv[2], sys.argv[3])
    problems = check_tables(made)
    for name in PAGES:
        page = root / "docs/man" / f"{name}.scd"
        text = page.read_text(encoding="utf-8")
        wanted = filled(text, made[name])
        if sys.argv[4:] == ["--write"]:
            page.write_text(wanted, encoding="utf-8")
        elif text != wanted:
            lines = set(wanted.splitlines()) ^ set(text.splitlines())
            problems += [f"{page.name}: {line.strip()}" for line in sorted(lines)]
            problems.append(f"{page.name}: man.py --write makes these parts anew")
    require(["scdoc"], "systemd")
    for name in PAGES:
        page = root / "docs/man" / f"{name}.scd"
        problems += check_rendered(name, page.read_text(encoding="utf-8"))
    return report(problems, len(PAGES))


if __name__ == "__main__":
    sys.exit(main())
