"""Learning rates by step: docstring of ``Schedule.learning_rate``."""

import math
from typing import Any

import pytest

from dkan_core import ConfigError, TrainConfig
from dkan_core.training.state.schedule import Schedule
from tests.settings import resolved

ROWS, PER_EPOCH = 1000, 10
SHAPES = ("cosine", "constant", "exponential")


def rates(epochs: int = 10, **settings: Any) -> list[float]:
    config = resolved(epochs=epochs, batch_size=ROWS // PER_EPOCH, learning_rate=0.1, **settings)
    schedule = Schedule.from_config(config, ROWS)
    return [schedule.learning_rate(step) for step in range(schedule.steps)]


@pytest.mark.parametrize("schedule", SHAPES)
@pytest.mark.parametrize("epochs", [1, 2, 7, 100])
@pytest.mark.parametrize("warmup_fraction", [0.0, 0.05, 1.0])
def test_rate_stays_between_zero_and_its_peak(epochs: int, warmup_fraction: float, schedule: str) -> None:
    found = rates(epochs, warmup_fraction=warmup_fraction, schedule=schedule, gamma=0.99)
    assert all(0 < rate <= 0.1 for rate in found) and max(found) == pytest.approx(0.1, rel=0.7)


def test_cosine_falls_to_zero_after_a_straight_rise() -> None:
    found = rates(warmup_fraction=0.2)
    assert found[:20] == [0.1 * (step + 1) / 20 for step in range(20)]
    assert found[20:] == [0.1 * 0.5 * (1 + math.cos(math.pi * step / 80)) for step in range(80)]


def test_constant_stays_and_exponential_loses_the_same_share_every_epoch() -> None:
    assert rates(schedule="constant", warmup_fraction=0.0) == [0.1] * 100
    found = rates(schedule="exponential", gamma=0.5, warmup_fraction=0.0)
    assert found[::PER_EPOCH] == pytest.approx([0.1 * 0.5**epoch for epoch in range(10)])
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(("schedule", "same"), [("cosine", False), ("constant", True), ("exponential", True)])
def test_more_epochs_change_no_rate_after_the_warmup_but_those_of_the_cosine(schedule: str, same: bool) -> None:
    short, long = rates(10, schedule=schedule), rates(20, schedule=schedule)
    assert (short[10:] == long[10:100]) is same


@pytest.mark.parametrize("schedule", SHAPES)
def test_first_epochs_of_a_longer_schedule_have_its_rates(schedule: str) -> None:
    assert rates(3, schedule=schedule, schedule_epochs=10) == rates(10, schedule=schedule)[:30]
    with pytest.raises(ConfigError, match="schedule_epochs must be at least epochs, 3, got 2"):
        TrainConfig(epochs=3, schedule_epochs=2)


@pytest.mark.parametrize("settings", [{"schedule": "linear"}, {"gamma": 0.0}, {"gamma": 1.5}])
def test_unknown_schedule_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        TrainConfig(**settings)
