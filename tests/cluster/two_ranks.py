#!/usr/bin/env python3
"""Two serving ranks, one thing after another: coming together in any order, what must not come
together, replies beside those of one rank, every fault and what follows it, drain and stop.

usage: two_ranks.py --daemon PROGRAM --tfctl PROGRAM [--other PROGRAM] [--divisor N] [--part NAME]

--divisor 1: the timers as they are; then the times that are promised are held to.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import time

import ranks
from ranks import Asking, Delay, Rank, World, ask, bodies, check, key_of, pair, wait_for

MANY = 12


def expect(rank: Rank, seed: int, known: dict, count: int = MANY):
    """The same requests get the same tokens, whatever happened since."""
    for body in bodies(count, seed):
        reply = ask(rank, body)
        check(reply.whole, f"{body}: {reply.status} {reply.error}")
        before = known.setdefault(key_of(body), reply.sha)
        check(before == reply.sha, f"{body}: {reply.sha}, before {before}")


def scored(rank: Rank) -> tuple[list, list]:
    """What the model says of a prompt's own tokens: each one's logarithm, and the likeliest two there."""
    body = {"prompt": "Count from 1 to 9: 1 2 3 4 5 6 7 8 9. " * 6, "max_tokens": 1, "temperature": 0,
            "echo": True, "logprobs": 2}
    status, _, data = rank.request("POST", "/v1/completions", body)
    check(status == 200, f"{status}: {data[:200]!r}")
    said = json.loads(data)["choices"][0]["logprobs"]
    check(said["token_logprobs"][0] is None and len(said["tokens"]) > 90, f"{said['tokens'][:9]}")
    return said["tokens"], said["token_logprobs"][1:]


def same_scores(one: tuple[list, list], two: tuple[list, list]):
    """Sums of two ranks are added in another order: nearly the same numbers, of the same tokens."""
    def apart(a: list, b: list) -> float:
        return sum(abs(x - y) for x, y in zip(a, b)) / len(a)

    check(one[0] == two[0], f"{one[0][:9]}... and {two[0][:9]}...")
    check(len(one[1]) == len(two[1]), f"{len(one[1])} and {len(two[1])} scores")
    mean, shifted = apart(one[1], two[1]), apart(one[1][1:], two[1])
    check(mean < 0.2, f"scores of a prompt are {mean} apart")
    check(shifted > 2, f"the scores of a token and the next are as near as {shifted}: nothing is shown")
    print(f"scored prompt: {len(one[1])} tokens, {mean:.2g} apart, by one place {shifted:.2g}")


def single(world: World) -> tuple[dict, tuple[str, int], tuple[list, list]]:
    rank = Rank(world, None, "single").start()
    rank.wait_state("ready")
    check("cluster" not in rank.status(), "one rank tells of a cluster")
    shas: dict = {}
    expect(rank, 1, shas)
    scores = scored(rank)
    found = after_restart(rank, [])
    check(found[1] >= 256, f"one rank found {found[1]} positions on its disk")
    check(rank.stop() == 0, "the single rank did not end well")
    return shas, found, scores


def forming(world: World, head: Rank, worker: Rank):
    head.start()
    head.wait_status(lambda s: s["state"] == "waiting" and "rank 1" in s["detail"],
                     "does not say for whom it waits")
    status, health = head.health()
    check(status == 503 and health["state"] == "waiting", f"health {status} {health}")
    reply = ask(head, bodies(1, 1)[0])
    check(reply.status == 503 and reply.retry_after, f"{reply.status} while a rank is missing")
    worker.start()
    head.wait_state("ready")
    worker.wait_state("ready")
    check(head.health()[0] == 200, "ready and not healthy")
    print("formed: head first")


def refused(world: World, head: Rank, name: str, words: list[str], **options):
    """A worker that must not be let in; both sides say why."""
    stranger = Rank(world, 1, name, **options)
    stranger.start()
    for word in words:
        stranger.wait_status(lambda s: word in s["detail"], f"does not say {word!r}")
        head.wait_log(word)
    check(head.status()["state"] == "waiting", "a stranger was let in")
    check(stranger.stop() == 0, f"{name} did not end well")
    print(f"refused: {name}")


def strangers(world: World):
    head = Rank(world, 0, "choosy").start()
    head.wait_state("waiting")
    wrong = world.make_key("wrong", "another key")
    stranger = Rank(world, 1, "wrong_key", key=wrong)
    stranger.start()
    stranger.wait_status(lambda s: "key" in s["detail"], "does not speak of the key")
    head.wait_log("key")
    check(head.status()["state"] == "waiting", "a stranger was let in")
    check(stranger.stop() == 0, "it did not end well")
    print("refused: wrong_key")
    refused(world, head, "wrong_setting", ["engine.prefill", "replay", "exact"], prefill="replay")
    other_model = world.folder / "other_model"
    make_other_model(world, other_model)
    refused(world, head, "wrong_model", ["model"], extra=f'[model]\npath = "{other_model}"\n')
    if world.options.other:
        refused(world, head, "wrong_version", ["version"], program=world.options.other)
    check(head.stop() == 0, "a head that waits did not end well")


def make_other_model(world: World, folder):
    """The embedded model with other weights: one byte of a weight is another."""
    source = pathlib.Path(__file__).resolve().parents[2] / "packaging/tiny-model/model"
    shutil.copytree(source, folder)
    for shard in sorted(folder.glob("*.safetensors")):
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(bytes(data))
        break


def broken(world: World, head: Rank, what: str, fault, mend, worker: Rank):
    """A fault under load: one clear 503 or error event, /health says why, then all is well again."""
    long = [Asking(head, dict(ranks.LONG)), Asking(head, dict(ranks.LONG, stream=False))]
    head.wait_status(lambda s: s["slots"]["busy"] >= 2, "does not get to work")
    lost = head.status()["cluster"]["lost_total"]
    begin = time.monotonic()
    fault()
    if head.alive():
        status = head.wait_status(lambda s: s["cluster"]["lost_total"] > lost,
                                  "does not notice: " + what)
        noticed = time.monotonic() - begin
        for one in long:
            reply = one.join()
            check(not reply.whole and reply.error, f"{what}: {reply.status} {reply.error!r}")
            check(reply.status in (200, 503), f"{what}: status {reply.status}")
            check("try again" in reply.error, f"{what}: {reply.error}")
        check(status["cluster"]["last_loss"], "does not say why")
    else:
        noticed = 0.0
        for one in long:
            one.join()
    mended = mend()
    head.wait_state("ready")
    worker.wait_state("ready")
    seconds = time.monotonic() - mended
    print(f"{what}: noticed after {noticed:.2f} s, serves {seconds:.2f} s after it was mended; "
          f"{head.status()['cluster']['last_loss']}")
    if world.divisor == 1:
        check(noticed <= ranks.NOTICED_S, f"{what}: noticed after {noticed:.1f} s")
        check(seconds <= ranks.SERVES_S, f"{what}: serves after {seconds:.1f} s")


def now() -> float:
    return time.monotonic()


def faults(world: World, head: Rank, worker: Rank, known: dict):
    def restarted(rank: Rank):
        rank.kill()
        rank.start()
        rank.wait_log("the model runs on")
        rank.wait_status(lambda s: s["state"] in ("waiting", "ready"), "does not load")
        return now()

    def after(what):
        expect(head, 2, known, 6)
        check(head.health()[0] == 200, f"{what}: not healthy")

    expect(head, 2, known, 6)
    held = quiet(head), quiet(worker)
    pids = head.pid(), worker.pid()
    broken(world, head, "worker frozen", worker.freeze, lambda: worker.thaw() or now(), worker)
    after("frozen")
    frozen_head(world, head, worker)
    after("head frozen")
    if world.net.own:
        broken(world, head, "link down", lambda: world.net.link(False),
               lambda: world.net.link(True) or now(), worker)
        after("link down")
        broken(world, head, "firewall", lambda: world.net.drop(True),
               lambda: world.net.drop(False) or now(), worker)
        after("firewall")
    check(pids == (head.pid(), worker.pid()), "a survivor was started again")
    broken(world, head, "worker killed", worker.kill, lambda: restarted(worker), worker)
    after("worker killed")
    check(head.pid() == pids[0], "the head was started again")
    same = quiet(head)
    check(all(same[k] <= held[0][k] for k in same), f"the head holds {same}, before {held[0]}")
    broken(world, head, "head killed", head.kill, lambda: restarted(head), worker)
    after("head killed")
    same = quiet(worker)
    check(all(same[k] <= held[1][k] for k in same), f"the worker holds {same}, before {held[1]}")


def frozen_head(world: World, head: Rank, worker: Rank):
    """The worker notices; the head's clients get their error when it goes on."""
    long = Asking(head, dict(ranks.LONG))
    head.wait_status(lambda s: s["slots"]["busy"] >= 1, "does not get to work")
    lost = worker.status()["cluster"]["lost_total"]
    begin = now()
    head.freeze()
    worker.wait_status(lambda s: s["cluster"]["lost_total"] > lost, "does not miss its head")
    noticed = now() - begin
    head.thaw()
    mended = now()
    reply = long.join()
    check(not reply.whole and reply.error, f"head frozen: {reply.status} {reply.error!r}")
    head.wait_state("ready")
    worker.wait_state("ready")
    print(f"head frozen: noticed after {noticed:.2f} s, serves {now() - mended:.2f} s after it was "
          f"mended; {worker.status()['cluster']['last_loss']}")
    if world.divisor == 1:
        check(noticed <= ranks.NOTICED_S, f"noticed after {noticed:.1f} s")


def quiet(rank: Rank) -> dict:
    """What it holds when nothing runs; its own looks come and go."""
    rank.wait_status(lambda s: s["slots"]["busy"] == 0 and s["queue"]["waiting"] == 0, "is busy")
    looks = []
    for _ in range(10):
        looks.append(rank.held())
        time.sleep(0.05)
    return {k: min(one[k] for one in looks) for k in looks[0]}


def slow(world: World, known: dict):
    """Bytes that take their time: slower, and nothing else."""
    head = Rank(world, 0, "far_head", divisor=1).start()
    relay = Delay(world.net, 0.01, world.port)
    worker = Rank(world, 1, "far_worker", divisor=1, head=world.net.addresses[1]).start()
    try:
        head.wait_state("ready")
        expect(head, 2, known, 2)
        print(f"10 ms each way: {ranks_of(head)}")
    finally:
        relay.stop()
        check(worker.stop() == 0 and head.stop() == 0, "a rank did not end well")


def ranks_of(rank: Rank) -> str:
    cluster = rank.status()["cluster"]
    return "; ".join(f"rank {r['rank']} {r['state']}, {r.get('mean_exchange_us', 0):.0f} us "
                     f"an exchange" for r in cluster["ranks"])


def told(world: World, head: Rank):
    """tfctl shows both ranks."""
    wait_for(lambda: all(r.get("resident_bytes", -1) > 0 and r["here"]
                         for r in head.status()["cluster"]["ranks"]) or None,
             "the ranks do not tell of themselves", rank=head)
    done = subprocess.run([world.options.tfctl, "--socket", head.control, "status"],
                          capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"tfctl status: {done.stderr}")
    for word in ("rank 0", "rank 1", "resident", "us an exchange"):
        check(word in done.stdout, f"tfctl status says nothing of {word!r}:\n{done.stdout}")


def leaving(world: World, head: Rank, worker: Rank):
    """Stopping the worker lets the head's replies end; nothing new is begun meanwhile."""
    for verb, state in (("drain", "waiting"), ("resume", "ready")):
        subprocess.run([world.options.tfctl, "--socket", worker.control, verb], check=True,
                       capture_output=True)
        head.wait_state(state)
    body = dict(ranks.LONG, max_tokens=300)
    long = Asking(head, body)
    head.wait_status(lambda s: s["slots"]["busy"] >= 1, "does not get to work")
    worker.process.terminate()
    head.wait_state("waiting")
    reply = ask(head, bodies(1, 1)[0])
    check(reply.status == 503, f"{reply.status} while the worker is being stopped")
    check(long.join().whole, f"a reply was cut by the worker's stop: {long.reply.error}")
    check(worker.process.wait(ranks.WAIT_S) == 0, "the worker did not end well")
    head.wait_status(lambda s: "left" in s["detail"], "does not know that the worker left")
    worker.start()
    head.wait_state("ready")
    print("worker stopped and back: no reply was cut")


def after_restart(head: Rank, others: list[Rank], between=lambda: None) -> tuple[str, int]:
    """A conversation that goes on after all ranks have been stopped: tokens, and positions found."""
    words = " ".join(f"Rule {i}: be brief and kind." for i in range(70))
    talk = [{"role": "system", "content": words}, {"role": "user", "content": "Count from 1 to 5."}]

    def turn(messages: list[dict]) -> dict:
        body = {"messages": messages, "max_tokens": 12, "temperature": 0}
        status, _, data = head.request("POST", "/v1/chat/completions", body)
        check(status == 200, f"{status}: {data[:200]!r}")
        return json.loads(data)

    first = turn(talk)["choices"][0]["message"]["content"]
    check(head.stop() == 0 and all(r.stop() == 0 for r in others), "a rank did not end well")
    between()
    for rank in [*others, head]:
        rank.start()
    head.wait_state("ready")
    answer = turn(talk + [{"role": "assistant", "content": first},
                          {"role": "user", "content": "Thank you. " + words}])
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["tensorfold"]["token_sha"], cached


def disks(head: Rank, worker: Rank, one: tuple[str, int]):
    """Two ranks find on their disks what one finds on its own; what only one has is a miss."""
    def wipe():
        folders = list((worker.folder / "state").glob("spill*"))
        check(folders, "the worker has nothing on disk")
        for folder in folders:
            shutil.rmtree(folder)

    both = after_restart(head, [worker])
    check(both == one, f"after a restart {both}, one rank {one}")
    missed = after_restart(head, [worker], wipe)
    check(missed == (one[0], 0), f"with one empty disk {missed}, one rank {one}")
    print(f"disks: {both[1]} positions found by both ranks, none by one")


def stops(world: World):
    """SIGTERM at every moment of coming together."""
    for rank, name in ((0, "lone_head"), (1, "lone_worker")):
        one = Rank(world, rank, name)
        for pause in (0.0, 0.02, 0.1, 0.3):
            one.start(wait=False)
            one.wait_log("listening on" if pause == 0.0 else "the model runs on")
            time.sleep(pause)
            check(one.stop() == 0, f"{name}, stopped after {pause} s, did not end well")
        one.start().wait_state("waiting")
        check(one.stop() == 0, f"{name} did not end well")
    print("stopped while coming together")


def main(world: World):
    world.divisor = world.options.divisor
    one, found, scores = single(world)
    strangers(world)
    stops(world)
    head, worker = pair(world, world.divisor)
    forming(world, head, worker)
    two: dict = {}
    expect(head, 1, two)
    greedy = [key_of(b) for b in bodies(MANY, 1) if b["temperature"] == 0]
    same = sum(one[k] == two[k] for k in greedy)
    check(same == len(greedy), f"{same} of {len(greedy)} greedy replies are those of one rank")
    expect(head, 1, two)
    same_scores(scores, scored(head))
    told(world, head)
    faults(world, head, worker, two)
    expect(head, 1, two)
    leaving(world, head, worker)
    check(head.stop() == 0, "the head did not end well")
    waiting = worker.wait_state("waiting")
    check("head" in waiting["detail"], waiting["detail"])
    head.start()
    head.wait_state("ready")
    expect(head, 2, two, 3)
    disks(head, worker, found)
    check(worker.stop() == 0 and head.stop() == 0, "a rank did not end well")
    if world.divisor > 1:
        slow(world, two)


if __name__ == "__main__":
    arguments = ranks.parser()
    arguments.add_argument("--divisor", type=int, default=10)
    sys.exit(ranks.run(main, arguments))
