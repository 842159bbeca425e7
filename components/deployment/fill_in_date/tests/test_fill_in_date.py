"""The component gives every place of a run the same day, and leaves the others as they are."""

from datetime import UTC, datetime

import pytest

from components.deployment.fill_in_date import fill_in_date
from dkan_core.utils import dates


class Clock(datetime):
    """A midnight that passes between two looks at the clock."""

    looks = 0

    @classmethod
    def now(cls, tz=None):  # type: ignore[no-untyped-def]
        cls.looks += 1
        return datetime(2026, 11, 20 + cls.looks, tzinfo=UTC)


def test_places_have_one_date_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dates, "datetime", Clock)
    filled = fill_in_date.python_func("s3://b/new/{date}/*.parquet", "s3://b/scores/{date}", "s3://b/late", "{date}")
    assert filled == ("s3://b/new/2026-11-21/*.parquet", "s3://b/scores/2026-11-21", "s3://b/late", "2026-11-21", "")
