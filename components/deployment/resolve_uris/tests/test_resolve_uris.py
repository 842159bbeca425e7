"""The component gives every URI of a run the same day, and refuses what a later step of the run would fail on."""

from datetime import UTC, datetime
from typing import Any

import pytest

from components.deployment.resolve_uris import resolve_uris
from dkan_core import ConfigError
from dkan_core.forms import uris as module
from dkan_core.forms.uris import DATED


class Clock(datetime):
    """A midnight that passes between two looks at the clock."""

    looks = 0

    @classmethod
    def now(cls, tz=None):  # type: ignore[no-untyped-def]
        cls.looks += 1
        return datetime(2026, 11, 20 + cls.looks, tzinfo=UTC)


def test_uris_have_one_date_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "datetime", Clock)
    filled = resolve_uris.python_func("s3://b/new/{date}/*.parquet", "s3://b/scores/{date}", "s3://b/late", "{date}")
    assert filled == ("s3://b/new/2026-11-21/*.parquet", "s3://b/scores/2026-11-21", "s3://b/late", "2026-11-21", "")


@pytest.mark.parametrize(
    ("form", "message"),
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
        ({"run_uri": "hdfs://host/runs"}, "'run_uri': the image cannot open 'hdfs://host/runs': hdfs needs Java and"),
        ({"output_uri": "abfs://b/scores"}, "'output_uri': the image cannot open 'abfs://b/scores': Install adlfs"),
        (
            {"publish_uri": "abfss://b@a.example/late"},
            "'publish_uri': the image cannot open 'abfss://b@a.example/late'",
        ),
    ],
)
def test_place_that_pods_cannot_use_is_refused_on_a_cluster(
    monkeypatch: pytest.MonkeyPatch, form: dict[str, Any], message: str
) -> None:
    resolve_uris.python_func(**form)
    monkeypatch.setenv("KFP_POD_NAME", "flights-resolve-uris")
    # No Java, as in the image.
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=message):
        resolve_uris.python_func(**form)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"data_uri": "/opt/sample.parquet", "publish_uri": "s3://b/a,b", "serving_uri": "pvc://claim/late"},
        {"data_uri": "gs://b/new/*.parquet\nhttps://host/f.parquet", "output_uri": "gcs://b/scores"},
        {"run_uri": "/mnt/dkan/runs", "prepared_uri": "file:///mnt/dkan/p", "volume_path": "/mnt/dkan"},
        {"checkpoint_uri": "s3://b/{run}", "run_uri": "hdfs:///runs/{run}"},
        {"initial_model_uri": "zip://::s3://b/model.zip"},
    ],
    ids=str,
)
def test_uri_that_pods_share_is_let_through(monkeypatch: pytest.MonkeyPatch, form: dict[str, Any]) -> None:
    monkeypatch.setenv("KFP_POD_NAME", "flights-resolve-uris")
    monkeypatch.setenv("JAVA_HOME", "/opt/java")
    assert resolve_uris.python_func(**form) == tuple(form.get(name, "") for name in DATED)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"inference_service": "Late"}, "'inference_service' must be a name of at most 40 .* got 'Late'"),
        ({"inference_service": "late", "publish_uri": " "}, "'inference_service' needs 'publish_uri', which is empty"),
        ({"inference_service": "late", "publish_uri": "/mnt/dkan/late"}, "model /mnt/dkan/late: KServe cannot read it"),
        ({"serving_runtime": "My runtime"}, "'serving_runtime' must be a name"),
        ({"serving_account": "A B"}, "'serving_account' must be a name"),
        ({"serving_timeout": 0}, "'serving_timeout' must be at least 1, got 0"),
        ({"registry_url": "registry:8080", "publish_uri": "s3://b/m"}, "'registry_url' must be an address such as"),
        ({"registry_url": "http://registry"}, "'registry_url' needs 'publish_uri', which is empty"),
        ({"registry_url": "http://r", "publish_uri": "s3://b/{date}"}, "'registered_name' is empty, and would be"),
        ({"registered_name": "late-{date}"}, "'registered_name' cannot have a date"),
        ({"min_average_precision": 50.0}, "'min_average_precision' must be from 0 to 1, got 50.0"),
        ({"min_average_precision": 0.5, "model_uri": "s3://b/m"}, "'min_average_precision' needs 'label'"),
        ({"max_psi": -1.0}, "'max_psi' must be at least 0, got -1.0"),
        ({"checkpoint_uri": "s3://b/{date}"}, "'checkpoint_uri' cannot have a date"),
        ({"publish_uri": "s3://b/late/{Date}"}, "'publish_uri' cannot have {Date}; {date} may be in data_uri, output"),
        ({"data_uri": "s3://b/{date}/*, s3://b/{{date}}"}, "'data_uri' cannot have {{date}}"),
        ({"previous_model_uri": "s3://b/{today}"}, "'previous_model_uri' cannot have {today}"),
        ({"registered_version": "{DATE}"}, "'registered_version' cannot have {DATE}"),
        ({"publish_uri": "s3://"}, "'publish_uri' must name a bucket, such as s3://bucket/folder, got 's3://'"),
        ({"checkpoint_uri": "s3:///checkpoints"}, "'checkpoint_uri' must name a bucket"),
        ({"data_uri": "s3://b/rows, gs://"}, "'data_uri' must name a bucket, .* got 'gs://'"),
        ({"publish_uri": "s3://b/late\n"}, "'publish_uri' must not begin or end with white space, got 's3://b/late.n'"),
        ({"checkpoint_uri": " s3://b/c"}, "'checkpoint_uri' must not begin or end with white space"),
        ({"serving_uri": "pvc:///late"}, "'serving_uri' must name a bucket"),
        ({"data_uri": "s3://b/rows", "publish_uri": "s3://b/rows/"}, "'publish_uri' must differ from 'data_uri'"),
        ({"data_uri": "s3://b/rows", "publish_uri": "s3://b"}, "'data_uri' must lie outside of 'publish_uri', got"),
        ({"checkpoint_uri": "https://b.s3.example/c"}, "'checkpoint_uri' is written, but http and https can only"),
    ],
)
def test_what_would_fail_after_training_is_refused_before_it(form: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_uris.python_func(**form)


@pytest.mark.parametrize(
    "form",
    [
        {"inference_service": "late", "publish_uri": "s3://b/late", "serving_account": "dkan-serving"},
        {"inference_service": "late", "publish_uri": "/mnt/dkan/late", "serving_uri": "pvc://dkan/late"},
        {"registry_url": "http://r:8080", "registered_name": "late", "publish_uri": "s3://b/{date}"},
        {"min_average_precision": 0.5},
    ],
    ids=str,
)
def test_publication_that_may_succeed_is_let_through(form: dict[str, Any]) -> None:
    today = datetime.now(UTC).date()
    found = resolve_uris.python_func(**form)
    days = {today.isoformat(), datetime.now(UTC).date().isoformat()}
    assert found in [tuple(form.get(name, "").replace("{date}", day) for name in DATED) for day in days]
