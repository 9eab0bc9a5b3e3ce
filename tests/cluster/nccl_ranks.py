#!/usr/bin/env python3
"""Two serving ranks whose device is no CPU and who exchange over NCCL: real daemons; the device is the
host's memory behind a GPU's interface, NCCL a stand-in (tests/engine/cluster/fake_nccl.cc). What is
shown is everything around the two: that NCCL is chosen and opened, its settings, what must agree,
communicators made and aborted as ranks come and go. Nothing about GPUs.

usage: nccl_ranks.py --daemon PROGRAM --tfctl PROGRAM --device-library FILE --nccl-library FILE
                     [--brief]
       nccl_ranks.py --daemon PROGRAM --tfctl PROGRAM --gpus [--brief]

--brief: of the faults only a frozen and a killed worker. --gpus: a GPU for each rank, and NCCL itself.
"""

import sys

import ranks
from ranks import Rank, World, check, pair
from four_ranks import restarted
from two_ranks import broken, expect, faults, now, ranks_of

OTHER = {"NCCL_ALGO": "Tree"}


def settled(rank: Rank):
    """Each setting is made before anything else, and said."""
    for words in ("nccl: NCCL_NVLS_ENABLE=0", r"nccl: NCCL_SOCKET_FAMILY=AF_INET",
                  r"nccl: NCCL_SOCKET_IFNAME==\S+", r"NCCL_NVLS_ENABLE=1 is not supported"):
        rank.wait_log(words)


def stranger(world: World, head: Rank):
    """A rank whose NCCL is set otherwise is refused, and both say why."""
    world.environment.update(OTHER)
    other = Rank(world, 1, "other_settings").start()
    for name in OTHER:
        del world.environment[name]
    other.wait_status(lambda s: "NCCL settings" in s["detail"], "does not say why")
    head.wait_log("NCCL settings: head has .*, worker has 'NCCL_ALGO=Tree")
    check(other.stop() == 0, "it did not end well")
    print("refused: other settings of NCCL")


def main(world: World):
    options = world.options
    world.divisor = 10
    world.device = "cuda:RANK" if options.gpus else "cuda"
    world.environment["NCCL_NVLS_ENABLE"] = "1"
    if not options.gpus:
        world.environment.update({"TENSORFOLD_CUDA_LIBRARY": options.device_library,
                                  "TENSORFOLD_NCCL_LIBRARY": options.nccl_library,
                                  "FAKE_NCCL_FOLDER": str(world.folder)})
    one: dict = {}
    single = Rank(world, None, "single").start()
    single.wait_state("ready")
    expect(single, 1, one)
    check(single.stop() == 0, "the single rank did not end well")
    head, worker = pair(world, world.divisor)
    head.start()
    settled(head)
    stranger(world, head)
    worker.start()
    head.wait_state("ready")
    worker.wait_state("ready")
    two: dict = {}
    expect(head, 1, two)
    greedy = [ranks.key_of(b) for b in ranks.bodies(12, 1) if b["temperature"] == 0]
    same = sum(one[k] == two[k] for k in greedy)
    check(same == len(greedy), f"{same} of {len(greedy)} greedy replies are those of one rank")
    print(ranks_of(head))
    if options.brief:
        broken(world, head, "worker frozen", worker.freeze, lambda: worker.thaw() or now(), worker)
        broken(world, head, "worker killed", worker.kill, lambda: restarted(worker), worker)
        expect(head, 1, two, 6)
    else:
        faults(world, head, worker, two)
    check(worker.stop() == 0 and head.stop() == 0, "a rank did not end well")


if __name__ == "__main__":
    arguments = ranks.parser()
    arguments.add_argument("--brief", action="store_true")
    arguments.add_argument("--gpus", action="store_true")
    arguments.add_argument("--device-library", default="")
    arguments.add_argument("--nccl-library", default="")
    sys.exit(ranks.run(main, arguments))
