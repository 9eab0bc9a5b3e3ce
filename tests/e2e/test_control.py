"""What tfctl may tell the running service, and who may."""

import json
import os
import pwd
import shutil
import subprocess

import pytest

from conftest import say
from test_lifecycle import stream_in_thread, text_of, tfctl


def test_drain_and_resume(start):
    daemon = start()
    daemon.wait_ready()
    thread, chunks, errors = stream_in_thread(daemon, "slow 10 60")
    assert tfctl(daemon, "drain").returncode == 0
    assert daemon.request("POST", "/v1/chat/completions", {"messages": say("hi")})[0] == 503
    assert tfctl(daemon, "drain", "--wait", "20").returncode == 0
    thread.join(10)
    assert not errors and len(text_of(chunks)) == 60
    assert tfctl(daemon, "resume").returncode == 0
    assert daemon.request("POST", "/v1/chat/completions", {"messages": say("hi")})[0] == 200
    me, pid = os.getuid(), r"\d+"
    daemon.wait_log(rf"drain \(uid {me}, pid {pid}\)")
    daemon.wait_log(rf"resume \(uid {me}, pid {pid}\)")


def test_stop_lets_replies_finish(start):
    daemon = start()
    daemon.wait_ready()
    thread, chunks, errors = stream_in_thread(daemon, "slow 10 60")
    assert tfctl(daemon, "stop", "--wait", "20").returncode == 0
    assert daemon.wait() == 0
    thread.join(10)
    assert not errors and len(text_of(chunks)) == 60
    assert tfctl(daemon, "stop").returncode == 3


def test_stop_now_cuts_them(start):
    daemon = start("[limits]\ndrain_s = 600\n")
    daemon.wait_ready()
    thread, _, errors = stream_in_thread(daemon, "slow 10 100000")
    assert tfctl(daemon, "stop", "--now", "--wait", "20").returncode == 0
    assert daemon.wait() == 0
    thread.join(10)
    assert errors and errors[0].code == "server_stopping"


def test_reload_names_what_waits_and_what_is_wrong(start):
    daemon = start("[limits]\ndrain_s = 600\n")
    daemon.wait_ready()
    daemon.config.write_text("[limits]\ndrain_s = 5\n[engine]\nslots = 9\n[log]\nlevel = 'debug'\n")
    done = tfctl(daemon, "reload", "--wait", "10")
    assert done.returncode == 0 and "engine.slots waits for a restart" in done.stdout
    shown = tfctl(daemon, "config", "show").stdout
    assert "limits.drain_s = 5" in shown and "engine.slots" not in shown
    assert tfctl(daemon, "log", "level").stdout == "debug\n"
    daemon.config.write_text("[limits]\ndrain_s = 'soon'\n")
    wrong = tfctl(daemon, "reload")
    assert wrong.returncode == 1 and f"{daemon.config}:2:" in wrong.stderr
    assert "limits.drain_s = 5" in tfctl(daemon, "config", "show").stdout
    everything = json.loads(tfctl(daemon, "config", "show", "--json").stdout)["settings"]
    assert everything["limits.drain_s"] == {"value": 5, "default": False, "reload": True}
    assert everything["engine.slots"]["default"] is True


def test_config_show_is_a_settings_file(start, tmp_path):
    daemon = start("[sampling]\ntemperature = 0.5\n[http]\ncors = ['https://a', \"b\\\"c\"]\n")
    daemon.wait_ready()
    shown = tmp_path / "shown.toml"
    shown.write_text(tfctl(daemon, "config", "show", "--all").stdout)
    checked = tfctl(daemon, "config", "check", str(shown))
    assert checked.returncode == 0, checked.stderr
    assert "temperature = 0.5" in shown.read_text()
    bad = tmp_path / "bad.toml"
    bad.write_text("[engine]\nslots = 0\n")
    refused = tfctl(daemon, "config", "check", str(bad))
    assert refused.returncode == 1 and f"{bad}:2:" in refused.stderr


def test_log_level(start):
    daemon = start()
    daemon.wait_ready()
    assert tfctl(daemon, "log", "level").stdout == "info\n"
    assert tfctl(daemon, "log", "level", "error").returncode == 0
    assert tfctl(daemon, "log", "level").stdout == "error\n"
    wrong = tfctl(daemon, "log", "level", "loud")
    assert wrong.returncode == 1 and "loud" in wrong.stderr
    assert tfctl(daemon, "log", "level").stdout == "error\n"


def test_only_the_group_may_change_things(start):
    """Somebody who may connect but is not of the socket's group reads and changes nothing."""
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    daemon = start()
    daemon.wait_ready()
    nobody = pwd.getpwnam("nobody")
    folder = os.path.dirname(daemon.control)
    while folder != "/":  # pytest's folders are closed to others
        os.chmod(folder, os.stat(folder).st_mode | 0o055)
        folder = os.path.dirname(folder)
    program = shutil.copy(os.environ["TF_CTL"], os.path.dirname(daemon.control))
    os.chmod(program, 0o755)

    def as_nobody(*args, groups=()):
        return subprocess.run([program, "--socket", daemon.control, *args], capture_output=True,
                              text=True, timeout=60, check=False, user=nobody.pw_uid,
                              group=nobody.pw_gid, extra_groups=list(groups))

    assert as_nobody("status").returncode == 4  # 0660: no way in at all
    os.chmod(daemon.control, 0o666)
    assert as_nobody("status").returncode == 0
    refused = as_nobody("drain")
    assert refused.returncode == 4 and "group" in refused.stderr
    assert daemon.status()["state"] == "ready"
    daemon.wait_log(rf"unix:pid=\d+,uid={nobody.pw_uid} may not")
    assert as_nobody("drain", groups=[os.stat(daemon.control).st_gid]).returncode == 0
    assert daemon.status()["state"] == "draining"


def test_watch(start):
    daemon = start()
    daemon.wait_ready()
    seen = tfctl(daemon, "watch", "--interval", "0.1", "--count", "3")
    lines = seen.stdout.splitlines()
    assert seen.returncode == 0 and len(lines) == 3
    assert all(" ready, 0 running, 0 waiting" in line for line in lines)
    documents = tfctl(daemon, "watch", "--interval", "0.1", "--count", "2", "--json").stdout
    assert [json.loads(line)["state"] for line in documents.splitlines()] == ["ready", "ready"]
    assert tfctl(daemon, "watch", "--interval", "never").returncode == 2


def test_logs_is_journalctl_with_the_unit(tmp_path):
    journalctl = tmp_path / "journalctl"
    journalctl.write_text("#!/bin/sh\necho \"$@\"\n")
    journalctl.chmod(0o755)
    env = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}")
    ctl = os.environ["TF_CTL"]

    def logs(*args):
        return subprocess.run([ctl, *args], capture_output=True, text=True, timeout=60, check=True,
                              env=env).stdout.split()

    assert logs("--socket", "/run/tensorfoldd/control.sock", "logs", "-f", "--since", "-1h") == [
        "--unit=tensorfoldd.service", "--follow", "--since=-1h"]
    assert logs("--instance", "b", "logs", "--lines", "5", "--json") == [
        "--unit=tensorfoldd@b.service", "--lines=5", "--output=json"]


def test_requests_are_listed_and_cancelled(start):
    daemon = start()
    daemon.wait_ready()
    thread, _, errors = stream_in_thread(daemon, "slow 10 100000")
    daemon.wait_status(lambda s: s["totals"]["requests"] >= 0 and s["slots"]["busy"] == 1)
    (one,) = json.loads(tfctl(daemon, "request", "list", "--json").stdout)["requests"]
    assert one["api"] == "chat" and one["stream"] is True and one["prompt_tokens"] > 0
    assert one["id"].startswith("chatcmpl-") and one["age_s"] >= 0
    table = tfctl(daemon, "request", "list").stdout.splitlines()
    assert len(table) == 2 and one["id"] in table[1]
    missing = tfctl(daemon, "request", "cancel", "chatcmpl-none")
    assert missing.returncode == 1 and "chatcmpl-none" in missing.stderr
    assert tfctl(daemon, "request", "cancel", one["id"]).returncode == 0
    thread.join(10)
    assert errors and errors[0].code == "cancelled"
    daemon.wait_log(rf"cancel of {one['id']} \(uid")
    assert json.loads(tfctl(daemon, "request", "list", "--json").stdout)["requests"] == []
