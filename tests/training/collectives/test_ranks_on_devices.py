"""Ranks that step where they compute, as with GPUs, in processes of their own: they agree, whatever they sum by."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from dkan_core.training.communication.process_group import serve_loopback_store
from tests.training.processes import UNRESPONSIVE_SECONDS


def test_strategies_on_devices_agree(prepared: Path, tmp_path: Path) -> None:
    store = serve_loopback_store(UNRESPONSIVE_SECONDS)
    module = "tests.training.collectives.ranks_on_devices"
    outs = [tmp_path / f"{rank}.npz" for rank in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(prepared), str(rank), str(store.port), str(out)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, out in enumerate(outs)
    ]
    for process in processes:
        _, said = process.communicate(timeout=UNRESPONSIVE_SECONDS)
        assert process.returncode == 0, said
    with np.load(outs[0]) as first, np.load(outs[1]) as second:
        for strategy in first:
            np.testing.assert_array_equal(first[strategy], second[strategy], strategy)
        for strategy in ("ring", "ddp"):
            difference = np.linalg.norm(first[strategy] - first["allreduce"])
            assert difference < 1e-3 * np.linalg.norm(first["allreduce"]), strategy
        assert not np.array_equal(first["local-sgd"], first["allreduce"])
