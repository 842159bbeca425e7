"""Batch scoring by parts: the scores of ``predict``, exact metrics, drift, a gate; nothing looks whole too early."""

import html
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from dkan_core import (
    ConfigError,
    DataError,
    GateError,
    OutputError,
    PrepareConfig,
    TrainConfig,
    TrainResult,
    complete_scoring,
    evaluate,
    measure_drift,
    plan_scoring,
    predict,
    prepare,
    score_part,
    summarize_scoring,
    train,
)
from dkan_core.batch_scoring import plan
from dkan_core.batch_scoring.plan import open_plan, share_out
from dkan_core.scoring.output_columns import check_sources
from tests import warm
from tests.command import check, dkan

BOUNDS = {"a.parquet": (0, 40), "day=2/b.parquet": (40, 400), "day=2/c.parquet": (400, 569), "day=3/b.pq": (569, 569)}


@pytest.fixture(scope="module")
def raw(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source in files of different sizes, one of them without rows."""
    folder, rows = tmp_path_factory.mktemp("raw"), pq.read_table(source)
    rows = rows.append_column("row", pa.array(np.arange(len(rows))))
    for name, (start, stop) in BOUNDS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        pq.write_table(rows.slice(start, stop - start), folder / name)
    return folder


def score(trained: TrainResult, raw: Path | str, out: Path | str, **options: Any) -> int:
    parts = plan_scoring(trained.model, raw, out, **options)
    return sum(score_part(out, part) for part in reversed(parts))


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_every_file_has_the_bytes_that_predict_writes(trained: TrainResult, raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert score(trained, raw, out, columns=("row", "label"), labels=("label",), parts=3) == 569
    assert complete_scoring(out) == 569 == complete_scoring(out), "a second call finds it done"
    assert names_in(out) == {*BOUNDS, "_scoring.json"}
    for name in BOUNDS:
        predict(trained.model, raw / name, tmp_path / "alone", columns=("row", "label"), overwrite=True)
        assert (out / name).read_bytes() == (tmp_path / "alone").read_bytes(), name


def test_scores_of_all_files_have_one_schema(trained: TrainResult, source: Path, tmp_path: Path) -> None:
    rows, kinds = pq.read_table(source), [pa.int8(), pa.float64(), pa.null(), pa.int32()]
    for number, kind in enumerate(kinds):
        numbers = pa.array([number] * 10, pa.int8()).cast(kind) if kind != pa.null() else pa.nulls(10)
        folder = tmp_path / f"raw/share={number}"
        folder.mkdir(parents=True)
        pq.write_table(rows.slice(10 * number, 10).append_column("number", numbers), folder / "rows.parquet")
    score(trained, tmp_path / "raw", tmp_path / "out", columns=("number", "share"), parts=3)
    complete_scoring(tmp_path / "out")
    files = sorted((tmp_path / "out").rglob("*.parquet"))
    assert len(files) == 4 and len({pq.read_schema(file) for file in files}) == 1
    found = pa.concat_tables([pq.read_table(file, partitioning=None) for file in files])
    assert found["number"].to_pylist() == [0.0] * 10 + [1.0] * 10 + [None] * 10 + [3.0] * 10
    predict(trained.model, tmp_path / "raw", tmp_path / "alone.parquet", columns=("number", "share"))
    assert pq.read_table(tmp_path / "alone.parquet").equals(found)


@pytest.mark.parametrize("parts", [1, 4])
def test_what_is_known_at_the_end_does_not_depend_on_the_parts(
    trained: TrainResult, raw: Path, tmp_path: Path, parts: int
) -> None:
    out = tmp_path / "out"
    score(trained, raw, out, labels=("label",), parts=parts)
    summary = summarize_scoring(out)
    assert html.escape(str(summary.page)) in summary._repr_html_()
    complete_scoring(out, max_psi=10, min_average_precision=0.5)
    rows = pq.read_table(raw, columns=["row", "label"], partitioning=None).sort_by("row")
    predict(trained.model, raw, tmp_path / "alone", columns=("row",))
    scores = pq.read_table(tmp_path / "alone").sort_by("row")["label_probability"].to_numpy()
    labels, metrics = rows["label"].to_numpy(), summary.metrics
    assert metrics is not None and metrics["rows"] == 569
    assert metrics["average_precision"] == pytest.approx(average_precision_score(labels, scores), rel=1e-12)
    assert metrics["roc_auc"] == pytest.approx(roc_auc_score(labels, scores), rel=1e-12)
    assert metrics["log_loss"] == pytest.approx(log_loss(labels, scores.astype(np.float64)), rel=1e-5)
    assert metrics["prevalence"] == pytest.approx(labels.mean(), rel=1e-12)
    done = json.loads((out / "_scoring.json").read_text())
    assert (
        done["metrics"] == metrics
        and done["drift"] == summary.drift.to_dict() == measure_drift(trained.model, raw).to_dict()
    )
    assert {file["output"]: file["rows"] for file in done["files"]} == {
        name: stop - start for name, (start, stop) in BOUNDS.items()
    }
    assert all((out / file["output"]).stat().st_size == file["bytes"] for file in done["files"])
    assert "Average precision" in summary.page and "mean_radius" in summary.page


def test_rows_of_training_are_stable_and_shifted_ones_are_not(
    trained: TrainResult, source: Path, tmp_path: Path
) -> None:
    known = measure_drift(trained.model, source)
    assert {column.kind for column in known.columns} == {"number", "category", "score"}
    # The scores are held against the few rows of validation.
    limits = {"number": 0.05, "category": 0.05, "score": 0.2}
    assert all(column.psi is not None and column.psi < limits[column.kind] for column in known.columns)
    rows = pq.read_table(source)
    index = rows.schema.get_field_index("mean_area")
    shifted = rows.set_column(index, "mean_area", pc.multiply(rows["mean_area"], 3.0))
    pq.write_table(shifted, tmp_path / "shifted.parquet")
    drift = measure_drift(trained.model, tmp_path / "shifted.parquet")
    assert drift.columns[0].name == "mean_area" and (drift.columns[0].psi or 0) > 1
    assert (drift.columns[0].ks or 0) > 0.5


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_psi": 1e-6}, r"PSI above max_psi 1e-06: .*'\w+' has 0\.\d{4}"),
        ({"min_average_precision": 1.0}, r"average precision 0\.\d{4} is below min_average_precision 1"),
    ],
)
def test_what_fails_the_gate_is_not_marked_whole(
    trained: TrainResult, raw: Path, tmp_path: Path, limits: dict[str, float], message: str
) -> None:
    out = tmp_path / "out"
    score(trained, raw, out, labels=("label",))
    with pytest.raises(GateError, match=message):
        complete_scoring(out, **limits)
    assert set(BOUNDS) < names_in(out) and not (out / "_scoring.json").exists()
    before = {name: (out / name).stat().st_mtime_ns for name in BOUNDS}
    assert score(trained, raw, out, labels=("label",)) == 569, "with other limits nothing is scored again"
    assert {name: (out / name).stat().st_mtime_ns for name in BOUNDS} == before
    complete_scoring(out)
    assert names_in(out) == {*BOUNDS, "_scoring.json"}
    with pytest.raises(GateError, match=message):
        complete_scoring(out, **limits)
    assert names_in(out) == {*BOUNDS, "_scoring.json"}


def test_gate_by_average_precision_needs_labels(trained: TrainResult, raw: Path, tmp_path: Path) -> None:
    score(trained, raw, tmp_path / "out")
    assert summarize_scoring(tmp_path / "out").metrics is None
    with pytest.raises(ConfigError, match=r"min_average_precision 0.5 needs label columns"):
        complete_scoring(tmp_path / "out", min_average_precision=0.5)


def test_part_that_is_missing_is_named(trained: TrainResult, raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert plan_scoring(trained.model, raw, out, parts=64) == [0, 1, 2, 3], "no part without a file"
    score_part(out, 2)
    with pytest.raises(DataError, match=r"part 0, 1, 3 of 4 not scored yet"):
        complete_scoring(out)
    with pytest.raises(ConfigError, match="part must be from 0 to 3, got 4"):
        score_part(out, 4)
    (tmp_path / "more").mkdir()
    for number in range(10):
        shutil.copy(raw / "a.parquet", tmp_path / f"more/{number}.parquet")
    plan_scoring(trained.model, tmp_path / "more", tmp_path / "scores", parts=10)
    with pytest.raises(DataError, match=r"part 0, 1, 2, 3, 4, 5, 6, 7 and 2 more of 10 not scored yet"):
        complete_scoring(tmp_path / "scores")


def test_killed_part_is_run_again_and_writes_the_same(trained: TrainResult, raw: Path, tmp_path: Path) -> None:
    """The pod is killed each time a file of its own has appeared, until one run comes through."""
    out, wanted = tmp_path / "out", tmp_path / "wanted"
    score(trained, raw, wanted, parts=1)
    plan_scoring(trained.model, raw, out, parts=1)
    code = (
        "import os, signal\n"
        "from dkan_core.batch_scoring import parts\n"
        "write = parts._score_file\n"
        "def die(*arguments):\n"
        "    left = write(*arguments)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "parts._score_file = die\n"
        f"parts.score_part({str(out)!r}, 0)\n"
    )
    killed = warm.server().run(["-c", code])
    assert killed.returncode == -signal.SIGKILL and (out / "a.parquet").exists()
    with pytest.raises(DataError, match="part 0 of 1 not scored yet"):
        complete_scoring(out)
    score_part(out, 0)
    for folder in (out, wanted):
        complete_scoring(folder)
    assert {name: (out / name).read_bytes() for name in BOUNDS} == {
        name: (wanted / name).read_bytes() for name in BOUNDS
    }


def test_damaged_output_is_scored_again(trained: TrainResult, raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    score(trained, raw, out, parts=1)
    (out / "a.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.parquet: has changed since it was written; run its part again"):
        complete_scoring(out)
    score_part(out, 0)
    complete_scoring(out)


def test_model_that_is_replaced_meanwhile_changes_nothing(trained: TrainResult, raw: Path, tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(trained.model, model)
    plan_scoring(model, raw, out, parts=1)
    (model / "model.safetensors").write_bytes(b"")
    assert score_part(out, 0) == 569
    assert len(open_plan(out)[1].fingerprint) == 64


def test_fingerprint_is_that_of_the_model_that_was_read(
    trained: TrainResult, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another one is published while the files are looked at."""
    model = tmp_path / "model"
    shutil.copytree(trained.model, model)

    def look_at_files(*given: Any) -> Any:
        (model / "model.safetensors").write_bytes(b"another one")
        return check_sources(*given)

    plan_scoring(trained.model, raw, tmp_path / "alone")
    monkeypatch.setattr(plan, "check_sources", look_at_files)
    plan_scoring(model, raw, tmp_path / "out")
    assert open_plan(tmp_path / "out")[1].fingerprint == open_plan(tmp_path / "alone")[1].fingerprint


def test_other_files_are_scored_in_the_same_place_only_when_told(
    trained: TrainResult, raw: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    score(trained, raw, out)
    complete_scoring(out)
    with pytest.raises(OutputError, match="other files were scored there"):
        plan_scoring(trained.model, raw / "day=2", out)
    assert (out / "_scoring.json").exists()
    plan_scoring(trained.model, raw / "day=2", out, overwrite=True)
    assert not names_in(out) & {*BOUNDS, "_scoring.json"}, "nothing of the earlier result looks whole"
    score_part(out, 0), score_part(out, 1)
    complete_scoring(out)
    assert names_in(out) == {"b.parquet", "c.parquet", "_scoring.json"}


def test_accepted_scores_are_not_scored_again(trained: TrainResult, raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    score(trained, raw, out, labels=("label",))
    summary = summarize_scoring(out)
    complete_scoring(out)
    written = {name: (out / name).stat().st_mtime_ns for name in names_in(out)}
    assert score(trained, raw, out, labels=("label",)) == 569
    repeated = summarize_scoring(out)
    assert (repeated.page, repeated.to_dict()) == (summary.page, summary.to_dict())
    assert complete_scoring(out) == 569
    assert {name: (out / name).stat().st_mtime_ns for name in names_in(out)} == written


def test_accepted_scores_that_are_gone_are_scored_again(trained: TrainResult, raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    score(trained, raw, out)
    complete_scoring(out)
    (out / "a.parquet").unlink()
    assert score(trained, raw, out) == 569
    assert not (out / "_scoring.json").exists()
    complete_scoring(out)
    assert names_in(out) == {*BOUNDS, "_scoring.json"}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"parts": 0}, ConfigError, r"parts \(num_parts in Kubeflow\) must be at least 1, got 0"),
        ({"labels": ("label", "site")}, ConfigError, r"label, site: the model has 1 label \(label\)"),
        ({"labels": ("site",)}, ConfigError, r"label site: is a feature of the model"),
        ({"labels": ("late",)}, DataError, r"a\.parquet: label column 'late' does not exist; .* candidates are"),
        ({"columns": ("late",)}, DataError, r"column 'late' does not exist, so it cannot be copied to the output"),
    ],
)
def test_bad_settings_are_named_before_anything_is_written(
    trained: TrainResult, raw: Path, tmp_path: Path, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan_scoring(trained.model, raw, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_folders_that_cannot_take_scores_are_refused(trained: TrainResult, raw: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="holds source files"):
        plan_scoring(trained.model, raw, raw)
    (tmp_path / "letters").write_text("dear")
    with pytest.raises(OutputError, match=r"contains letters, which this command did not write"):
        plan_scoring(trained.model, raw, tmp_path)
    with pytest.raises(DataError, match="no scoring is in progress there"):
        score_part(tmp_path / "nothing", 0)


def test_source_that_changes_is_noticed(trained: TrainResult, source: Path, tmp_path: Path) -> None:
    rows = pq.read_table(source)
    pq.write_table(rows, tmp_path / "rows.parquet")
    plan_scoring(trained.model, tmp_path / "rows.parquet", tmp_path / "out")
    pq.write_table(rows.slice(0, 10), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet: changed after the scoring was planned"):
        score_part(tmp_path / "out", 0)


def test_label_that_is_none_is_named(trained: TrainResult, raw: Path, tmp_path: Path) -> None:
    plan_scoring(trained.model, raw / "day=2", tmp_path / "out", labels=("row",), parts=1)
    with pytest.raises(DataError, match=r"b\.parquet: label column 'row' .*; found 40.*; the model was trained with 0"):
        score_part(tmp_path / "out", 0)


@pytest.mark.s3
def test_files_in_a_bucket_are_scored(trained: TrainResult, raw: Path, tmp_path: Path, s3: str) -> None:
    import fsspec

    bucket = fsspec.filesystem("s3")
    bucket.put(str(raw), f"{s3}/raw", recursive=True)
    assert score(trained, f"{s3}/raw", f"{s3}/out", labels=("label",), parts=2) == 569
    complete_scoring(f"{s3}/out")
    bucket.invalidate_cache()
    assert {path.split("/out/")[1] for path in bucket.find(f"{s3}/out")} == {*BOUNDS, "_scoring.json"}
    predict(trained.model, raw / "a.parquet", tmp_path / "alone")
    assert bucket.cat_file(f"{s3}/out/a.parquet") == (tmp_path / "alone").read_bytes()


def test_labels_of_the_model_are_found_by_name_and_others_in_their_order(source: Path, tmp_path: Path) -> None:
    rows = pq.read_table(source)
    area = rows["mean_area"].to_numpy()
    rows = rows.append_column("small", pa.array((area < np.nanmedian(area)).astype(np.uint8)))
    rows = rows.append_column("renamed", rows["label"])
    pq.write_table(rows, tmp_path / "rows.parquet")
    prepare(
        tmp_path / "rows.parquet",
        tmp_path / "prepared",
        PrepareConfig(label=("label", "small"), drop=("renamed", "mean_area")),
    )
    config = TrainConfig(blend=False, epochs=1, hidden=(4,), workers=1, device="cpu")
    trained, metrics = train(tmp_path / "prepared", tmp_path / "run", config), []
    for labels in (("label", "small"), ("small", "label"), ("renamed", "small")):
        score(trained, tmp_path / "rows.parquet", tmp_path / "out", labels=labels, overwrite=True)
        metrics.append(summarize_scoring(tmp_path / "out").metrics)
    assert metrics[0] == metrics[1] == metrics[2]
    for labels, message in (
        (
            ("small", "renamed"),
            r"label 'small' is in the place of 'label'; .* of the model's labels: label, small",
        ),
        (("renamed", "renamed"), r"label 'renamed' is named twice; name a column for each of label, small"),
    ):
        for refuse in (plan_scoring, evaluate):
            arguments: dict[str, Any] = {"labels" if refuse is plan_scoring else "label": labels}
            with pytest.raises(ConfigError, match=message):
                refuse(trained.model, tmp_path / "rows.parquet", tmp_path / "none", **arguments)


def test_largest_files_are_shared_out_first() -> None:
    sizes = [5, 90, 5, 40, 60, 0, 0]
    shares = share_out(sizes, 3)
    assert sorted(index for share in shares for index in share) == list(range(7))
    assert max(sum(sizes[index] for index in share) for share in shares) == 90
    assert share_out(sizes, 3) == shares and all(share_out([0, 0, 0], 3))


def test_command_prints_the_table_and_fails_by_its_gate(
    trained: TrainResult, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("drift", trained.model, raw, "--json", tmp_path / "drift.json")
    assert dkan(*arguments, monkeypatch=monkeypatch) == 0
    assert "mean_radius" in capsys.readouterr().out
    assert dkan(*arguments, "--overwrite", "--max-psi", "1e-9", monkeypatch=monkeypatch) == 1
    printed = capsys.readouterr()
    assert "error: PSI above max_psi 1e-09" in printed.err and "mean_radius" in printed.out
    assert json.loads((tmp_path / "drift.json").read_text())["rows"] == 569
    code = dkan("drift", trained.model, tmp_path / "nowhere", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, "nowhere: no such file or folder")
