"""Ranks of which one is slow: it is waited for, up to a limit; then what each did last is kept for whoever looks."""

import json
import os
import signal
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from dkan_core import TrainConfig, TrainResult, train
from dkan_core.training.communication.process_group import serve_loopback_store
from dkan_core.training.communication.rendezvous import PEER_LOST
from dkan_core.training.state.checkpoint_file import Checkpoint
from dkan_core.training.state.checkpoint_store import load_checkpoint
from tests import warm
from tests.training.processes import UNRESPONSIVE_SECONDS, children, wait_until

CONFIG = TrainConfig(
    blend=False,
    strategy="allreduce",
    workers=2,
    epochs=6,
    hidden=(8,),
    device="cpu",
    batch_size=50,
    learning_rate=0.02,
    patience=100,
)

RANK = """
import os, sys, time
import torch
from dkan_core.training.communication.flight_recorder import FlightRecorder
from dkan_core.training.communication.process_group import ProcessGroup, open_tcp_store
from dkan_core.training.communication.rendezvous import Rendezvous

rank, port, folder, patience, limit = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], *map(float, sys.argv[4:])
store = open_tcp_store("127.0.0.1", port, patience, is_master=False)
store.set(f"there/{rank}", "")
store.wait([f"there/{1 - rank}"])
group = ProcessGroup(Rendezvous(port=port), rank, 2, torch.device("cpu"), limit, FlightRecorder(folder, rank))
facts = [{"best": 7}] if rank == 0 else [None]
time.sleep(rank)
array = torch.arange(4.0) * (1 - rank)
group.broadcast([array], facts)
assert facts == [{"best": 7}] and array.tolist() == [0, 1, 2, 3]
group.all_reduce(array)
time.sleep(rank)
turns = []
group.wait_for_all(lambda: turns.append(1))
assert rank or turns, "who waits tells so"
if folder:
    print("met", os.environ["TORCH_FR_BUFFER_SIZE"], os.environ["NCCL_DEBUG"], flush=True)
    time.sleep(patience * rank)
group.close()
"""


def test_a_slow_rank_is_waited_for_and_one_that_does_not_come_leaves_what_was_done_last(tmp_path: Path) -> None:
    """The second rank is late for a broadcast and a sum, and does not come to the barrier at the end."""
    store = serve_loopback_store(UNRESPONSIVE_SECONDS)
    words = [str(store.port), str(tmp_path / "logs"), str(UNRESPONSIVE_SECONDS), "10"]
    env = {**os.environ, "NCCL_DEBUG": "WARN"}
    env.pop("TORCH_FR_BUFFER_SIZE", None)
    logs = [tmp_path / f"rank-{rank}" for rank in range(2)]
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("w") as file:
            ranks.append(warm.server().start(["-c", RANK, rank, *words], env, file))
    try:
        wait_until(lambda: ranks[0].poll() is not None)
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    error = logs[0].read_text()
    # What the caller has set stays.
    assert "met 2000 WARN\n" in error, error
    assert ranks[0].returncode == PEER_LOST, error
    assert "Ranks 1 failed to pass monitoredBarrier" in error and "its last collective, number" in error
    dump = json.loads((tmp_path / "logs/flight-recorder-rank-0.json").read_text())
    names = [each["profiling_name"] for each in dump["entries"]]
    assert {"gloo:broadcast", "gloo:all_reduce"} <= {*names} and dump["pg_status"]


def checkpoint(result: TrainResult) -> Checkpoint:
    found = load_checkpoint(str(result.checkpoint))
    assert found is not None
    return found[1]


def test_a_slow_rank_changes_nothing(prepared: Path, tmp_path: Path) -> None:
    """It is stopped again and again while the run is trained, resumed from its best checkpoint, and debugged."""
    quick = train(prepared, tmp_path / "quick", replace(CONFIG, epochs=3))
    train(prepared, tmp_path / "slow", replace(CONFIG, epochs=3))
    quick = train(prepared, tmp_path / "quick", replace(CONFIG, resume="best"))
    done = threading.Event()
    stops = []

    def hinder() -> None:
        wait_until(lambda: done.is_set() or "rank-1" in children(os.getpid()))
        while not done.is_set() and (pid := children(os.getpid()).get("rank-1")):
            # The rank may have ended meanwhile.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                done.wait(0.2)
                os.kill(pid, signal.SIGCONT)
                stops.append(pid)
            done.wait(0.05)

    hindrance = threading.Thread(target=hinder)
    hindrance.start()
    try:
        debugged = replace(CONFIG, resume="best", debug_distributed=True)
        slow = train(prepared, tmp_path / "slow", debugged)
    finally:
        done.set()
        hindrance.join()
    assert stops and slow.metrics["training"]["replaced"] == quick.metrics["training"]["replaced"]
    assert np.array_equal(checkpoint(slow).state_KP, checkpoint(quick).state_KP)
    log = (tmp_path / "slow/logs/rank-1.log").read_text()
    assert "collectives are recorded, debug level DETAIL" in log
