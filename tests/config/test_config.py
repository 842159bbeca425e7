"""Settings: checked once, unknown ones refused, each documented and an option of the command."""

import json
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dkan_core
from dkan_core import ConfigError, NodesConfig, PrepareConfig, TrainConfig, build_config
from dkan_core.config import field_docs, read_settings


@pytest.mark.parametrize("kind", [PrepareConfig, TrainConfig])
def test_every_field_has_help(kind: type) -> None:
    assert list(field_docs(kind)) == [field.name for field in fields(kind)]
    assert all(len(text) > 10 for text in field_docs(kind).values())


def test_configs_are_frozen_and_keyword_only() -> None:
    with pytest.raises(FrozenInstanceError):
        TrainConfig().seed = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        PrepareConfig(("y",))  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (TrainConfig, {"batchsize": 1}, r"unknown setting 'batchsize' \(did you mean 'batch_size'\?\)$"),
        (TrainConfig, {"zzz": 1}, r"unknown setting 'zzz'; expected one of .*batch_size"),
        (TrainConfig, {"batch_size": 0}, "batch_size must be from 1 .*got 0"),
        (TrainConfig, {"batch_size": 1.5}, "batch_size must be .*got 1.5"),
        (TrainConfig, {"batch_size": True}, "batch_size must be .*got True"),
        (TrainConfig, {"hidden": ["wide"]}, "hidden must be .*wide"),
        (TrainConfig, {"hidden": [0]}, "hidden must be positive widths up to 1,000,000,000, got"),
        (TrainConfig, {"hidden": [10**10]}, "hidden must be positive widths up to 1,000,000,000"),
        (TrainConfig, {"hidden": [1] * 65}, "hidden must have at most 64 layers, got 65"),
        (TrainConfig, {"grid_max": float("inf")}, "grid_max must be finite, got inf"),
        (TrainConfig, {"grid_min": -1e300}, "grid_min must be from .* got -1e.300"),
        (TrainConfig, {"dropout": float("nan")}, "dropout must be from 0 to 0.99, got nan"),
        (
            TrainConfig,
            {"label_weights": [float("inf")]},
            "label_weights must be from 0 to 1,000,000, and at least one 1e-6 or more, got",
        ),
        (TrainConfig, {"grid_min": 2.0, "grid_max": -2.0}, "grid_max must be above grid_min"),
        (TrainConfig, {"grid_max": float("nan")}, "grid_max must be from -1e.06 to 1e.06, got nan"),
        (TrainConfig, {"learning_rate": float("nan")}, "learning_rate must be from"),
        (TrainConfig, {"dropout": 1.0}, "dropout must be from 0 to 0.99, got 1.0"),
        (TrainConfig, {"seed": -1}, "seed must be from 0"),
        (
            TrainConfig,
            {"device": "tpu"},
            "device must be auto, cpu, cuda, or devices such as .*got 'tpu'",
        ),
        (TrainConfig, {"device": 3}, "device must be .*got 3"),
        (TrainConfig, {"label_weights": "1, heavy"}, "label_weights must be numbers, got"),
        (
            TrainConfig,
            {"label_weights": [1, -1.0]},
            "label_weights must be from 0 to 1,000,000, and at least one 1e-6 or more, got",
        ),
        (TrainConfig, {"label_weights": [0, 1e300]}, "label_weights must be from 0 to 1,000,000, and .* got .*1e.300"),
        (TrainConfig, {"label_weights": [0, 1e-300]}, "label_weights must be from .* at least one 1e-6 or more, got"),
        (TrainConfig, {"checkpoint_uri": "a\0b"}, r"checkpoint_uri must be a folder or a URI .* got 'a\\x00b'"),
        (TrainConfig, {"checkpoint_uri": "s3://"}, "checkpoint_uri must be a folder or a URI .* got 's3://'"),
        (TrainConfig, {"checkpoint_uri": "kept/{foo}"}, "checkpoint_uri must be .*, without other placeholders, got"),
        (TrainConfig, {"slice_weights": [1, 0.0]}, "slice_weights must be positive, and at most 1e9, got"),
        (TrainConfig, {"model": "fastkan", "members": 2}, "members must be 1 with model fastkan"),
        (TrainConfig, {"precision": "fp16"}, "precision must be one of fp32, bf16, got 'fp16'"),
        (TrainConfig, {"lr_scaling": "cubic"}, "lr_scaling must be one of none, sqrt, linear"),
        (TrainConfig, {"accumulate": 0}, "accumulate must be from 1 .*got 0"),
        (TrainConfig, {"clip_norm": 0.0}, "clip_norm must be from 1e-12 .*got 0.0"),
        (TrainConfig, {"input_norm": "batch"}, "input_norm must be one of none, layer"),
        (PrepareConfig, {}, "label: name at least one"),
        (PrepareConfig, {"label": 3}, "label must be .*got 3"),
        (PrepareConfig, {"label": ["y"], "drop": ["y"]}, "column 'y' has two roles, label and drop; "),
        (
            PrepareConfig,
            {"label": ["y"], "drop": ["t", "t"], "split_by_time": "t"},
            "column 't' has two roles, drop and split_by_time; a column can have only one",
        ),
        (PrepareConfig, {"label": ["y", "x", "y"]}, "label 'y' is named twice"),
        (PrepareConfig, {"label": ["y"], "numeric_dtype": "int8"}, "numeric_dtype must be one of uint8"),
        (PrepareConfig, {"label": ["y"], "split": "70/30"}, "split must be three integer percentages"),
        (PrepareConfig, {"label": ["y"], "split": "70/20/20"}, "split must add up to 100"),
        (PrepareConfig, {"label": ["y"], "split": "100/0/0"}, "split must add up to 100, with train and valid above 0"),
        (
            PrepareConfig,
            {"label": ["y"], "split_by_time": "t", "split_column": "s"},
            "'s' already determines .* remove .*'t'",
        ),
    ],
)
def test_wrong_setting_is_named_with_its_value(kind: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(kind, settings)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (partial(dkan_core.prepare, "data", "out"), "PrepareConfig"),
        (partial(dkan_core.plan_preparation, "data", "out", parts=1), "PrepareConfig"),
        (partial(dkan_core.inspect_data, "data"), "PrepareConfig"),
        (partial(dkan_core.train, "data", "run"), "TrainConfig"),
        (partial(dkan_core.plan, "data"), "TrainConfig"),
        (partial(dkan_core.plan_slices, "data"), "TrainConfig"),
        (partial(dkan_core.tune_learning_rate, "data"), "TrainConfig"),
        (partial(dkan_core.train_on_nodes, "data", "run", nodes=NodesConfig(image="dkan")), "TrainConfig"),
        (partial(dkan_core.train_on_nodes, "data", "run", TrainConfig()), "NodesConfig"),
        (partial(dkan_core.main, [], []), "TrainConfig"),
        (partial(dkan_core.serve, "model"), "ServeConfig"),
    ],
)
def test_settings_that_are_no_config_are_refused(call: Callable[[Any], None], kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"a {kind}, got dict; build_config\({kind}, \.\.\.\) builds one from it"):
        call({"seed": 1})
    with pytest.raises(ConfigError, match=f"expected the settings as a {kind}, got str"):
        call("seed")


@pytest.mark.parametrize("name", ["bogus", "label"])
def test_unknown_setting_is_refused_however_it_is_given(name: str) -> None:
    settings: dict[str, Any] = {name: 1}
    with pytest.raises(ConfigError, match=f"unknown setting '{name}'; expected one of model, members"):
        TrainConfig(**settings, epochs=0)
    with pytest.raises(ConfigError, match=f"unknown setting '{name}'; expected one of model, members"):
        replace(TrainConfig(), **settings)


def test_values_stay_as_given_since_digests_are_of_their_text() -> None:
    config = TrainConfig(dropout=0, label_weights=(1, 2.0))
    assert json.dumps([config.dropout, config.label_weights]) == "[0, [1, 2.0]]"


def test_number_of_pairs_may_be_a_number() -> None:
    assert TrainConfig(model="additive", pairs=3) == TrainConfig(model="additive", pairs="3")  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [np.float32(0.5), np.True_, Decimal("0.5"), Fraction(1, 2), True])
def test_number_that_no_json_file_can_hold_is_refused(number: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"learning_rate must be a number (float), got {number!r}")):
        TrainConfig(learning_rate=number)
    with pytest.raises(
        ConfigError,
        match=re.escape(f"slice_weights must be a tuple of numbers (a list in a file), got (1, {number!r})"),
    ):
        TrainConfig(slice_weights=(1, number))


def test_lone_string_is_not_taken_for_its_letters() -> None:
    with pytest.raises(ConfigError, match=r"label must be a tuple.*got 'outcome'; write \('outcome',\)"):
        PrepareConfig(label="outcome")  # type: ignore[arg-type]


def test_one_number_or_a_list_is_told_how_to_write_it() -> None:
    wanted = "hidden must be a tuple of whole numbers (a list in a file), got "
    with pytest.raises(ConfigError, match=re.escape(f"{wanted}64; write (64,), or [64] in a file")):
        build_config(TrainConfig, {"hidden": 64})
    with pytest.raises(ConfigError, match=re.escape(f"{wanted}[64, 32]; write (64, 32)")):
        TrainConfig(hidden=[64, 32])  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), [("resume", ""), ("init_from", " "), ("slice_weights", (1e308, 1.0))])
def test_value_that_no_run_can_use_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name} must be (auto, best|a path or|positive, and)"):
        build_config(TrainConfig, {name: value})


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (
            PrepareConfig,
            {"label": ["y", "z"], "numeric_dtype": "float32", "group": "g", "split": "50/25/25"},
        ),
        (PrepareConfig, {"label": ["y"], "split_column": "s", "weight": "w", "drop": ["a,b", "c"]}),
        (TrainConfig, {"hidden": [8, 4], "device": "cpu", "input_norm": "layer", "dropout": 0, "max_seconds": 2}),
        (TrainConfig, {"workers": None, "epochs": 3, "tensorboard": True, "learning_rate": 1e-3}),
    ],
)
def test_settings_survive_both_kinds_of_file(kind: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(settings))
    toml = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items() if value is not None)
    (tmp_path / "a.toml").write_text(toml)
    wanted = kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()})
    assert build_config(kind, read_settings(tmp_path / "a.json")) == wanted
    assert build_config(kind, read_settings(tmp_path / "a.toml")) == wanted


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", None, "no such file"),
        ("a.toml", b"seed = ", "Invalid value"),
        ("a.json", b"{", "Expecting"),
        ("a.json", b"[1]", "expected a table"),
        ("a.toml", b"\xff\xfe", "codec"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.toml", b"seed = " + b"[" * 100_000, "nested too deeply"),
        ("a.json", b'{"seed": 1, "seed": 2}', "cannot be read as JSON: seed is given twice"),
        ("a.yaml", b"seed: 1", "cannot be read as TOML: "),
        (".", None, "is a folder; expected a TOML or JSON file"),
    ],
)
def test_unreadable_file_is_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"config file .*{message}"):
        read_settings(tmp_path / name)
