"""Buckets that take connections and never answer: nothing waits for them without end."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dkan_core.errors import DkanError
from dkan_core.training.state import checkpoint_store
from dkan_core.utils.storage import time_limits
from dkan_core.utils.storage.files import read_if_there
from dkan_core.utils.storage.outputs import check_file_is_ours, entries
from dkan_core.utils.storage.remote import replace_remote
from dkan_core.utils.storage.staging import staged_file

MORE_THAN_SOCKETS_HOLD = 30_000_000


def read_all(listener: socket.socket) -> None:
    """Read what clients send, until the listener is closed."""
    connections = []
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connections.append(connection)
            threading.Thread(target=read_on, args=[connection], daemon=True).start()


def read_on(connection: socket.socket) -> None:
    with suppress(OSError):
        while connection.recv(1 << 20):
            pass


@pytest.fixture(params=["reads", "reads nothing"])
def mute_bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of a bucket whose server takes connections and never answers."""
    import s3fs

    monkeypatch.setattr(time_limits, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(time_limits, "SLOWEST_BYTES_PER_SECOND", 1e9)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if request.param == "reads":
            threading.Thread(target=read_all, args=[listener], daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-real-secret")
        s3fs.S3FileSystem.clear_instance_cache()
        yield "s3://bucket/run"
        s3fs.S3FileSystem.clear_instance_cache()


def write_file(uri: str, folder: Path) -> None:
    with staged_file(f"{uri}/scores.parquet") as file:
        file.write_bytes(bytes(MORE_THAN_SOCKETS_HOLD))


def replace_result(uri: str, folder: Path) -> None:
    (folder / "metrics.json").write_text("{}")
    replace_remote(folder, uri, ["metrics.json"])


@pytest.mark.parametrize(
    "use",
    [
        write_file,
        replace_result,
        lambda uri, _: entries(uri),
        lambda uri, _: read_if_there(f"{uri}/metrics.json"),
        lambda uri, _: check_file_is_ours(f"{uri}/metrics.json", beginning=b"{"),
        lambda uri, _: checkpoint_store.load_checkpoint(uri),
        lambda uri, _: checkpoint_store.clear_checkpoints(uri),
    ],
)
def test_bucket_that_never_answers_is_an_error_that_names_it(
    use: Callable[[str, Path], object], mute_bucket: str, tmp_path: Path
) -> None:
    with pytest.raises(DkanError, match=rf"^{mute_bucket}.*: cannot be \w+ \(no answer in time\)"):
        use(mute_bucket, tmp_path)


def test_checkpoint_is_not_sent_again_to_a_bucket_that_has_had_its_time(
    mute_bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DkanError, match="no answer in time"):
        checkpoint_store.write_parts(f"{mute_bucket}/step-000000000001.safetensors", [bytes(MORE_THAN_SOCKETS_HOLD)])
    assert "attempt" not in caplog.text
