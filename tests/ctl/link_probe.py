"""tfctl link probe between two loopback addresses, with a stand-in for ssh: a path that works, and each
way in which it does not.

usage: link_probe.py TFCTL
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

TFCTL = pathlib.Path(sys.argv.pop(1)).resolve()
HERE, THERE = "127.0.0.1", "127.0.0.2"
LIMIT_S = 120

# What ssh does: options, "--", a host, words.
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift 2
[ "$1" = tfctl ] && shift
{far}
"""
WELL = 'exec "$TFCTL" "$@"'
# A far side that gets the words of "link answer" (HERE PORT THERE TOKEN) and misbehaves.
PYTHON = 'exec python3 -c "$FAR" "$@"'
LETS_NOBODY_IN = """
import socket, sys, time
here, port, there, token = sys.argv[3:7]
near = socket.create_connection((here, int(port)), source_address=(there, 0))
closed = socket.socket(); closed.bind((there, 0))
near.sendall((token + "%05d" % closed.getsockname()[1]).encode())
left = 64000000
while left: left -= near.send(b"x" * min(left, 1 << 20))
near.recv(1)
"""
STOPS_HALFWAY = """
import socket, sys
here, port, there, token = sys.argv[3:7]
near = socket.create_connection((here, int(port)), source_address=(there, 0))
near.sendall((token + "00009").encode() + b"x" * 1000000)
"""
STRANGER_FIRST = """
import os, socket, subprocess, sys
here, port = sys.argv[3:5]
stranger = socket.create_connection((here, int(port)))
stranger.sendall(b"y" * 40)
sys.exit(subprocess.run([os.environ["TFCTL"], *sys.argv[1:]]).returncode)
"""


class LinkProbeTest(unittest.TestCase):
    def probe(self, far: str, script: str = "", there: str = THERE, code: int = 0) -> dict:
        with tempfile.TemporaryDirectory(prefix="tf-link-") as folder:
            ssh = pathlib.Path(folder) / "ssh"
            ssh.write_text(SSH.format(far=far), encoding="ascii")
            ssh.chmod(0o755)
            run = subprocess.run([TFCTL, "link", "probe", "spark2", HERE, there, "--json"],
                                 env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}",
                                      "TFCTL": str(TFCTL), "FAR": script},
                                 capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(run.returncode, code, run.stdout + run.stderr)
        return json.loads(run.stdout)

    def test_both_ways_are_measured(self):
        found = self.probe(WELL)
        self.assertTrue(found["ok"] and found["reached_here"] and found["reached_there"], found)
        self.assertEqual(found["problem"], "")
        for way in ("out_bytes_per_second", "in_bytes_per_second"):
            self.assertGreater(found[way], 0)
            self.assertLess(found[way], 1e12)

    def test_a_stranger_on_the_port_is_not_the_other_machine(self):
        self.assertTrue(self.probe(PYTHON, STRANGER_FIRST)["ok"])

    def test_the_other_machine_lets_nobody_in(self):
        found = self.probe(PYTHON, LETS_NOBODY_IN, code=1)
        self.assertTrue(found["reached_here"] and not found["reached_there"], found)
        self.assertRegex(found["problem"], rf"connecting from {HERE} to {THERE}:\d+: Connection refused")
        self.assertGreater(found["in_bytes_per_second"], 0)

    def test_the_other_machine_stops_halfway(self):
        found = self.probe(PYTHON, STOPS_HALFWAY, code=1)
        self.assertIn(f"{THERE} to {HERE}", found["problem"])

    def test_the_other_machine_cannot_reach_this_one(self):
        found = self.probe(WELL, there="192.0.2.1", code=1)  # an address that it does not have
        self.assertFalse(found["reached_here"])
        self.assertIn("from there: ", found["problem"])
        self.assertIn("192.0.2.1", found["problem"])

    def test_a_login_or_a_tfctl_that_is_not_there_is_said_at_once(self):
        began = time.monotonic()
        self.assertIn("255", self.probe("exit 255", code=1)["problem"])
        self.assertIn("127", self.probe("exit 127", code=1)["problem"])
        self.assertLess(time.monotonic() - began, 30)  # not after the time for an answer, twice

    def test_words_are_checked(self):
        for words in (["-x", HERE, THERE], ["spark2", "nonsense", THERE], ["spark2", HERE]):
            run = subprocess.run([TFCTL, "link", "probe", *words], capture_output=True, timeout=LIMIT_S,
                                 check=False)
            self.assertIn(run.returncode, (1, 2), words)
        for words in ([HERE, "0", THERE, "x" * 32], [HERE, "80", THERE, "x"], ["x", "80", THERE, "x" * 32]):
            run = subprocess.run([TFCTL, "link", "answer", *words], capture_output=True, timeout=LIMIT_S,
                                 check=False)
            self.assertEqual(run.returncode, 2, words)
        run = subprocess.run([TFCTL, "link", "probe", "spark2", HERE, THERE], text=True, env={"PATH": "/none"},
                             capture_output=True, timeout=LIMIT_S, check=False)
        self.assertEqual(run.returncode, 1)
        self.assertIn("no such program", run.stderr)


if __name__ == "__main__":
    unittest.main()
