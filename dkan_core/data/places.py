"""Places in the form of a pipeline: what its steps read, and what they leave for each other or for later."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dkan_core.data.source.files import split_sources
from dkan_core.errors import ConfigError
from dkan_core.utils.storage.paths import is_shared

READ = ("data_uri", "model_uri", "initial_model_uri", "previous_model_uri")
WRITTEN = ("prepared_uri", "checkpoint_uri", "run_uri", "publish_uri", "output_uri")

DATE = "{date}"
# What may be another one every day.
DATED = ("data_uri", "output_uri", "publish_uri", "registered_version", "serving_uri")

# A variable that Kubeflow Pipelines gives every step on a cluster.
POD = "KFP_POD_NAME"


def find_local_place(form: Mapping[str, Any], volume_path: str = "") -> str:
    """Return what is wrong with the first place that pods cannot share: what they leave there would be lost.

    What is only read may also be part of the image.

    Args:
        form: Values of a form by name.
        volume_path: Where every step mounts a volume. Default: nowhere.

    >>> find_local_place({"data_uri": "s3://bucket/flights", "publish_uri": "/mnt/dkan/models"})
    "parameter 'publish_uri' must be a URI such as s3://bucket/folder, got '/mnt/dkan/models'"
    >>> find_local_place({"publish_uri": "/mnt/dkan/models"}, "/mnt/dkan")
    ''
    """
    for name in (*READ, *WRITTEN):
        root = "/" if name in READ else volume_path
        given = form.get(name) or ""
        for place in split_sources(given) if name == "data_uri" else filter(None, [given]):
            if not is_shared(place, root):
                path = f", or a path below {root.rstrip('/')}/" if root else ""
                return f"parameter {name!r} must be a URI such as s3://bucket/folder{path}, got {place!r}"
    return ""


def resolve_places(form: Mapping[str, Any], volume_path: str = "") -> tuple[str, ...]:
    """Fill in the date in the places of a run; in a pod of Kubeflow Pipelines, check that all pods can reach them.

    Args:
        form: Values of a form by name, those of ``DATED`` among them.
        volume_path: Where every step mounts a volume. Default: nowhere.

    Returns:
        Those of ``DATED``, with the same date, today's in UTC, in place of each ``{date}``.

    Raises:
        ConfigError: A place is inside this pod, or its scheme is unknown.
    """
    if POD in os.environ and (fault := find_local_place(form, volume_path)):
        raise ConfigError(fault)
    today = datetime.now(UTC).date().isoformat()
    return tuple(form[name].replace(DATE, today) for name in DATED)
