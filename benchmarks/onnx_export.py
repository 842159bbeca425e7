"""How exact and how fast an exported model is: ``python -m benchmarks.onnx_export RUN/model ROWS.parquet...``.

Both sides turn the same rows in memory into probabilities on one thread: dkan encodes and scores them, onnxruntime gets
them as arrays. Their runs are interleaved, and the medians of the CPU time of the process are compared.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import onnxruntime
import pyarrow as pa
import torch
import typer

from benchmarks.timing import in_turns
from dkan_core import export
from dkan_core.data.source.files import find_parquet
from dkan_core.data.source.reading import open_file, read_batches
from dkan_core.model.saved_model import SavedModel
from dkan_core.onnx_export.verification import OUTPUT, graph_inputs
from dkan_core.scoring.probabilities import score
from dkan_core.utils.torch_resources import torch_threads

TURNS = 5
Scores = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What was measured of one model."""

    rows: int
    columns: int
    megabytes: float
    largest_difference: float
    model_rows: float
    """Rows that dkan scores in a second of CPU time."""

    graph_rows: float
    """The same of onnxruntime."""

    def __str__(self) -> str:
        cells = (
            f"{self.rows:,}",
            str(self.columns),
            f"{self.megabytes:.1f} MB",
            f"{self.largest_difference:.1e}",
            f"{self.model_rows:,.0f}",
            f"{self.graph_rows:,.0f}",
            f"{self.graph_rows / self.model_rows:.2f}",
        )
        return f"| {' | '.join(cells)} |"


def compare(model: Path, sources: list[str], limit: int) -> Comparison:
    """Export a model, and score rows with both.

    Args:
        model: Its folder, or that of its run.
        sources: Raw Parquet.
        limit: Rows of each file to score.
    """
    saved = SavedModel(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        size = export(model, path).size
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    batches = [batch for path in find_parquet(sources) for batch in _first_batches(path, saved, limit)]

    def by_model() -> list[Scores]:
        cpu = torch.device("cpu")
        return [score(saved.module, saved.preprocessor.transform(batch, "rows"), cpu) for batch in batches]

    def by_graph() -> list[Scores]:
        return [session.run([OUTPUT], graph_inputs(batch, saved.preprocessor, ""))[0] for batch in batches]

    largest = max(float(np.abs(ours - theirs).max()) for ours, theirs in zip(by_model(), by_graph(), strict=True))
    rows = sum(map(len, batches))
    with torch_threads(1):
        seconds = in_turns({"model": by_model, "graph": by_graph}, TURNS)
    return Comparison(
        rows=rows,
        columns=len(saved.preprocessor.columns),
        megabytes=size / 1e6,
        largest_difference=largest,
        model_rows=rows / seconds["model"],
        graph_rows=rows / seconds["graph"],
    )


def _first_batches(path: str, saved: SavedModel, limit: int) -> list[pa.RecordBatch]:
    found, rows = [], 0
    for batch in read_batches(open_file(path), saved.preprocessor.columns):
        # As many at once as a service would see at most.
        for start in range(0, min(len(batch), limit - rows), 4096):
            found.append(batch.slice(start, min(4096, limit - rows)))
            rows += len(found[-1])
        if rows >= limit:
            break
    return found


def main(
    model: Annotated[Path, typer.Argument(help="Folder of a model, or of a run.")],
    sources: Annotated[list[str], typer.Argument(help="Raw Parquet to score.")],
    rows: Annotated[int, typer.Option(help="Rows of each file to score.")] = 20_000,
) -> None:
    """Print a row of the table in docs/benchmarks/scoring.md."""
    typer.echo(compare(model, sources, rows))


if __name__ == "__main__":
    typer.run(main)
