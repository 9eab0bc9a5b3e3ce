"""Completions of tfctl: bash's are asked as a shell asks them; zsh's and fish's are parsed where the
shell is there.

  completion.py TFCTL
"""

import re
import shutil
import subprocess
import sys

from require import report

# What is typed, and what must be among the answers; None: nothing may be offered.
TYPED = [
    (["tfctl", "do"], "doctor"),
    (["tfctl", "model", "ins"], "inspect"),
    (["tfctl", "--socket", "/s", "model", "prep"], "prepare"),
    (["tfctl", "--host", "spark2", "model", "ver"], "verify"),
    (["tfctl", "--instance", "two", "sta"], "status"),
    (["tfctl", "doctor", "--fix"], "--fix-hints"),
    (["tfctl", "model", "quantize", "--bi"], "--bits"),
    (["tfctl", "completion", "f"], "fish"),
    (["tfctl", "nonsense", "--x"], None),
]


def output(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout


def asked(script: str, words: list[str]) -> list[str]:
    line = " ".join(f"'{word}'" for word in words)
    program = (f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n_tfctl\n"
               'printf "%s\\n" "${COMPREPLY[@]}"')
    return [line for line in output("bash", "--norc", "-c", program).splitlines() if line]


def table(tfctl: str) -> tuple[set[str], set[str]]:
    """Words of verbs and options, from --help."""
    text = output(tfctl, "--help")
    verbs, options = set(), set()
    for line in text.splitlines():
        if re.match(r"^  \S", line):
            verbs |= {word for word in line.split() if re.match(r"^[a-z][a-z-]*$", word)}
        elif found := re.match(r"^      (--[\w-]+)", line):
            options.add(found[1])
    return verbs, options


def main() -> int:
    tfctl = sys.argv[1]
    problems = []
    bash = output(tfctl, "completion", "bash")
    for words, wanted in TYPED:
        answers = asked(bash, words)
        if (wanted is None and answers) or (wanted is not None and wanted not in answers):
            problems.append(f"{' '.join(words)}: {answers}, not {wanted}")
    verbs, options = table(tfctl)
    if len(verbs) < 10 or len(options) < 20:
        problems.append(f"--help: only {len(verbs)} verbs and {len(options)} options")
    for shell in ("bash", "zsh", "fish"):
        script = output(tfctl, "completion", shell)
        known = set(re.findall(r"--[\w-]+|[\w-]+", script))
        for word in sorted(verbs | options):
            if word not in known and word.removeprefix("--") not in known:
                problems.append(f"{shell}: {word} is missing")
        if shutil.which(shell):
            done = subprocess.run([shell, "-n", "/dev/stdin"], input=script, text=True,
                                  capture_output=True, timeout=60, check=False)
            if done.returncode != 0:
                problems.append(f"{shell}: {done.stderr}")
    done = subprocess.run([tfctl, "completion", "csh"], capture_output=True, timeout=60, check=False)
    if done.returncode != 2:
        problems.append(f"an unknown shell gives {done.returncode}, not 2")
    return report(problems, len(TYPED) + 3 * len(verbs | options))


if __name__ == "__main__":
    sys.exit(main())
