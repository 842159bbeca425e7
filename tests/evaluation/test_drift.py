"""Drift equals a direct computation, whatever the number of parts; what moved is found and what is equal is not."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dkan_core import DataError
from dkan_core.data.encoding.fitting import fit_preprocessor
from dkan_core.data.encoding.histograms import count_values
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.errors import GateError
from dkan_core.evaluation.drift.counting import DriftCounts, DriftCountsSchema, TrainingDistribution, count_rows
from dkan_core.evaluation.drift.measures import ColumnDrift, Drift, measure
from dkan_core.evaluation.drift.unseen import UnseenValues, unseen_warnings

ROWS = 5000


def make_rows(seed: int, **changed: Any) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns = {
        "smooth": rng.normal(size=ROWS),
        "coarse": pa.array(rng.integers(0, 5, ROWS), mask=rng.random(ROWS) < 0.1),
        "city": pa.array(rng.choice(np.array(["Oslo", "Rome", "Bern", None]), ROWS, p=[0.5, 0.3, 0.1, 0.1]).tolist()),
        "flag": rng.random(ROWS) < 0.3,
    }
    return pa.table({**columns, **changed})


@pytest.fixture(scope="module")
def encoding() -> Preprocessor:
    return fit_preprocessor(make_rows(0), ["smooth", "coarse"], ["city", "flag"], "uint8", "rows")


def counted(rows: pa.Table, reference: TrainingDistribution) -> DriftCounts:
    return count_rows(rows, np.zeros((len(rows), 0), np.float32), [], reference, "rows")


def drift_of(rows: pa.Table, encoding: Preprocessor) -> tuple[Drift, dict[str, Any]]:
    reference = TrainingDistribution(preprocessor=encoding, scores={})
    drift = measure(counted(rows, reference), reference)
    return drift, {column.name: column for column in drift.columns}


def direct_psi(old: list[float], new: list[float]) -> float:
    shares = [np.maximum(np.array(counts) / np.sum(counts), 1e-4) for counts in (old, new)]
    return float(np.sum((shares[1] - shares[0]) * np.log(shares[1] / shares[0])))


def test_rows_of_training_have_not_moved(encoding: Preprocessor) -> None:
    drift, columns = drift_of(make_rows(0), encoding)
    assert drift.max_psi == 0 and columns["smooth"].ks == columns["coarse"].ks == 0
    assert columns["coarse"].missing == columns["coarse"].missing_in_training > 0
    drift.check(1e-9)


def test_rows_of_the_same_source_are_stable(encoding: Preprocessor) -> None:
    assert 0 < (drift_of(make_rows(1), encoding)[0].max_psi or 0) < 0.02


def test_number_equals_a_direct_computation(encoding: Preprocessor) -> None:
    old = make_rows(0)["smooth"].to_numpy()
    new = np.concatenate([np.random.default_rng(1).normal(0.5, 2, ROWS), [np.nan] * 500, [np.inf]])
    others = make_rows(1).take(np.arange(len(new)) % ROWS)
    column = drift_of(others.set_column(0, "smooth", pa.array(new)), encoding)[1]["smooth"]
    finite = new[np.isfinite(new)]
    knots = np.array(encoding.numeric[0].knots)
    functions = [(np.searchsorted(np.sort(values), knots, side="right") / len(values)) for values in (old, finite)]
    assert column.ks == pytest.approx(np.abs(functions[0] - functions[1]).max())
    everywhere = np.sort(np.concatenate([old, finite]))
    exact = [np.searchsorted(np.sort(values), everywhere, side="right") / len(values) for values in (old, finite)]
    assert column.ks == pytest.approx(np.abs(exact[0] - exact[1]).max(), abs=0.01)
    deciles = np.quantile(old, np.linspace(0.1, 0.9, 9))
    bins = [-np.inf, *deciles, np.inf]
    histograms = [[*np.histogram(values, bins)[0], missing] for values, missing in ((old, 0), (finite, 501))]
    assert column.psi == pytest.approx(direct_psi(*histograms), rel=0.02)
    assert column.missing == 501 / len(new) and column.missing_in_training == 0


def test_category_equals_a_direct_computation(encoding: Preprocessor) -> None:
    new = ["Oslo"] * 100 + ["Rome"] * 700 + [None] * 150 + ["Wien"] * 40 + ["Bonn"] * 10
    rows = make_rows(1).slice(0, 1000).set_column(2, "city", pa.array(new))
    column = drift_of(rows, encoding)[1]["city"]
    old = make_rows(0)["city"].to_pylist()
    values = ["Oslo", "Rome", "Bern", None]
    counts = [[*map(old.count, values), 0], [*map(new.count, values), 50]]
    assert column.psi == pytest.approx(direct_psi(*counts))
    assert (column.unseen_rows, column.unseen, column.unseen_in_training) == (50, 0.05, 0)
    assert column.examples == ("Bonn", "Wien") and column.missing == 0.15 and column.ks is None


def test_many_categories_are_pooled() -> None:
    names = [f"value {number:03}" for number in range(300)]
    rows = pa.table({"city": [name for number, name in enumerate(names) for _ in range(400 - number)]})
    encoding = fit_preprocessor(rows, [], ["city"], "uint8", "rows")
    shuffled = pa.table({"city": np.random.default_rng(0).choice(rows["city"].to_pylist(), 600).tolist()})
    assert (drift_of(shuffled, encoding)[0].max_psi or 0) < 0.1, "300 bins of two rows would be noise"


@pytest.mark.parametrize("values", [300, 3_000, 30_000])
def test_new_rare_values_are_as_many_as_rare_values_of_training_let_expect(values: int) -> None:
    rng = np.random.default_rng(0)
    old, new = (pa.table({"user": rng.integers(0, values, size).astype(str).tolist()}) for size in (4_000, 1_500))
    encoding = fit_preprocessor(old, [], ["user"], "uint8", "rows")
    drift, columns = drift_of(new, encoding)
    assert (drift.max_psi or 0) < 0.05 and abs(columns["user"].unseen - columns["user"].unseen_in_training) < 0.05
    found = UnseenValues(encoding)
    found.count(encoding.transform(new, "rows"))
    assert found.warnings() == []
    moved = pa.table({"user": [*new["user"].to_pylist()[:750], *(f"new {number}" for number in range(750))]})
    found.count(encoding.transform(moved, "rows"))
    assert len(found.warnings()) == 1


def test_columns_that_lost_all_values_are_named() -> None:
    """Not one of few rows, or one that was nearly empty in training: it may well be so by chance."""
    rng = np.random.default_rng(0)
    old = pa.table(
        {
            "x": rng.normal(size=1000),
            "rare": pa.array(np.ones(1000), mask=rng.random(1000) > 0.002),
            "city": rng.choice(["Oslo", "Rome"], 1000),
            "day": pa.array(rng.integers(0, 10**4, 1000), pa.int32()).cast(pa.date32()),
        }
    )
    encoding = fit_preprocessor(old, ["x", "rare"], ["city"], "uint8", "rows", times=["day"])
    lost = pa.table({"x": old["x"], **{name: pa.nulls(1000, old[name].type) for name in ("rare", "city", "day")}})
    assert unseen_warnings(encoding, encoding.transform(lost.slice(0, 300), "rows")) == [
        "no value in any of 300 rows, although training has some: 'day', 'city'"
    ]
    assert unseen_warnings(encoding, encoding.transform(lost.slice(0, 99), "rows")) == []
    assert unseen_warnings(encoding, encoding.transform(old, "rows")) == []


def test_columns_that_lost_all_values_are_named_before_many_that_have_other_ones() -> None:
    names = [f"city {number}" for number in range(12)]
    old = pa.table({name: ["Oslo", "Rome"] * 100 for name in names})
    new = pa.table({**{name: ["Bern"] * 200 for name in names}, names[-1]: pa.nulls(200, pa.string())})
    encoding = fit_preprocessor(old, [], names, "uint8", "rows")
    first, *others = unseen_warnings(encoding, encoding.transform(new, "rows"))
    assert first == "no value in any of 200 rows, although training has some: 'city 11'"
    assert len(others) == 10 and others[-1] == "such values are in 2 more columns"


@pytest.mark.parametrize(("values", "rows"), [(3_000, 4_000), (3_000, 8_000), (2_000, 20_000)])
def test_values_beyond_the_most_codes_are_expected_in_new_rows(
    values: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many values have as many rows as the last with a code; those with one more would be behind it without it."""
    for module in ("data.encoding.fitting", "evaluation.drift.counting"):
        monkeypatch.setattr(f"dkan_core.{module}.MAX_VOCABULARY", 500)
    rng = np.random.default_rng(0)
    old, new = (pa.table({"user": rng.integers(0, values, size).astype(str).tolist()}) for size in (rows, 10_000))
    encoding = fit_preprocessor(old, [], ["user"], "uint8", "rows")
    user = drift_of(new, encoding)[1]["user"]
    assert user.unseen > 0.5 and abs(user.unseen - user.unseen_in_training) < 0.02
    found = UnseenValues(encoding)
    found.count(encoding.transform(new, "rows"))
    assert found.warnings() == []


def test_scores_whose_distribution_is_not_known_are_named(
    encoding: Preprocessor, caplog: pytest.LogCaptureFixture
) -> None:
    reference = TrainingDistribution.from_model(encoding, {"labels": {"late": {"threshold": 0.5}}})
    drift = measure(counted(make_rows(1), reference), reference)
    (score,) = [column for column in drift.columns if column.kind == "score"]
    assert (score.name, score.psi) == ("late", None) and Drift.from_dict(drift.to_dict()) == drift
    drift.check(0.2)
    assert "not compared, as the model does not know its distribution in training: score 'late'" in caplog.text


def test_counts_of_parts_add_up_in_any_order(encoding: Preprocessor) -> None:
    reference = TrainingDistribution(
        preprocessor=encoding, scores={"late": {"knots": [0.2, 0.4], "rows": [0, 5, 5, 5]}}
    )
    rows = make_rows(1, city=[f"new {number % 40}" for number in range(ROWS)])
    probabilities_NL = np.random.default_rng(0).random((ROWS, 1), dtype=np.float32)

    def part(start: int, stop: int) -> DriftCounts:
        return count_rows(rows.slice(start, stop - start), probabilities_NL[start:stop], ["late"], reference, "rows")

    whole, merged = part(0, ROWS), DriftCounts()
    for bounds in ((4000, 5000), (0, 1), (1, 4000)):
        text = json.dumps(part(*bounds).to_dict())
        merged.merge(DriftCounts.from_schema(DriftCountsSchema.model_validate_json(text)))
    assert merged.to_dict() == whole.to_dict()
    assert measure(merged, reference) == measure(whole, reference)
    assert {column.kind for column in measure(whole, reference).columns} == {"number", "category", "score"}


def test_what_moved_fails_the_gate_by_name(encoding: Preprocessor) -> None:
    drift, columns = drift_of(make_rows(1, smooth=np.random.default_rng(1).normal(1, 1, ROWS)), encoding)
    assert drift.columns[0].name == "smooth" and columns["smooth"].psi > 0.25 > columns["city"].psi
    with pytest.raises(GateError, match=rf"PSI above max_psi 0.2: number 'smooth' has {columns['smooth'].psi:.4f}$"):
        drift.check(0.2)
    drift.check(0)
    assert "smooth" in str(drift) and "large" in str(drift)
    json.dumps(drift.to_dict(), allow_nan=False)


def test_table_has_a_line_for_each_column_whatever_its_name() -> None:
    facts: dict[str, Any] = dict.fromkeys(("psi", "ks", "missing", "missing_in_training"), 0.0)
    columns = [ColumnDrift(name=name, kind="number", **facts) for name in ("two\nlines", "x")]
    shown = str(Drift(rows=1, columns=tuple(columns)))
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [[r"two\nlines", "number"], ["x", "number"]]


def test_column_gone_missing_has_drifted(encoding: Preprocessor) -> None:
    column = drift_of(make_rows(0, smooth=pa.nulls(ROWS, pa.float64())), encoding)[1]["smooth"]
    assert column.psi > 1 and column.missing == 1 and column.ks is None


def test_preprocessor_of_an_earlier_version_says_unknown(encoding: Preprocessor) -> None:
    plain = encoding.to_dict()
    del plain["counts"]
    earlier = Preprocessor.from_dict(plain)
    assert earlier == encoding and earlier.to_dict() == plain
    drift, columns = drift_of(make_rows(1), earlier)
    assert drift.max_psi is None and columns["city"].unseen == 0 and columns["city"].psi is None
    assert "unknown" in str(drift)
    with pytest.raises(GateError, match="the model has no distribution of its training data"):
        drift.check(0.5)


def test_counts_that_do_not_fit_the_encoding_are_refused(encoding: Preprocessor) -> None:
    plain = encoding.to_dict()
    with pytest.raises(DataError, match="counts"):
        Preprocessor.from_dict({**plain, "counts": {**plain["counts"], "flag": [1]}})
    with pytest.raises(DataError, match=r"counts\.flag\.0"):
        Preprocessor.from_dict({**plain, "counts": {**plain["counts"], "flag": [-1, 0, 1, 2]}})


def test_counts_are_of_the_rows_they_are_fitted_to(encoding: Preprocessor) -> None:
    found = count_values(make_rows(0), encoding, "rows")
    assert {name: counts.tolist() for name, counts in found.items()} == encoding.counts
    assert {sum(counts) for counts in encoding.counts.values()} == {ROWS}
