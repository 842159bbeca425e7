"""What may pass is tried again: how often, how fast, and what is said of it."""

import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from dkan_core.utils.retry import RetryPolicy, call_with_retries

QUICK = RetryPolicy(first_pause=0.001, attempts=4)


def failing(times: int, begun: list[float], error: type[BaseException] = OSError) -> Callable[[], str]:
    """Return an action that fails so many times and notes when it was begun."""

    def action() -> str:
        begun.append(time.monotonic())
        if len(begun) <= times:
            raise error(f"failure {len(begun)}")
        return "done"

    return action


def is_os_error(error: BaseException) -> bool:
    return isinstance(error, OSError)


@pytest.mark.parametrize("failures", [0, 1, 3])
def test_action_that_comes_to_pass_is_said_to_have_failed(failures: int, caplog: pytest.LogCaptureFixture) -> None:
    begun: list[float] = []
    assert call_with_retries(failing(failures, begun), QUICK, is_os_error, name="upload") == "done"
    assert len(begun) == failures + 1
    said = [f"upload, attempt {place}: failure {place}; next in 0.0 s" for place in range(1, failures + 1)]
    assert caplog.messages == said


def test_last_error_is_raised_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    begun: list[float] = []
    with pytest.raises(OSError, match=r"^failure 4$"):
        call_with_retries(failing(9, begun), QUICK, is_os_error)
    assert len(begun) == 4 and not caplog.messages


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_does_not_pass_is_raised_at_once(error: type[BaseException]) -> None:
    begun: list[float] = []
    with pytest.raises(error):
        call_with_retries(failing(9, begun, error), QUICK, is_os_error)
    assert len(begun) == 1


def test_pauses_grow_up_to_the_longest() -> None:
    begun: list[float] = []
    policy = RetryPolicy(first_pause=0.02, growth=3.0, longest_pause=0.1, attempts=4)
    call_with_retries(failing(3, begun), policy, is_os_error)
    pauses = [later - earlier for earlier, later in pairwise(begun)]
    assert all(pause >= least for pause, least in zip(pauses, (0.02, 0.06, 0.1), strict=True)), pauses


def test_last_attempt_is_at_the_end_of_patience_however_long_the_pause() -> None:
    begun: list[float] = []
    with pytest.raises(OSError, match=r"^failure 2$"):
        call_with_retries(failing(9, begun), RetryPolicy(first_pause=30, patience=0.2), is_os_error)
    assert 0.2 <= begun[1] - begun[0] < 25


def test_without_patience_there_is_one_attempt() -> None:
    begun: list[float] = []
    with pytest.raises(OSError, match=r"^failure 1$"):
        call_with_retries(failing(9, begun), RetryPolicy(first_pause=30, patience=0), is_os_error)
