"""The component gives every place of a run the same day, and refuses those that the pods of a run do not share."""

from datetime import UTC, datetime
from typing import Any

import pytest

from components.deployment.resolve_places import resolve_places
from dkan_core import ConfigError
from dkan_core.data import places as module
from dkan_core.data.places import DATED


class Clock(datetime):
    """A midnight that passes between two looks at the clock."""

    looks = 0

    @classmethod
    def now(cls, tz=None):  # type: ignore[no-untyped-def]
        cls.looks += 1
        return datetime(2026, 11, 20 + cls.looks, tzinfo=UTC)


def test_places_have_one_date_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "datetime", Clock)
    filled = resolve_places.python_func("s3://b/new/{date}/*.parquet", "s3://b/scores/{date}", "s3://b/late", "{date}")
    assert filled == ("s3://b/new/2026-11-21/*.parquet", "s3://b/scores/2026-11-21", "s3://b/late", "2026-11-21", "")


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (
            {"publish_uri": "bucket/models"},
            "'publish_uri' must be a URI such as s3://bucket/folder, got 'bucket/models'",
        ),
        ({"checkpoint_uri": "minio://b/c"}, "parameter 'checkpoint_uri' must be a URI such as"),
        ({"output_uri": "memory://scores/{date}"}, "parameter 'output_uri' must be a URI such as"),
        ({"data_uri": "s3://b/a, flights"}, "a URI such as s3://bucket/folder, or a path below /, got 'flights'"),
        ({"previous_model_uri": "models/late"}, "parameter 'previous_model_uri' must be a URI"),
        ({"run_uri": "/mnt/dkan/runs"}, "parameter 'run_uri' must be a URI"),
        ({"prepared_uri": "/data", "volume_path": "/mnt/dkan"}, "or a path below /mnt/dkan/, got '/data'"),
    ],
)
def test_place_that_is_lost_with_its_pod_is_refused_on_a_cluster(
    monkeypatch: pytest.MonkeyPatch, places: dict[str, Any], message: str
) -> None:
    resolve_places.python_func(**places)
    monkeypatch.setenv("KFP_POD_NAME", "flights-resolve-places")
    with pytest.raises(ConfigError, match=message):
        resolve_places.python_func(**places)


@pytest.mark.parametrize(
    "places",
    [
        {},
        {"data_uri": "/opt/sample.parquet", "publish_uri": "s3://b/a,b", "serving_uri": "pvc://claim/late"},
        {"data_uri": "gs://b/new/*.parquet\nhttps://host/f.parquet", "output_uri": "abfs://b/scores"},
        {"run_uri": "/mnt/dkan/runs", "prepared_uri": "file:///mnt/dkan/p", "volume_path": "/mnt/dkan"},
    ],
    ids=str,
)
def test_place_that_pods_share_is_let_through(monkeypatch: pytest.MonkeyPatch, places: dict[str, Any]) -> None:
    monkeypatch.setenv("KFP_POD_NAME", "flights-resolve-places")
    assert resolve_places.python_func(**places) == tuple(places.get(name, "") for name in DATED)
