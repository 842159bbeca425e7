"""Data sets of places are made from the files of the packages."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import geography

AIRPORTS = """icao,iata,country,elevation,lat,lon
LFPG,CDG,FR,392.0,49.0,2.5
00AA,,US,3435.0,38.7,-101.5
00AK,,US,,59.9,-151.7
"""
CITIES = """lat,lon,name,cc
52.5,13.4,Berlin,DE
48.9,2.4,Paris,FR
66.0,-20.0,San Pedro,XX
"""


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "airports.csv").write_text(AIRPORTS)
    (tmp_path / "rg_cities1000.csv").write_text(CITIES)
    # What is true is the sea: here the west.
    mask = np.tile([True, True, False, False], (2, 1))
    lon = [-90.0, -45.0, 45.0, 90.0]
    np.savez(tmp_path / "globe_combined_mask_compressed.npz", mask=mask, lat=[80.0, -40.0], lon=lon)
    codes = [
        {"lat": "40.7", "long": "-74.0", "zip_code_type": "STANDARD", "timezone": "America/New_York"},
        {"lat": "41.9", "long": "-87.6", "zip_code_type": "PO BOX", "timezone": "America/Chicago"},
    ]
    monkeypatch.setitem(sys.modules, "zipcodes", SimpleNamespace(list_all=lambda: codes))
    monkeypatch.setattr(geography, "files", lambda _, name: tmp_path / name)
    monkeypatch.setattr(geography, "POINTS", 100)


def test_rows_have_their_places_and_labels() -> None:
    made = dict(geography.sets())
    high = made["high_airports"].sort_values("lat")
    assert high.to_dict("list") == {"lat": [38.7, 49.0], "lon": [-101.5, 2.5], "is_served": [0, 1], "label": [1, 0]}
    served = made["served_airports"].sort_values("lat")
    assert served["label"].tolist() == [0, 1] and served["country"].tolist() == ["US", "FR"]
    assert made["countries"].sort_values("lat")["label"].tolist() == [0, 1, 0]
    land = made["land"]
    assert set(land["lat"]) == {-40.0}, "not near the poles"
    assert 0 < len(land) < 100 and ((land["lon"] > 0) == (land["label"] == 1)).all()


def test_held_out_sets_have_their_labels() -> None:
    made = {name: rows.sort_values("lat") for name, rows in geography.held_out_sets()}
    assert made["post_boxes"]["label"].tolist() == made["central_time"]["label"].tolist() == [0, 1]
    assert made["names_in_o"]["label"].tolist() == [0, 0, 1] and made["names_in_o"]["words"].tolist() == [1, 1, 2]
    assert made["saints"]["label"].tolist() == [0, 0, 1]
    assert made["local_airports"]["label"].tolist() == [1, 0]
