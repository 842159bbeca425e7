"""How numbers and times lie on an axis, and how a person writes them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.utils.arrays import Float64

ScaleKind = Literal["linear", "log", "asinh", "time"]
"""Linear; logarithmic; inverse hyperbolic sine, which is linear around zero; linear in seconds since 1970."""

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

# Steps of a time axis, as a NumPy unit and a number of them, with the characters of an ISO date that are written.
TIME_STEPS = (
    *(("m", count, 16) for count in (1, 5, 15, 30)),
    *(("h", count, 16) for count in (1, 3, 6, 12)),
    *(("D", count, 10) for count in (1, 2, 7, 14)),
    *(("M", count, 7) for count in (1, 3, 6)),
    *(("Y", count, 4) for count in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
)
# How many tick texts of a length fit below a figure.
MOST_TIMES = {16: 3, 10: 4, 7: 6, 4: 8}


@dataclass(frozen=True)
class Scale:
    """How an axis shows values."""

    kind: ScaleKind = "linear"
    width: float = 1.0

    def forward(self, values: Float64) -> Float64:
        """Return where values lie on the axis."""
        if self.kind in ("linear", "time"):
            return values
        found: Float64 = np.log(values) if self.kind == "log" else np.arcsinh(values / self.width)
        return found

    def inverse(self, positions: Float64) -> Float64:
        """Return the values at positions on the axis."""
        if self.kind in ("linear", "time"):
            return positions
        found: Float64 = np.exp(positions) if self.kind == "log" else np.sinh(positions) * self.width
        return found

    def even(self, low: float, high: float, count: int) -> Float64:
        """Return values from ``low`` to ``high`` that lie evenly on the axis."""
        first, last = self.forward(np.array([low, high]))
        # Computed on halves: the distance between the largest positive and negative numbers overflows float64.
        values = self.inverse(2 * np.linspace(first / 2, last / 2, count))
        values[[0, -1]] = low, high
        return values

    def written(self, value: float) -> str:
        """Write a value as a person would."""
        return written_time(value) if self.kind == "time" else written(value)


def written(value: float) -> str:
    """Write a number as a person would.

    >>> written(2013.0), written(15024.0), written(0.12345), written(1234567.8)
    ('2013', '15,024', '0.123', '1,234,568')
    """
    if value == round(value) and abs(value) < 10_000:
        return f"{int(value)}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def written_time(seconds: float, zone: str | None = None) -> str:
    """Write seconds since 1970 as a date with the time of the day; without a zone, midnight is the date alone.

    >>> written_time(1357084800.0), written_time(1357133430.7), written_time(1357084800.0, "America/New_York")
    ('2013-01-02', '2013-01-02 13:30', '2013-01-01 19:00-0500')
    """
    if zone is not None:
        time = pa.scalar(int(seconds // 60) * 60, pa.timestamp("s", zone))
        return str(pc.strftime(time, "%Y-%m-%d %H:%M%z"))
    text = str(np.datetime64(int(seconds // 60), "m"))
    return text.removesuffix("T00:00").replace("T", " ")


def time_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return times between two at beginnings of years, months, days, hours or minutes, as many as there is room for.

    >>> [text for _, text in time_ticks(1357084800.0, 1388534400.0)]
    ['2013-04', '2013-07', '2013-10', '2014-01']
    """
    for unit, count, shown in TIME_STEPS:
        found = _multiples(low, high, unit, count)
        if len(found) <= MOST_TIMES[shown]:
            texts = [text[:shown].replace("T", " ") for text in np.datetime_as_string(found, "m").tolist()]
            return list(zip(found.astype(np.float64).tolist(), texts, strict=True))
    return []


def _multiples(low: float, high: float, unit: str, count: int) -> npt.NDArray[np.datetime64]:
    """Return the multiples of a step between two times; of too many the first ones."""
    # NumPy counts years from 1970, which is no multiple of ten.
    offset = 1970 if unit == "Y" else 0
    start = np.array(int(low), "datetime64[s]").astype(f"datetime64[{unit}]").astype(np.int64) + offset
    positions = (start // count + np.arange(max(MOST_TIMES.values()) + 2)) * count - offset
    times: npt.NDArray[np.datetime64] = positions.astype(f"datetime64[{unit}]").astype("datetime64[s]")
    seconds = times.astype(np.int64)
    return times[(seconds >= low) & (seconds <= high)]
