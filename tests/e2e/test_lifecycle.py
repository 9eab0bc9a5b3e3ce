"""The process: start, readiness, drain, exit codes, keys, reload, tfctl."""

import json
import os
import re
import signal
import stat
import subprocess
import threading
import time

import openai
import pytest

from conftest import say


def run(*args, program="TF_SCRIPTED"):
    return subprocess.run([os.environ[program], *args], capture_output=True, text=True, timeout=60,
                          check=False)


def tfctl(daemon, *args):
    return run("--socket", daemon.control, *args, program="TF_CTL")


def stream_in_thread(daemon, text, busy=1):
    """Starts a stream; gives (thread, chunks, errors) that fill as it goes. busy: slots with it."""
    chunks, errors = [], []

    def read():
        try:
            for chunk in daemon.client().chat.completions.create(
                    model="DeepSeek-V4.1-Flash-1017", messages=say(text), stream=True):
                chunks.append(chunk)
        except openai.APIError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    daemon.wait_status(lambda s: s["slots"]["busy"] == busy)
    return thread, chunks, errors


def text_of(chunks):
    return "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)


def test_loading_then_ready(start):
    daemon = start(env={"TF_FAKE_LOAD_MS": "800"})
    status, headers, body = daemon.request("GET", "/health")
    assert status == 503 and json.loads(body)["state"] == "loading" and "retry-after" in headers
    assert daemon.request("GET", "/health/live")[0] == 200
    body = {"messages": say("hi"), "stream": True}
    assert daemon.request("POST", "/v1/chat/completions", body)[0] == 503
    assert tfctl(daemon, "health").returncode == 6
    waited = tfctl(daemon, "health", "--wait", "10")
    assert waited.returncode == 0 and waited.stdout.startswith("ready")
    assert daemon.request("POST", "/v1/chat/completions", body)[0] == 200


# Numbers of engine/base/status.h's codes, and how the process ends: 78 is not started again.
@pytest.mark.parametrize("code, status", [(1, 78), (4, 69), (7, 74), (8, 74), (9, 69), (10, 70)])
def test_failed_load_ends_with_its_reason(start, code, status):
    daemon = start(env={"TF_FAKE_FAIL_LOAD": str(code)}, wait=False)
    assert daemon.wait() == status
    assert any("scripted load failure" in line for line in daemon.log)


def test_tfctl_status(start):
    daemon = start()
    daemon.wait_ready()
    text = tfctl(daemon, "status")
    assert text.returncode == 0 and re.search(r"^state: +ready$", text.stdout, re.M)
    for word in ("model", "uptime", "slots", "queue", "speed", "cache", "memory"):
        assert re.search(rf"^{word}:", text.stdout, re.M), text.stdout
    document = json.loads(tfctl(daemon, "status", "--json").stdout)
    assert document["schema_version"] == 1
    assert document["model"]["name"] == "DeepSeek-V4.1-Flash-1017"
    assert document["pid"] == daemon.process.pid
    assert document["listen"] == f"127.0.0.1:{daemon.port}"
    assert stat.S_IMODE(os.stat(daemon.control).st_mode) == 0o660
    assert daemon.stop() == 0
    assert not os.path.exists(daemon.control)
    assert tfctl(daemon, "status").returncode == 3


def test_sigterm_lets_replies_finish(start):
    daemon = start()
    daemon.wait_ready()
    thread, chunks, errors = stream_in_thread(daemon, "slow 10 100")
    daemon.signal(signal.SIGTERM)
    daemon.wait_log("stopping")
    status, _, body = daemon.request("GET", "/health")
    assert status == 503 and json.loads(body)["state"] == "draining"
    assert daemon.request("POST", "/v1/chat/completions", {"messages": say("hi")})[0] == 503
    assert daemon.wait() == 0
    thread.join(10)
    assert not errors and len(text_of(chunks)) == 100
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_drain_deadline_cuts_with_an_error(start):
    daemon = start("[limits]\ndrain_s = 1\n")
    daemon.wait_ready()
    thread, _, errors = stream_in_thread(daemon, "slow 10 100000")
    began = time.monotonic()
    assert daemon.stop() == 0
    assert 0.9 < time.monotonic() - began < 6
    thread.join(10)
    assert errors and errors[0].code == "server_stopping"


def test_drain_ends_though_the_engine_hangs_on_to_a_reply(start):
    daemon = start("[limits]\ndrain_s = 0\n", env={"TF_FAKE_STUCK": "1"})
    daemon.wait_ready()
    thread, _, _ = stream_in_thread(daemon, "slow 10 100000")
    assert daemon.stop() == 0
    thread.join(10)


def test_second_sigterm_ends_at_once(start):
    daemon = start("[limits]\ndrain_s = 600\n")
    daemon.wait_ready()
    thread, _, _ = stream_in_thread(daemon, "slow 10 100000")
    daemon.signal(signal.SIGTERM)
    daemon.wait_log("stopping")
    daemon.signal(signal.SIGTERM)
    assert daemon.wait(5) == 0
    thread.join(10)


def test_exit_codes_and_messages(start, tmp_path, model_folder):
    daemon = start()
    daemon.wait_ready()
    listen = f"127.0.0.1:{daemon.port}"
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    base = ["--config", str(empty), "--model", model_folder]
    taken = run(*base, "--listen", listen, "--control", str(tmp_path / "c.sock"))
    assert taken.returncode == 71
    assert f"pid {daemon.process.pid}" in taken.stderr and listen in taken.stderr
    twice = run(*base, "--listen", "127.0.0.1:0", "--control", daemon.control)
    assert twice.returncode == 69 and "another tensorfoldd answers" in twice.stderr
    assert daemon.request("GET", "/health")[0] == 200
    open_to_all = run(*base, "--listen", "0.0.0.0:0", "--control", str(tmp_path / "c.sock"))
    assert open_to_all.returncode == 78 and "http.keys_file" in open_to_all.stderr
    assert run("--config", str(empty), "--model", str(tmp_path / "none")).returncode == 78
    assert run("--nonsense").returncode == 64
    assert run("--version").stdout.startswith("tensorfoldd ")
    assert "--check-config" in run("--help").stdout


def test_check_config(tmp_path):
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('[http]\nlisten = "127.0.0.1:9"\n')
    bad.write_text("[engine]\n\nslots = 0\n")
    assert run("--check-config", str(good)).returncode == 0
    refused = run("--check-config", str(bad))
    assert refused.returncode == 78
    assert refused.stderr == f"{bad}:3:9: engine.slots must be 1..64, not 0\n"
    assert run("--config", str(bad)).returncode == 78
    assert run("--check-config", str(tmp_path / "none.toml")).returncode == 78


def test_keys_and_reload(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice: sk-alice-secret\n")
    keys.chmod(0o600)
    daemon = start(f'[http]\nkeys_file = "{keys}"\n')
    daemon.wait_ready()
    model = "DeepSeek-V4.1-Flash-1017"
    client = daemon.client(api_key="sk-alice-secret")
    reply = client.chat.completions.create(model=model, messages=say("params"))
    assert "label=alice" in reply.choices[0].message.content
    with pytest.raises(openai.AuthenticationError) as error:
        daemon.client(api_key="sk-wrong").chat.completions.create(model=model, messages=say("hi"))
    assert error.value.code == "invalid_api_key"
    status, headers, _ = daemon.request("GET", "/v1/models")
    assert status == 401 and headers["www-authenticate"] == "Bearer"
    status, _, body = daemon.request("GET", "/health")
    assert status == 200 and set(json.loads(body)) == {"status", "state"}
    assert daemon.request("GET", "/v1/models",
                          headers={"X-Api-Key": "sk-alice-secret"})[0] == 200
    keys.write_text("bob: sk-bob-secret\n")
    daemon.config.write_text(f'[http]\nkeys_file = "{keys}"\n[sampling]\ntemperature = 0.5\n')
    daemon.signal(signal.SIGHUP)
    daemon.wait_log("settings reloaded")
    with pytest.raises(openai.AuthenticationError):
        client.models.list()
    reply = daemon.client(api_key="sk-bob-secret").chat.completions.create(
        model=model, messages=say("params"))
    assert "temperature=0.5" in reply.choices[0].message.content
    daemon.config.write_text("nonsense = 1\n")
    daemon.signal(signal.SIGHUP)
    daemon.wait_log("settings not reloaded: .*unknown key nonsense")
    assert daemon.client(api_key="sk-bob-secret").models.list().data
    assert not any("sk-" in line for line in daemon.log)


def test_little_free_memory_begins_nothing_and_cuts_the_newest(start):
    """The floor is set above all memory there is, then taken away again."""
    daemon = start("[limits]\nmemory_floor_mib = -1\n")
    daemon.wait_ready()
    old, _, old_errors = stream_in_thread(daemon, "slow 50 4000")
    new, _, new_errors = stream_in_thread(daemon, "slow 50 4000", busy=2)
    daemon.config.write_text("[limits]\nmemory_floor_mib = 1000000000\n")
    daemon.signal(signal.SIGHUP)
    daemon.wait_log("<4>this machine is short of memory: .* MiB are available, the floor is 1000000000 MiB: "
                    "no new requests are begun")
    body = {"model": "DeepSeek-V4.1-Flash-1017", "messages": say("hi")}
    status, headers, reply = daemon.request("POST", "/v1/chat/completions", body)
    assert status == 503 and int(headers["retry-after"]) > 0
    assert json.loads(reply)["error"]["code"] == "low_memory"
    assert daemon.request("GET", "/v1/models")[0] == 200
    status, headers, reply = daemon.request("GET", "/health")
    assert status == 503 and json.loads(reply)["state"] == "low_memory" and "retry-after" in headers
    assert daemon.status()["state"] == "low_memory"
    assert "short of memory" in daemon.status()["detail"]
    assert tfctl(daemon, "health").returncode == 6
    assert "short of memory" in tfctl(daemon, "status").stdout
    daemon.wait_log("the newest reply is cut")
    new.join(30)
    assert "short of memory" in str(new_errors[0])
    old.join(30)
    assert "short of memory" in str(old_errors[0])
    daemon.wait_status(lambda s: s["slots"]["busy"] == 0)
    daemon.config.write_text("[limits]\nmemory_floor_mib = -1\n")
    daemon.signal(signal.SIGHUP)
    daemon.wait_log("memory is free again")
    assert daemon.request("GET", "/health")[0] == 200
    assert daemon.request("POST", "/v1/chat/completions", body)[0] == 200
    assert daemon.stop() == 0
    assert sum("no new requests are begun" in line for line in daemon.log) == 1
    assert sum("the newest reply is cut" in line for line in daemon.log) == 2


def test_keys_file_must_be_private(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice: sk-alice-secret\n")
    keys.chmod(0o644)
    daemon = start(f'[http]\nkeys_file = "{keys}"\n', wait=False)
    assert daemon.wait() == 78
    assert any("chmod 0600" in line for line in daemon.log)


def test_readiness_is_told_to_the_service_manager(start, tmp_path):
    import socket
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(tmp_path / "notify"))
    notify.settimeout(10)
    daemon = start(env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "TF_FAKE_LOAD_MS": "400",
                        "WATCHDOG_USEC": "300000"})
    messages = []
    while not any("WATCHDOG=1" in m for m in messages) or not any("READY" in m for m in messages):
        messages.append(notify.recv(4096).decode())
    ready = next(i for i, m in enumerate(messages) if "READY=1" in m)
    assert "STATUS=ready" in messages[ready]
    assert any("STATUS=loading" in m for m in messages[:ready])
    assert any("EXTEND_TIMEOUT_USEC" in m for m in messages[:ready])
    daemon.signal(signal.SIGTERM)
    while "STOPPING=1" not in messages[-1]:
        messages.append(notify.recv(4096).decode())
    assert daemon.wait() == 0


def test_prompts_and_replies_are_not_logged(start):
    daemon = start('[log]\nlevel = "debug"\n')
    daemon.wait_ready()
    daemon.request("POST", "/v1/chat/completions", {"messages": say("echo verysecretword")})
    daemon.request("POST", "/v1/chat/completions", b'{"messages": "verysecretword"}')
    assert daemon.stop() == 0
    assert any("done chatcmpl-" in line for line in daemon.log)
    assert not any("verysecretword" in line for line in daemon.log)
