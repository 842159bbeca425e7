"""Rows held out to validate on: by their share of each class, and of groups as a whole."""

import numpy as np
import pytest

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.integrations.sklearn.hold_out import hold_out, hold_out_rows
from dkan_core.integrations.sklearn.targets import check_groups


def test_every_class_is_held_out_by_its_share() -> None:
    rng = np.random.default_rng(0)
    labels = np.where(rng.random((1000, 3)) < 0.3, NOT_MEASURED, rng.random((1000, 3)) < [0.5, 0.1, 0.01])
    train, held_out = hold_out(labels.astype(np.uint8), 0.2, rng)
    assert sorted([*train, *held_out]) == list(range(1000))
    for label in range(3):
        for value in (0, 1):
            count = np.count_nonzero(labels[:, label] == value)
            assert np.count_nonzero(labels[held_out, label] == value) == pytest.approx(0.2 * count, rel=0.35, abs=1)


def test_no_group_has_rows_in_both_splits() -> None:
    rng = np.random.default_rng(0)
    groups = check_groups(rng.choice([f"patient {number}" for number in range(60)], 1000), 1000)
    # One patient in ten is ill, in some of the rows; every fifth row does not count.
    ill = np.unique(groups)[::10]
    labels_NL = (np.isin(groups, ill) & (rng.random(1000) < 0.5)).astype(np.uint8)[:, None]
    rows = np.flatnonzero(np.arange(1000) % 5)
    for seed in range(20):
        train, valid = hold_out_rows(rows, labels_NL, 0.2, np.random.default_rng(seed), groups)
        assert sorted([*train, *valid]) == rows.tolist()
        assert not {*groups[train]} & {*groups[valid]}
        assert len({*groups[valid]}) == 12, "a fraction of the groups"
        assert len({*groups[valid]} & {*ill}) == 1, "those that have the rarer class are drawn by themselves"
