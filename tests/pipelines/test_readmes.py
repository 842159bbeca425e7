"""The tables in the READMEs, and the command that writes them."""

import shutil
from pathlib import Path

import pytest
from kfp import dsl
from typer.testing import CliRunner

from pipelines import assets, readmes
from pipelines.__main__ import app
from pipelines.readmes import TableError, inputs_table, outputs_table

FOLDER = "components/training/train_fastkan"


@dsl.component(base_image="dkan:0.2.0", install_kfp_package=False)
def every_type(
    data: dsl.Input[dsl.Dataset],
    models: dsl.Input[list[dsl.Model]],
    model: dsl.Output[dsl.Model],
    name: str,
    empty: str = "",
    number: float = 0.5,
    enabled: bool = True,
    labels: dict = {"pool": "gpu"},  # noqa: B006
    names: list[str] = ["a", "b"],  # noqa: B006
    either: str = "a|b",
) -> float:
    """Take one of each.

    Args:
        data: A set.
        models: Several.
        model: The best.
        name: A name, which may
            go on.
        empty: Nothing.
        number: A number.
        enabled: Whether.
        labels: By name.
        names: In order.
        either: One | other.

    Returns:
        How good it is.
    """
    return 0.5


def test_every_type_has_its_row() -> None:
    assert inputs_table(every_type).splitlines()[2:] == [
        "| `data` | `dsl.Dataset` | required | A set. |",
        "| `models` | `list[dsl.Model]` | required | Several. |",
        "| `name` | `str` | required | A name, which may go on. |",
        "| `empty` | `str` | empty | Nothing. |",
        "| `number` | `float` | `0.5` | A number. |",
        "| `enabled` | `bool` | `True` | Whether. |",
        '| `labels` | `dict` | `{"pool": "gpu"}` | By name. |',
        '| `names` | `list[str]` | `["a", "b"]` | In order. |',
        r"| `either` | `str` | `a\|b` | One \| other. |",
    ]
    assert outputs_table(every_type).splitlines()[2:] == [
        "| `model` | `dsl.Model` | The best. |",
        "| `Output` | `float` | How good it is. |",
    ]


def test_input_without_a_description_is_an_error_and_no_output_is_said() -> None:
    @dsl.component(base_image="dkan:0.2.0", install_kfp_package=False)
    def silent(name: str = "") -> None:
        """Say nothing of the name."""

    with pytest.raises(TableError, match="name has no description"):
        inputs_table(silent)
    assert outputs_table(silent) == "None"


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the assets, so that the command writes somewhere else than into this repository."""
    for kind in ("components", "pipelines"):
        shutil.copytree(assets.ROOT / kind, tmp_path / kind)
    monkeypatch.setattr(readmes, "ROOT", tmp_path)
    return tmp_path / FOLDER / "README.md"


def test_command_writes_the_tables_and_leaves_the_rest(copy: Path) -> None:
    before = copy.read_text()
    copy.write_text(before.replace("| `hidden` | `str` |", "| `hidden` | `int` |").replace("| `model` |", "| `net` |"))
    assert CliRunner().invoke(app, ["readme", "--check"]).exit_code == 1
    result = CliRunner().invoke(app, ["readme"])
    assert result.exit_code == 0 and result.output == f"wrote {FOLDER}/README.md\n"
    assert copy.read_text() == before
    assert CliRunner().invoke(app, ["readme", "--check"]).exit_code == 0


def test_table_that_is_missing_is_written(copy: Path) -> None:
    before = copy.read_text()
    rows = [line for line in before.splitlines(keepends=True) if not line.startswith("|")]
    copy.write_text("".join(rows))
    assert CliRunner().invoke(app, ["readme"]).exit_code == 0
    assert copy.read_text() == before


def test_readme_without_the_section_is_an_error(copy: Path) -> None:
    copy.write_text(copy.read_text().replace("## Outputs", "## Results"))
    with pytest.raises(TableError, match="expected one section '## Outputs', found 0"):
        readmes.updated(FOLDER)
