"""Why a run ends: the stop criteria, and what is said about a run that one of them ended.

The server or rank checks them after each commit (``roles.post_step.PostStepHooks.ending_reason``).
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StopCriterion:
    """A reason to end a run in order; anything else that ends one is an exception."""

    log: str
    """What the log gives as the reason."""

    option: str = ""
    """Option of ``dkan train`` that continues the run if it is raised; empty if the run continues as it is."""

    advice: str = ""
    """The advice when the run is started again and has nothing left to do."""

    allows_refit: bool = False
    """Whether ``refit`` may follow: training has made all its choices."""


STOP_CRITERIA = {
    "epochs": StopCriterion(
        log="all epochs done", option="--epochs", advice="raise --epochs to continue", allows_refit=True
    ),
    "patience": StopCriterion(
        log="early stopping: --patience evaluations without a better one",
        option="--patience",
        advice="it stopped early; raise --patience to continue",
        allows_refit=True,
    ),
    "time": StopCriterion(
        log="--max-seconds reached",
        option="--max-seconds",
        advice="its time was up; raise --max-seconds to continue",
    ),
    "interrupt": StopCriterion(log="Ctrl-C"),
}
"""By name. Checkpoints store their positions: add new ones at the end."""

ENDINGS = ("", *STOP_CRITERIA)
"""Names of the stop criteria, after an empty one for a run that goes on; ``Ledger.ended`` is an index of it."""
