"""The file of a checkpoint: one safetensors file, checked as a whole before anything in it is used.

It holds the state, the snapshots that wait for the evaluator and the files of the best model as tensors, and as
metadata the ledger, the history, the settings and the fingerprint of the data, with the SHA-256 of all of it. What is
random in training is a function of seed and step, so that there is no generator to keep.

Shape suffixes: P trainable parameters, K arrays of the state.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field

from dkan_core.config import TrainConfig
from dkan_core.errors import DataError, redact
from dkan_core.model.model_folder import MODEL_FILES
from dkan_core.training.history import Amount, Count, HistoryEntry
from dkan_core.training.state.endings import ENDINGS
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.parameter_store import MAX_BACKOFFS, checksum
from dkan_core.training.state.shared_memory import MAX_SLOTS, Snapshot
from dkan_core.training.state.snapshots import StateSnapshot
from dkan_core.utils.arrays import Float32
from dkan_core.utils.schemas import Schema, read_json

FORMAT = "3"

# A safetensors file begins with the length of its header.
LENGTH_BYTES = 8

ITEM_BYTES: dict[str, int] = {"F32": 4, "U8": 1}

# Fields of ``Ledger`` that format 3 calls something else: its files must stay readable.
STORED_NAMES = {"active_buffer": "bank", "units_done": "ranges", "next_unit": "next_range"}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state of a run after a step."""

    data: str
    """Fingerprint of the prepared data."""

    architecture: dict[str, Any]
    settings: dict[str, Any]
    """The resolved config."""

    ledger: Ledger
    """Its clock stands still: see ``Ledger.with_stopped_clock``."""

    state_KP: Float32
    """Parameters, moments, moving average; then the workers' own moments."""

    history: list[dict[str, Any]] = field(default_factory=list)
    pending: list[StateSnapshot] = field(default_factory=list)
    """Snapshots that were not evaluated."""

    model: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the best model's folder."""

    source: str = field(default="", compare=False)
    """Path or URI that it was read from."""


class LedgerSchema(Schema):
    """A ``Ledger``: every field, none of them optional, and one that ledgers no longer have."""

    version: Count
    active_buffer: Annotated[int, Field(ge=0, le=1, alias=STORED_NAMES["active_buffer"])]
    step: Count
    units_done: Annotated[Count, Field(alias=STORED_NAMES["units_done"])]
    digest: Count
    next_unit: Annotated[Count, Field(alias=STORED_NAMES["next_unit"])]
    rows: Count
    refused: Count
    refused_in_a_row: Count
    backoffs: Annotated[int, Field(ge=0, le=MAX_BACKOFFS)]
    late: Count
    reassigned: Count
    used: Amount
    started: Amount
    since: Amount
    since_rows: Count
    since_loss: float
    since_weight: Amount
    published: Count
    ended: Annotated[int, Field(ge=0, lt=len(ENDINGS))]
    acked_lease: Count
    checksum: Count

    acked_rank: Annotated[int, Field(exclude=True)] = -1
    """In files of version 0.2.0; nothing needs it."""


class SnapshotSchema(Schema):
    """A ``Snapshot``: every field, and none of them optional."""

    number: Annotated[int, Field(ge=1, lt=1 << 62)]
    step: Count
    epoch: Amount
    seconds: Amount
    loss: float
    rows_per_second: Amount
    final: Annotated[int, Field(ge=0, le=1)]
    time_is_up: Annotated[int, Field(ge=0, le=1)]
    checksum: Count


class PendingSnapshotSchema(Schema):
    """A snapshot that waits for the evaluator."""

    snapshot: SnapshotSchema
    ledger: LedgerSchema


class CheckpointMetadata(Schema):
    """What a checkpoint holds in addition to its tensors."""

    data: str
    architecture: dict[str, Any]
    settings: dict[str, Any]
    ledger: LedgerSchema
    history: list[HistoryEntry]
    pending: Annotated[list[PendingSnapshotSchema], Field(max_length=MAX_SLOTS)]


class _Tensor(Schema):
    """A tensor in a safetensors header."""

    dtype: Literal["F32", "U8"]
    shape: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 63)]], Field(max_length=2)]
    data_offsets: tuple[int, int]


class _Metadata(Schema):
    format: Literal["3"]
    facts: str


class _Header(Schema):
    """The header of a checkpoint without its digest."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, _Tensor]
    metadata: _Metadata = Field(alias="__metadata__")


def run_facts(data: str, architecture: dict[str, Any], config: TrainConfig) -> dict[str, Any]:
    """Return what every checkpoint of a run has in common, without the credentials of URIs."""
    settings = json.loads(json.dumps(asdict(config)))
    # These say where a run's checkpoints are, not what it computes: a run that resumes from elsewhere is the same run.
    for name in ("checkpoint_uri", "resume"):
        settings[name] = settings[name] and redact(settings[name])
    return {"data": data, "architecture": architecture, "settings": settings}


def encode(checkpoint: Checkpoint) -> list[bytes | memoryview]:
    """Return what a checkpoint's file consists of, the state as it lies in memory, not copied."""
    arrays: dict[str, np.ndarray[Any, Any]] = {"state": checkpoint.state_KP}
    for index, each in enumerate(checkpoint.pending):
        arrays[f"pending.{index}"] = each.state_KP
    for name, content in checkpoint.model.items():
        arrays[_tensor_of(name)] = np.frombuffer(content, np.uint8)
    ledger = checkpoint.ledger
    facts = {
        "data": checkpoint.data,
        "architecture": checkpoint.architecture,
        "settings": checkpoint.settings,
        "ledger": stored_ledger(replace(ledger, checksum=ledger.checksum or checksum(arrays["state"]))),
        "history": checkpoint.history,
        "pending": [
            {"snapshot": asdict(each.snapshot), "ledger": stored_ledger(each.ledger)} for each in checkpoint.pending
        ],
    }
    return encode_parts(facts, arrays)


def stored_ledger(ledger: Ledger) -> dict[str, Any]:
    """Return a ledger under the names that the file has for its fields."""
    return {STORED_NAMES.get(name, name): value for name, value in asdict(ledger).items()}


def encode_parts(facts: Mapping[str, Any], arrays: Mapping[str, "np.ndarray[Any, Any]"]) -> list[bytes | memoryview]:
    """Return a safetensors file of arrays, with facts and the digest of all of it in its metadata.

    Args:
        facts: What JSON can hold.
        arrays: float32 or uint8, each one contiguous row or several of them, which need not follow one another.
    """
    header: dict[str, Any] = {"__metadata__": {"format": FORMAT, "facts": json.dumps(facts)}}
    end = 0
    for name, array in arrays.items():
        start = end
        end = end + array.nbytes
        kind = "F32" if array.dtype == np.float32 else "U8"
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, end]}
    bodies = [row.view(np.uint8).data for array in arrays.values() for row in np.atleast_2d(array)]
    header["__metadata__"]["sha256"] = _digest(header, bodies)
    text = json.dumps(header).encode()
    # safetensors wants tensors to begin at multiples of 8 bytes.
    text += b" " * (-len(text) % LENGTH_BYTES)
    return [len(text).to_bytes(LENGTH_BYTES, "little"), text, *bodies]


def _digest(header: Mapping[str, Any], bodies: Sequence[memoryview]) -> str:
    """Return the SHA-256 of a header without a digest in it, and of what follows."""
    digest = hashlib.sha256(json.dumps(header).encode())
    for body in bodies:
        digest.update(body)
    return digest.hexdigest()


def decode(content: bytes, where: str) -> Checkpoint:
    """Return the checkpoint in a file; its arrays are views of ``content``.

    Raises:
        DataError: It is no checkpoint, not whole, or altered; or its content contradicts itself.
    """
    header, body = _verified(content, where)
    arrays = _arrays(header, body, where)
    facts = read_json(CheckpointMetadata, header.metadata.facts, where)
    _check_order(facts, where)
    _check_arrays(facts, arrays, where)
    if checksum(arrays["state"]) != facts.ledger.checksum:
        raise DataError(f"{where}: ledger.checksum: {facts.ledger.checksum} is not that of the state")
    pending = [(Snapshot(**each.snapshot.model_dump()), Ledger(**each.ledger.model_dump())) for each in facts.pending]
    return Checkpoint(
        data=facts.data,
        architecture=facts.architecture,
        settings=facts.settings,
        ledger=Ledger(**facts.ledger.model_dump()),
        state_KP=arrays["state"],
        history=[entry.to_dict() for entry in facts.history],
        pending=[StateSnapshot(*each, arrays[f"pending.{index}"]) for index, each in enumerate(pending)],
        model={name: arrays[_tensor_of(name)].tobytes() for name in MODEL_FILES if _tensor_of(name) in arrays},
        source=where,
    )


def _tensor_of(name: str) -> str:
    """Return the name of the tensor that holds a file of the best model."""
    return f"model/{name}"


def _verified(content: bytes, where: str) -> tuple[_Header, memoryview]:
    """Return the header and what follows it, after a check of both against the digest in the header."""
    start = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    body = memoryview(content)[start:]
    try:
        header = json.loads(content[LENGTH_BYTES:start])
        metadata = header["__metadata__"]
        # The digest covers the header without the digest.
        wanted = metadata.pop("sha256", None)
        found = _digest(header, [body])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{where}: is not a complete dkan checkpoint ({error})") from None
    if found != wanted:
        raise DataError(f"{where}: is damaged (its SHA-256 does not match)")
    return read_json(_Header, json.dumps(header), where), body


def _arrays(header: _Header, body: memoryview, where: str) -> dict[str, "np.ndarray[Any, Any]"]:
    """Return a view of each tensor; they follow one another without a gap, to the end of the file."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    end = 0
    for name, tensor in header.__pydantic_extra__.items():
        start = end
        end = end + math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]
        if tensor.data_offsets != (start, end) or end > len(body):
            raise DataError(
                f"{where}: {name}.data_offsets: {tensor.data_offsets} does not fit {tensor.dtype} of shape "
                f"{tensor.shape} from byte {start} of {len(body)}"
            )
        kind = np.float32 if tensor.dtype == "F32" else np.uint8
        arrays[name] = np.frombuffer(body[start:end], kind).reshape(tensor.shape)
    if end != len(body):
        raise DataError(f"{where}: holds {len(body)} bytes of tensors, and its header names {end}")
    return arrays


def _check_arrays(facts: CheckpointMetadata, arrays: Mapping[str, "np.ndarray[Any, Any]"], where: str) -> None:
    """Raise DataError unless the tensors are those of the facts, each of the type and shape that it must have."""
    floats = ["state", *(f"pending.{index}" for index in range(len(facts.pending)))]
    files = [_tensor_of(name) for name in MODEL_FILES]
    unknown = sorted(set(arrays) - {*floats, *files})
    if unknown:
        raise DataError(f"{where}: {unknown[0]!r} is no tensor of a checkpoint with {len(facts.pending)} snapshots")
    wanted = [*floats, *(files if any(name in arrays for name in files) else [])]
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise DataError(f"{where}: tensor {missing[0]}: is missing")
    for name, array in arrays.items():
        kind, dimensions = (np.uint8, 1) if name in files else (np.float32, 2)
        if array.dtype != kind or array.ndim != dimensions:
            raise DataError(
                f"{where}: tensor {name}: expected {np.dtype(kind)} with {dimensions} dimensions, "
                f"got {array.dtype} of shape {array.shape}"
            )


def _check_order(facts: CheckpointMetadata, where: str) -> None:
    """Raise DataError unless evaluations, then snapshots that wait for one, lie in order up to the ledger's step."""
    steps = [("history", entry.step) for entry in facts.history]
    steps += [("pending", each.snapshot.step) for each in facts.pending]
    for (_, before), (name, after) in zip([("", -1), *steps], [*steps, ("ledger", facts.ledger.step)], strict=True):
        if after < before or (after == before and name != "ledger"):
            raise DataError(f"{where}: {name}: step {after} follows step {before}")
    for index, each in enumerate(facts.pending):
        if each.ledger.step != each.snapshot.step:
            raise DataError(
                f"{where}: pending.{index}.ledger.step: expected {each.snapshot.step}, got {each.ledger.step}"
            )
