"""What a plan computes: formulas, their limits, and the recommendation that follows."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkan_core.config import ResolvedTrainConfig
from dkan_core.training.planning.advice import FEW_STEPS, NEAR, Device, advise, choose
from dkan_core.training.planning.device_memory import RESERVED_SHARE, MemoryNeed, fit_memory, parts_that_fit
from dkan_core.training.planning.formulas import (
    ALLREDUCE,
    AVERAGE,
    LINKS,
    LOCAL_SGD,
    SCHEMES,
    SINGLE,
    SYNC,
    Machine,
    Prediction,
    ScalingCurve,
    Scheme,
    StepCost,
    efficiency,
    fit_step,
    predict,
    server_exchange,
)
from dkan_core.training.planning.machines import Cores, Gpus
from dkan_core.training.planning.sizes import show_duration
from tests.settings import resolved

SECONDS = st.floats(1e-6, 10)
SIZES = st.floats(1e3, 1e10)
WORKERS = st.integers(1, 64)
COST = StepCost(launch=0.001, rate=1e6)


def gpus(**changes: Any) -> Gpus:
    facts: dict[str, Any] = {
        "cores": 64,
        "cost": COST,
        "graph_cost": changes.get("cost", COST),
        "size": 4e6,
        "link": LINKS["pcie4"],
        "copy_bandwidth": 20e9,
        "update_seconds": 0.0,
        "feed_rows": 1e12,
    }
    return Gpus(**{**facts, **changes})


def cores(**changes: Any) -> Cores:
    line = ScalingCurve({2: 0.001, 4: 0.003})
    facts: dict[str, Any] = {
        "cores": 2,
        "steps": {1: COST, 2: StepCost(launch=0.001, rate=5e5)},
        "exchanges": {scheme.name: line for scheme in (SYNC, AVERAGE, ALLREDUCE, LOCAL_SGD)},
        "update_seconds": 0.0005,
        "feed_rows": 1e12,
    }
    return Cores(**{**facts, **changes})


def line(machine: Machine, scheme: Scheme, workers: int, batch_size: int = 8000, interval: int = 8) -> Prediction:
    return predict(machine, scheme, workers, batch_size=batch_size, interval=interval, train_rows=100_000)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0, 1), st.floats(1, 1e9))
def test_two_measured_steps_give_back_launch_and_rate(rows: int, more: int, launch: float, rate: float) -> None:
    true = StepCost(launch=launch, rate=rate)
    large = rows + more
    found = fit_step((rows, true.seconds(rows)), (large, true.seconds(large)))
    assert found.launch >= 0 and found.rate > 0
    assert found.seconds(large) == pytest.approx(true.seconds(large))
    if large / rate > 0.05 * true.seconds(large):
        assert found.seconds(rows) == pytest.approx(true.seconds(rows), rel=1e-3)


@given(st.integers(1, 1000), st.integers(0, 1000), SECONDS, SECONDS)
def test_noise_never_leads_to_negative_costs(rows: int, more: int, seconds: float, more_seconds: float) -> None:
    found = fit_step((rows, seconds), (rows + more, more_seconds))
    assert found.launch >= 0 and found.rate > 0
    assert found.seconds(rows + more) == pytest.approx(more_seconds)


@given(WORKERS, SIZES, SIZES)
def test_exchanges_cost_more_with_more_workers_and_bytes(workers: int, size: float, more: float) -> None:
    for link in LINKS.values():
        assert link.all_reduce(1, size) == 0
        assert link.all_reduce(workers, size) <= link.all_reduce(workers + 1, size) < 2 * size / link.bandwidth + 1e-4
        assert link.all_reduce(workers, size) <= link.all_reduce(workers, size + more)
    now = server_exchange(workers, size, 20e9)
    assert now < server_exchange(workers + 1, size, 20e9) and now < server_exchange(workers, size + more, 20e9)


def test_exchanges_computed_by_hand() -> None:
    assert LINKS["nvlink"].all_reduce(8, 4e6) == pytest.approx(24e-6 + 2 * 7 / 8 * 4e6 / 280e9)
    assert LINKS["pcie4"].all_reduce(4, 4e6) == pytest.approx(45e-6 + 300e-6)
    assert server_exchange(10, 4e6, 20e9) == pytest.approx(400e-6 + 2000e-6 + 60e-6)


@given(SECONDS, st.floats(0, 10), st.integers(1, 1000), st.floats(1, 1e6), st.floats(1, 1e9))
def test_efficiency_is_a_share_and_the_slower_of_the_two(
    step: float, exchange: float, interval: int, rows: float, feed: float
) -> None:
    share = efficiency(step, exchange, interval, rows=rows, feed=feed)
    assert 0 < share <= 1
    assert step / share == pytest.approx(max(step + exchange / interval, rows / feed))
    assert share <= efficiency(step, exchange, 2 * interval, rows=rows, feed=feed) * (1 + 1e-9)
    assert efficiency(step, 0, interval, rows=1, feed=1e12) == 1


@given(st.dictionaries(WORKERS, SECONDS, min_size=1), WORKERS)
def test_curve_never_falls(seconds: dict[int, float], workers: int) -> None:
    curve = ScalingCurve(seconds)
    assert curve.at(workers) <= curve.at(workers + 1) * (1 + 1e-9)
    assert curve.at(min(seconds)) == seconds[min(seconds)]


def test_prediction_computed_by_hand() -> None:
    machine = gpus(update_seconds=0.0005)
    found = line(machine, ALLREDUCE, 4)
    # The server's 0.5 ms are none of a GPU's, which takes seven arrays through its memory, and tells the host at times.
    exchange = 45e-6 + 300e-6 + 7 * 4e6 / 2e12 + 24e6 / 20e9 / 256
    assert found.compute_seconds == pytest.approx(0.001 + 2000 / 1e6)
    assert found.step_seconds == pytest.approx(0.003 + exchange)
    assert found.rows_per_second == pytest.approx(8000 / (0.003 + exchange))
    assert found.efficiency == pytest.approx(0.003 / (0.003 + exchange))
    assert (found.steps_per_epoch, found.bottleneck) == (13, "compute")


def test_walking_alone_saves_exchanges_and_costs_own_steps() -> None:
    machine = gpus(update_seconds=0.0005)
    own = 7 * 4e6 / 2e12
    commit = 24e6 / 20e9 / 256
    exchange = 45e-6 + 1.5 * 12e6 / 20e9
    assert line(machine, LOCAL_SGD, 4).step_seconds == pytest.approx(0.003 + own + commit + exchange / 8)
    assert line(machine, AVERAGE, 4).step_seconds == pytest.approx(
        0.003 + own + server_exchange(4, 4e6, 20e9, arrays=3) / 8
    )


@pytest.mark.parametrize(("link", "exchange"), [("nvlink", 68e-6), ("pcie4", 665e-6)])
def test_eight_gpus_take_their_steps_without_the_host(link: str, exchange: float) -> None:
    """The figures of docs/concepts/planning.md: neither the host's optimizer nor what it reads counts."""
    machine = gpus(size=7.1e6, link=LINKS[link], update_seconds=1.0, feed_rows=1.0)
    found = line(machine, ALLREDUCE, 8)
    assert found.step_seconds == pytest.approx(0.001 + 1000 / 1e6 + exchange + 25e-6 + 8e-6, abs=2e-6)


def test_one_gpu_takes_its_steps_without_the_host() -> None:
    found = line(gpus(update_seconds=1.0, feed_rows=1.0), SINGLE, 1)
    assert found.step_seconds == pytest.approx(0.001 + 8000 / 1e6 + 7 * 4e6 / 2e12 + 24e6 / 20e9 / 256)
    assert found.bottleneck == "compute"


@pytest.mark.parametrize(
    ("changes", "bottleneck"), [({}, "compute"), ({"size": 4e9}, "exchange"), ({"feed_rows": 1000}, "feed")]
)
def test_bottleneck_is_what_takes_longest(changes: dict[str, object], bottleneck: str) -> None:
    found = line(gpus(**changes), SYNC, 4)
    assert found.bottleneck == bottleneck
    assert (found.efficiency > 0.5) == (bottleneck == "compute")


def test_slow_feed_is_the_speed() -> None:
    assert line(gpus(feed_rows=1000), SYNC, 4).rows_per_second == pytest.approx(4000)
    assert line(gpus(feed_rows=1000), ALLREDUCE, 4) == line(gpus(feed_rows=1e9), ALLREDUCE, 4), "rows lie on the GPUs"


def test_rows_that_do_not_fit_on_gpus_are_sent_to_them() -> None:
    machine = gpus(feed_rows=1000, graph_cost=StepCost(launch=0.0001, rate=2e6), holds_rows=False)
    for scheme in (ALLREDUCE, LOCAL_SGD):
        found = line(machine, scheme, 4)
        assert found.rows_per_second == pytest.approx(4000) and found.bottleneck == "feed"
        assert found.compute_seconds == pytest.approx(0.001 + 2000 / 1e6), "launched kernel by kernel"


def test_workers_beyond_the_cores_gain_nothing() -> None:
    speeds = [line(cores(), scheme, 2 * 2**turn).rows_per_second for scheme in (SYNC, AVERAGE) for turn in range(3)]
    assert speeds[0] > speeds[1] > speeds[2] and speeds[3] > speeds[4] > speeds[5]
    assert line(cores(), SINGLE, 1).rows_per_second == pytest.approx(8000 / 0.0095)


def predictions(machine: Machine, counts: tuple[int, ...] = (1, 2, 4, 8)) -> list[Prediction]:
    pairs = itertools.product(machine.schemes, counts)
    return [line(machine, scheme, count) for scheme, count in pairs if count <= scheme.most_workers]


def test_recommended_is_the_simplest_near_the_fastest() -> None:
    def chosen(machine: Machine, most: int) -> tuple[str, int]:
        found = choose(predictions(machine), most, machine.schemes)
        return found.scheme, found.workers

    # As ``train`` chooses by default.
    assert chosen(gpus(size=4e3), 8) == ("allreduce", 8)
    assert chosen(gpus(size=4e3), 2) == ("allreduce", 2)
    assert chosen(gpus(size=4e8), 8)[0] != "parameter-server sync"
    assert chosen(cores(update_seconds=1.0), 8)[1] == 1
    assert chosen(cores(), 1) == ("single", 1)
    quick = {scheme.name: ScalingCurve({1: 1e-4, 2: 1e-4}) for scheme in SCHEMES}
    assert chosen(cores(steps={1: COST}, exchanges=quick, cores=8), 8) == ("parameter-server sync", 8)


@pytest.mark.parametrize(("gain", "chosen"), [(1.15, ("single", 1)), (1.3, ("local-sgd", 2))])
def test_workers_that_learn_something_else_have_to_be_faster_by_far(gain: float, chosen: tuple[str, int]) -> None:
    machine = gpus()
    lines = [line(machine, scheme, 1) for scheme in machine.schemes]
    best = max(each.rows_per_second for each in lines)
    lines.append(replace(line(machine, LOCAL_SGD, 2), rows_per_second=gain * best))
    found = choose(lines, 2, machine.schemes)
    assert (found.scheme, found.workers) == chosen


def test_steps_that_a_gpu_takes_by_itself_are_graphs() -> None:
    machine = gpus(graph_cost=StepCost(launch=0.0001, rate=2e6))
    sent = {scheme.name: line(machine, scheme, 1).compute_seconds for scheme in machine.schemes}
    assert sent.pop(SYNC.name) == pytest.approx(0.001 + 8000 / 1e6)
    assert sent == dict.fromkeys(sent, pytest.approx(0.0001 + 8000 / 2e6))


def test_optimizer_of_one_worker_is_no_exchange() -> None:
    assert line(cores(update_seconds=0.02), SINGLE, 1).bottleneck == "update"
    slow = {scheme.name: ScalingCurve({2: 0.1, 4: 0.1}) for scheme in SCHEMES}
    assert line(cores(exchanges=slow), SYNC, 2).bottleneck == "exchange"


def config(epochs: int, batch_size: int) -> ResolvedTrainConfig:
    return resolved(100_000, epochs=epochs, batch_size=batch_size)


def device(memory: float | None = None, *, is_shared: bool = False, bf16_speed: float | None = None) -> Device:
    need = MemoryNeed(fixed=1e6, per_row=1e3)
    return Device(memory=memory, is_shared=is_shared, need=need, bf16_speed=bf16_speed)


@given(st.floats(0, 1e10), st.floats(0, 1e6), st.integers(1, 10**6), st.floats(1e3, 1e12))
def test_rows_are_computed_in_the_fewest_parts_that_fit(fixed: float, per_row: float, rows: int, memory: float) -> None:
    need, usable = MemoryNeed(fixed=fixed, per_row=per_row), (1 - RESERVED_SHARE) * memory
    parts = parts_that_fit(need, rows, memory)
    if parts is None:
        assert need.bytes_for(1) > usable
    else:
        assert need.bytes_for(max(1, rows / parts)) <= usable
        assert parts == 1 or need.bytes_for(2 * rows / parts) > usable


def test_measured_memory_never_shrinks_with_rows() -> None:
    assert fit_memory((10, 2000), (20, 1000)) == MemoryNeed(fixed=1000, per_row=0)
    assert fit_memory((10, 2000), (10, 2000)) == MemoryNeed(fixed=2000, per_row=0)


@pytest.mark.parametrize(
    ("found", "accumulate", "note"),
    [
        (device(), 1, None),
        (device(1e9), 1, None),
        # In addition to the 3 MB of the step, 0.12 MB of moments and decays.
        (device(3e6), 2, "a worker needs 2.98 MB for its 2,000 rows of a step, and may use 2.86 MB; --accumulate"),
        (device(12e6, is_shared=True), 2, "may use 2.86 MB"),
        (device(1e6), 1, "a worker needs 1.07 MB even for one row, and may use 977 KB; lower --members"),
        (device(bf16_speed=1.9), 1, "a gradient in bfloat16 is 1.9 times as fast as in float32 here"),
        (device(bf16_speed=1.1), 1, None),
    ],
)
def test_device_decides_on_parts_and_precision(found: Device, accumulate: int, note: str | None) -> None:
    machine = gpus(size=4e4)
    advice = advise(machine, config(100, 8000), 8, 100_000, predictions(machine, (1, 4)), 4, found)
    assert advice.workers == 4 and advice.accumulate == accumulate
    assert (f"--accumulate {accumulate}" in advice.options()) == (accumulate > 1)
    assert any(note in each for each in advice.notes) if note else not advice.notes


@pytest.mark.parametrize(
    ("gain", "call"), [(1.05, ""), (1.09, "allreduce with 2 workers"), (1.14, "single with 1 worker")]
)
def test_close_call_is_said(gain: float, call: str) -> None:
    machine = gpus()
    lines = [line(machine, scheme, 1) for scheme in machine.schemes]
    best = max(each.rows_per_second for each in lines)
    lines.append(replace(line(machine, ALLREDUCE, 2), rows_per_second=gain * best))
    advice = advise(machine, config(100, 8000), 8, 100_000, lines, 2, device())
    assert advice.workers == (2 if gain > 1 / NEAR else 1)
    notes = [note for note in advice.notes if "close call" in note]
    assert notes == ([f"a close call: another measurement may recommend {call}"] if call else [])


def test_too_few_steps_are_warned_of_and_smaller_batches_recommended() -> None:
    machine = gpus()
    found = advise(machine, config(10, 8000), 8, 100_000, predictions(machine), 8, device())
    assert "130 steps in 10 epochs of batches of 8,000 rows, too few" in found.notes[0]
    assert found.batch_size < 8000 and found.steps >= FEW_STEPS
    enough = advise(machine, config(100, 8000), 8, 100_000, predictions(machine), 8, device())
    assert not any("warning" in note for note in enough.notes)


def test_steps_before_a_fit_need_not_be_many() -> None:
    machine = gpus()
    found = advise(machine, config(1, 8000), 8, 100_000, predictions(machine), 8, device(), is_fitted=True)
    assert (found.batch_size, found.steps) == (8000, 13)
    (note,) = found.notes
    assert note.startswith("all terms are fitted again after these steps")


def test_batches_grow_while_launches_cost_most_and_steps_remain() -> None:
    machine = gpus(cost=StepCost(launch=0.1, rate=1e9))
    found = advise(machine, config(1000, 500), 8, 100_000, predictions(machine, (1, 2)), 2, device())
    assert found.batch_size > 500 and found.steps >= 800
    assert found.speedup > 1.9 and any("compare AP" in note for note in found.notes)
    assert str(found).startswith(f"recommended: {found.options()}\n")
    assert found.seconds == pytest.approx(found.steps * found.prediction.step_seconds)
    assert f" steps in {show_duration(found.seconds)} at most; " in str(found)
    assert str(found).endswith("most of that time does not depend on the batch size: larger batches cost little")
    slow = gpus(cost=StepCost(launch=1e-4, rate=1e5))
    found = advise(slow, config(1000, 500), 8, 100_000, predictions(slow, (1, 2)), 2, device())
    assert str(found).endswith("only more or faster devices help")
