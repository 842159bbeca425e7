"""A model's folder is whole at any moment and reads back to the same function."""

import json
import os
import time
from pathlib import Path
from platform import python_version

import pytest
import torch

import dkan_core
from dkan_core import DataError, OutputError, TrainResult
from dkan_core.model import saved_model
from dkan_core.model.saved_model import SavedModel, model_card, save_model
from tests import warm

FILES = {"model.safetensors", "config.json", "preprocessor.json", "metrics.json", "README.md", "files.json"}

SAVE_FOREVER = """
import sys
from pathlib import Path
from dkan_core.model.saved_model import SavedModel, save_model
saved = SavedModel(Path(sys.argv[1]))
for number in range(10**9):
    for parameter in saved.module.parameters():
        if parameter.requires_grad:  # the grid is that of the architecture
            parameter.data.fill_(number)
    saved.metrics["step"] = number
    save_model(Path(sys.argv[2]), saved.module, saved.preprocessor, saved.metrics)
    print(number, file=sys.stderr, flush=True)
"""


def save_again(saved: SavedModel, folder: Path) -> None:
    save_model(folder, saved.module, saved.preprocessor, saved.metrics)


def test_reads_back_to_the_same_function(trained: TrainResult, tmp_path: Path) -> None:
    saved = SavedModel(Path(trained.model))
    save_again(saved, tmp_path / "model")
    again = SavedModel(tmp_path / "model")
    for name, value in saved.module.state_dict().items():
        assert torch.equal(again.module.state_dict()[name], value)
    assert (again.config, again.preprocessor, again.metrics) == (saved.config, saved.preprocessor, saved.metrics)


def test_folder_says_which_software_and_data_it_was_trained_with(trained: TrainResult) -> None:
    folder = Path(trained.model)
    metrics, card = SavedModel(folder).metrics, (folder / "README.md").read_text()
    for name, version in ("dkan", dkan_core.__version__), ("torch", torch.__version__), ("Python", python_version()):
        assert f"{name} {version}" in metrics["software"]
    assert "- Trained with dkan" in card and f"training data: {metrics['data']}" in card
    assert metrics["software"] == trained.metrics["software"]


def test_folder_holds_what_the_contract_says_and_no_pickle(trained: TrainResult) -> None:
    folder = Path(trained.model)
    assert {path.name for path in folder.iterdir()} == FILES
    assert not any(path.read_bytes().startswith(b"\x80") or b"pickle" in path.read_bytes() for path in folder.iterdir())
    assert "| average_precision |" in (folder / "README.md").read_text()


def test_card_has_every_digit_of_a_count(trained: TrainResult) -> None:
    saved = SavedModel(Path(trained.model))
    card = model_card(saved.config, saved.preprocessor, {**saved.metrics, "rows": 12_345_678})
    assert "| rows | 12,345,678 |" in card


@pytest.mark.parametrize("delay", [0.0, 0.013, 0.04, 0.11])
def test_killed_while_saving_leaves_a_whole_model(trained: TrainResult, tmp_path: Path, delay: float) -> None:
    target = tmp_path / "model"
    process = warm.server().popen(["-c", SAVE_FOREVER, trained.model, target], dict(os.environ))
    assert process.stderr is not None
    with process.stderr as output:
        assert output.readline() == "0\n"
        time.sleep(delay)
        process.kill()
        process.wait()
    saved = SavedModel(target)
    assert {path.name for path in target.iterdir()} == FILES
    trained_values = [value for value in saved.module.parameters() if value.requires_grad]
    assert all(bool((value == saved.metrics["step"]).all()) for value in trained_values)


def test_replaces_without_an_atomic_exchange_too(
    trained: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_model, "_exchange", lambda first, second: False)
    saved = SavedModel(Path(trained.model))
    for step in (1, 2):
        saved.metrics["step"] = step
        save_again(saved, tmp_path / "model")
    assert SavedModel(tmp_path / "model").metrics["step"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_failed_save_keeps_the_earlier_model(
    trained: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = SavedModel(Path(trained.model))
    save_again(saved, tmp_path / "model")

    def full(path: Path, content: object) -> None:
        raise OutputError(f"{path}: the disk is full")

    monkeypatch.setattr(saved_model, "write_atomic", full)
    with pytest.raises(OutputError):
        save_again(saved, tmp_path / "model")
    assert SavedModel(tmp_path / "model").metrics == saved.metrics
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", sorted(FILES - {"README.md", "files.json"}))
def test_missing_or_damaged_file_is_named(trained: TrainResult, tmp_path: Path, name: str) -> None:
    save_again(SavedModel(Path(trained.model)), tmp_path / "model")
    path = tmp_path / "model" / name
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(DataError, match=name):
        SavedModel(tmp_path / "model")
    path.unlink()
    with pytest.raises(DataError, match=name):
        SavedModel(tmp_path / "model")


def test_weights_of_another_architecture_are_refused(trained: TrainResult, tmp_path: Path) -> None:
    save_again(SavedModel(Path(trained.model)), tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    plain = json.loads(config.read_text())
    config.write_text(json.dumps({**plain, "hidden": [9]}))
    (tmp_path / "model/files.json").unlink()
    with pytest.raises(DataError, match="does not fit"):
        SavedModel(tmp_path / "model")
