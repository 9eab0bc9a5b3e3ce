"""Every `tfctl ...` in README.md and docs/*.md is a verb with options that tfctl has; what the pages for
a person tell to type are programs that such a machine has; their settings are right.

usage: docs_commands.py ROOT TFCTL
"""

import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

GLOBAL_OPTIONS = {"--host": 1, "--socket": 1, "--instance": 1, "--timeout": 1, "--json": 0, "--help": 0}
# Words that stand for something, or end the part that is a command.
END = re.compile(r"^([|;&>].*|\.\.\.|\[.*|.*\]|<.*)$")


# Pages whose indented code is typed, and what may stand at the beginning of such a line.
TYPED = ("install", "network", "operations", "staged-validation", "expose")
PROGRAMS = {"tfctl", "sudo", "packaging/bootstrap", "packaging/build-deb", "scp", "ssh", "ssh-keygen", "ssh-copy-id", "curl", "systemctl", "systemd-run", "ip", "ping", "ls", "uname",
            "grep", "openssl", "echo"}
SUDO = {"adduser", "apt", "apt-mark", "cat", "ssh", "ssh-keygen", "tfctl", "systemctl", "install", "tee", "scp", "netplan", "ufw", "nvidia-smi", "ssh-copy-id"}


def typed(text: str) -> list:
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return [line.strip() for line in text.splitlines() if re.match(r"^(    |      )\S", line)]


def unknown_program(line: str) -> str:
    """What begins one of the commands of a line and is no program that the pages may use."""
    for part in re.split(r"\s\|\s|\s&&\s", line):
        words = part.split()
        name = words[1] if words[0] == "sudo" and len(words) > 1 else words[0]
        if name not in (SUDO if words[0] == "sudo" else PROGRAMS):
            return name
    return ""


def settings_problem(tfctl: str, text: str) -> list:
    """The toml blocks of a page, as files that `tfctl config check` reads."""
    out = []
    for block in re.findall(r"^```toml\n(.*?)^```$", text, re.M | re.S):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(block)
            file.flush()
            run = subprocess.run([tfctl, "config", "check", file.name], capture_output=True, text=True, check=False)
            if run.returncode != 0:
                out.append(run.stderr.strip())
    return out


def verbs(tfctl: str) -> dict:
    """{("noun", "verb") or ("verb",): {option: takes a value}} from tfctl --help."""
    text = subprocess.run([tfctl, "--help"], capture_output=True, text=True, check=True).stdout
    out: dict = {}
    words: tuple = ()
    for line in text.splitlines():
        if re.match(r"^  \S", line):
            words = tuple(w for w in line.split() if re.match(r"^[a-z][a-z-]*$", w))
            out[words] = {}
        elif found := re.match(r"^      (--?[\w-]+)(?: (\S+))?  ", line):
            out[words][found[1]] = found[2] is not None
    return out


def commands(text: str) -> list:
    """Everything that looks like a tfctl command: in code spans and in indented or fenced code."""
    found = re.findall(r"`(tfctl [^`\n]*)`", text)
    for line in text.splitlines():
        if line.startswith("    ") or line.startswith("$ "):
            found += re.findall(r"(?:^|[\s;&|])(tfctl [^#;&|]*)", line)
    return found


def complaint(command: str, table: dict) -> str:
    words = shlex.split(command)[1:]
    while words and words[0] in GLOBAL_OPTIONS:
        words = words[1 + GLOBAL_OPTIONS[words[0]]:]
    if not words or "|" in words[0] or words[0].endswith("..."):
        return ""
    nouns = {verb[0] for verb in table if len(verb) == 2}
    if words[0] in nouns and (
            len(words) == 1 or END.match(words[1]) or "|" in words[1] or words[1].isupper()):
        return ""  # the noun itself, or "tfctl bench decode|concurrent"
    verb = next((v for v in (tuple(words[:2]), tuple(words[:1])) if v in table), None)
    if verb is None:
        return "no such verb"
    options = table[verb] | {"--json": False}
    for word in words[len(verb):]:
        name = word.split("=")[0]
        if re.match(r"^--?[a-z]", word) and name not in options and not word.startswith("-1"):
            return f"{' '.join(verb)} has no option {name}"
    return ""


def main() -> int:
    root, tfctl = pathlib.Path(sys.argv[1]), sys.argv[2]
    table = verbs(tfctl)
    problems, checked = [], 0
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        for command in commands(page.read_text(encoding="utf-8")):
            checked += 1
            if wrong := complaint(command, table):
                problems.append(f"{page.relative_to(root)}: `{command}`: {wrong}")
    for name in TYPED:
        text = (root / f"docs/{name}.md").read_text(encoding="utf-8")
        for line in typed(text):
            checked += 1
            if program := unknown_program(line):
                problems.append(f"docs/{name}.md: `{line}`: {program} is not among the known programs")
        problems += [f"docs/{name}.md: {p}" for p in settings_problem(tfctl, text)]
    for example in sorted((root / "etc/examples").glob("*.toml")):
        block = f"```toml\n{example.read_text(encoding='utf-8')}```\n"
        problems += [f"{example.name}: {p}" for p in settings_problem(tfctl, block)]
    # The check itself: what is wrong is seen.
    assert complaint("tfctl nonsense", table) and complaint("tfctl status --nonsense", table)
    assert unknown_program("sudo frobnicate x") and unknown_program("ls | frob") and not unknown_program("ls | grep x")
    assert settings_problem(tfctl, "```toml\n[modle]\n```\n") and complaint("tfctl --host h nonsense", table)
    assert not complaint("tfctl --instance two status --json", table)
    print("\n".join(problems + [f"commands in documents: {checked} checked, {len(problems)} wrong"]))
    return 1 if problems or checked < 80 else 0


if __name__ == "__main__":
    sys.exit(main())
