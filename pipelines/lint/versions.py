"""Fields that the server which a pipeline is meant for does not know."""

from collections.abc import Iterator
from typing import Any

from pipelines.versions import find_unknown


def check_version(documents: list[dict[str, Any]], version: str) -> Iterator[str]:
    """Yield the fields for which a server of ``version`` refuses a pipeline."""
    for field, new in find_unknown(documents, version):
        yield f"{field.path}: Kubeflow Pipelines {version} does not know {new.name}, which came with {new.since}"
