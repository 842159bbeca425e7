"""``publish`` copies a whole model with its card; ``choose_best`` takes the best of several runs."""

import errno
import json
from pathlib import Path

import fsspec
import pytest

from dkan_core import DataError, OutputError, TrainResult, choose_best, predict, publish


def test_published_model_scores_and_its_card_has_the_test(trained: TrainResult, source: Path, tmp_path: Path) -> None:
    publish(Path(trained.model).parent, tmp_path / "best", {"average_precision": 0.97, "split": "test"})
    names = {path.name for path in (tmp_path / "best").iterdir()}
    assert {"model.safetensors", "README.md"} <= names == {path.name for path in Path(trained.model).iterdir()}
    card = (tmp_path / "best" / "README.md").read_text()
    assert "| average_precision | 0.97 |" in card and "| split |" not in card
    assert predict(tmp_path / "best", source, tmp_path / "scores.parquet") == 569


def test_card_has_one_table_of_the_last_test(trained: TrainResult, tmp_path: Path) -> None:
    first, card = tmp_path / "first", tmp_path / "second" / "README.md"
    publish(trained.model, first, {"average_precision": 0.9, "is_raw": False, "roc_auc": float("nan")})
    publish(first, card.parent)
    assert card.read_text().endswith("| test metric | value |\n|---|---:|\n| average_precision | 0.9 |\n")
    with (first / "README.md").open("a") as file:
        file.write("\nApproved.\n")
    publish(first, card.parent, {"average_precision": 0.97})
    text = card.read_text()
    assert text.endswith("\nApproved.\n\n| test metric | value |\n|---|---:|\n| average_precision | 0.97 |\n")
    assert text.count("| test metric |") == 1


def test_card_has_whole_counts_in_the_same_order_whatever_order_metrics_come_in(
    trained: TrainResult, tmp_path: Path
) -> None:
    metrics = {"rows": 12_345_678.0, "average_precision": 0.97, "brier": 0.1234567891}
    publish(trained.model, tmp_path / "one", metrics)
    publish(trained.model, tmp_path / "other", dict(reversed(metrics.items())))
    card = (tmp_path / "one" / "README.md").read_text()
    assert card.endswith("| average_precision | 0.97 |\n| brier | 0.123457 |\n| rows | 12,345,678 |\n")
    assert card == (tmp_path / "other" / "README.md").read_text()


def test_damaged_model_is_not_published(trained: TrainResult, tmp_path: Path) -> None:
    publish(trained.model, tmp_path / "whole")
    weights = tmp_path / "whole" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"model\.safetensors"):
        publish(tmp_path / "whole", tmp_path / "best")
    assert not (tmp_path / "best").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"notes.txt": "mine"}, r"notes\.txt"),
        ({"model.safetensors": "mine"}, r"model\.safetensors"),
        ({"config.json": '{"architectures": ["BertModel"]}', "model.safetensors": "mine"}, r"config\.json: was not"),
    ],
    ids=["another name", "one of our names", "another model"],
)
def test_foreign_files_are_not_overwritten(
    trained: TrainResult, tmp_path: Path, files: dict[str, str], message: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(OutputError, match=message):
        publish(trained.model, tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files
    fs = fsspec.filesystem("memory")
    fs.put(f"{tmp_path}/", "/foreign/", recursive=True)
    with pytest.raises(OutputError, match=message):
        publish(trained.model, "memory://foreign/")
    fs.rm("/foreign", recursive=True)


def test_own_file_in_a_published_model_stays(trained: TrainResult, tmp_path: Path) -> None:
    publish(trained.model, tmp_path / "best")
    (tmp_path / "best" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"notes\.txt"):
        publish(trained.model, tmp_path / "best")
    assert (tmp_path / "best" / "notes.txt").read_text() == "mine"


def test_model_with_a_file_more_is_replaced(trained: TrainResult, tmp_path: Path) -> None:
    publish(trained.model, tmp_path / "best")
    (tmp_path / "best" / "estimator.json").write_text("{}")
    publish(trained.model, tmp_path / "best")
    assert not (tmp_path / "best" / "estimator.json").exists()


@pytest.mark.s3
def test_model_is_published_to_a_bucket(trained: TrainResult, s3: str, source: Path, tmp_path: Path) -> None:
    publish(trained.model, f"{s3}/best", {"average_precision": 0.9})
    publish(trained.model, f"{s3}/best", {"average_precision": 0.97})
    assert predict(f"{s3}/best", source, tmp_path / "scores.parquet") == 569


@pytest.mark.s3
def test_bucket_that_fails_while_a_model_is_published_keeps_the_earlier_one(
    trained: TrainResult, s3: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    publish(trained.model, f"{s3}/best", {"average_precision": 0.9})
    put, calls = s3fs.S3FileSystem._put_file, []

    async def failing(self: s3fs.S3FileSystem, *arguments: object, **options: object) -> None:
        calls.append(arguments)
        if len(calls) == 3:
            raise OSError("503 Slow Down")
        await put(self, *arguments, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_put_file", failing)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(OutputError, match="503 Slow Down"):
        publish(trained.model, f"{s3}/best", {"average_precision": 0.97})
    assert len(calls) == 3
    monkeypatch.setattr(s3fs.S3FileSystem, "_put_file", put)
    s3fs.S3FileSystem.clear_instance_cache()
    fs = s3fs.S3FileSystem()
    fs.invalidate_cache()
    best = f"{s3}/best".removeprefix("s3://")
    assert {Path(path).name for path in fs.find(best)} == {path.name for path in Path(trained.model).iterdir()}
    assert "| 0.9 |" in fs.read_text(f"{best}/README.md")


def run_with(folder: Path, average_precision: float) -> Path:
    folder.mkdir()
    (folder / "metrics.json").write_text(json.dumps({"average_precision": average_precision}))
    return folder


def test_first_of_the_best_runs_is_chosen(tmp_path: Path) -> None:
    runs = [run_with(tmp_path / str(number), score) for number, score in enumerate([0.5, 0.7, 0.7])]
    assert choose_best(runs, tmp_path / "best") == 1
    assert json.loads((tmp_path / "best" / "metrics.json").read_text()) == {"average_precision": 0.7}


def test_best_run_is_copied_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, best = run_with(tmp_path / "run", 0.5), tmp_path / "best"
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}")
    best.mkdir()
    (best / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"/best: contains notes\.txt, which this command did not write"):
        choose_best([run], best)
    assert [path.name for path in best.iterdir()] == ["notes.txt"]
    (best / "notes.txt").unlink()

    def fill(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfile", fill)
        with pytest.raises(OutputError, match="No space left"):
            choose_best([run], best)
    assert not list(best.iterdir())
    choose_best([run], best)
    assert {path.name for path in best.iterdir()} == {"metrics.json", "model"}


def test_unfinished_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"/b: holds no finished run"):
        choose_best([run_with(tmp_path / "a", 0.5), tmp_path / "b"], tmp_path / "best")
