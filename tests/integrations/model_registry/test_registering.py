"""Models in a Model Registry: once however often they are registered, and nothing in the place of another model.

The server is a stand-in of ours (``tests/registry.py``), as a process of its own over real HTTP and SQLite. Its client
takes most of a second to import, and is imported where it is used: every job collects this file.
"""

import asyncio
import concurrent.futures
import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import fsspec
import pytest

from dkan_core import ConfigError, DataError, OutputError, PipelineRun, TrainResult, evaluate, register
from dkan_core.utils.retry import RetryPolicy
from tests import warm
from tests.command import check, dkan
from tests.registry import failing_proxy, get, registry_server, versions

# Of a first registration: the API, the model, the new model, the version, the new version, the artifact, the new one.
CALLS = 7


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = RetryPolicy(first_pause=0.01, attempts=3)
    monkeypatch.setattr("dkan_core.integrations.model_registry.client.ATTEMPTS", attempts)


@pytest.fixture
def model(trained: TrainResult, tmp_path: Path) -> Path:
    """Publish the model where a test may change it."""
    folder = tmp_path / "models" / tmp_path.name
    shutil.copytree(trained.model, folder)
    return folder


def other(model: Path) -> Path:
    """Return a model that is like this one but for its weights' hash, at another place."""
    folder = model.with_name("other")
    shutil.copytree(model, folder)
    config = folder / "preprocessor.json"
    config.write_text(config.read_text() + "\n")
    (folder / "files.json").unlink()
    return folder


def test_registered_model_has_what_is_known_of_it(registry: str, model: Path, trained: TrainResult) -> None:
    run = PipelineRun(id="run-1", name="nightly", namespace="team")
    made = register(model, registry, metrics={"average_precision": 0.75, "rows": 20, "nothing": None}, run=run)
    (version,) = versions(registry, model.name)
    plain = version["plain"]
    assert version["name"] == made.version and version["id"] == made.version_id
    data = json.loads((model / "metrics.json").read_text())["data"]
    assert made.version.startswith(data[:12]) and plain["data_fingerprint"] == data
    assert plain["test_average_precision"] == 0.75 and plain["test_rows"] == 20 and "test_nothing" not in plain
    assert plain["valid_average_precision"] == pytest.approx(trained.average_precision)
    assert plain["card"] == f"file://{model}/README.md" and plain["labels"] == "label"
    assert version["description"] == (model / "README.md").read_text()
    (artifact,) = version["artifacts"]
    assert artifact["uri"] == made.uri == f"file://{model}" and artifact["id"] == made.artifact_id
    assert (artifact["modelFormatName"], artifact["modelFormatVersion"]) == ("dkan", "1")
    source = [artifact[f"modelSource{key}"] for key in ("Kind", "Class", "Group", "Id", "Name")]
    assert source == ["kfp", "pipelinerun", "team", "run-1", "nightly"]


def test_second_call_changes_nothing(registry: str, model: Path) -> None:
    first = register(model, registry, metrics={"average_precision": 0.75})
    before = versions(registry, model.name)
    # Rounded differently by another processor: it is the same model all the same.
    assert register(f"{model}/", registry, metrics={"average_precision": 0.7500000001}) == first
    assert versions(registry, model.name) == before


def test_metrics_of_a_later_test_are_added_to_the_version(registry: str, model: Path) -> None:
    first = register(model, registry)
    assert register(model, registry, metrics={"average_precision": 0.75}) == first
    (version,) = versions(registry, model.name)
    path = f"{registry}/api/model_registry/v1/model_versions/{version['id']}"
    by_hand = {"struct_value": "e30=", "metadataType": "MetadataStructValue"}
    content = json.dumps({"customProperties": {**version["customProperties"], "by_hand": by_hand}}).encode()
    urllib.request.urlopen(urllib.request.Request(path, content, {"content-type": "application/json"}, method="PATCH"))
    register(model, registry, metrics={"average_precision": 0.5, "roc_auc": 0.9})
    (version,) = versions(registry, model.name)
    plain = version["plain"]
    assert (plain["test_average_precision"], plain["test_roc_auc"]) == (0.75, 0.9), "what is there stays"
    assert version["customProperties"]["by_hand"] == by_hand and plain["labels"] == "label"


def test_calls_at_the_same_time_leave_one_version(registry: str, model: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        made = {*pool.map(lambda _: register(model, registry), range(4))}
    assert len(made) == 1
    (version,) = versions(registry, model.name)
    assert len(version["artifacts"]) == 1


@pytest.mark.parametrize(("place", "fault"), [*((place, "lost") for place in range(CALLS)), (0, 503), (4, 503)])
def test_fault_at_any_call_is_tried_again(registry: str, model: Path, place: int, fault: Any) -> None:
    with failing_proxy(registry, {place: fault}) as (proxy, asked):
        register(model, proxy, name=f"{model.name}-{place}-{fault}")
    assert len(asked) > CALLS
    (version,) = versions(registry, f"{model.name}-{place}-{fault}")
    assert len(version["artifacts"]) == 1


def test_version_that_was_left_without_its_artifact_is_completed(registry: str, model: Path) -> None:
    faults = dict.fromkeys(range(CALLS - 1, CALLS + 20), 500)
    refused = pytest.raises(OutputError, match=r"does not take the model \(500: trouble\)")
    with failing_proxy(registry, faults) as (proxy, _), refused:
        register(model, proxy)
    assert versions(registry, model.name)[0]["artifacts"] == []
    register(model, registry)
    (version,) = versions(registry, model.name)
    assert len(version["artifacts"]) == 1


def test_new_model_is_a_new_version(registry: str, model: Path) -> None:
    for each in (model, other(model)):
        register(each, registry, name=model.name)
    first, second = versions(registry, model.name)
    assert first["name"] != second["name"] and first["registeredModelId"] == second["registeredModelId"]


def test_version_of_another_model_is_refused_by_name(registry: str, model: Path) -> None:
    register(model, registry, name=model.name, version="2026-11")
    before = versions(registry, model.name)
    with pytest.raises(OutputError, match=rf"{model.name}: version '2026-11' .* model_fingerprint is '[0-9a-f]{{64}}'"):
        register(other(model), registry, name=model.name, version="2026-11")
    elsewhere = model.with_name("elsewhere")
    shutil.copytree(model, elsewhere)
    with pytest.raises(OutputError, match=f"uri is 'file://{model}', here 'file://{elsewhere}'"):
        register(elsewhere, registry, name=model.name, version="2026-11")
    assert versions(registry, model.name) == before


def test_version_that_somebody_else_made_is_refused(registry: str, model: Path) -> None:
    from model_registry.types import ModelVersion, RegisteredModel
    from mr_openapi import Configuration

    from dkan_core.integrations.model_registry import client

    name = f"{model.name}-by-hand"
    api = client._Client(Configuration(host=registry), "v1")

    async def by_hand() -> None:
        made = await api.upsert_registered_model(RegisteredModel(name=name))
        await api.upsert_model_version(ModelVersion(name="1"), made.id)

    asyncio.run(by_hand())
    with pytest.raises(OutputError, match="version '1' exists and is of another model: model_fingerprint is None"):
        register(model, registry, name=name, version="1")


def test_server_with_the_earlier_api_alone(model: Path, tmp_path: Path) -> None:
    with registry_server(tmp_path, "v1alpha3") as address:
        assert register(model, address) == register(model, address)
        with failing_proxy(address, {}) as (proxy, asked):
            register(model, proxy)
    assert {call.split("/")[3] for call in asked[1:]} == {"v1alpha3"}


def test_uri_is_read_back_as_it_is_registered(registry: str, model: Path, tmp_path: Path) -> None:
    spaced = model.rename(tmp_path / "late flights")
    first = register(spaced, registry)
    assert first.name == "late flights" and first.uri == f"file://{spaced}"
    assert register(first.uri, registry) == first


def test_credentials_are_neither_registered_nor_shown(registry: str, model: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(model), "/key:secret@bucket/late", recursive=True)
    with pytest.raises(ConfigError, match=r"^memory://\*\*\*@bucket/late: holds credentials"):
        register("memory://key:secret@bucket/late", registry)
    found = register(model, registry.replace("://", "://user:secret@"))
    assert found.registry == registry.replace("://", "://***@")


def test_logging_of_the_caller_stays_as_it_is(registry: str, model: Path) -> None:
    # The client library adds a handler to the root when it is imported, which only a new process does.
    code = "import logging, sys; from dkan_core import register; register(sys.argv[1], sys.argv[2])"
    command = ["-c", f"{code}; sys.exit(len(logging.getLogger().handlers))", model, registry]
    done = warm.server().run(command)
    assert done.returncode == 0, done.stderr


def test_in_an_event_loop_as_in_a_notebook(registry: str, model: Path) -> None:
    async def cell() -> None:
        register(model, registry)

    asyncio.run(cell())
    assert len(versions(registry, model.name)) == 1


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (401, ConfigError, "does not know this process; it expects a token"),
        (403, ConfigError, "does not allow this process"),
        (404, ConfigError, r"has no API of a Model Registry \(v1 or v1alpha3\)"),
        (400, ConfigError, r"refuses \(400: trouble\)"),
        (502, OutputError, r"does not take the model \(502: trouble\)"),
        ("lost", OutputError, "does not answer"),
    ],
)
def test_server_that_refuses_is_named(registry: str, model: Path, status: Any, error: type, message: str) -> None:
    faults = dict.fromkeys(range(100), status)
    with failing_proxy(registry, faults) as (proxy, _), pytest.raises(error, match=f"^registry {proxy}: {message}"):
        register(model, proxy)


def test_page_that_is_no_registry_is_named(registry: str, model: Path) -> None:
    # The proxy before a Kubeflow answers whoever is not logged in with a page.
    with pytest.raises(ConfigError, match=r"does not answer like a Model Registry|has no API of a Model Registry"):
        register(model, f"{registry}/docs?")


def test_arguments_that_are_none(model: Path, registry: str) -> None:
    for address in ("", "registry:8080", "s3://bucket", "http://", "http://registry:99999"):
        with pytest.raises(ConfigError, match=f"registry '{address}': expected an address such as http"):
            register(model, address)
    for wrong in (" ", "a" * 201, "late\nflights"):
        with pytest.raises(ConfigError, match=r"name .*: expected 1 to 200 printable characters"):
            register(model, registry, name=wrong)
    with pytest.raises(DataError, match=r"no config\.json there"):
        register(model.parent, registry)
    names = [entry["name"] for entry in get(registry, "registered_models", pageSize="1000")["items"]]
    assert not [name for name in names if not name.strip() or len(name) > 200]


def test_token_goes_over_https_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dkan_core.integrations.model_registry import client

    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "token"))
    assert client._token("https://registry") == "secret" and client._token("http://registry") is None
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"KF_PIPELINES_SA_TOKEN_PATH .*none: cannot be read"):
        client._token("https://registry")


def test_command(
    registry: str, trained: TrainResult, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    measured = evaluate(trained.model, prepared, tmp_path / "eval", explain=False).metrics
    # A run's folder: what is registered is the model in it.
    run = Path(trained.model).parent
    given = ["register", run, "--registry", registry, "--name", "by command", "--json", tmp_path / "out.json"]
    assert dkan(*given, "--metrics", tmp_path / "eval/metrics.json", monkeypatch=monkeypatch) == 0
    made = json.loads((tmp_path / "out.json").read_text())
    (version,) = versions(registry, "by command")
    assert made["version"] == version["name"] and made["uri"] == (run / "model").as_uri()
    assert f"by command {made['version']} in {registry}" in capsys.readouterr().out
    assert version["plain"]["test_average_precision"] == measured["average_precision"]
    for wrong, message in ((tmp_path / "none", "no such file"), (run / "history.jsonl", "history.jsonl: ")):
        code = dkan(*given, "--overwrite", "--metrics", wrong, monkeypatch=monkeypatch)
        check(code, capsys.readouterr().err, message)
