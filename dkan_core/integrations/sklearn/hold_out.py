"""Rows that a classifier holds out of those it is given, to validate on.

Shape suffixes: N rows, L labels, G groups, K classes of all labels.
"""

import numpy as np
import numpy.typing as npt

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.integrations.sklearn.targets import check_classes
from dkan_core.utils.arrays import Int64, UInt64


def hold_out_rows(
    rows: Int64,
    labels_NL: npt.NDArray[np.uint8],
    fraction: float,
    random: np.random.Generator,
    keys_N: UInt64 | None = None,
) -> tuple[Int64, Int64]:
    """Return those of ``rows`` to train on, and those to validate on; with groups, no group has rows of both.

    Raises:
        ValueError: ``fraction`` is none, or one of the two would lack a class.
    """
    if not (isinstance(fraction, float | int | np.floating) and 0 < fraction < 1):
        raise ValueError(f"validation_fraction must be a number between 0 and 1, got {fraction!r}")
    labels = labels_NL[rows]
    parts = (
        hold_out(labels, fraction, random)
        if keys_N is None
        else hold_out_groups(labels, keys_N[rows], fraction, random)
    )
    train, held_out = (rows[part] for part in parts)
    for name, part in (("rows to train on", train), ("validation rows held out", held_out)):
        check_classes(labels_NL[part], name, "; give fit an eval_set")
    return train, held_out


def hold_out(labels_NL: npt.NDArray[np.uint8], fraction: float, random: np.random.Generator) -> tuple[Int64, Int64]:
    """Return the rows to train on and the rows held out, both shuffled.

    Rows are drawn from strata: a row belongs to the rarest of its classes, and the rest form a stratum. So with one
    label both classes are held out by the fraction, and with several labels even rare classes are.

    Args:
        labels_NL: 0, 1, or another value for not measured.
        fraction: Share of the rows of each stratum to hold out: one row at least, and never all.
        random: Decides which.
    """
    # Not stratified by combinations of labels: with many labels, nearly every row would be a combination of its own.
    classes = [labels_NL == value for value in (0, 1)]
    ones_NK = np.concatenate(classes, axis=1)
    rarest_first = np.argsort(ones_NK.sum(axis=0), kind="stable")
    stratum_N = np.argmax(np.c_[ones_NK[:, rarest_first], np.ones(len(labels_NL), dtype=bool)], axis=1)
    shuffled = random.permutation(len(labels_NL))
    by_stratum = shuffled[np.argsort(stratum_N[shuffled], kind="stable")]
    starts = np.flatnonzero(np.r_[True, np.diff(stratum_N[by_stratum]) > 0])
    held_out = np.zeros(len(labels_NL), dtype=bool)
    for rows in np.split(by_stratum, starts[1:]):
        count = min(len(rows) - 1, max(1, round(fraction * len(rows))))
        held_out[rows[:count]] = True
    return shuffled[~held_out[shuffled]], shuffled[held_out[shuffled]]


def hold_out_groups(
    labels_NL: npt.NDArray[np.uint8], keys_N: UInt64, fraction: float, random: np.random.Generator
) -> tuple[Int64, Int64]:
    """Return the rows to train on and the rows held out, both shuffled; no group is in both.

    Groups are drawn like rows in ``hold_out``. A group has a label if one of its rows has it.

    Args:
        labels_NL: 0, 1, or another value for not measured.
        keys_N: Key of each row's group.
        fraction: Share of the groups of each stratum to hold out.
        random: Decides which.
    """
    groups, group_N = np.unique(keys_N, return_inverse=True)
    labels_GL = np.full((len(groups), labels_NL.shape[1]), NOT_MEASURED, np.uint8)
    for value in (0, 1):
        for label, labels_N in enumerate(labels_NL.T):
            labels_GL[np.bincount(group_N[labels_N == value], minlength=len(groups)) > 0, label] = value
    held_out = np.isin(group_N, hold_out(labels_GL, fraction, random)[1])
    shuffled = random.permutation(len(group_N))
    return shuffled[~held_out[shuffled]], shuffled[held_out[shuffled]]
