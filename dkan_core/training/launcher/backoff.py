"""How long to wait before a process is started in the place of a dead one."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
"""Seconds. A single death is healed at once; what dies again and again costs the machine next to nothing."""


def pause_before_restart(deaths: int) -> float:
    """Return seconds to wait after so many deaths in a row.

    >>> [pause_before_restart(deaths) for deaths in (1, 2, 3, 4, 50)]
    [0.0, 0.1, 0.2, 0.4, 30.0]
    """
    return 0.0 if deaths < 2 else min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(deaths - 2, 20))
