"""The steps of a pipeline and the forms they come in: one run or a sweep, one pod or many."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kfp.dsl.base_component import BaseComponent

from pipelines.form import Parameter
from pipelines.pods import Settings


@dataclass(frozen=True, kw_only=True)
class PipelineStep:
    """A part of a pipeline: one task or several that produce one artifact."""

    parameters: Sequence[Parameter]
    """Parameters in addition to those of every step."""

    build: Callable[[Settings, str], Callable[..., Any]]
    """Given the settings and the pipeline's name, returns a function that creates the tasks from a form's values. A
    preparation returns the artifact and the fingerprint of the data, which are passed to training; it starts after the
    check of the training. Nested pipelines are built here, because kfp does not allow building one inside another."""


@dataclass(frozen=True, kw_only=True)
class TrainingStep(PipelineStep):
    """A training whose settings are checked before its data are prepared."""

    check: BaseComponent
    """Component that fails if they are wrong."""
