"""Settings of a run, written to its folder, train with the same settings again."""

import tomllib
from dataclasses import replace
from pathlib import Path

from dkan_core import TrainConfig, TrainResult
from dkan_core.config.loading import build_config
from dkan_core.config.saving import settings_text


def test_settings_of_a_run_are_taken_back(trained: TrainResult) -> None:
    text = (Path(trained.model).parent / "config.toml").read_text()
    again = build_config(TrainConfig, tomllib.loads(text))
    facts = trained.metrics["training"]
    assert (again.epochs, again.seed, again.hidden) == (facts["epochs"], facts["seed"], tuple(facts["hidden"]))


def test_settings_of_every_type_survive_the_file() -> None:
    asked = TrainConfig(
        epochs=2,
        hidden=(8, 4),
        learning_rate=1e-05,
        tensorboard=True,
        init_from='a "b"\\\x7f\u20ac',
        max_seconds=1e9,
    )
    assert build_config(TrainConfig, tomllib.loads(settings_text(asked, asked))) == asked


def test_settings_of_a_resumed_run_train_from_the_start() -> None:
    asked = TrainConfig(epochs=2)
    resumed = replace(asked, resume="auto", checkpoint_uri="s3://bucket/{run}")
    text = settings_text(resumed, resumed)
    assert build_config(TrainConfig, tomllib.loads(text)) == asked
    assert '# checkpoint_uri = "s3://bucket/{run}"\n# resume = "auto"\n' in text
