"""Retrying temporary failures: one policy for checkpoints, clusters and servers."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

ResultT = TypeVar("ResultT")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How long to wait between attempts, and when to give up; all times in seconds."""

    first_pause: float
    """Before the second attempt."""

    growth: float = 2.0
    """Factor by which each further pause is longer."""

    longest_pause: float = 30.0

    attempts: int | None = None
    """How many attempts at most; None for no limit."""

    patience: float | None = None
    """Time from the beginning of the first attempt to the last one; None for no limit."""


def call_with_retries(
    action: Callable[[], ResultT], policy: RetryPolicy, may_pass: Callable[[BaseException], bool], *, name: str = ""
) -> ResultT:
    """Return the result of an action, which is repeated while it fails temporarily.

    Args:
        action: What to do.
        policy: How often, and how fast.
        may_pass: Whether another attempt may help after this error.
        name: What the log calls the action before each further attempt; empty to say nothing.

    Raises:
        BaseException: The action's last error.
    """
    # Imported here: the import takes as long as everything else that a command needs to start, and is rarely used.
    import tenacity

    def pause(state: tenacity.RetryCallState) -> float:
        # The last pause is shortened, so that the last attempt is made when the patience ends.
        wait = tenacity.wait_exponential(policy.first_pause, policy.longest_pause, policy.growth)(state)
        if policy.patience is None:
            return wait
        return max(0.0, min(wait, policy.patience - (state.seconds_since_start or 0.0)))

    def say(state: tenacity.RetryCallState) -> None:
        if name and state.outcome is not None and state.next_action is not None:
            error, pause = state.outcome.exception(), state.next_action.sleep
            why = str(error) or type(error).__name__
            logger.warning("%s, attempt %d: %s; next in %.1f s", name, state.attempt_number, why, pause)

    # The first limit that is reached ends the retries; without any, they go on until the action succeeds.
    limits: list[tenacity.stop.stop_base] = []
    if policy.attempts is not None:
        limits.append(tenacity.stop_after_attempt(policy.attempts))
    if policy.patience is not None:
        limits.append(tenacity.stop_after_delay(policy.patience))
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(may_pass),
        wait=pause,
        stop=tenacity.stop_any(*limits),
        before_sleep=say,
        reraise=True,
    )(action)
