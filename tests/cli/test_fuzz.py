"""Files that come from elsewhere, mutated at random, through the real command.

Whatever is done to a file, a command ends with the result it gives for the sound file, or with exit code 2 and the
file's name. It shows no traceback, takes no time, gives no other result and writes nothing but its output.

A kind of artefact is an entry of ``KINDS``: how it is made, once; what of it is mutated; and the command that reads it.
"""

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dkan_core import PrepareConfig, TrainConfig, prepare, train
from dkan_core.config import build_config
from tests.command import dkan
from tests.data.sparse_tables import list_table, make_ones
from tests.data.tables import write


@dataclass(frozen=True, kw_only=True)
class Sound:
    """What the commands read when nothing is wrong with it."""

    run: Path
    prepared: Path
    rows: Path
    settings: Path
    additive: Path
    """A run with an additive model of the same data."""

    lists: Path
    """A run of rows with a group and a column of lists, beside its ``rows.parquet`` and ``data``."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of artefact."""

    make: Callable[[Sound, Path], object]
    """Puts one into an empty folder."""

    files: tuple[str, ...]
    """Names of those of its files that are mutated."""

    command: Callable[[Sound, Path, Path], list[object]]
    """Words that read it, from its folder, and write a result to a path."""

    result: Callable[[Path], object]
    """What the result says, without what may differ from run to run."""

    known: frozenset[str] = frozenset()
    """Files in which another content may give another result: nothing says what was in them."""

    blamed: tuple[str, ...] = ()
    """Other files that an error may name: that a setting does not suit the data is said of the data."""

    examples: int = 40
    """Mutations, the same ones each time."""


def copy_unhashed(sound: Sound, folder: Path) -> None:
    copy(sound.run / "model", folder)
    (folder / "files.json").unlink()


def copy(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder, dirs_exist_ok=True)


def copy_run(sound: Sound, folder: Path) -> None:
    copy(sound.run / "model", folder / "model")
    shutil.copy(sound.run / "history.jsonl", folder)


def copy_checkpoint(sound: Sound, folder: Path) -> None:
    shutil.copy(max((sound.run / "checkpoints").iterdir()), folder / CHECKPOINT)


def predict(sound: Sound, folder: Path, out: Path) -> list[object]:
    return ["predict", folder, sound.rows, "--out", out]


def evaluate(model: Path, prepared: Path, out: Path) -> list[object]:
    return ["evaluate", model, prepared, "--out", out, "--no-explain"]


def metrics(out: Path) -> object:
    plain = json.loads((out / "metrics.json").read_text())
    return {key: value for key, value in plain.items() if key != "training"}


MODEL = ("model.safetensors", "config.json", "preprocessor.json", "metrics.json")
SHARD, CHECKPOINT, SETTINGS = "test/00000-of-00001.safetensors", "step-000000000020.safetensors", "settings.json"
ROWS, EDITS = "rows.parquet", "edits.toml"
KINDS = {
    "rows to prepare": Kind(
        make=lambda sound, folder: shutil.copy(sound.rows, folder),
        files=(ROWS,),
        command=lambda sound, folder, out: [
            *("prepare", folder / ROWS, "--out", out, "--label", "label", "--split", "60/20/20", "--seed", 3)
        ],
        result=lambda out: (out / "manifest.json").exists(),
        known=frozenset([ROWS]),
    ),
    "rows to score": Kind(
        make=lambda sound, folder: shutil.copy(sound.rows, folder),
        files=(ROWS,),
        command=lambda sound, folder, out: ["predict", sound.run / "model", folder / ROWS, "--out", out],
        result=lambda out: pq.read_table(out).num_rows,
        known=frozenset([ROWS]),
    ),
    "model": Kind(
        make=lambda sound, folder: copy(sound.run / "model", folder),
        files=(*MODEL, "files.json", "README.md"),
        command=predict,
        result=pq.read_table,
    ),
    "model without hashes": Kind(
        make=copy_unhashed, files=MODEL, command=predict, result=pq.read_table, known=frozenset(MODEL)
    ),
    "prepared data": Kind(
        make=lambda sound, folder: copy(sound.prepared, folder),
        files=("manifest.json", SHARD),
        command=lambda sound, folder, out: evaluate(sound.run / "model", folder, out),
        result=metrics,
    ),
    "additive model": Kind(
        make=lambda sound, folder: copy(sound.additive / "model", folder),
        files=MODEL,
        command=predict,
        result=pq.read_table,
    ),
    "rows of lists to score": Kind(
        make=lambda sound, folder: shutil.copy(sound.lists / ROWS, folder),
        files=(ROWS,),
        command=lambda sound, folder, out: ["predict", sound.lists / "model", folder / ROWS, "--out", out],
        result=lambda out: pq.read_table(out).num_rows,
        known=frozenset([ROWS]),
    ),
    "model of lists": Kind(
        make=lambda sound, folder: copy(sound.lists / "model", folder),
        files=MODEL,
        command=lambda sound, folder, out: ["predict", folder, sound.lists / ROWS, "--out", out],
        result=pq.read_table,
    ),
    "prepared lists and groups": Kind(
        make=lambda sound, folder: copy(sound.lists / "data", folder),
        files=("manifest.json", SHARD),
        command=lambda sound, folder, out: evaluate(sound.lists / "model", folder, out),
        result=metrics,
    ),
    "edits": Kind(
        make=lambda sound, folder: (folder / EDITS).write_text('[[edit]]\nterm = "mean_area"\naction = "center"\n'),
        files=(EDITS,),
        command=lambda sound, folder, out: ["edit", sound.additive / "model", "--set", folder / EDITS, "--out", out],
        result=lambda out: (out / "config.json").exists(),
        known=frozenset([EDITS]),
        examples=25,
    ),
    "history": Kind(
        make=copy_run,
        files=("history.jsonl",),
        command=lambda sound, folder, out: evaluate(folder / "model", sound.prepared, out),
        result=metrics,
        examples=12,
    ),
    "checkpoint": Kind(
        make=copy_checkpoint,
        files=(CHECKPOINT,),
        command=lambda sound, folder, out: [
            *("train", sound.prepared, "--out", out, "--config", sound.settings),
            *("--resume", folder / CHECKPOINT),
        ],
        result=metrics,
    ),
    "settings": Kind(
        make=lambda sound, folder: (folder / SETTINGS).write_text(
            '{"label": ["label"], "split": "60/20/20", "seed": 3}'
        ),
        files=(SETTINGS,),
        command=lambda sound, folder, out: ["prepare", sound.rows, "--out", out, "--config", folder / SETTINGS],
        result=lambda out: (out / "manifest.json").exists(),
        known=frozenset([SETTINGS]),
        blamed=(ROWS,),
        examples=25,
    ),
}

ODD_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 10**12, 10**400, 1e308, float("nan"), float("inf"), "", "\x00", "../x", [], {}, [[]], "1"]
)


@st.composite
def mutations(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A change of a file's content, of bytes or of a JSON value."""
    position, seed = draw(st.floats(0, 1, exclude_max=True)), draw(st.integers(0, 2**32))
    byte, odd = draw(st.integers(0, 255)), draw(ODD_VALUES)
    changes: list[Callable[[bytes], bytes]] = [
        lambda content: _with_byte(content, position, byte),
        lambda content: content[: int(position * len(content))],
        lambda content: content + content[: 1 + int(position * len(content))],
        lambda content: b"",
        lambda content: b"[" * 100_000,
        lambda content: random.Random(seed).randbytes(300),
        *[lambda content: _with_value(content, seed, odd)] * 6,
    ]
    return draw(st.sampled_from(changes))


def _with_byte(content: bytes, position: float, byte: int) -> bytes:
    index = int(position * len(content))
    return content[:index] + bytes([byte]) + content[index + 1 :]


def _with_value(content: bytes, seed: int, odd: Any) -> bytes:
    """Put an odd value into a JSON file, take a key away, or add one; other files get it as text."""
    choose = random.Random(seed)
    try:
        plain = json.loads(content)
    except ValueError:
        return content + repr(odd).encode()
    holders = [value for value in _walk(plain) if value]
    holder = choose.choice(holders)
    key = choose.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    action = choose.randrange(4)
    if action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, dict):
        holder["unheard of"] = odd
    else:
        holder[key] = odd
    return json.dumps(plain).encode()


def _walk(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _walk(inner)


@pytest.fixture(scope="module")
def sound(prepared: Path, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """A finished run, what it was trained on, and a few rows to score."""
    folder = tmp_path_factory.mktemp("sound")
    settings_file, rows = folder / "train.json", folder / ROWS
    plain = {"hidden": [4], "model": "fastkan", "device": "cpu", "batch_size": 64, "epochs": 3}
    settings_file.write_text(json.dumps(plain))
    train(prepared, folder / "run", build_config(TrainConfig, plain))
    pq.write_table(pq.read_table(source).slice(0, 50), rows)
    train(prepared, folder / "additive", TrainConfig(model="additive", device="cpu", batch_size=64, epochs=1))
    return Sound(
        run=folder / "run",
        prepared=prepared,
        rows=rows,
        settings=settings_file,
        additive=folder / "additive",
        lists=run_of_lists(folder / "lists"),
    )


def run_of_lists(folder: Path) -> Path:
    """Train on rows with a group and a column of lists; return the folder."""
    table = list_table(make_ones(600))
    rows = table.slice(0, 50).drop_columns(["y", "row"])
    prepare(
        write(table, folder.with_name("raw")), folder.with_name("prepared"), PrepareConfig(label=("y",), group="row")
    )
    train(folder.with_name("prepared"), folder, TrainConfig(hidden=(4,), device="cpu", batch_size=64, epochs=1))
    pq.write_table(rows, folder / ROWS)
    copy(folder.with_name("prepared"), folder / "data")
    return folder


def run(kind: Kind, sound: Sound, folder: Path, out: Path) -> tuple[int, object]:
    """Return the exit code of the command, and its result where there is one."""
    with pytest.MonkeyPatch.context() as patch:
        code = dkan(*kind.command(sound, folder, out), monkeypatch=patch)
    return code, kind.result(out) if code == 0 else None


@pytest.mark.parametrize("name", KINDS)
def test_no_content_of_a_file_does_more_than_end_a_command(name: str, sound: Sound, capsys: Any) -> None:
    kind = KINDS[name]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        kind.make(sound, Path(scratch))
        reference = run(kind, sound, Path(scratch), Path(scratch) / "out")
    assert reference[0] == 0, capsys.readouterr().err

    @settings(
        max_examples=kind.examples,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(file=st.sampled_from(kind.files), mutate=mutations())
    def check(file: str, mutate: Callable[[bytes], bytes]) -> None:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
            folder, out = Path(scratch) / "artefact", Path(scratch) / "out"
            folder.mkdir()
            kind.make(sound, folder)
            (folder / file).write_bytes(mutate((folder / file).read_bytes()))
            before = set(Path(scratch).rglob("*"))
            capsys.readouterr()
            code, result = run(kind, sound, folder, out)
            error = capsys.readouterr().err
            left = set(Path(scratch).rglob("*")) - before
            if code == 0:
                assert result == reference[1] or file in kind.known
                assert all(path == out or out in path.parents for path in left)
            else:
                assert code == 2 and any(name in error for name in (file, *kind.blamed)), error
                assert "Traceback" not in error
                assert not left

    check()
