"""CPU time, and the time of functions that are compared."""

import resource
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def in_turns(
    functions: Mapping[Name, Callable[[], object]], turns: int, clock: Callable[[], float] = time.process_time
) -> dict[Name, float]:
    """Return the median seconds of functions that run alternately, after one turn that is not counted.

    Args:
        functions: What to measure.
        turns: How often each is measured.
        clock: What the seconds are of; default: CPU time of this process.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in functions}
    for turn in range(turns + 1):
        for name, function in functions.items():
            started = clock()
            function()
            if turn:
                seconds[name].append(clock() - started)
    return {name: statistics.median(each) for name, each in seconds.items()}


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
