"""The settings in the signatures of components are those of the schema; the command that writes them adds new ones."""

import re
from pathlib import Path

import pytest
from pydantic.dataclasses import dataclass
from typer.testing import CliRunner

import dkan_core.config
from dkan_core import config_from_form
from dkan_core.config import TrainConfig
from dkan_core.config.schema import STRICT, reports_config_errors, setting
from pipelines import signatures
from pipelines.__main__ import app
from pipelines.assets import ROOT
from pipelines.signatures import SignatureError, updated, write_signatures

COMPONENT = "components/training/train_fastkan/component.py"
SOURCE = (ROOT / COMPONENT).read_text()


def test_components_have_the_settings_of_the_schema() -> None:
    assert write_signatures(check=True) == [], "run: python -m pipelines signatures"
    with_settings = [path for path in ROOT.glob("components/*/*/component.py") if "# Settings of" in path.read_text()]
    assert len(with_settings) == 7


@reports_config_errors
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Extended(TrainConfig):
    """One more setting."""

    rows_per_label: int | None = setting(None, "Training", form=True)
    """Rows to read of each label. Default: all."""


def test_setting_that_forms_show_is_added_by_one_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dkan_core.config, "TrainConfig", Extended)
    added = [line for line in updated(SOURCE).splitlines() if line not in SOURCE.splitlines()]
    assert added == ["    rows_per_label: int = 0,", "        rows_per_label: Rows to read of each label. 0: all."]
    assert [config_from_form(Extended, {"rows_per_label": rows}).rows_per_label for rows in (0, 5)] == [None, 5]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    dropout: float = -1.0,\n", ""),
        ("    dropout: float = -1.0,\n", "    dropout: float = -2.0,\n"),
        ("    dropout: float = -1.0,\n", "    dropout: float = -1.0,\n    no_setting: int = 1,\n"),
        ("        dropout: Fraction of hidden units", "        dropout: Share of hidden units"),
        ("        num_gpus:", "        no_setting: It is gone.\n        num_gpus:"),
        ("        patience: Stop after", "        patience:\n            Stop after"),
    ],
)
def test_what_differs_from_the_schema_is_written_anew(old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    assert updated(SOURCE.replace(old, new)) == SOURCE


def test_setting_that_stands_elsewhere_keeps_its_place_and_has_the_text_of_the_schema() -> None:
    source = (ROOT / "components/data_processing/plan_preparation/component.py").read_text()
    assert "    label: str,\n" in source and "    label: str =" not in source
    assert updated(source.replace("label: Label column", "label: Column")) == source


def test_parameter_without_a_description_is_named() -> None:
    with pytest.raises(SignatureError, match="workers: describe it in Args"):
        updated(re.sub(r"^        workers: .*\n", "", SOURCE, flags=re.MULTILINE))


def test_command_writes_what_is_out_of_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "ROOT", tmp_path)
    path = tmp_path / COMPONENT
    path.parent.mkdir(parents=True)
    path.write_text(SOURCE.replace("    dropout: float = -1.0,\n", ""))
    result = CliRunner().invoke(app, ["signatures", "--check"])
    assert result.exit_code == 1 and f"{COMPONENT} is out of date" in result.output and path.read_text() != SOURCE
    result = CliRunner().invoke(app, ["signatures"])
    assert result.exit_code == 0 and result.output == f"wrote {COMPONENT}\n" and path.read_text() == SOURCE
