"""A checkpoint that was damaged or altered is named and not used, whoever has altered it."""

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

from dkan_core import DataError, TrainConfig, TrainResult, train
from dkan_core.model.model_folder import MODEL_FILES
from dkan_core.training.launcher.resuming import find_checkpoint
from dkan_core.training.state.checkpoint_file import (
    Checkpoint,
    LedgerSchema,
    SnapshotSchema,
    decode,
    encode,
    encode_parts,
)
from dkan_core.training.state.checkpoint_store import load_checkpoint, save_checkpoint
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.shared_memory import Snapshot
from tests.training.launcher.made_checkpoints import CONFIG, DATA, ROWS, checkpoint_of, ledger_at, waiting_at


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
    with pytest.raises(DataError, match=r"^file: is not a complete dkan checkpoint"):
        decode(content, "file")


@pytest.mark.parametrize(
    ("name", "value"),
    [("step", 24), ("units_done", 24), ("units_done", 1 << 60), ("next_unit", 26), ("rows", 0), ("digest", 5)],
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
    for record, schema in ((Ledger, LedgerSchema), (Snapshot, SnapshotSchema)):
        known = {name: field for name, field in schema.model_fields.items() if not field.exclude}
        assert {field.name for field in fields(record)} == set(known)
        assert all(field.is_required() for field in known.values())


def test_field_that_ledgers_had_in_version_0_2_0_is_ignored() -> None:
    facts, arrays = parts_of(checkpoint_of(1))
    plain = decode(b"".join(encode_parts(facts, arrays)), "file")
    for ledger in (facts["ledger"], facts["pending"][0]["ledger"]):
        ledger["acked_rank"] = 3
    found = decode(b"".join(encode_parts(facts, arrays)), "file")
    assert found.ledger == plain.ledger and found.pending[0].ledger == plain.pending[0].ledger


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
    config = TrainConfig(blend=False, epochs=8, hidden=(8,), workers=1, device="cpu", batch_size=64, learning_rate=0.02)
    with pytest.raises(DataError, match=rf"step-0+1\.safetensors: {message}"):
        train(prepared, tmp_path / "run", replace(config, resume=str(forged)))
    assert os.listdir(tmp_path) == [forged.name]
