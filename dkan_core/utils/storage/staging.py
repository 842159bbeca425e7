"""Outputs that appear whole or not at all, local or remote."""

import functools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from dkan_core.errors import OutputError
from dkan_core.utils.storage.failures import failure_inside, output_error, writable
from dkan_core.utils.storage.files import put_in_place
from dkan_core.utils.storage.locks import folder_lock, held_aside
from dkan_core.utils.storage.outputs import (
    OWN_FOLDERS,
    PARTIAL,
    check_contents,
    check_file_name,
    check_free,
    check_page_free,
    entries,
    foreign_contents,
)
from dkan_core.utils.storage.paths import filesystem, is_remote, local_path
from dkan_core.utils.storage.remote import check_file_writable, check_writable, replace_remote
from dkan_core.utils.storage.replacement import (
    COMPLETE,
    MOVING,
    OLD,
    finish_replacement,
    is_interrupted,
    replace_result,
)
from dkan_core.utils.storage.scratch import scratch_folder
from dkan_core.utils.storage.transfers import put_file


@contextmanager
def staged_folder(
    out: str | Path, *, names: Sequence[str], overwrite: bool, contents: Mapping[str, str] = {}
) -> Iterator[Path]:
    """Yield a folder to write into; its files appear in ``out`` when the block ends well, else nothing does.

    Args:
        out: Local path or fsspec URI of a folder that is absent, empty, or holds an earlier result.
        names: What the command writes there. The last one arrives after the rest, so that it marks a whole result.
        overwrite: Whether an earlier result may be replaced.
        contents: By the name of a folder among them, a pattern of the paths of its files: a folder with other files
            belongs to the user, and stays.
    """
    _check_staged(out, names, contents, overwrite)
    if is_remote(out):
        check_writable(str(out))
        with scratch_folder() as folder:
            yield folder
            check_contents(out, contents)
            replace_remote(folder, str(out), names)
        return
    target = local_path(out)
    staging = target / PARTIAL
    with output_lock(out):
        try:
            finish_replacement(target, names)
            _check_staged(out, names, contents, overwrite)  # once more: another process may have ended just now
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir()
            yield staging
            check_contents(out, contents)  # again, as in ``staged_file``
            replace_result(staging, target, names)
        except OSError as error:
            raise failure_inside(out, target, error) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def output_lock(out: str | Path) -> Iterator[None]:
    """Lock a local output folder against other processes of this machine; a kill releases the lock.

    Args:
        out: Local path, or fsspec URI of a folder, which is not locked.

    Raises:
        OutputError: Another process writes there; the message names it. Or the folder cannot be made.
    """
    if is_remote(out):
        yield
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(folder_lock(local_path(out)))
        except OSError as error:
            raise output_error(out, error) from error
        yield


def finish_interrupted(out: str | Path, names: Sequence[str]) -> None:
    """Finish the replacement of a result in a local folder that a killed process has begun.

    Args:
        out: Local path, or fsspec URI of a folder, where there is nothing to finish.
        names: What a result consists of; the last one arrives after the rest.

    Raises:
        OutputError: The process is alive and still at it; or the folder cannot be written.
    """
    if is_remote(out):
        return
    target = local_path(out)
    if is_interrupted(target, names[-1]):
        with output_lock(out):
            try:
                finish_replacement(target, names)
            except OSError as error:
                if is_interrupted(target, names[-1]):  # otherwise another machine has finished it
                    raise output_error(out, error) from error


def _check_staged(out: str | Path, names: Sequence[str], contents: Mapping[str, str], overwrite: bool) -> None:
    """Raise OutputError where ``names`` in ``out`` may be the user's: a result without the last name is not whole.

    Leftovers of a killed command lack the last name, too, but lie beside its staging folder, and are replaced.
    """
    found = entries(out)
    staged = set() if is_remote(out) else entries(local_path(out) / COMPLETE) | entries(local_path(out) / MOVING)
    if foreign := staged - {OLD, *names}:
        raise OutputError(
            f"{out}: holds the result of another command, which was killed at its end ({min(foreign)}); "
            "run that command again, or choose another folder"
        )
    unfinished = found & OWN_FOLDERS and names[-1] not in found
    if found and not unfinished and names[-1] not in found:
        raise foreign_contents(out, min(found))
    check_free(out, ours=names, overwrite=overwrite or bool(unfinished), contents=contents)


@contextmanager
def staged_file(out: str | Path, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield a file to write; it becomes ``out`` when the block ends well, else nothing does.

    Args:
        out: Local path or fsspec URI of the file.
        check: Raises OutputError where ``out`` may not be written. Called twice, as another file may have appeared
            there meanwhile.
    """
    check_file_name(out)
    check()
    with _local_file(out) if is_remote(out) else nullcontext(local_path(out)) as target:
        aside = target
        try:
            if target.is_dir():
                raise OutputError(f"{out}: is a folder; expected a file to write")
            target.parent.mkdir(parents=True, exist_ok=True)
            with held_aside(target) as aside:
                yield aside
                put_in_place(aside, target, check)
        except OSError as error:
            raise failure_inside(out, aside, error) from error


@contextmanager
def staged_page(file: str | Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a file to write a page to, as ``staged_file`` does.

    Args:
        file: Path or URI where it goes.
        overwrite: Whether an earlier page of dkan may be replaced.

    Raises:
        OutputError: It cannot be written; said before the block.
    """
    with staged_file(file, functools.partial(check_page_free, file, overwrite=overwrite)) as aside:
        check_file_writable(file)
        yield aside


@contextmanager
def _local_file(uri: str | Path) -> Iterator[Path]:
    """Yield the name of a local file, which is uploaded to ``uri`` when the block ends well."""
    with scratch_folder() as folder:
        yield folder / "file"
        fs, path = filesystem(uri)
        with writable(uri):
            put_file(fs, folder / "file", path)
