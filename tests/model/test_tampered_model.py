"""A model folder that was damaged or made up: ``dkan predict`` ends with exit code 2, the file and the key named.

Attacks but the first ones are on folders without ``files.json``, as earlier versions wrote them, where no hash helps.
"""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from dkan_core import DataError, FastKANClassifier, TrainResult, evaluate, explain, predict, publish
from tests.command import check, dkan

WEIGHTS, CONFIG, PREPROCESSOR, METRICS, HASHES = (
    "model.safetensors",
    "config.json",
    "preprocessor.json",
    "metrics.json",
    "files.json",
)
BIAS, GRID, SCALE = "bias", "network.first.rbf.grid", "calibration_scale"
DEEP = b"[" * 100_000

Attack = Callable[[Path], None]


def flip_bit(name: str) -> Attack:
    """Flip the lowest bit of a byte near the end: in weights, a number of about the same size."""

    def attack(model: Path) -> None:
        content = bytearray((model / name).read_bytes())
        content[-3] ^= 1
        (model / name).write_bytes(bytes(content))

    return attack


def put(name: str, content: bytes) -> Attack:
    def attack(model: Path) -> None:
        (model / name).write_bytes(content)

    return attack


def change(name: str, edit: Callable[[Any], object]) -> Attack:
    """Change what a JSON file holds, in place."""

    def attack(model: Path) -> None:
        plain = json.loads((model / name).read_text())
        edit(plain)
        (model / name).write_text(json.dumps(plain))

    return attack


def set_key(name: str, key: str, value: Any) -> Attack:
    return change(name, lambda plain: plain.__setitem__(key, value))


def drop_key(name: str, key: str) -> Attack:
    return change(name, lambda plain: plain.pop(key))


def feature(edit: Callable[[Any], object]) -> Attack:
    return change(PREPROCESSOR, lambda plain: edit(plain["numeric"][0]))


def label(edit: Callable[[Any], object]) -> Attack:
    return change(METRICS, lambda plain: edit(plain["labels"]))


def weights(edit: Callable[[dict[str, torch.Tensor]], object]) -> Attack:
    def attack(model: Path) -> None:
        state = load_file(model / WEIGHTS)
        edit(state)
        save_file(state, model / WEIGHTS)

    return attack


def swap_names(plain: Any) -> None:
    first, second = plain["numeric"][:2]
    first["name"], second["name"] = second["name"], first["name"]


def empty(model: Path) -> None:
    shutil.rmtree(model)
    model.mkdir()


def be_a_file(model: Path) -> None:
    shutil.rmtree(model)
    model.write_text("model")


def link_to_itself(model: Path) -> None:
    (model / CONFIG).unlink()
    (model / CONFIG).symlink_to(CONFIG)


HASHED: dict[str, tuple[Attack, str]] = {
    "bit of a weight": (flip_bit(WEIGHTS), r"model\.safetensors: is damaged or was changed: its SHA-256"),
    "bit of the config": (flip_bit(CONFIG), r"config\.json: is damaged or was changed"),
    "swapped features": (change(PREPROCESSOR, swap_names), r"preprocessor\.json: is damaged or was changed"),
    "threshold": (label(lambda labels: labels["label"].update(threshold=0.0)), r"metrics\.json: is damaged"),
    "hash left out": (
        change(HASHES, lambda plain: plain["sha256"].pop(CONFIG)),
        r"config\.json: .* nothing of it",
    ),
    "no hash": (
        change(HASHES, lambda plain: plain["sha256"].update({CONFIG: "?"})),
        r"files\.json: sha256\.config\.json",
    ),
    "later format": (set_key(HASHES, "format_version", 2), r"files\.json: format_version: .*1, got 2"),
    "hashes not JSON": (put(HASHES, b"\x80\x04"), r"files\.json: "),
    "hashes deep": (put(HASHES, DEEP), r"files\.json: .*recursion"),
}

UNHASHED: dict[str, tuple[Attack, str]] = {
    "hidden huge": (
        set_key(CONFIG, "hidden", [10**9]),
        r"model\.safetensors: does not fit config\.json, which",
    ),
    "hidden beyond": (set_key(CONFIG, "hidden", [10**10]), r"config\.json: hidden must be positive widths up to"),
    "hidden deep": (set_key(CONFIG, "hidden", [1] * 1000), r"config\.json: hidden must have at most 64 layers"),
    "members": (set_key(CONFIG, "members", 0), r"config\.json: members must be from 1 to 1,024, got 0"),
    "members text": (set_key(CONFIG, "members", "many"), r"config\.json: members: .* got 'many'"),
    "embedding": (set_key(CONFIG, "embedding_dim", 10**10), r"config\.json: embedding_dim must be"),
    "centers": (set_key(CONFIG, "num_centers", 1), r"config\.json: num_centers must be"),
    "grid infinite": (set_key(CONFIG, "grid_max", float("inf")), r"config\.json: grid_max: .* finite number"),
    "grid moved": (
        set_key(CONFIG, "grid_max", 2.5),
        r"model\.safetensors: .*rbf\.grid is not the grid",
    ),
    "grid reversed": (set_key(CONFIG, "grid_max", -9.0), r"config\.json: grid_max must be above grid_min"),
    "dropout": (set_key(CONFIG, "dropout", float("nan")), r"config\.json: dropout: .* finite number"),
    "no labels": (set_key(CONFIG, "labels", []), r"config\.json: labels: "),
    "a label twice": (set_key(CONFIG, "labels", ["label", "label"]), r"config\.json: labels: holds a value twice"),
    "other label": (set_key(CONFIG, "labels", ["other"]), r"metrics\.json: labels: must be those of config\.json"),
    "model": (set_key(CONFIG, "model", "mlp"), r"config\.json: model: .* got 'mlp'"),
    "norm": (set_key(CONFIG, "input_norm", "batch"), r"config\.json: input_norm: .* got 'batch'"),
    "norm missing": (set_key(CONFIG, "input_norm", "layer"), r"does not fit config\.json"),
    "features": (
        set_key(CONFIG, "num_numeric", 10**12),
        r"config\.json: num_numeric: does not fit preprocessor\.json",
    ),
    "codes": (
        change(CONFIG, lambda c: c["cardinalities"].__setitem__(0, 10**12)),
        r"config\.json: cardinalities: does",
    ),
    "index": (set_key(CONFIG, "missing", [99]), r"config\.json: missing: must hold indexes below \d+, got 99"),
    "negative index": (set_key(CONFIG, "binary", [-1]), r"config\.json: binary\.0: .* got -1"),
    "cross": (set_key(CONFIG, "indicators", [[0] * 10**5]), r"config\.json: indicators\.0: .* at most 30"),
    "empty cross": (set_key(CONFIG, "indicators", [[]]), r"config\.json: indicators\.0: "),
    "key missing": (drop_key(CONFIG, "hidden"), r"config\.json: hidden: Field required"),
    "key unknown": (set_key(CONFIG, "depth", 3), r"config\.json: depth: Extra inputs"),
    "config a list": (put(CONFIG, b"[]"), r"config\.json: .* object"),
    "config deep": (put(CONFIG, DEEP), r"config\.json: .*recursion"),
    "config not UTF-8": (put(CONFIG, b'{"labels": ["\xff"]}'), r"config\.json: "),
    "config a link to itself": (link_to_itself, r"model: cannot be read"),
    "knots unsorted": (feature(lambda f: f["knots"].reverse()), r"preprocessor\.json: numeric\.0\.knots: must rise"),
    "knot no number": (
        feature(lambda f: f["knots"].__setitem__(3, float("nan"))),
        r"preprocessor\.json: numeric\.0\.knots\.3: .* finite number",
    ),
    "knot text": (feature(lambda f: f["knots"].__setitem__(0, "1")), r"numeric\.0\.knots\.0: .* got '1'"),
    "no knots": (feature(lambda f: f.update(knots=[], scores=[])), r"preprocessor\.json: numeric\.0: there must be"),
    "scores": (feature(lambda f: f["scores"].__setitem__(-1, 1e9)), r"numeric\.0\.scores\.\d+: .* got 1000000000"),
    "features swapped": (
        change(PREPROCESSOR, lambda p: p["numeric"].append(p["numeric"][0])),
        r"preprocessor\.json: column 'mean_radius' occurs twice",
    ),
    "feature left out": (
        change(PREPROCESSOR, lambda p: p.update(numeric=p["numeric"][:-1], counts=None)),
        r"config\.json: num_numeric: does not fit preprocessor\.json",
    ),
    "codes left out": (
        change(PREPROCESSOR, lambda p: p.update(coded=p["coded"][1:], counts=None)),
        r"config\.json: cardinalities: does not fit preprocessor\.json",
    ),
    "codes of nothing": (
        change(PREPROCESSOR, lambda p: p["coded"][0].update(kind="text")),
        r"preprocessor\.json: coded\.0: ",
    ),
    "stored as": (set_key(PREPROCESSOR, "numeric_dtype", "int64"), r"preprocessor\.json: numeric_dtype: "),
    "encoding key missing": (drop_key(PREPROCESSOR, "coded"), r"preprocessor\.json: coded: Field required"),
    "encoding key unknown": (set_key(PREPROCESSOR, "version", 2), r"preprocessor\.json: version: Extra inputs"),
    "encoding deep": (put(PREPROCESSOR, DEEP), r"preprocessor\.json: .*recursion"),
    "metric missing": (drop_key(METRICS, "average_precision"), r"metrics\.json: average_precision: Field required"),
    "metrics without labels": (drop_key(METRICS, "labels"), r"metrics\.json: labels: Field required"),
    "threshold missing": (
        label(lambda labels: labels["label"].pop("threshold")),
        r"metrics\.json: labels\.label\.threshold: Field required",
    ),
    "threshold no number": (
        label(lambda labels: labels["label"].update(threshold=float("nan"))),
        r"metrics\.json: labels\.label\.threshold: .* finite number",
    ),
    "labels of another model": (
        label(lambda labels: labels.update(other=labels.pop("label"))),
        r"metrics\.json: labels: must be those of config\.json, \['label'\], got \['other'\]",
    ),
    "metrics deep": (put(METRICS, DEEP), r"metrics\.json: .*recursion"),
    "weights not a number": (weights(lambda w: w[BIAS].fill_(torch.nan)), r"model\.safetensors: bias holds a number"),
    "weights infinite": (weights(lambda w: [t.fill_(torch.inf) for t in w.values()]), r"model\.safetensors: .* finite"),
    "weights halved": (
        weights(lambda w: w.update({BIAS: w[BIAS].half()})),
        r"model\.safetensors: does not fit config\.json: bias must be torch\.float32 \[1\], got torch\.float16",
    ),
    "weights turned": (
        weights(lambda w: w.update({n: t.T.contiguous() for n, t in w.items() if t.ndim == 2})),
        r"model\.safetensors: does not fit config\.json: .* must be",
    ),
    "weight renamed": (
        weights(lambda w: w.update(other=w.pop(BIAS))),
        r"model\.safetensors: does not fit config\.json: 'bias' is missing",
    ),
    "weight more": (weights(lambda w: w.update(other=torch.ones(1))), r"model\.safetensors: does not fit config\.json"),
    "calibration": (weights(lambda w: w[SCALE].fill_(-1)), r"model\.safetensors: calibration_scale must be from"),
    "weights empty": (put(WEIGHTS, b""), r"model\.safetensors: is not a complete safetensors file"),
    "weights truncated": (
        lambda model: put(WEIGHTS, (model / WEIGHTS).read_bytes()[:-9])(model),
        r"model\.safetensors: is not a complete safetensors file",
    ),
    "weights a pickle": (put(WEIGHTS, pickle.dumps([1.0])), r"model\.safetensors: is not a complete safetensors file"),
    "folder empty": (empty, r"model: no config\.json there; expected a model"),
    "folder a file": (be_a_file, r"model: is a file; expected the folder of a model"),
}


@pytest.fixture
def model(trained: TrainResult, tmp_path: Path) -> Path:
    """A copy of a sound model."""
    return Path(shutil.copytree(trained.model, tmp_path / "model"))


@pytest.mark.parametrize("case", [*HASHED, *UNHASHED])
def test_predict_with_a_tampered_model(
    case: str, model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    attack, message = {**HASHED, **UNHASHED}[case]
    if case in UNHASHED:
        (model / HASHES).unlink()
    attack(model)
    code = dkan("predict", model, source, "--out", tmp_path / "scores.parquet", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert not (tmp_path / "scores.parquet").exists()


@pytest.mark.parametrize("command", ["evaluate", "explain", "publish", "load"])
def test_whoever_reads_a_model_notices_damage(command: str, model: Path, prepared: Path, tmp_path: Path) -> None:
    flip_bit(WEIGHTS)(model)
    readers: dict[str, Callable[[], object]] = {
        "evaluate": lambda: evaluate(model, prepared, tmp_path / "out"),
        "explain": lambda: explain(model, prepared, tmp_path / "out"),
        "publish": lambda: publish(model, tmp_path / "out"),
        "load": lambda: FastKANClassifier.load(model),
    }
    with pytest.raises(DataError, match=r"model\.safetensors: is damaged or was changed"):
        readers[command]()
    assert not (tmp_path / "out").exists()


def test_damaged_earlier_model_is_not_compared_with(
    trained: TrainResult, model: Path, prepared: Path, tmp_path: Path
) -> None:
    flip_bit(WEIGHTS)(model)
    evaluation = evaluate(trained.model, prepared, tmp_path / "out", explain=False, previous=model)
    assert evaluation.metrics["comparable"] is False
    assert "is damaged or was changed" in (tmp_path / "out/report.html").read_text()


def test_folder_of_an_earlier_version_is_read_and_said_to_be_unguarded(
    trained: TrainResult, model: Path, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (model / HASHES).unlink()
    predict(trained.model, source, tmp_path / "wanted.parquet")
    assert "has no files.json" not in caplog.text
    predict(model, source, tmp_path / "scores.parquet")
    assert caplog.text.count("has no files.json") == 1
    assert pq.read_table(tmp_path / "scores.parquet") == pq.read_table(tmp_path / "wanted.parquet")


def test_card_may_be_edited(model: Path, source: Path, tmp_path: Path) -> None:
    (model / "README.md").write_text("Ours.")
    assert predict(model, source, tmp_path / "scores.parquet") == 569


def test_probability_that_is_none_is_named_with_file_row_and_label(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Finite weights whose sums overflow: infinity minus infinity."""
    (model / HASHES).unlink()

    def overflow(state: dict[str, torch.Tensor]) -> None:
        state["network.first.base_linear.weight"].fill_(3e38)
        state["network.first.spline_linear.weight"].fill_(-3e38)

    weights(overflow)(model)
    code = dkan("predict", model, source, "--out", tmp_path / "scores.parquet", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, r"rows\.parquet: row 0: the model gives no probability of 'label', but nan")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_training_more_parameters_than_memory_holds_is_refused_before_they_are_made(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    words = ["train", prepared, "--out", tmp_path / "run", "--hidden", 100_000_000, "--device", "cpu"]
    code = dkan(*words, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, r"hidden \(100000000,\) make [\d,]+ parameters, which need .* GB")


def test_names_that_are_markdown_or_html_are_shown_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"<script>alert(1)</script>": rng.normal(size=80), "[x](http://y)\n# z": rng.normal(size=80)})
    FastKANClassifier(hidden=(2,), epochs=1, random_state=0).fit(frame, np.arange(80) % 2).save(tmp_path / "model")
    card = (tmp_path / "model/README.md").read_text()
    assert "<script" not in card and "[x]" not in card and "\n# z" not in card
    assert r"&lt;script&gt;alert\(1\)&lt;/script&gt;, \[x\]\(http\://y\) \# z" in card
