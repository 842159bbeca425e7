"""The benchmark of kernels measures every kernel on a default model."""

from pathlib import Path

from benchmarks.kernels import BF16, KERNELS, markdown, measure_source


def test_every_kernel_is_measured(source: Path, tmp_path: Path) -> None:
    result = measure_source(source, "label", tmp_path / "prepared", turns=1)
    assert set(result["gradient"]) == {*KERNELS, BF16} and set(result["adamw"]) == {"numpy", "auto"}
    assert all(each > 0 for part in ("gradient", "adamw") for each in result[part].values())
    assert f"| {source.stem} |" in markdown([result])
