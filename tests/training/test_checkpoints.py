"""A checkpoint is whole, found again, and refused where it does not fit."""

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkan_core import ConfigError, DataError, OutputError, TrainConfig, TrainResult, train
from dkan_core.model.model_folder import MODEL_FILES
from dkan_core.training.best_state import read_model
from dkan_core.training.checkpoint_file import (
    Checkpoint,
    LedgerFacts,
    SnapshotFacts,
    decode,
    encode,
    encode_parts,
    run_facts,
)
from dkan_core.training.checkpoints import (
    KEPT_FILES,
    checkpoint_folder,
    clear_checkpoints,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from dkan_core.training.ledger import ENDINGS, Ledger, add_to_digest
from dkan_core.training.memory import Snapshot
from dkan_core.training.resuming import ending_of, waiting_snapshots
from dkan_core.training.schedule import Schedule
from dkan_core.training.snapshots import StateSnapshot

ROWS, DATA = 100, "f" * 64
CONFIG = TrainConfig(epochs=200, batch_size=10, workers=1, sync_interval=1, resume="auto")
MODEL = {name: name.encode() for name in MODEL_FILES}


def evaluation(step: int, value: float = 0.5) -> dict[str, Any]:
    return {
        "epoch": step / 10,
        "step": step,
        "seconds": 0.1 * step,
        "loss": 0.3,
        "rows_per_second": 1000.0,
        "average_precision": value,
        "best_average_precision": value,
        "best": True,
    }


def ledger_at(step: int) -> Ledger:
    digest = add_to_digest(0, range(step))
    return Ledger(step=step, ranges=step, next_range=step, rows=10 * step, digest=digest, used=3.5)


def waiting_at(step: int) -> StateSnapshot:
    state = np.random.default_rng(step).normal(size=(3, 500)).astype(np.float32)
    return StateSnapshot(Snapshot(number=step + 1, step=step), ledger_at(step), state)


def checkpoint_of(step: int, **changes: Any) -> Checkpoint:
    state = np.random.default_rng(step).normal(size=(3, 500)).astype(np.float32)
    made = Checkpoint(
        **run_facts(DATA, {"hidden": [8]}, CONFIG),
        ledger=ledger_at(step),
        state_KP=state,
        history=[evaluation(0)],
        pending=[waiting_at(step)],
        model=MODEL,
    )
    return replace(made, **changes)


def test_what_was_saved_is_found_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 20, 300):
        save_checkpoint(str(tmp_path), checkpoint_of(step))
    uri, found = load_checkpoint(str(tmp_path)) or ("", None)
    wanted = checkpoint_of(300)
    assert uri.endswith("step-000000000300.safetensors") and found is not None
    assert np.array_equal(found.state_KP, wanted.state_KP) and found.history == wanted.history
    assert replace(found.ledger, checksum=0) == wanted.ledger and found.model == wanted.model
    (waits,), (expected,) = found.pending, wanted.pending
    assert (waits.snapshot, waits.ledger) == (expected.snapshot, expected.ledger)
    assert np.array_equal(waits.state_KP, expected.state_KP)
    assert len(os.listdir(tmp_path)) == KEPT_FILES
    assert load_checkpoint(str(tmp_path / "none")) is None


def test_checkpoints_of_a_run_that_was_further_give_way(tmp_path: Path) -> None:
    for step in (1000, 1404, 500):
        written = save_checkpoint(str(tmp_path), checkpoint_of(step))
    assert Path(written).exists() and [path.name for path in tmp_path.iterdir()] == [Path(written).name]


def test_run_whose_last_score_is_missing_is_not_finished() -> None:
    ledger = replace(checkpoint_of(5).ledger, step=2000)
    assert ending_of(checkpoint_of(5, ledger=ledger), CONFIG, ROWS) == ""
    assert ending_of(checkpoint_of(5, ledger=ledger, pending=[]), CONFIG, ROWS) == "epochs"
    assert ending_of(checkpoint_of(5, ledger=ledger, pending=[], history=[]), CONFIG, ROWS) == ""
    assert ending_of(checkpoint_of(5, ledger=ledger, pending=[]), replace(CONFIG, epochs=201), ROWS) == ""
    timed = replace(checkpoint_of(5).ledger, ended=ENDINGS.index("time"))
    limits = {3.0: "time", 4.0: "", None: ""}
    for limit, ending in limits.items():
        assert ending_of(checkpoint_of(5, ledger=timed), replace(CONFIG, max_seconds=limit), ROWS) == ending


def test_patience_is_counted_from_the_history() -> None:
    history = [evaluation(step, value) for step, value in ((10, 0.5), (20, 0.7), (30, 0.6), (40, 0.7))]
    stopped = checkpoint_of(45, history=history, pending=[])
    endings = [ending_of(stopped, replace(CONFIG, patience=patience), ROWS) for patience in (1, 2, 3)]
    assert endings == ["patience", "patience", ""]


@pytest.mark.parametrize(("last", "waiting"), [(45, [30, 40]), (50, [30, 40, 50])])
def test_snapshot_where_a_run_happened_to_stop_is_not_scored(last: int, waiting: list[int]) -> None:
    """Only the evaluations that more patience from the start would have made are made."""
    pending = [waiting_at(step) for step in (30, 40, last)]
    ended = replace(checkpoint_of(last).ledger, ended=ENDINGS.index("patience"))
    stopped = checkpoint_of(last, history=[evaluation(10), evaluation(20)], pending=pending, ledger=ended)
    schedule = Schedule.of(replace(CONFIG, learning_rate=0.1), ROWS)
    assert [each.snapshot.step for each in waiting_snapshots(stopped, schedule)] == waiting
    assert len(waiting_snapshots(replace(stopped, ledger=replace(ended, ended=0)), schedule)) == 3


def test_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    first, second = (Path(save_checkpoint(str(tmp_path), checkpoint_of(step))) for step in (1, 2))
    second.write_bytes(second.read_bytes()[:-10])
    found = load_checkpoint(str(tmp_path))
    assert found is not None and found[1].ledger.step == 1
    first.write_bytes(b"nonsense" * 100)
    with pytest.raises(DataError, match=r"step-0+1\.safetensors: is no whole checkpoint"):
        load_checkpoint(str(tmp_path))


def altered_facts(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change what a checkpoint says, and leave its digest as it was."""
    header, body = header_of(path.read_bytes())
    facts = json.loads(header["__metadata__"]["facts"])
    change(facts)
    header["__metadata__"]["facts"] = json.dumps(facts)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts["ledger"].update(step=2, ranges=2, next_range=2),
        lambda facts: facts["ledger"].update(version=7),
        lambda facts: facts["ledger"].update(bank=1),
        lambda facts: facts["ledger"].update(used=1e9),
        lambda facts: facts["pending"][0]["snapshot"].update(step=0),
        lambda facts: facts["pending"].clear(),
        lambda facts: facts["history"][0].update(average_precision=0.99),
        lambda facts: facts["settings"].update(learning_rate=0.5),
        lambda facts: facts["architecture"].update(hidden=[9]),
        lambda facts: facts.update(data="e" * 64),
    ],
)
def test_altered_fact_is_noticed(tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = Path(save_checkpoint(str(tmp_path), checkpoint_of(1)))
    altered_facts(path, lambda facts: None)
    assert load_checkpoint(str(path)), "nothing was altered"
    altered_facts(path, change)
    with pytest.raises(DataError, match=r"step-0+1\.safetensors: is damaged"):
        load_checkpoint(str(path))


@pytest.mark.parametrize("tensor", ["state", "pending.0", *(f"model/{name}" for name in MODEL_FILES)])
def test_flipped_bit_of_a_tensor_is_noticed(tmp_path: Path, tensor: str) -> None:
    path = Path(save_checkpoint(str(tmp_path), checkpoint_of(1)))
    content = bytearray(path.read_bytes())
    header, body = header_of(bytes(content))
    content[len(content) - len(body) + header[tensor]["data_offsets"][0]] ^= 4
    path.write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        load_checkpoint(str(path))


NOT_FINITE = {"nan": float("nan"), "infinity": float("inf")}
FORGED_FACTS: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("ledger", lambda facts: facts.pop("ledger")),
    ("history", lambda facts: facts.pop("history")),
    ("unknown", lambda facts: facts.update(unknown=1)),
    ("ledger", lambda facts: facts.update(ledger=[])),
    ("ledger.step", lambda facts: facts["ledger"].pop("step")),
    ("ledger.step", lambda facts: facts["ledger"].update(step="1")),
    ("ledger.step", lambda facts: facts["ledger"].update(step=-1)),
    ("ledger.step", lambda facts: facts["ledger"].update(step=1.5)),
    ("ledger.version", lambda facts: facts["ledger"].update(version=1 << 70)),
    ("ledger.bank", lambda facts: facts["ledger"].update(bank=2)),
    ("ledger.ended", lambda facts: facts["ledger"].update(ended=9)),
    ("ledger.backoffs", lambda facts: facts["ledger"].update(backoffs=2000)),
    ("ledger.used", lambda facts: facts["ledger"].update(used=NOT_FINITE["nan"])),
    ("ledger.checksum", lambda facts: facts["ledger"].update(checksum=1)),
    ("ledger", lambda facts: facts["ledger"].update(more=1)),
    ("history.0.step", lambda facts: facts["history"][0].update(step=None)),
    ("history.0.average_precision", lambda facts: facts["history"][0].update(average_precision=1.5)),
    ("history.0.loss", lambda facts: facts["history"][0].update(loss=NOT_FINITE["infinity"])),
    ("history.0", lambda facts: facts["history"].append("x") or facts["history"].reverse()),
    ("history", lambda facts: facts["history"].append(facts["history"][0])),
    ("pending", lambda facts: facts["history"].append({**facts["history"][0], "step": 9})),
    ("pending", lambda facts: facts["pending"].append(facts["pending"][0])),
    ("'pending.0'", lambda facts: facts["pending"].clear()),
    ("pending.0.snapshot.number", lambda facts: facts["pending"][0]["snapshot"].update(number=0)),
    ("pending.0.ledger.step", lambda facts: facts["pending"][0]["ledger"].update(step=0)),
    ("pending.0.ledger", lambda facts: facts["pending"][0].pop("ledger")),
    ("pending", lambda facts: facts.update(pending=facts["pending"] * 100)),
    ("settings", lambda facts: facts.update(settings=None)),
    ("data", lambda facts: facts.update(data=1)),
]


def parts_of(checkpoint: Checkpoint) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a checkpoint's file holds: facts and arrays."""
    header, body = header_of(b"".join(encode(checkpoint)))
    kinds = {"F32": np.float32, "U8": np.uint8}
    facts = json.loads(header.pop("__metadata__")["facts"])
    return facts, {
        name: np.frombuffer(body[slice(*each["data_offsets"])], kinds[each["dtype"]]).reshape(each["shape"])
        for name, each in header.items()
    }


@pytest.mark.parametrize(("key", "change"), FORGED_FACTS)
def test_fact_that_cannot_be_is_named(key: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Also where the digest is right: whoever alters a file can alter that as well."""
    facts, arrays = parts_of(checkpoint_of(1))
    change(facts)
    with pytest.raises(DataError, match=rf"^file: (tensor )?{re.escape(key)}"):
        decode(b"".join(encode_parts(facts, arrays)), "file")


FLAT, FLOATS, BYTES = np.zeros(3, np.float32), np.zeros((3, 500), np.float32), np.zeros(4, np.uint8)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("state", None),
        ("state", FLAT),
        ("state", BYTES),
        ("pending.0", None),
        ("pending.0", FLAT),
        ("pending.1", FLOATS),
        ("model/config.json", None),
        ("model/config.json", FLAT),
        ("model/../../../stolen", BYTES),
        ("model//tmp/stolen", BYTES),
        ("model/.hidden", BYTES),
        ("more", BYTES),
    ],
)
def test_tensor_that_is_none_of_a_checkpoint_is_named(name: str, array: Any) -> None:
    facts, arrays = parts_of(checkpoint_of(1))
    arrays = {key: each for key, each in arrays.items() if key != name}
    if array is not None:
        arrays[name] = array
    with pytest.raises(DataError, match=rf"^file: (tensor )?'?{re.escape(name)}'?"):
        decode(b"".join(encode_parts(facts, arrays)), "file")


@pytest.mark.parametrize(
    "tensor",
    [
        {"dtype": "F32", "shape": [1 << 40, 1 << 20], "data_offsets": [0, 6000]},
        {"dtype": "F32", "shape": [3, 500], "data_offsets": [0, 1 << 60]},
        {"dtype": "F32", "shape": [3, 500], "data_offsets": [-4, 5996]},
        {"dtype": "F32", "shape": [3, -500], "data_offsets": [0, 6000]},
        {"dtype": "F64", "shape": [3, 250], "data_offsets": [0, 6000]},
        {"dtype": "F32", "shape": 1500, "data_offsets": [0, 6000]},
        {"dtype": "F32"},
        None,
    ],
)
def test_header_that_does_not_fit_the_file_is_refused(tensor: Any) -> None:
    header, body = header_of(b"".join(encode(checkpoint_of(1))))
    header["state"] = tensor
    with pytest.raises(DataError, match=r"^file: state"):
        decode(resealed(header, body), "file")
    with pytest.raises(DataError, match=r"^file: "):
        decode(resealed({**header, "state": header["pending.0"]}, body), "file")


def resealed(header: dict[str, Any], body: bytes) -> bytes:
    """Return a file with this header, whose digest is right."""
    header["__metadata__"].pop("sha256")
    header["__metadata__"]["sha256"] = hashlib.sha256(json.dumps(header).encode() + body).hexdigest()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"\xff" * 9, (1 << 62).to_bytes(8, "little"), (4).to_bytes(8, "little") + b"[1]\n", b"[" * 100_000]
    + [len(text).to_bytes(8, "little") + text for text in (b"{}", b"[" * 100_000, b'{"__metadata__": 3}', b"\xff\xff")],
)
def test_what_is_no_checkpoint_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match=r"^file: is no whole checkpoint"):
        decode(content, "file")


def test_earlier_format_is_refused_by_name() -> None:
    text = json.dumps({"__metadata__": {"dkan": "{}"}}).encode()
    with pytest.raises(DataError, match=r"^file: is of an earlier dkan; this one reads format 3"):
        decode(len(text).to_bytes(8, "little") + text, "file")


@pytest.mark.parametrize(
    ("name", "value"),
    [("step", 24), ("ranges", 24), ("ranges", 1 << 60), ("next_range", 26), ("rows", 0), ("digest", 5)],
)
@pytest.mark.parametrize("waits", [False, True])
def test_ledger_that_contradicts_itself_is_refused(tmp_path: Path, name: str, value: int, waits: bool) -> None:
    damaged = replace(ledger_at(25), **{name: value})
    if waits:
        snapshot = Snapshot(number=1, step=damaged.step)
        made = checkpoint_of(26, pending=[replace(waiting_at(25), snapshot=snapshot, ledger=damaged)])
    else:
        made = checkpoint_of(25, pending=[], ledger=damaged)
    save_checkpoint(str(tmp_path), made)
    with pytest.raises(DataError, match=r"safetensors: (pending\.0: )?ledger\.\w+: "):
        find_checkpoint(str(tmp_path), CONFIG, DATA, ROWS)


def test_every_field_of_a_record_is_checked() -> None:
    for record, schema in ((Ledger, LedgerFacts), (Snapshot, SnapshotFacts)):
        assert {field.name for field in fields(record)} == set(schema.model_fields)


@pytest.mark.parametrize(
    ("data", "config", "message"),
    [
        ("e" * 64, CONFIG, r"is of other data \(fingerprint ffffffffffff, here eeeeeeeeeeee\)"),
        ("f" * 64, replace(CONFIG, hidden=(9,)), r"was trained with hidden None, not \[9\]"),
        ("f" * 64, replace(CONFIG, learning_rate=0.5), "was trained with learning_rate None, not 0.5"),
        (
            "f" * 64,
            replace(CONFIG, epochs=2),
            r"epochs 2: \S+ has done 25 steps, .* give --epochs 3",
        ),
        ("f" * 64, replace(CONFIG, resume="nowhere"), "resume nowhere: there is no checkpoint at nowhere"),
    ],
)
def test_checkpoint_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, data: str, config: TrainConfig, message: str
) -> None:
    save_checkpoint(str(tmp_path), checkpoint_of(25))
    with pytest.raises(ConfigError, match=message):
        find_checkpoint(str(tmp_path), config, data, ROWS)


def test_what_does_not_change_the_course_may_differ(tmp_path: Path) -> None:
    save_checkpoint(str(tmp_path), checkpoint_of(1))
    free = replace(CONFIG, max_seconds=5.0, tensorboard=True, checkpoint_steps=7, epochs=300, patience=9)
    assert find_checkpoint(str(tmp_path), free, DATA, ROWS) is not None
    assert find_checkpoint(str(tmp_path), replace(free, resume="never"), DATA, ROWS) is None
    assert find_checkpoint(str(tmp_path / "empty"), free, DATA, ROWS) is None


def test_checkpoints_of_another_run_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    save_checkpoint(str(tmp_path), checkpoint_of(1))
    with pytest.raises(OutputError, match="already holds checkpoints; pass --resume auto"):
        clear_checkpoints(str(tmp_path), allowed=False)
    clear_checkpoints(str(tmp_path), allowed=True)
    clear_checkpoints(str(tmp_path), allowed=False)
    assert not os.listdir(tmp_path)


def test_run_of_other_data_is_not_gone_on_with(prepared: Path, trained: TrainResult, tmp_path: Path) -> None:
    run = Path(trained.model).parent
    files = read_model(run / "model")
    assert files["config.json"] == (run / "model" / "config.json").read_bytes() and not read_model(tmp_path / "none")
    config = TrainConfig(epochs=8, hidden=(8,), workers=1, device="cpu", batch_size=64, learning_rate=0.03)
    config = replace(config, resume=str(run / "checkpoints"))
    with pytest.raises(ConfigError, match=r"was trained with learning_rate 0\.02, not 0\.03"):
        train(prepared, tmp_path / "run", config)
    again = train(prepared, tmp_path / "run", replace(config, learning_rate=0.02))
    assert again.history == trained.history and again.metrics["training"]["steps"] == trained.history[-1]["step"]
    assert asdict(again)["average_precision"] == trained.average_precision


FORGED_RUNS: list[tuple[str, Callable[[dict[str, Any], dict[str, Any]], Any]]] = [
    (r"architecture\.labels", lambda facts, _: facts["architecture"].update(labels=["other"])),
    (r"architecture\.num_numeric", lambda facts, _: facts["architecture"].update(num_numeric=1 << 60)),
    (
        r"architecture\.cardinalities",
        lambda facts, _: facts["architecture"].update(cardinalities=[1 << 60], embedded=[], indicators=[], missing=[]),
    ),
    ("architecture: ", lambda facts, _: facts["architecture"].pop("hidden")),
    ("architecture: ", lambda facts, _: facts["architecture"].update(indicators=[[99]])),
    ("architecture: hidden", lambda facts, _: facts["architecture"].update(hidden=[1 << 40])),
    ("architecture: members", lambda facts, _: facts["architecture"].update(members=1 << 40)),
    ("tensor state: expected shape", lambda facts, _: facts["architecture"].update(indicators=[])),
    (r"ledger\.checksum", lambda _, arrays: arrays.update(state=arrays["state"][:, :-1])),
    ("tensor pending.0: expected shape", lambda facts, arrays: add_snapshot(facts, arrays)),
]


def add_snapshot(facts: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Have a snapshot of another model wait for the evaluator."""
    facts["history"].pop()
    snapshot = asdict(Snapshot(number=1, step=facts["ledger"]["step"]))
    facts["pending"] = [{"snapshot": snapshot, "ledger": facts["ledger"]}]
    arrays["pending.0"] = np.zeros((1, 7), np.float32)


@pytest.mark.parametrize(("message", "change"), FORGED_RUNS)
def test_forged_checkpoint_ends_with_a_message_and_nothing_written(
    prepared: Path, trained: TrainResult, tmp_path: Path, message: str, change: Callable[[Any, Any], Any]
) -> None:
    run = Path(trained.model).parent
    found = load_checkpoint(str(run / "checkpoints"))
    assert found is not None
    facts, arrays = parts_of(found[1])
    change(facts, arrays)
    forged = tmp_path / "step-000000000001.safetensors"
    forged.write_bytes(b"".join(encode_parts(facts, {name: np.ascontiguousarray(arrays[name]) for name in arrays})))
    config = TrainConfig(epochs=8, hidden=(8,), workers=1, device="cpu", batch_size=64, learning_rate=0.02)
    with pytest.raises(DataError, match=rf"step-0+1\.safetensors: {message}"):
        train(prepared, tmp_path / "run", replace(config, resume=str(forged)))
    assert os.listdir(tmp_path) == [forged.name]


def test_digest_of_data_and_settings_keeps_runs_apart() -> None:
    """What does not change a run's course may be another when it is started again: its checkpoints are found."""
    config = TrainConfig(checkpoint_uri="s3://bucket/late/{run}/", batch_size=64)
    folder = checkpoint_folder(config, "data")
    assert re.fullmatch(r"s3://bucket/late/[0-9a-f]{16}", folder)
    assert checkpoint_folder(replace(config, max_seconds=5.0, device="cpu", resume="auto"), "data") == folder
    others = [(replace(config, seed=1), "data"), (replace(config, batch_size=65), "data"), (config, "other")]
    assert len({folder, *(checkpoint_folder(*other) for other in others)}) == 4
    assert checkpoint_folder(TrainConfig(), "data") == ""
