"""Whether an earlier preparation can be reused: the same sources and settings."""

from dkan_core.data.format.manifest import MANIFEST, PreparedData, parse_manifest
from dkan_core.data.preparation.task import PreparationTask
from dkan_core.data.source.files import whole_second
from dkan_core.data.source.sources import SourceFile
from dkan_core.data.source.split_rule import without_bounds
from dkan_core.errors import ConfigError, redact
from dkan_core.utils.storage.shared_folder import SharedFolder


def prepared_folder(prepared_uri: str, fingerprint: str) -> str:
    """Return the folder for data with a fingerprint, inside one that many runs share; without one, the shared one.

    >>> prepared_folder("s3://bucket/prepared/", "ab12"), prepared_folder("s3://bucket/prepared/", "")
    ('s3://bucket/prepared/ab12', 's3://bucket/prepared')

    Raises:
        ConfigError: The path or URI is empty.
    """
    if not prepared_uri.strip():
        raise ConfigError("prepared_uri: name a folder or URI that every step can reach, such as s3://bucket/prepared")
    return f"{prepared_uri.strip().rstrip('/')}/{fingerprint}".rstrip("/")


def earlier_result(folder: SharedFolder) -> PreparedData | None:
    """Return the manifest that lies there, if there is one."""
    text = folder.read_text(MANIFEST)
    return None if text is None else parse_manifest(text, f"{folder.uri}/{MANIFEST}")


def is_reusable(task: PreparationTask, earlier: PreparedData | None) -> bool:
    """Return whether the same sources and settings gave an earlier result."""
    return earlier is not None and (
        [identity(file) for file in earlier.sources] == [identity(file) for file in task.files]
        and (earlier.labels, earlier.weight, earlier.seed)
        == (list(task.config.label), task.config.weight, task.config.seed)
        and without_bounds(earlier.split_rule) == without_bounds(task.split_rule)
        and earlier.encoding_from == (None if task.encoding is None else task.encoding.digest)
        and earlier.preprocessor.numeric_dtype == task.config.numeric_dtype
        and earlier.max_categories == task.config.max_categories
        and earlier.positive == task.roles.positive
        # In any order: an encoding that was extended has the added columns behind all others.
        and {*earlier.preprocessor.columns} == {*task.roles.features}
        and {*earlier.preprocessor.categories} == {*task.roles.categorical}
    )


def identity(file: SourceFile) -> tuple[str, int, int, str]:
    """Return what identifies a source file and its state."""
    # Without credentials: these may change from run to run, and a manifest holds none.
    return redact(file.path), file.rows, file.bytes, whole_second(file.modified)
