"""The sweep over learning rates: what it measures, what it recommends, and the command."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkan_core import ConfigError, TrainConfig, TrainingError, TuneResult, tune_learning_rate
from dkan_core.data.loading.loader import RowReader
from dkan_core.training.planning import lr_sweep
from dkan_core.training.planning.lr_sweep import Trial, _recommend
from dkan_core.training.roles.in_process import SingleResult, train_single
from tests.command import check, dkan

SMALL = TrainConfig(model="fastkan", hidden=(4,), device="cpu", batch_size=64, seed=3)
OPTIONS = ["--model", "fastkan", "--hidden", "4", "--device", "cpu", "--batch-size", "64"]


def trials(*scores: tuple[float | None, ...]) -> list[Trial]:
    """Return one a rate, around the middle one."""
    factors = [2.0 ** (index - len(scores) // 2) for index in range(len(scores))]
    return [
        Trial(learning_rate=0.01 * factor, factor=factor, average_precision=found, log_loss=found)
        for factor, found in zip(factors, scores, strict=True)
    ]


@pytest.fixture(scope="module")
def result(prepared: Path) -> TuneResult:
    return tune_learning_rate(prepared, SMALL, factors=(1, 1e-3, 4), steps=15)


def test_higher_rates_learn_more_in_a_few_steps(result: TuneResult) -> None:
    means = [trial.mean for trial in result.trials]
    assert means == sorted(means) and all(0 < mean <= 1 for mean in means)
    assert [trial.factor for trial in result.trials] == [1e-3, 1, 4]
    assert [trial.learning_rate for trial in result.trials] == [4e-6, 0.004, 0.016]
    assert result.steps == 14 and result.seeds == (3, 4) and result.noise is not None


def test_same_seed_gives_the_same_table(result: TuneResult, prepared: Path) -> None:
    again = tune_learning_rate(prepared, SMALL, factors=(1e-3, 1, 4), steps=15)
    assert again == result and str(again) == str(result)


def test_few_steps_take_the_first_rows_alone(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counted(train: RowReader, *rest: Any) -> SingleResult:
        seen.append(train.rows)
        return train_single(train, *rest)

    monkeypatch.setattr(lr_sweep, "train_single", counted)
    result = tune_learning_rate(prepared, SMALL, factors=(1, 2), steps=3, repeats=1)
    assert seen == [3 * 64] * 2 and (result.steps, result.rows) == (3, 3 * 64)
    assert result.noise is None and any("one run per rate" in note for note in result.notes)


def test_rate_that_diverges_is_a_row_and_no_error(prepared: Path) -> None:
    result = tune_learning_rate(prepared, SMALL, factors=(1, 2e5), steps=14, repeats=1)
    assert result.trials[1].diverged and result.learning_rate == 0.004
    assert "| 800 | 200000 | diverged | | |" in result.table()
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["trials"][1]["average_precision"] == [None]


def test_every_rate_diverging_is_an_error(prepared: Path) -> None:
    with pytest.raises(TrainingError, match="every learning rate diverged"):
        tune_learning_rate(prepared, SMALL, factors=(2e5,), steps=14, repeats=1)


def test_clear_winner_is_recommended_without_a_note() -> None:
    chosen, noise, notes = _recommend(trials((0.6, 0.61), (0.8, 0.81), (0.7, 0.71)), 100, 100)
    assert chosen.factor == 1 and not notes
    assert noise == pytest.approx(2 * math.sqrt(2 / 2 * np.var([0.6, 0.61], ddof=1)))


def test_rate_of_now_stays_within_noise() -> None:
    chosen, _, (note,) = _recommend(trials((0.2, 0.3), (0.70, 0.72), (0.71, 0.73)), 100, 100)
    assert chosen.factor == 1 and "0.01, 0.02 are as good" in note


@pytest.mark.parametrize(("scores", "end"), [((0.9, 0.7, 0.6), "lowest"), ((0.6, 0.7, 0.9), "highest")])
def test_best_at_the_edge_is_said(scores: tuple[float, ...], end: str) -> None:
    chosen, _, notes = _recommend(trials(*((score, score) for score in scores)), 100, 100)
    assert chosen.mean == 0.9 and len(notes) == 1 and f"the {end} of the sweep" in notes[0]


def test_rate_above_one_that_diverges_is_no_edge() -> None:
    chosen, _, notes = _recommend(trials((0.6, 0.6), (0.7, 0.7), (0.9, None)), 100, 100)
    assert chosen.factor == 1 and not notes


def test_short_runs_do_not_raise_the_rate_but_lower_it() -> None:
    chosen, _, (note,) = _recommend(trials((0.6, 0.6), (0.7, 0.7), (0.9, 0.9)), 100, 1000)
    assert chosen.factor == 1 and "--steps 1000" in note
    chosen, _, notes = _recommend(trials((0.4, 0.4), (0.9, 0.9), (0.7, 0.7), (0.6, 0.6)), 100, 1000)
    assert chosen.factor == 0.5 and not notes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps and repeats must be at least 1, got 0 and 2"),
        ({"repeats": 0}, "steps and repeats must be at least 1"),
        ({"factors": ()}, "factors must be positive"),
        ({"factors": (1.0, -1.0)}, "factors must be positive"),
        ({"factors": (1e6,)}, "learning_rate must be from 1e-12 to 1000, got 4000"),
    ],
)
def test_mistake_is_named(prepared: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tune_learning_rate(prepared, SMALL, **options)


def test_command_prints_the_table_and_writes_json(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rates.json"
    words = ["--steps", "7", "--repeats", "1", "--factor", "1", "--factor", "2", "--json", out]
    assert dkan("tune-lr", prepared, *OPTIONS, *words, monkeypatch=monkeypatch) == 0
    printed, written = capsys.readouterr().out, json.loads(out.read_text())
    assert printed.startswith("| learning rate |") and f"--learning-rate {written['learning_rate']:g}" in printed
    assert [trial["factor"] for trial in written["trials"]] == [1, 2]
    assert list(tmp_path.iterdir()) == [out]


def test_mistake_in_the_command_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = dkan("tune-lr", tmp_path / "nowhere", "--json", tmp_path / "rates.json", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, "no manifest.json there")
    assert not list(tmp_path.iterdir())
