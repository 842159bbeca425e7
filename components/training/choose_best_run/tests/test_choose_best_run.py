"""The best run is handed on with what is known of it."""

import json
from pathlib import Path

from kfp import dsl

from components.training.choose_best_run import choose_best_run


def test_best_run_is_handed_on(tmp_path: Path) -> None:
    runs = []
    for number, score in enumerate([0.4, 0.6, 0.5]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "metrics.json").write_text(json.dumps({"average_precision": score}))
        runs.append(dsl.Model(uri=str(folder), metadata={"validation_average_precision": score}))
    model = dsl.Model(uri=str(tmp_path / "best"))
    assert choose_best_run.python_func(runs, model) == 1
    assert model.metadata == {"validation_average_precision": 0.6}
    assert json.loads((tmp_path / "best" / "metrics.json").read_text())["average_precision"] == 0.6
