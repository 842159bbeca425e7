"""All stages of a preparation by parts, for its tests."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dkan_core import (
    PrepareConfig,
    PreparedData,
    finish_preparation,
    fit_preparation,
    plan_preparation,
    prepare_part,
)
from tests.data.tables import CONFIG


def run(
    sources: Any, out: Path | str, config: PrepareConfig, parts: int, seed: int = 0, **options: Any
) -> PreparedData:
    """Take every stage, its parts in any order and some of them twice."""
    uri, shuffle = str(out), random.Random(seed)
    planned = plan_preparation(sources, uri, config, parts=parts, **options)

    def stage(name: Any) -> None:
        twice = planned + shuffle.sample(planned, len(planned) // 2)
        for part in shuffle.sample(twice, len(twice)):
            prepare_part(uri, name, part)

    stage("survey")
    fit_preparation(uri)
    stage("encode")
    stage("assemble")
    return finish_preparation(uri)


def every_call(paths: list[Path], uri: str, config: PrepareConfig = CONFIG) -> list[Callable[[], object]]:
    parts = range(3)
    each = {
        stage: [lambda stage=stage, part=part: prepare_part(uri, stage, part) for part in parts]
        for stage in ("survey", "encode", "assemble")
    }
    return [
        lambda: plan_preparation(paths, uri, config, parts=3),
        *each["survey"],
        lambda: fit_preparation(uri),
        *each["encode"],
        *each["assemble"],
        lambda: finish_preparation(uri),
    ]
