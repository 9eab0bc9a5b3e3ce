#!/usr/bin/env python3
"""Four serving ranks of the embedded model, made fit for it (four_ways.py): coming together in any
order, replies beside those of one rank, and what happens when one of the middle is lost.

usage: four_ranks.py --daemon PROGRAM --tfctl PROGRAM [--divisor N] [--brief]

--brief: one order of starts and the loss of one rank.
"""

import pathlib
import sys
import time

import four_ways
import ranks
from ranks import Rank, World, bodies, check, key_of
from two_ranks import MANY, broken, expect, now, quiet, ranks_of, told

COUNT = 4
ORDERS = [[2, 0, 3, 1], [0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]]


def make_model(world: World) -> str:
    folder = world.folder / "four"
    four_ways.make(pathlib.Path(__file__).resolve().parents[2] / "packaging/tiny-model/model", folder)
    return f'[model]\npath = "{folder}"\n'


def one_rank(world: World, model: str) -> dict:
    known: dict = {}
    rank = Rank(world, None, "single", extra=model).start()
    rank.wait_state("ready")
    expect(rank, 1, known)
    check(rank.stop() == 0, "the single rank did not end well")
    return known


def together(all_ranks: list[Rank]):
    for rank in all_ranks:
        rank.wait_state("ready")


def forming(all_ranks: list[Rank], order: list[int]):
    for number in order[:-1]:
        all_ranks[number].start()
        time.sleep(0.1)
    if 0 in order[:-1]:
        missing = f"rank {order[-1]}"
        all_ranks[0].wait_status(lambda s: s["state"] == "waiting" and missing in s["detail"],
                                 "does not say for whom it waits")
    all_ranks[order[-1]].start()
    together(all_ranks)
    print(f"formed: {order}")


def stopped(all_ranks: list[Rank]):
    for rank in all_ranks:
        check(rank.stop() == 0, f"{rank.name} did not end well")


def restarted(rank: Rank):
    rank.kill()
    rank.start()
    rank.wait_status(lambda s: s["state"] in ("waiting", "ready"), "does not load")
    return now()


def faults(world: World, all_ranks: list[Rank], known: dict, brief: bool):
    head, middle = all_ranks[0], all_ranks[2]

    def after(what: str):
        together(all_ranks)
        expect(head, 1, known, 6)
        print(f"after {what}: {ranks_of(head)}")

    def cause(*names: str):
        loss = head.status()["cluster"]["last_loss"]
        check(loss.count("gave up") <= 1 and any(n in loss for n in names),
              f"the cause is not named: {loss}")

    expect(head, 1, known, 6)
    held = [quiet(rank) for rank in all_ranks]
    pids = [rank.pid() for rank in all_ranks]
    broken(world, head, "rank 2 killed", middle.kill, lambda: restarted(middle), all_ranks[1])
    cause("rank 2")
    after("a kill")
    if not brief:
        frozen = all_ranks[1]
        broken(world, head, "rank 1 frozen", frozen.freeze, lambda: frozen.thaw() or now(), middle)
        cause("rank 1 (")
        after("a freeze")
        if world.net.own:  # both see the head
            broken(world, head, "link between ranks 1 and 3 down",
                   lambda: world.net.link(False, 1, 3),
                   lambda: world.net.link(True, 1, 3) or now(), all_ranks[3])
            cause("rank 1 (", "rank 3 (")
            after("a cut")
    for rank, before, pid in zip(all_ranks, held, pids):
        if rank is middle:
            continue
        check(rank.pid() == pid, f"{rank.name} was started again")
        same = quiet(rank)
        check(all(same[k] <= before[k] for k in same), f"{rank.name} holds {same}, before {before}")


def main(world: World):
    options = world.options
    world.divisor = options.divisor
    model = make_model(world)
    single = one_rank(world, model)
    all_ranks = [Rank(world, r, f"rank{r}", divisor=world.divisor, extra=model)
                 for r in range(COUNT)]
    four: dict = {}
    for order in ORDERS[:1 if options.brief else None]:
        if four:
            stopped(all_ranks)
        forming(all_ranks, order)
        expect(all_ranks[0], 1, four)
    greedy = [key_of(b) for b in bodies(MANY, 1) if b["temperature"] == 0]
    same = sum(single[k] == four[k] for k in greedy)
    check(same == len(greedy), f"{same} of {len(greedy)} greedy replies are those of one rank")
    told(world, all_ranks[0])
    faults(world, all_ranks, four, options.brief)
    stopped(all_ranks)


if __name__ == "__main__":
    arguments = ranks.parser()
    arguments.add_argument("--divisor", type=int, default=10)
    arguments.add_argument("--brief", action="store_true")
    sys.exit(ranks.run(main, arguments, COUNT))
