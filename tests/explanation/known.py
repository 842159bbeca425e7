"""Rows whose truth is known."""

import numpy as np
import pyarrow as pa

from dkan_core.utils.arrays import Float64

TRUE = ["rising", "bowl", "left", "right", "color", "spiked"]
NOISE = ["noise", "flag", "letters"]
HOSTILE = "<script>alert('$x$')</script>/../a"
ROWS = 7000


def make_source(rows: int = ROWS, seed: int = 1) -> tuple[pa.Table, Float64]:
    """Return rows whose log-odds are known."""
    rng = np.random.default_rng(seed)
    rising, bowl = np.exp(rng.normal(size=rows)) * 1000, rng.uniform(-30, 30, rows)
    left, right = rng.normal(size=(2, rows))
    color = rng.choice(["red", "green", "blue", "grey"], rows, p=[0.4, 0.3, 0.2, 0.1])
    spiked = np.where(rng.random(rows) < 0.5, 0.0, rng.normal(0, 5, rows).round(3))
    missing = rng.random(rows) < 0.15
    logits = (
        np.where(missing, 2.0, 1.2 * np.log(rising / 1000))
        + (bowl / 15) ** 2
        + 1.5 * left * right
        + 1.5 * (color == "red")
        + 2.0 * (spiked == 0)
        - 4.0
    )
    columns = {
        "rising": pa.array(rising, mask=missing),
        "bowl": pa.array(bowl),
        "left": pa.array(left),
        "right": pa.array(right),
        "color": pa.array(color.tolist()),
        "spiked": pa.array(spiked),
        "noise": pa.array(rng.normal(size=rows)),
        "flag": pa.array(rng.integers(0, 2, rows)),
        "letters": pa.array(rng.choice(list("abcd"), rows).tolist()),
        "label": pa.array((rng.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.int8)),
    }
    return pa.table(columns), logits
