"""Ranks that step where they compute, as with GPUs, in processes of their own: they agree, whatever they sum by."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dkan_core.training.communication.process_group import serve_loopback_store
from tests import warm
from tests.training.collectives.ranks_on_devices import CAPTURED, LAUNCHED, NOT_BY_ALL, STRATEGIES
from tests.training.processes import UNRESPONSIVE_SECONDS

CODE = "from tests.training.collectives.ranks_on_devices import main; main()"
Found = dict[str, npt.NDArray[np.float32]]


@pytest.fixture(scope="module")
def ranks(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, Found]:
    """Return what two ranks end with by every strategy, and how often they have replayed each of their graphs."""
    store = serve_loopback_store(UNRESPONSIVE_SECONDS)
    outs = [tmp_path_factory.mktemp("ranks") / f"{rank}.npz" for rank in range(2)]
    processes = [
        warm.server().popen(["-c", CODE, prepared, rank, store.port, out], dict(os.environ))
        for rank, out in enumerate(outs)
    ]
    for process in processes:
        assert process.stderr is not None
        with process.stderr:
            said = process.stderr.read()
        assert process.wait() == 0, said
    with np.load(outs[0]) as first, np.load(outs[1]) as second:
        return dict(first), dict(second)


def test_strategies_on_devices_agree(ranks: tuple[Found, Found]) -> None:
    first, second = ranks
    states = {strategy: first[f"{strategy} {LAUNCHED}"] for strategy in STRATEGIES}
    for strategy, state in states.items():
        np.testing.assert_array_equal(state, second[f"{strategy} {LAUNCHED}"], strategy)
    for strategy in ("ring", "ddp"):
        difference = np.linalg.norm(states[strategy] - states["allreduce"])
        assert difference < 1e-3 * np.linalg.norm(states["allreduce"]), strategy
    assert not np.array_equal(states["local-sgd"], states["allreduce"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_captured_ranks_replay_the_same_steps(strategy: str, ranks: tuple[Found, Found]) -> None:
    """Also where a last batch has as many rows as the others for one of them alone: NCCL asks for that."""
    for found in ranks:
        np.testing.assert_array_equal(found[f"{strategy} {CAPTURED}"], found[f"{strategy} {LAUNCHED}"])
    first, second = (found[f"replays {strategy} {CAPTURED}"].tolist() for found in ranks)
    assert first == second
    assert len(first) == (0 if strategy == "ddp" else 1) and all(replays > 2 for replays in first)


@pytest.mark.parametrize("way", NOT_BY_ALL)
def test_graphs_are_used_by_all_ranks_or_by_none(way: str, ranks: tuple[Found, Found]) -> None:
    for found in ranks:
        np.testing.assert_array_equal(found[f"allreduce {way}"], found[f"allreduce {LAUNCHED}"])
        assert not found[f"replays allreduce {way}"].any()
