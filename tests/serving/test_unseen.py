"""Values of requests that the model does not know: counted, and logged now and then."""

from pathlib import Path

import pyarrow as pa
import pytest

from dkan_core import TrainResult
from dkan_core.evaluation.drift.unseen import MIN_ROWS, PERIOD_SECONDS, UnseenWatch
from dkan_core.model.saved_model import SavedModel
from dkan_core.serving.rows import rows_of_instances
from dkan_core.serving.scorer import RequestScorer


@pytest.fixture
def now() -> list[float]:
    return [5.0]


def test_a_log_has_a_line_in_ten_minutes_and_none_of_a_few_rows(
    trained: TrainResult, table: pa.Table, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    scorer = RequestScorer(SavedModel(Path(trained.model)))
    scorer.warm_up()
    scorer.on_scored = UnseenWatch(scorer.preprocessor, clock=lambda: now[0]).count

    def ask(site: str | None, rows: int) -> list[str]:
        """Return what is logged of a request of so many rows."""
        caplog.clear()
        row = {**table.to_pylist()[1], "site": site}
        scorer.score([rows_of_instances([row] * rows, scorer.preprocessor)])
        return [record.getMessage() for record in caplog.records]

    assert ask("elsewhere", MIN_ROWS - 1) == []
    (text,) = ask("elsewhere", 1)
    assert text.startswith(
        "requests: column 'site': 100 of 100 rows (100.00%) hold a value that the model does not know"
    )
    assert ask("elsewhere", 300) == []
    now[0] += PERIOD_SECONDS
    (text,) = ask("left", 100)
    assert text.startswith("requests: column 'site': 300 of 400 rows (75.00%)")
    now[0] += PERIOD_SECONDS
    assert ask(table["site"][1].as_py(), 100) == []
    assert ask("elsewhere", 100) == [], "what was looked at last is over for the next ten minutes, too"
