"""The benchmark of sketched layers measures smaller models on tables whose labels can be learned."""

from pathlib import Path

import pytest

from benchmarks.sketched import KINDS, make_step, markdown, write_rows
from benchmarks.timing import in_turns
from dkan_core import PrepareConfig, TrainConfig, prepare


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_full_and_sketched_layers_are_measured(kind: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", kind, columns=60, rows=300)
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("label",)))
    config = TrainConfig(device="cpu", workers=1, members=1, hidden=(16,), batch_size=32)
    (full, most), (sketched, fewer) = (
        make_step(tmp_path / "data", config),
        make_step(tmp_path / "data", TrainConfig(**{**vars(config), "sketch_rank": 2})),
    )
    assert fewer < most / 4
    assert all(seconds > 0 for seconds in in_turns({0: full, 2: sketched}, turns=1).values())


def test_full_layer_comes_first_in_the_table() -> None:
    exchange = {"parameter-server sync": 1.0, "allreduce": 1.0}
    row = {"columns": 60, "parameters": 1000, "step": 1.0, "exchange": exchange}
    rows = [{**row, "rank": rank, "average_precision": dict.fromkeys(KINDS, 0.5)} for rank in (0, 4)]
    lines = markdown(rows).splitlines()
    assert len(lines) == 4 and "| full |" in lines[2] and "| rank 4 |" in lines[3]
