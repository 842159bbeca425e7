"""What is left open is chosen by rule; what the machine cannot do is refused."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from dkan_core import ConfigError, TrainConfig, build_config
from dkan_core.config import ResolvedTrainConfig
from dkan_core.training.communication.process_group import backend_for_devices
from dkan_core.training.communication.rendezvous import TorchRun
from dkan_core.training.setup import placement
from dkan_core.training.setup.defaults import log_choices, resolve
from dkan_core.training.setup.placement import Placement
from dkan_core.training.setup.sizing import QUALITIES
from dkan_core.utils.resources import available_cores


@pytest.mark.parametrize("rows", [1, 10, 5_525, 34_126, 229_250, 10_000_000, 100_000_000])
def test_everything_is_filled_in(rows: int) -> None:
    config = resolve(TrainConfig(device="cpu"), rows)
    open_settings = ("workers", "members", "hidden", "epochs", "batch_size", "learning_rate")
    assert None not in [getattr(config, name) for name in open_settings]
    assert config.batch_size <= rows


@pytest.mark.parametrize(
    "name", ["workers", "members", "hidden", "epochs", "batch_size", "learning_rate", "sync_interval", "grid_min"]
)
def test_nothing_is_left_open_in_resolved_settings(name: str) -> None:
    resolved = resolve(TrainConfig(device="cpu"), 1000)
    nothing: dict[str, Any] = {name: None}
    with pytest.raises(ConfigError, match=f"{name} must be .*got None"):
        replace(resolved, **nothing)
    settings = {key: value for key, value in vars(resolved).items() if key != name}
    with pytest.raises(ConfigError, match=f"{name} must be .*got None"):
        ResolvedTrainConfig(**settings)


def test_resolved_settings_have_the_bounds_of_those_given() -> None:
    with pytest.raises(ConfigError, match=r"epochs must be from 1 to 1,000,000,000, got 0"):
        replace(resolve(TrainConfig(device="cpu"), 1000), epochs=0)


def test_more_rows_give_larger_batches_and_fewer_epochs() -> None:
    sizes = [5_000, 50_000, 500_000, 5_000_000, 50_000_000]
    resolved = [resolve(TrainConfig(device="cpu"), rows) for rows in sizes]
    batches, epochs = [config.batch_size for config in resolved], [config.epochs for config in resolved]
    assert batches == sorted(batches) and epochs == sorted(epochs, reverse=True)


def test_what_the_user_sets_stays() -> None:
    sizes: dict[str, Any] = {"members": 5, "hidden": (3, 2), "grid_min": -1.0, "grid_max": 4.0, "ema_decay": 0.0}
    config = TrainConfig(device="cpu", workers=3, epochs=7, batch_size=99, learning_rate=0.5, **sizes)
    resolved = resolve(config, 1000)
    by_rule = {"device": "cpu,cpu,cpu", "eval_device": "cpu", "strategy": "parameter-server", "sync_interval": 1}
    by_rule |= {"num_centers": 8, "dropout": 0.2, "architecture_search": False}
    assert list(asdict(resolved).items()) == list({**asdict(config), **by_rule}.items())
    assert resolved.devices == ("cpu", "cpu", "cpu")
    assert resolve(resolved, 1000) == resolved


def test_additive_models_have_no_average_unless_they_are_told() -> None:
    assert resolve(TrainConfig(device="cpu"), 1000).ema_decay > 0
    assert resolve(TrainConfig(device="cpu", model="additive"), 1000).ema_decay == 0
    assert resolve(TrainConfig(device="cpu", model="additive", ema_decay=0.9), 1000).ema_decay == 0.9


@pytest.mark.parametrize("rows", [1, 5_525, 34_126, 229_250, 100_000_000])
def test_quality_scales_what_follows_from_the_rows(rows: int) -> None:
    fast, default, best = (
        resolve(build_config(TrainConfig, {"device": "cpu", "quality": quality}), rows) for quality in QUALITIES
    )

    def work(config: ResolvedTrainConfig) -> int:
        """Return the hidden units that all rows go through."""
        return config.members * config.hidden[0] * config.epochs

    assert work(fast) < work(default) < work(best)
    assert fast.batch_size >= default.batch_size


@pytest.mark.parametrize("quality", ["fast", "best"])
def test_settings_win_over_quality(quality: Literal["fast", "best"]) -> None:
    settings: dict[str, Any] = {"members": 3, "hidden": (5,), "epochs": 7, "batch_size": 99, "learning_rate": 0.5}
    resolved = resolve(TrainConfig(device="cpu", quality=quality, **settings), 100_000)
    assert {name: getattr(resolved, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("settings", "rarer_rows", "grid"),
    [
        ({}, 7_999, (-3.0, 3.0)),
        ({}, 8_000, (-2.0, 2.0)),
        # Not known: half of the 10,000 rows.
        ({}, None, (-3.0, 3.0)),
        ({"grid_max": 1.5}, 7_999, (-3.0, 1.5)),
        ({"model": "fastkan"}, 7_999, (-2.0, 2.0)),
    ],
)
def test_grid_is_wide_where_the_rarer_class_has_few_rows(
    settings: dict[str, Any], rarer_rows: float | None, grid: tuple[float, float]
) -> None:
    resolved = resolve(TrainConfig(device="cpu", **settings), 10_000, rarer_rows=rarer_rows)
    assert (resolved.grid_min, resolved.grid_max) == grid


def test_grid_that_is_empty_beside_the_chosen_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"grid_max must be above grid_min, got -3\.0 to -4"):
        resolve(TrainConfig(device="cpu", grid_max=-4), 1000)


@pytest.mark.parametrize("quality", ["fast", "best"])
def test_plain_network_has_one_member_at_any_quality(quality: Literal["fast", "best"]) -> None:
    assert resolve(TrainConfig(device="cpu", model="fastkan", quality=quality), 1000).members == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "single", "workers": 2}, "workers 2: strategy single has one"),
        ({"strategy": "allreduce", "mode": "async"}, "mode async: only strategy parameter-server has modes"),
        ({"sync_interval": 4}, "sync_interval 4: gradients are aggregated every step; choose mode average"),
        ({"device": "cpu,cpu", "workers": 3}, "workers 3: device names 2 devices, one per worker"),
        ({"eval_device": "cuda:7"}, "eval_device cuda:7: 0 GPUs visible"),
        ({"device": "cpu,cuda:3"}, "device cuda:3: 0 GPUs visible"),
    ],
)
def test_settings_that_exclude_each_other_are_named(
    settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=message):
        resolve(TrainConfig(**settings), 1000)


def test_workers_and_evaluator_each_have_a_device_and_the_cores_are_shared() -> None:
    placement = Placement.from_config(resolve(TrainConfig(device="cpu,cpu", workers=2), 1000))
    assert placement.workers == ("cpu", "cpu") and placement.evaluator == "cpu"
    assert placement.threads == max(1, available_cores() // 2)


@pytest.mark.parametrize(
    ("batch_size", "rates"),
    [
        (128, {"none": 0.004, "sqrt": 0.004, "linear": 0.004}),
        (512, {"none": 0.004, "sqrt": 0.004, "linear": 0.004}),
        (1024, {"none": 0.004, "sqrt": 0.004 * 2**0.5, "linear": 0.008}),
        (65_536, {"none": 0.004, "sqrt": 0.01, "linear": 0.01}),
    ],
)
def test_default_rate_grows_by_the_chosen_rule_up_to_its_limit(batch_size: int, rates: dict[str, float]) -> None:
    for rule, rate in rates.items():
        config = build_config(TrainConfig, {"device": "cpu", "batch_size": batch_size, "lr_scaling": rule})
        assert resolve(config, 100_000).learning_rate == rate
        assert resolve(replace(config, learning_rate=0.3), 100_000).learning_rate == 0.3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (TrainConfig(device="cpu", workers=11), "train split has only 10 rows"),
        (TrainConfig(device="cpu", workers=5, batch_size=4), "more than the 4 rows of a batch"),
        (TrainConfig(device="cuda", workers=1000), "GPU"),
    ],
)
def test_more_workers_than_rows_or_gpus_are_refused(config: TrainConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(config, 10)


def test_global_batch_grows_with_the_workers_where_theirs_is_given() -> None:
    config = resolve(TrainConfig(device="cpu", workers=3, batch_size_per_worker=100), 100_000)
    assert (config.batch_size, config.batch_size_per_worker) == (300, None)
    assert resolve(config, 100_000) == config


def test_more_workers_than_one_launcher_can_start_are_refused() -> None:
    with pytest.raises(ConfigError, match="workers 101: one launcher starts at most 100"):
        resolve(TrainConfig(device="cpu", workers=101), 100_000)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((1.0, 2.0, 3.0), "slice_weights: 3 numbers for 2 workers; expected one for each"),
        ((1.0, 1000.0), "slice_weights: worker 0 has no row of a batch of 64"),
    ],
)
def test_slice_weights_must_give_every_worker_rows(weights: tuple[float, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(TrainConfig(device="cpu", workers=2, batch_size=64, slice_weights=weights), 100)


def test_label_weights_must_be_as_many_as_labels() -> None:
    with pytest.raises(ConfigError, match="label_weights: 3 numbers for 2 labels; expected one for each"):
        resolve(TrainConfig(device="cpu", label_weights=(1, 1, 1)), 100, labels=2)


@pytest.mark.parametrize(
    ("devices", "mode", "strategy"),
    [
        ("cuda:0", "sync", "single"),
        ("cuda:0,cuda:1", "sync", "allreduce"),
        ("cuda:0,cuda:1", "average", "parameter-server"),
        ("cuda:0,cuda:0", "sync", "parameter-server"),
        ("cpu,cpu", "sync", "parameter-server"),
    ],
)
def test_strategy_follows_from_the_devices(
    devices: str, mode: Literal["sync", "average"], strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "visible_gpus", lambda: 2)
    assert resolve(TrainConfig(device=devices, mode=mode), 10_000).strategy == strategy


@pytest.mark.parametrize(
    ("settings", "device"),
    [
        ({"workers": 2}, "cuda:2"),
        ({"workers": 3, "device": "cuda"}, "cuda:0"),
        ({"device": "cuda:1"}, "cuda:1"),
        ({"device": "cuda:1,cuda:2"}, "cuda:1"),
        ({"device": "cuda:1", "eval_device": "cuda:2"}, "cuda:2"),
        ({"device": "cpu", "eval_device": "cuda"}, "cuda:0"),
    ],
)
def test_evaluator_takes_no_gpu_besides_those_that_are_named(
    settings: dict[str, Any], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "visible_gpus", lambda: 3)
    assert resolve(TrainConfig(**settings), 10_000).eval_device == device


def test_gpus_are_counted_by_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of GPUs that are divided by MIG, NVML counts each, and CUDA one part of one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 1, raising=False)
    assert resolve(TrainConfig(), 10_000).device == "cuda:0"


@pytest.mark.parametrize("rank", [0, 3])
def test_rank_that_is_shown_its_own_gpu_alone_takes_it(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by torchrun --virtual-local-rank, which tells each process that it is the first, too."""
    said = {"MASTER_ADDR": "node", "MASTER_PORT": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "RANK": str(rank)}
    monkeypatch.setattr(placement, "visible_gpus", lambda: 1)
    with pytest.raises(ConfigError, match="torchrun started 4 ranks on this machine, which has 1 GPU"):
        resolve(TrainConfig(), 10_000, torchrun=TorchRun.read(said))
    shown = TorchRun.read({**said, "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": str(rank)})
    config = resolve(TrainConfig(), 10_000, torchrun=shown)
    assert backend_for_devices(config.devices[:4]) == "cpu:gloo,cuda:nccl"
    where = Placement.from_config(config, shown)
    assert (where.device_of("collective-worker", rank), where.device_of("evaluator", 0)) == ("cuda:0", "cuda:0")


@pytest.mark.parametrize(("name", "value"), [("WORLD_SIZE", ""), ("RANK", "-1"), ("MASTER_PORT", "http")])
def test_variable_of_torchrun_that_is_no_number_is_named(name: str, value: str) -> None:
    said = {"MASTER_ADDR": "node", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "0", name: value}
    with pytest.raises(ConfigError, match=f"variable {name}: expected a whole number, .*, got '{value}'"):
        TorchRun.read(said)


@pytest.mark.parametrize("visible", ["", "0"])
def test_driver_without_a_gpu_that_torch_can_use_is_said(
    visible: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(placement, "visible_gpus", lambda: 0)
    monkeypatch.setattr(placement, "NVIDIA_DRIVER", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert resolve(TrainConfig(), 10_000).device == "cpu"
    assert ("training on the CPU, although there is an NVIDIA driver" in caplog.text) == bool(visible)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="no GPU is visible"):
        resolve(TrainConfig(device="cuda"), 10)


def test_tensorboard_without_its_extra_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"\.\[tensorboard\]"):
        resolve(TrainConfig(device="cpu", tensorboard=True), 10)


@pytest.mark.parametrize(("rate", "said"), [(None, True), (0.005, False)])
@pytest.mark.parametrize(("model", "wanted", "limit"), [("auto", "0.016", "0.01"), ("additive", "0.08", "0.05")])
def test_capped_learning_rate_is_said(
    model: Literal["auto", "additive"],
    wanted: str,
    limit: str,
    rate: float | None,
    said: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    asked = TrainConfig(device="cpu", model=model, batch_size=8192, learning_rate=rate)
    log_choices(asked, resolve(asked, 100_000), 100_000)
    expected = f"sqrt scaling to batches of 8192 rows would give {wanted}; the limit is {limit}, "
    assert (f"learning rate capped: {expected}" in caplog.text) == said


@pytest.mark.parametrize(("interval", "evaluations", "said"), [(4, 3, True), (3, 3, False), (64, 1, False)])
def test_evaluations_that_long_rounds_leave_out_are_said(
    interval: int, evaluations: int, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"workers": 2, "mode": "average", "batch_size": 100, "device": "cpu"}
    asked = TrainConfig(sync_interval=interval, evaluations_per_epoch=evaluations, **settings)
    log_choices(asked, resolve(asked, 1000), 1000)
    assert ("some of the 3 evaluations per epoch are left out" in caplog.text) == said
    assert ("--sync-interval 3 leaves out none" in caplog.text) == said


def test_a_shorter_schedule_bounds_the_epochs_that_follow_from_the_data() -> None:
    assert resolve(TrainConfig(schedule_epochs=2), 10_000).epochs == 2
    assert resolve(TrainConfig(), 10_000).epochs == resolve(TrainConfig(schedule_epochs=10**6), 10_000).epochs > 2
