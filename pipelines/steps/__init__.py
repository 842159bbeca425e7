"""The steps of a pipeline and the forms they come in: one run or a sweep, one pod or many."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kfp.dsl.base_component import BaseComponent

from pipelines.form import Parameter
from pipelines.pods import Settings


@dataclass(frozen=True, kw_only=True)
class PipelineStep:
    """A part of a pipeline: one task or several, with one artifact in the end."""

    parameters: Sequence[Parameter]
    """Parameters it needs in addition to those that every step is given."""

    build: Callable[[Settings, str], Callable[..., Any]]
    """Given the settings and the pipeline's name, return what makes the tasks of a form's values. A preparation returns
    the artifact and the fingerprint of the data, which training is handed; it starts when the check of the training is
    done. Pipelines within the pipeline are made here, as kfp wants none made inside another."""


@dataclass(frozen=True, kw_only=True)
class TrainingStep(PipelineStep):
    """A training, whose settings are checked before its data are prepared."""

    check: BaseComponent
    """Component that fails where they are wrong."""
