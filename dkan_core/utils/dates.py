"""The date in a place that is to be another one every day."""

from datetime import UTC, datetime

DATE = "{date}"


def fill_in_date(*texts: str) -> tuple[str, ...]:
    """Return the texts with today's date in UTC, the same in all of them, where they say ``{date}``.

    >>> fill_in_date("s3://bucket/scores/{date}", "s3://bucket/new")  # doctest: +SKIP
    ('s3://bucket/scores/2026-11-21', 's3://bucket/new')
    """
    today = datetime.now(UTC).date().isoformat()
    return tuple(text.replace(DATE, today) for text in texts)
