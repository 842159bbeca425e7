"""Strategies that divide a model refuse what they cannot divide, and say what to do instead."""

from typing import Any

import pytest

from dkan_core import ConfigError, TrainConfig
from dkan_core.config.strategies import Strategy
from dkan_core.training.setup import placement
from dkan_core.training.setup.defaults import resolve

DIVIDED: tuple[Strategy, ...] = ("tensor-parallel", "hybrid", "pipeline")


@pytest.mark.parametrize("strategy", DIVIDED)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model": "additive", "hidden": None},
            "strategy .*: model additive has no hidden layer to divide; choose allreduce",
        ),
        ({"sketch_rank": 2}, "sketch_rank 2: strategy .* choose allreduce, or leave the rank out"),
        ({"workers": 1}, "workers 1: strategy .* divides the model among several; choose single"),
        ({"slice_weights": (1.0, 1.0, 1.0, 2.0)}, "slice_weights: the workers of strategy .* choose allreduce"),
        ({"mode": "async"}, "mode async: only strategy parameter-server has modes"),
        ({"sync_interval": 4}, "sync_interval 4: gradients are aggregated every step"),
        ({"device": "cuda:0,cuda:0,cuda:0,cuda:0"}, "device cuda:0,.*: strategy .* takes one GPU per worker"),
        ({"device": "cuda:0,cpu,cpu,cpu"}, "device cuda:0,cpu,.*: strategy .* or cpu for all"),
        ({"data_in": "device"}, "data_in device: with strategy .* no GPU takes steps by itself"),
    ],
)
def test_what_cannot_be_divided_is_named(
    strategy: Strategy, settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "visible_gpus", lambda: 1)
    given = {"workers": 4, "hidden": (8, 8, 8), "device": "cpu", "strategy": strategy, **settings}
    with pytest.raises(ConfigError, match=message):
        resolve(TrainConfig(**given), 1000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"strategy": "tensor-parallel", "hidden": (8, 10)},
            "hidden 8,10: strategy tensor-parallel divides the units .* among 4 workers; give multiples of 4",
        ),
        (
            {"strategy": "tensor-parallel", "tensor_parallel_size": 2},
            "tensor_parallel_size 2: only strategy hybrid takes it, not tensor-parallel",
        ),
        (
            {"strategy": "hybrid", "workers": 2},
            "workers 2: strategy hybrid takes a multiple of .* choose tensor-parallel",
        ),
        ({"strategy": "hybrid", "workers": 6, "tensor_parallel_size": 4}, "workers 6: .* tensor_parallel_size 4"),
        ({"strategy": "pipeline"}, "workers 4: .* hidden 8 makes 2 layers with the output; take 2 workers, or tensor"),
    ],
)
def test_what_does_not_fit_the_workers_is_named(settings: dict[str, Any], message: str) -> None:
    given = {"workers": 4, "hidden": (8,), "device": "cpu", **settings}
    with pytest.raises(ConfigError, match=message):
        resolve(TrainConfig(**given), 1000)


def test_groups_of_hybrid_take_the_same_rows() -> None:
    config = resolve(TrainConfig(strategy="hybrid", workers=6, hidden=(9,), tensor_parallel_size=3, device="cpu"), 1000)
    assert (config.workers_per_copy, config.workers // config.workers_per_copy) == (3, 2)
    assert resolve(TrainConfig(strategy="hybrid", workers=4, device="cpu"), 1000).workers_per_copy == 2
    assert resolve(TrainConfig(strategy="pipeline", workers=2, device="cpu"), 1000).workers_per_copy == 2
    assert resolve(TrainConfig(strategy="allreduce", workers=2, device="cpu"), 1000).workers_per_copy == 1
