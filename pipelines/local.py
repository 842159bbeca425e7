"""Run a compiled pipeline on this machine, without a cluster."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp import local
from rich.text import Text

from pipelines.compiled import load_pipeline


class PipelineFailedError(RuntimeError):
    """A component of a local run failed; its log, above, says why."""


@dataclass(frozen=True, kw_only=True)
class LocalRun:
    """What a local run left behind."""

    average_precision: float
    """Average precision on the test split."""

    approved: bool
    """Whether the model passed the gate."""

    report: Path
    """The HTML report."""

    model: Path
    """The run folder, with the best model under model/."""


def run_locally(pipeline: Path, arguments: dict[str, Any], out: Path) -> LocalRun:
    """Execute the compiled ``pipeline`` with this interpreter, a subprocess a component, and artifacts under ``out``.

    Raises:
        PipelineFailedError: A component failed.
    """
    # True of every local run: the steps run in this environment, not in the image, and get what the machine has.
    warnings.filterwarnings("ignore", message="You may be attemping to run", category=RuntimeWarning)
    warnings.filterwarnings("ignore", message=".* have no effect in the current local runner", category=UserWarning)
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(out))
    try:
        outputs = load_pipeline(pipeline)(**arguments).outputs
    except RuntimeError as error:
        raise PipelineFailedError(Text.from_ansi(str(error)).plain) from error
    return LocalRun(
        average_precision=outputs["average_precision"],
        approved=outputs["approved"],
        report=Path(outputs["report"].path).absolute(),
        model=Path(outputs["model"].path).absolute(),
    )
