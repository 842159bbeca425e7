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
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dkan_core import TrainResult
from tests.command import dkan

EXAMPLES = 60
"""For each kind, the same ones each time: some ten seconds in all."""


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """A sound artefact, and the files that a command needs besides."""

    folder: Path
    source: Path


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of artefact."""

    make: Callable[[Artefact, Path], object]
    """Puts one into an empty folder."""

    files: tuple[str, ...]
    """Names of those of its files that are mutated."""

    command: Callable[[Artefact, Path], list[object]]
    """Words that read it and write a result to a path."""

    result: Callable[[Path], object]
    """What the result says, without what may differ from run to run."""

    known: frozenset[str] = field(default_factory=frozenset)
    """Files in which another content may give another result: nothing says what was in them."""


def predict(artefact: Artefact, out: Path) -> list[object]:
    return ["predict", artefact.folder, artefact.source, "--out", out]


def copy_model(artefact: Artefact, folder: Path) -> None:
    shutil.copytree(artefact.folder, folder, dirs_exist_ok=True)


def copy_unhashed(artefact: Artefact, folder: Path) -> None:
    copy_model(artefact, folder)
    (folder / "files.json").unlink()


MODEL = ("model.safetensors", "config.json", "preprocessor.json", "metrics.json")
KINDS = {
    "model": Kind(make=copy_model, files=(*MODEL, "files.json", "README.md"), command=predict, result=pq.read_table),
    "model without hashes": Kind(
        make=copy_unhashed, files=MODEL, command=predict, result=pq.read_table, known=frozenset(MODEL)
    ),
}

ODD_VALUES = st.sampled_from(
    [None, True, -1, 0, 10**12, 10**400, 1e308, float("nan"), float("inf"), "", "\x00", "../x", [], {}, [[]], "1"]
)


@st.composite
def mutations(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A change of a file's content, of bytes or of a JSON value."""
    place, seed = draw(st.floats(0, 1, exclude_max=True)), draw(st.integers(0, 2**32))
    byte, odd = draw(st.integers(0, 255)), draw(ODD_VALUES)
    return draw(
        st.sampled_from(
            [
                lambda content: _with_byte(content, place, byte),
                lambda content: content[: int(place * len(content))],
                lambda content: content + content[: 1 + int(place * len(content))],
                lambda content: b"",
                lambda content: b"[" * 100_000,
                lambda content: random.Random(seed).randbytes(300),
                *[lambda content: _with_value(content, seed, odd)] * 6,
            ]
        )
    )


def _with_byte(content: bytes, place: float, byte: int) -> bytes:
    index = int(place * len(content))
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
def sound(trained: TrainResult, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Artefact:
    """A model, and a few rows to score."""
    rows = tmp_path_factory.mktemp("few") / "rows.parquet"
    pq.write_table(pq.read_table(source).slice(0, 50), rows)
    return Artefact(folder=Path(trained.model), source=rows)


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        yield Path(folder)


def run(kind: Kind, artefact: Artefact, out: Path) -> tuple[int, object]:
    """Return the exit code of the command, and its result where there is one."""
    with pytest.MonkeyPatch.context() as patch:
        code = dkan(*kind.command(artefact, out), monkeypatch=patch)
    return code, kind.result(out) if code == 0 else None


@pytest.mark.parametrize("name", KINDS)
def test_no_content_of_a_file_does_more_than_end_a_command(name: str, sound: Artefact, capsys: Any) -> None:
    kind = KINDS[name]
    with scratch() as folder:
        kind.make(sound, folder)
        reference = run(kind, Artefact(folder=folder, source=sound.source), folder / "out.parquet")
    assert reference[0] == 0, capsys.readouterr().err

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(file=st.sampled_from(kind.files), mutate=mutations())
    def check(file: str, mutate: Callable[[bytes], bytes]) -> None:
        with scratch() as folder:
            path = folder / "artefact" / file
            path.parent.mkdir()
            kind.make(sound, path.parent)
            path.write_bytes(mutate(path.read_bytes()))
            before = {str(each) for each in folder.rglob("*")}
            capsys.readouterr()
            code, result = run(kind, Artefact(folder=path.parent, source=sound.source), folder / "out.parquet")
            error = capsys.readouterr().err
            left = {str(each) for each in folder.rglob("*")} - before
            if code == 0:
                assert result == reference[1] or file in kind.known
                assert left == {str(folder / "out.parquet")}
            else:
                assert code == 2 and file in error and "Traceback" not in error, error
                assert not left

    check()
