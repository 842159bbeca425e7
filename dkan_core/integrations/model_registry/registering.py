"""``register``: a published model as a version in a Kubeflow Model Registry."""

import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import dkan_core
from dkan_core.errors import ConfigError, redact
from dkan_core.evaluation.metrics import finite_numbers
from dkan_core.evaluation.result import read_metrics
from dkan_core.integrations.model_registry.entry import PipelineRun, Registration, RegistryEntry
from dkan_core.model.model_folder import CARD, FORMAT_VERSION
from dkan_core.model.saved_model import SavedModel, are_current
from dkan_core.utils.extras import require
from dkan_core.utils.storage.paths import is_remote, local_path
from dkan_core.utils.storage.remote import local_copy

# Format that a serving runtime must support to serve the model; its version is that of the model folder's format.
FORMAT = "dkan"

# Digits of each hash in the name of a version, which is for people; the properties hold the whole hashes.
DIGITS = 12

# The server's columns have a limited length, which includes the id of the parent before the name.
NAME_LENGTH = 200

# Limit for the card as description: it may list thousands of columns, and is read in a list of versions.
DESCRIPTION_LENGTH = 8_000

logger = logging.getLogger(__name__)


def register(
    model: str | Path,
    registry: str,
    *,
    name: str = "",
    version: str = "",
    metrics: Mapping[str, Any] | str | Path | None = None,
    run: PipelineRun | None = None,
) -> Registration:
    """Register a published model; repeated calls register it once.

    The version has the model's card, its metrics, the fingerprints of the model and of its training data, and an
    artifact with its URI and format. Further calls add metrics that the version lacks, and change none.

    Args:
        model: Folder or URI from which others fetch the model.
        registry: Address of the registry's server, such as ``http://registry.example:8080``.
        name: Name of the registered model, which is created if missing. Default: the last part of ``model``.
        version: Name of the version. Default: from the fingerprints of the training data and of the model.
        metrics: Test metrics by name, or the ``metrics.json`` that ``evaluate`` wrote.
        run: The pipeline run that the model comes from.

    Returns:
        The registered version, as the registry knows it.

    Raises:
        ConfigError: A name or an address is invalid, the URI holds credentials, the metrics are not of a test of this
            model, the server refuses, or the client library is missing.
        DataError: The model or the metrics cannot be read, or the model is incomplete.
        OutputError: The version exists and is of another model or at another place, or the server does not answer.
    """
    check_server(registry)
    require("model_registry", "registry")
    tested = read_metrics(metrics) if isinstance(metrics, str | Path) else metrics or {}
    entry = describe_model(model, name=name, version=version, metrics=tested, run=run)
    if isinstance(metrics, str | Path):
        _check_tested(tested, str(metrics), entry.identity["model_fingerprint"])
    registration: Registration = _client().upsert(registry.rstrip("/"), entry)
    logger.info("registered %s", registration)
    return registration


def _check_tested(metrics: Mapping[str, Any], where: str, fingerprint: str) -> None:
    """Raise ConfigError if a file of metrics is not from a test of this model."""
    split, tested = metrics.get("split"), metrics.get("model_fingerprint")
    # With raw rows, the "split" is a path, which may have any name.
    if split is None or (split in ("train", "valid") and not metrics.get("is_raw")):
        what = "of training" if split is None else f"of the split {split}"
        raise ConfigError(f"metrics {where}: are {what}; give those that `dkan evaluate` wrote for the split test")
    # Earlier versions of dkan wrote no fingerprint.
    if tested is not None and tested != fingerprint:
        raise ConfigError(f"metrics {where}: are of another model; evaluate this one")


def _client() -> ModuleType:
    """Import the client, which comes with the extra "registry", and leave this process's logging as it was."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    client = importlib.import_module("dkan_core.integrations.model_registry.client")
    # Removes a handler that the library adds to the root logger: lines of the caller would appear twice.
    root.handlers[:] = handlers
    return client


def check_server(address: str) -> None:
    """Raise ConfigError unless this is the address of a server."""
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(f"registry {address!r}: expected an address such as http://registry.example:8080")


def describe_model(
    model: str | Path, *, name: str, version: str, metrics: Mapping[str, Any], run: PipelineRun | None
) -> RegistryEntry:
    """Read a model and return its entry for a registry; the arguments are those of ``register``.

    Raises:
        ConfigError: A name is none, or the URI holds credentials.
        DataError: The model cannot be read, or is not whole.
    """
    with local_copy(model) as folder:
        saved = SavedModel(folder)
        # For a run's folder, the URI is that of the model in it.
        uri = _uri(model) if saved.folder == folder else f"{_uri(model)}/{saved.folder.name}"
    if redact(uri) != uri:
        raise ConfigError(f"{uri}: holds credentials, which all who read the registry would see; give the URI without")
    name = _checked_name("name", name or uri.rpartition("/")[2])
    fingerprint, data = saved.files.fingerprint(), str(saved.metrics.get("data") or "")
    own_version = "-".join(text[:DIGITS] for text in (data, fingerprint) if text)
    return RegistryEntry(
        name=name,
        version=_checked_name("version", version or own_version),
        uri=uri,
        description=_description(saved, uri),
        format_name=FORMAT,
        format_version=str(FORMAT_VERSION),
        identity={"model_fingerprint": fingerprint, "data_fingerprint": data or "unknown"},
        properties={
            "labels": ", ".join(saved.config.labels),
            "card": f"{uri}/{CARD}",
            "dkan_version": dkan_core.__version__,
            **(_numbers("valid", saved.metrics) if are_current(saved.metrics) else {}),
            **_numbers("test", metrics),
        },
        run=run,
    )


def _uri(model: str | Path) -> str:
    """Return the URI of a model; paths get a scheme, as a registry requires one."""
    if is_remote(model):
        return str(model).rstrip("/")
    # Not percent-encoded, because it is read back literally, even with a space.
    return f"file://{local_path(model).absolute()}"


def _checked_name(what: str, name: str) -> str:
    if not name.strip() or len(name) > NAME_LENGTH or not name.isprintable():
        raise ConfigError(f"{what} {name!r}: expected 1 to {NAME_LENGTH} printable characters")
    return name.strip()


def _description(saved: SavedModel, uri: str) -> str:
    """Return the model's card, cut to a length that is readable in a list."""
    card = saved.files.files.get(CARD, b"").decode(errors="replace")
    if len(card) <= DESCRIPTION_LENGTH:
        return card
    return f"{card[:DESCRIPTION_LENGTH]}…\n\nThe whole card: {uri}/{CARD}"


def _numbers(prefix: str, metrics: Mapping[str, Any]) -> dict[str, int | float]:
    """Return the metrics that are numbers, as properties, which servers of every version show and can filter by.

    >>> _numbers("test", {"average_precision": 0.5, "rows": 20, "split": "test", "roc_auc": None})
    {'test_average_precision': 0.5, 'test_rows': 20}
    """
    return {f"{prefix}_{name}": value for name, value in finite_numbers(metrics).items()}
