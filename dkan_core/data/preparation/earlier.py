"""An earlier result where data are to be prepared: is it what would be written now?"""

from dkan_core.data.format.manifest import MANIFEST, PreparedData, parse_manifest
from dkan_core.data.preparation.steps import PreparationTask
from dkan_core.data.source.columns import SourceFile
from dkan_core.errors import ConfigError, redact
from dkan_core.utils.storage.shared_folder import Workplace


def shared_folder(prepared_uri: str, fingerprint: str = "") -> str:
    """Return where data of a fingerprint lie under the place that many runs share.

    >>> shared_folder("s3://bucket/prepared/", "ab12")
    's3://bucket/prepared/ab12'

    Raises:
        ConfigError: The place is empty.
    """
    if not prepared_uri.strip():
        raise ConfigError("prepared_uri: name a folder or URI that every step reaches, such as s3://bucket/prepared")
    return f"{prepared_uri.strip().rstrip('/')}/{fingerprint}".rstrip("/")


def earlier_result(place: Workplace) -> PreparedData | None:
    """Return the manifest that lies there, if there is one."""
    text = place.read_text(MANIFEST)
    return None if text is None else parse_manifest(text, f"{place.uri}/{MANIFEST}")


def gives(task: PreparationTask, earlier: PreparedData | None) -> bool:
    """Tell whether the same sources and settings gave an earlier result."""
    return earlier is not None and (
        [stamped(file) for file in earlier.sources] == [stamped(file) for file in task.files]
        and (earlier.labels, earlier.weight, earlier.seed)
        == (list(task.config.label), task.config.weight, task.config.seed)
        and earlier.split_rule == task.split_rule
        and earlier.encoding_from == (None if task.encoding is None else task.encoding.digest)
        and earlier.preprocessor.numeric_dtype == task.config.numeric_dtype
        and earlier.preprocessor.columns == [*task.schema.numeric, *task.schema.categorical]
    )


def stamped(file: SourceFile) -> tuple[str, int, int, str]:
    """Return what tells a source file from another one."""
    return redact(file.path), file.rows, file.bytes, second(file.modified)


def second(modified: str) -> str:
    """Cut a modification stamp at the second: a bucket's listing may give more of it than a question for one object.

    >>> {second(text) for text in ("2026-11-21 20:00:00.123000+00:00", "2026-11-21 20:00:00+00:00")}
    {'2026-11-21 20:00:00'}
    """
    return modified.split(".")[0].split("+")[0]
