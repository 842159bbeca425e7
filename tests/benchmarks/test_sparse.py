"""``python -m benchmarks.sparse``: every step is measured, and shards follow the ones."""

from pathlib import Path

from benchmarks.sparse import measure


def test_bytes_of_shards_follow_the_ones(tmp_path: Path) -> None:
    rows, ids, ones = 3000, 5000, 5
    found = measure(tmp_path, rows, ids, ones, "4")
    assert found["ids"] <= ids
    header = 3 * 500
    assert found["shards_bytes"] <= rows * (4 * ones + 8 + 1) + header < found["dense_bytes"] / 100
    assert set(found["step_milliseconds"]) == {"native", "recompute", "optimizer"}
    assert all(found[step]["peak_bytes"] > found["shards_bytes"] for step in ("prepare", "train"))
