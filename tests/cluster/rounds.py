#!/usr/bin/env python3
"""Rounds of random faults under load: two serving ranks, clients that never stop, one fault a round.

usage: rounds.py --daemon PROGRAM --tfctl PROGRAM --rounds N [--divisor N] [--seed N]

What must hold in every round: a reply that comes to its end has the tokens that the same request
had before; every other one ends with an error that says so (a 503, an error event, or, when the head
itself was killed, a broken connection); nothing hangs; the ranks come together again; a survivor keeps
its process, and holds no more descriptors and threads in the end than in the beginning, and no
half-written file.

A long run spares the head's process in its first half and the worker's in its second: the memory of
a survivor must not grow once it is warm.

First the expected replies are made wrong for a moment, which must be noticed.
"""

import random
import sys
import threading
import time

import ranks
from ranks import Rank, World, ask, bodies, check, key_of, pair

CLIENTS = 3
KINDS = 24  # of requests
LONG_RUN = 80  # rounds from which on memory is judged
GROWTH_BYTES = 2 << 20  # of a survivor over the later half of its rounds: the allocator's noise


class Load:
    """Clients that ask until told to stop."""

    def __init__(self, head: Rank, known: dict):
        self.head, self.known = head, known
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.faults: list[str] = []
        self.whole = self.broken = 0
        self.head_gone = False  # now, or a moment ago
        self.threads = [threading.Thread(target=self.client, args=(i,), daemon=True)
                        for i in range(CLIENTS)]
        for t in self.threads:
            t.start()

    def client(self, number: int):
        rng = random.Random(number)
        kinds = bodies(KINDS, 7)
        while not self.stop.is_set():
            body = dict(rng.choice(kinds))
            if rng.random() < 0.5:
                body["stream"] = not body["stream"]
            try:
                self.judge(body, ask(self.head, body))
            except ranks.Failed as error:
                self.judge_text(str(error))
            except Exception as error:  # an answer that is none
                self.fault(f"{type(error).__name__}: {error}")

    def judge_text(self, text: str):
        if not self.head_gone:
            self.fault(text)

    def fault(self, text: str):
        with self.lock:
            self.faults.append(text)

    def judge(self, body: dict, reply: ranks.Reply):
        with self.lock:
            if reply.whole:
                self.whole += 1
                expected = self.known[key_of(body)]
                if reply.sha != expected:
                    self.faults.append(f"wrong text: {body}: {reply.sha}, not {expected}")
                return
            self.broken += 1
            clear = reply.status in (200, 503) and reply.error
            if not clear and not self.head_gone:
                self.faults.append(f"{body}: status {reply.status}, {reply.error!r}")
        time.sleep(0.05)  # refused: there is nothing to hurry for

    def end(self):
        self.stop.set()
        for t in self.threads:
            t.join(ranks.WAIT_S)
            check(not t.is_alive(), "a request hangs")
        check(not self.faults, "; ".join(self.faults[:3]))


def frozen(rank: Rank, seconds: float):
    rank.freeze()
    time.sleep(seconds)
    rank.thaw()


def restarted(load: Load, rank: Rank, orderly: bool):
    head = rank is load.head
    load.head_gone = load.head_gone or head
    rank.stop() if orderly else rank.kill()
    rank.start()
    if head:
        rank.wait_status(lambda s: s["state"] in ("waiting", "ready"), "does not load")


def cut(world: World, seconds: float, whole: bool):
    net = world.net
    net.link(False) if whole else net.drop(True)
    time.sleep(seconds)
    net.link(True) if whole else net.drop(False)


def one_round(world: World, rng: random.Random, load: Load, head: Rank, worker: Rank,
              spared: Rank | None) -> str:
    unit = 5.0 / world.options.divisor  # longer than a silence that is noticed
    rank = rng.choice([head, worker])
    acts = {"freeze": lambda: frozen(rank, unit * rng.choice([0.3, 1.5, 2]))}
    if rank is not spared:
        acts["kill"] = lambda: restarted(load, rank, False)
        acts["stop"] = lambda: restarted(load, rank, True)
    if world.net.own:
        acts["link"] = lambda: cut(world, unit * rng.choice([0.3, 1.5, 2]), True)
        acts["firewall"] = lambda: cut(world, unit * rng.choice([0.3, 1.5]), False)
    name = rng.choice(sorted(acts))
    acts[name]()
    return f"{name} {rank.name if name in ('kill', 'stop', 'freeze') else ''}"


def least(rank: Rank) -> dict:
    rank.wait_status(lambda s: s["slots"]["busy"] == 0, "is busy")
    looks = []
    for _ in range(10):
        looks.append(rank.held())
        time.sleep(0.05)
    return {k: min(one[k] for one in looks) for k in looks[0]}


class Held:
    """What a rank's process holds between rounds; a new process is its own measure."""

    def __init__(self, rank: Rank):
        self.rank = rank
        self.begin()

    def begin(self):
        self.pid, self.first, self.resident = self.rank.pid(), least(self.rank), []

    def look(self):
        check(not self.rank.unfinished(), f"{self.rank.name} left {self.rank.unfinished()}")
        if self.rank.pid() != self.pid:
            self.begin()
            return
        now = least(self.rank)
        check(all(now[k] <= self.first[k] for k in now),
              f"{self.rank.name} holds {now}, before {self.first}")
        self.resident.append(self.rank.resident())

    def judge(self):
        """Over a long life."""
        print(f"{self.rank.name}: {len(self.resident)} rounds in one process, MiB: "
              f"{[round(r / 2**20, 1) for r in self.resident[::8]]}")
        check(not grows(self.resident), f"{self.rank.name}: memory grows: {self.resident}")


def grows(resident: list[int]) -> bool:
    """The least of the last quarter beside the least of the one after the middle."""
    quarter = len(resident) // 4
    return min(resident[-quarter:]) > min(resident[2 * quarter:3 * quarter]) + GROWTH_BYTES


def check_itself():
    """A rank that keeps 128 KiB a round is noticed; one that is merely restless is not."""
    check(grows([(100 << 20) + (i << 17) for i in range(LONG_RUN)]), "a leak was not noticed")
    check(not grows([(100 << 20) + (i % 7 << 20) for i in range(LONG_RUN)]), "no leak was noticed")


def learn(head: Rank) -> dict:
    known = {}
    for body in bodies(KINDS, 7):
        reply = ask(head, body)
        check(reply.whole, f"{body}: {reply.error}")
        known[key_of(body)] = reply.sha
    return known


def planted(head: Rank):
    """Clients that expect something else must say so."""
    load = Load(head, {key_of(body): "0" * 12 for body in bodies(KINDS, 7)})
    ranks.wait_for(lambda: load.whole or None, "no reply comes to its end", rank=head)
    try:
        load.end()
    except ranks.Failed as error:
        check("wrong text" in str(error), f"noticed, but what? {error}")
    else:
        raise ranks.Failed("wrong replies were not noticed")


def main(world: World):
    options = world.options
    check_itself()
    rng = random.Random(options.seed)
    head, worker = pair(world, options.divisor)
    worker.start()
    head.start()
    head.wait_state("ready")
    known = learn(head)
    held = Held(head), Held(worker)
    planted(head)
    whole = broken = 0
    long_run = options.rounds >= LONG_RUN
    for number in range(options.rounds):
        half = 2 * number // options.rounds
        if long_run and number == (options.rounds + 1) // 2:
            held[0].judge()
        load = Load(head, known)
        time.sleep(rng.uniform(0.1, 0.5))
        what = one_round(world, rng, load, head, worker, held[half].rank if long_run else None)
        begin = time.monotonic()
        head.wait_state("ready")
        worker.wait_state("ready")
        seconds = time.monotonic() - begin
        time.sleep(0.2)
        load.end()
        whole, broken = whole + load.whole, broken + load.broken
        print(f"round {number + 1}: {what}: together after {seconds:.2f} s; {load.whole} whole, "
              f"{load.broken} broken off")
        for one in held:
            one.look()
    if long_run:
        held[1].judge()
    again = learn(head)
    check(again == known, "replies changed")
    check(worker.stop() == 0 and head.stop() == 0, "a rank did not end well")
    print(f"{options.rounds} rounds: {whole} whole replies, {broken} broken off")


if __name__ == "__main__":
    arguments = ranks.parser()
    arguments.add_argument("--rounds", type=int, default=12)
    arguments.add_argument("--divisor", type=int, default=10)
    arguments.add_argument("--seed", type=int, default=1)
    sys.exit(ranks.run(main, arguments))
