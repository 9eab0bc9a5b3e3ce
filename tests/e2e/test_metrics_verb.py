"""tfctl metrics: what GET /metrics says, over the control socket."""

import json

from conftest import say
from test_lifecycle import tfctl


def names(text: str) -> set:
    return {line.split(" ")[0].split("{")[0] for line in text.splitlines() if line and line[0] != "#"}


def test_the_same_as_the_route_and_without_a_key(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("laptop: key-of-the-laptop-1234\n")
    keys.chmod(0o600)
    daemon = start(f'[http]\nkeys_file = "{keys}"\n')
    daemon.wait_ready()
    client = daemon.client(api_key="key-of-the-laptop-1234")
    client.chat.completions.create(model=client.models.list().data[0].id, messages=say("hi"))
    status, _, body = daemon.request("GET", "/metrics", headers={"Authorization": "Bearer key-of-the-laptop-1234"})
    assert status == 200
    run = tfctl(daemon, "metrics")
    assert run.returncode == 0
    assert names(run.stdout) == names(body.decode())
    assert 'tensorfold_requests_total{label="laptop"} 1' in run.stdout.splitlines()


def test_names_choose_families(start):
    daemon = start()
    daemon.wait_ready()
    run = tfctl(daemon, "metrics", "tensorfold_requests", "vllm:num_requests_running")
    assert run.returncode == 0
    kinds = names(run.stdout)
    assert kinds and all(n.startswith(("tensorfold_requests", "vllm:num_requests_running")) for n in kinds)
    assert "# TYPE tensorfold_requests_total counter" in run.stdout.splitlines()
    document = json.loads(tfctl(daemon, "metrics", "--json", "tensorfold_replies_total").stdout)
    assert document["schema_version"] == 1
    assert {s["labels"] for s in document["samples"]} >= {'finished_reason="stop"', 'finished_reason="length"'}
    assert all(s["name"] == "tensorfold_replies_total" and s["value"] == 0 for s in document["samples"])
    assert tfctl(daemon, "metrics", "nobody").returncode == 1


def test_nobody_there(start):
    daemon = start()
    daemon.wait_ready()
    daemon.stop()
    assert tfctl(daemon, "metrics").returncode == 3
