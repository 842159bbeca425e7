"""URIs among the parameters of a pipeline: what its steps read and write."""

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from dkan_core.data.source.files import SUFFIXES, split_sources
from dkan_core.errors import ConfigError
from dkan_core.utils.storage.paths import is_shared, lacks_bucket, lacks_package

READ = ("data_uri", "model_uri", "initial_model_uri", "previous_model_uri")
WRITTEN = ("prepared_uri", "checkpoint_uri", "run_uri", "publish_uri", "output_uri")

DATE = "{date}"
# Parameters that may contain {date}.
DATED = ("data_uri", "output_uri", "publish_uri", "registered_version", "serving_uri")
# Training fills in a digest of data and settings in these.
RUN = "{run}"
OF_RUN = ("checkpoint_uri", "run_uri")
# {{date}} is another one than {date}.
PLACEHOLDER = re.compile(r"\{+[^{}]*\}+")

# Kubeflow Pipelines sets this variable in every step on a cluster.
POD = "KFP_POD_NAME"


def find_unshared_uri(form: Mapping[str, Any], volume_path: str = "") -> str:
    """Return an error for the first path or URI that pods do not share: results written there would be lost.

    Inputs that are only read may also be a path in the image.

    Args:
        form: Values of a form by name.
        volume_path: Where every step mounts a volume. Default: nowhere.

    >>> find_unshared_uri({"data_uri": "s3://bucket/flights", "publish_uri": "/mnt/dkan/models"})
    "parameter 'publish_uri' must be a URI such as s3://bucket/folder, got '/mnt/dkan/models'"
    >>> find_unshared_uri({"publish_uri": "/mnt/dkan/models"}, "/mnt/dkan")
    ''
    """
    for name, uri in _uris(form, *READ, *WRITTEN):
        root = "/" if name in READ else volume_path
        if not is_shared(uri, root):
            path = f", or a path below {root.rstrip('/')}/" if root else ""
            return f"parameter {name!r} must be a URI such as s3://bucket/folder{path}, got {uri!r}"
    return ""


def find_unreadable_uri(form: Mapping[str, Any]) -> str:
    """Return an error for the first URI that this environment, the image of a run, has no package for.

    >>> find_unreadable_uri({"data_uri": "s3://bucket/flights", "publish_uri": "minio://bucket/late"})
    "parameter 'publish_uri': the image cannot open 'minio://bucket/late': Protocol not known: minio"
    """
    for name, uri in _uris(form, *READ, *WRITTEN):
        if why := lacks_package(uri):
            return f"parameter {name!r}: the image cannot open {uri!r}: {why}"
    return ""


def find_invalid_uri(form: Mapping[str, Any]) -> str:
    """Return an error for the first URI that is not filled in, malformed or read-only, or in the way of another one."""
    checks = (_unknown_placeholder, _malformed_uri, _read_only_uri, _duplicate_uri, _uri_in_model)
    return next((fault for check in checks if (fault := check(form))), "")


def resolve_uris(form: Mapping[str, Any], volume_path: str = "") -> tuple[str, ...]:
    """Fill in {date} in the URIs of a run; in a pod of Kubeflow Pipelines, check that all pods can open them.

    Args:
        form: Values of a form by name, those of ``DATED`` among them.
        volume_path: Where every step mounts a volume. Default: nowhere.

    Returns:
        Those of ``DATED``, as ``fill_dates`` returns them.

    Raises:
        ConfigError: A path is inside this pod, a URI is malformed, of a scheme that the image does not support, not to
            be written or the same as another one, or a placeholder is not filled in there.
    """
    if fault := find_invalid_uri(form):
        raise ConfigError(fault)
    if POD in os.environ and (fault := find_unshared_uri(form, volume_path) or find_unreadable_uri(form)):
        raise ConfigError(fault)
    filled = fill_dates(form)
    return tuple(filled[name] for name in DATED)


def fill_dates(form: Mapping[str, Any]) -> dict[str, str]:
    """Return those of ``DATED`` that a form has, with the same date, today's in UTC, in place of each ``{date}``."""
    today = datetime.now(UTC).date().isoformat()
    return {name: form[name].replace(DATE, today) for name in DATED if name in form}


def _uris(form: Mapping[str, Any], *names: str) -> Iterator[tuple[str, str]]:
    """Yield the paths and URIs of parameters, each after its parameter's name."""
    for name in names:
        given = form.get(name) or ""
        for uri in split_sources(given) if name == "data_uri" else filter(None, [given]):
            yield name, uri


def _unknown_placeholder(form: Mapping[str, Any]) -> str:
    """Return an error for a placeholder that a run would not replace there.

    >>> _unknown_placeholder({"model_uri": "s3://b/late/{date}"})
    "parameter 'model_uri' cannot have a date; {date} may be in data_uri, output_uri, publish_uri, registered_version, \
serving_uri"
    >>> _unknown_placeholder({"checkpoint_uri": "s3://b/{Run}"})
    "parameter 'checkpoint_uri' cannot have {Run}; {run} may be in checkpoint_uri, run_uri"
    """
    for name in (*READ, *WRITTEN, *DATED, "registered_name"):
        known = DATE if name in DATED else RUN if name in OF_RUN else ""
        for found in PLACEHOLDER.findall(form.get(name) or ""):
            if found != known:
                what = "a date" if found == DATE else found
                meant, others = (RUN, OF_RUN) if known == RUN and found != DATE else (DATE, DATED)
                return f"parameter {name!r} cannot have {what}; {meant} may be in {', '.join(others)}"
    return ""


def _malformed_uri(form: Mapping[str, Any]) -> str:
    """Return an error for a URI that names no bucket, or was pasted with a space or a line end.

    >>> _malformed_uri({"data_uri": "s3://b/flights", "publish_uri": "s3:///late"})
    "parameter 'publish_uri' must name a bucket, such as s3://bucket/folder, got 's3:///late'"
    """
    for name, uri in _uris(form, *READ, *WRITTEN, "serving_uri"):
        if uri != uri.strip():
            return f"parameter {name!r} must not begin or end with white space, got {uri!r}"
        if lacks_bucket(uri):
            return f"parameter {name!r} must name a bucket, such as s3://bucket/folder, got {uri!r}"
    return ""


def _read_only_uri(form: Mapping[str, Any]) -> str:
    """Return an error if a step would write over HTTP.

    >>> _read_only_uri({"data_uri": "https://host/flights.parquet", "publish_uri": "https://bucket.host/late"})
    "parameter 'publish_uri' is written, but http and https can only be read; give a URI such as s3://bucket/folder, \
got 'https://bucket.host/late'"
    """
    for name, uri in _uris(form, *WRITTEN):
        if uri.startswith(("http://", "https://")):
            return (
                f"parameter {name!r} is written, but http and https can only be read; "
                f"give a URI such as s3://bucket/folder, got {uri!r}"
            )
    return ""


def _duplicate_uri(form: Mapping[str, Any]) -> str:
    """Return an error if a step would write where the data are, or where another step writes.

    >>> _duplicate_uri({"data_uri": "s3://b/flights", "publish_uri": "s3://b/flights/"})
    "parameter 'publish_uri' must differ from 'data_uri', got 's3://b/flights/'"
    """
    taken = {folder: name for name, uri in _uris(form, "data_uri", "model_uri") if (folder := _folder(uri))}
    for name, uri in _uris(form, *WRITTEN):
        if other := taken.get(_normalized(uri)):
            return f"parameter {name!r} must differ from {other!r}, got {uri!r}"
        taken[_normalized(uri)] = name
    return ""


def _uri_in_model(form: Mapping[str, Any]) -> str:
    """Return an error for data in the folder of the model, which would not be published beside other files.

    >>> _uri_in_model({"publish_uri": "s3://b/late/", "checkpoint_uri": "s3://b/late/checkpoints"})
    "parameter 'checkpoint_uri' must lie outside of 'publish_uri', got 's3://b/late/checkpoints'"
    """
    model = _normalized(form.get("publish_uri") or "")
    for name, uri in _uris(form, "data_uri", "initial_model_uri", *WRITTEN):
        if model and _normalized(uri).startswith(f"{model}/"):
            return f"parameter {name!r} must lie outside of 'publish_uri', got {uri!r}"
    return ""


def _folder(source: str) -> str:
    """Return the folder that a source names, or that its files are in.

    >>> _folder("s3://b/flights/**/*.parquet"), _folder("/mnt/dkan/v1.0/"), _folder("flights.parquet")
    ('s3://b/flights', '/mnt/dkan/v1.0', '')
    """
    uri = _normalized(source)
    while uri.endswith(SUFFIXES) or "*" in posixpath.basename(uri):
        uri = posixpath.dirname(uri)
    return uri


def _normalized(uri: str) -> str:
    """Return a path or URI in normal form: no ``..``, no spaces around it, no doubled or last slash.

    >>> _normalized(" s3://b/x/../late//v1.0/"), _normalized(" ")
    ('s3://b/late/v1.0', '')
    """
    scheme, separator, path = uri.strip().rpartition("://")
    return f"{scheme}{separator}{posixpath.normpath(path)}" if path else ""
