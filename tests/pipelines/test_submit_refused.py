"""What ``python -m pipelines submit`` refuses, before or after something was sent, and that it prints no secret."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from pipelines.__main__ import app
from pipelines.compiled import package_of
from tests.pipelines.kubeflow import Kubeflow, state, task, waited

SECRET = "s3cr3t-t0ken-of-mine"


@pytest.mark.parametrize("status", [400, 401, 403, 404, "login"])
@pytest.mark.parametrize("where", ["GET /healthz", "GET /pipelines", "POST /runs", "GET /runs/run-1"])
def test_refusal_by_the_server_is_shown_and_not_tried_again(
    run: Callable[..., Result], kubeflow: Kubeflow, status: Any, where: str
) -> None:
    kubeflow.faults = {where: [status]}
    if status == "login" and where in ("GET /healthz", "GET /pipelines"):
        kubeflow.faults["POST /pipelines/upload"] = ["login"]
    result = run("--wait")
    assert result.exit_code == 2 and kubeflow.asked(where) == 1
    expected = "perhaps a login page" if status == "login" else f"answers {status}"
    assert expected in result.stderr and "from-the-server" not in result.output


@pytest.mark.parametrize("option", ["--token-file", "--cookies-file", "--service-account"])
@pytest.mark.parametrize("status", [401, 503])
def test_secrets_are_sent_and_never_printed(
    run: Callable[..., Result],
    kubeflow: Kubeflow,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    status: int,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"session={SECRET}\n" if option == "--cookies-file" else f"{SECRET}\n")
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(secret))
    kubeflow.states, kubeflow.echo = [state("RUNNING", task("train-fastkan", "FAILED", f"got {SECRET}")), status], True
    options = [option] if option == "--service-account" else [option, str(secret)]
    result, _, _ = waited(run, tmp_path, *options)
    header, text = ("Cookie", "session=") if option == "--cookies-file" else ("authorization", "Bearer ")
    assert {headers.get(header) for _, _, headers in kubeflow.requests} == {text + SECRET}
    assert result.exit_code == (2 if status == 401 else 5)
    assert "***" in result.output, "the server quoted it"
    files = [path.read_text() for path in tmp_path.iterdir() if path != secret]
    assert not any(SECRET in text for text in [result.output, repr(result.exception), *files])


def test_a_token_is_read_anew(
    kubeflow: Kubeflow, run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("first-token")
    answer = kubeflow.answer

    def renew(what: str, *rest: Any) -> Any:
        token.write_text("second-token")
        return answer(what, *rest)

    monkeypatch.setattr(kubeflow, "answer", renew)
    assert run("--token-file", str(token)).exit_code == 0
    assert kubeflow.requests[-1][2]["authorization"] == "Bearer second-token"


@pytest.mark.parametrize("content", [f"{SECRET}\nsecond", "", f"{SECRET}é"])
@pytest.mark.parametrize("option", ["--token-file", "--cookies-file"])
def test_secrets_that_fit_no_header(
    run: Callable[..., Result], kubeflow: Kubeflow, tmp_path: Path, option: str, content: str
) -> None:
    (tmp_path / "secret").write_text(content)
    result = run(option, str(tmp_path / "secret"))
    assert result.exit_code == 2 and "expected one line of ASCII text" in result.stderr
    assert SECRET not in result.output and not kubeflow.requests


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--params", "epoch=3"], "unknown parameter 'epoch' (did you mean 'epochs'?)"),
        (["--params", "dropout=nan"], "parameter 'dropout' must be finite"),
        (["--params", "registry_url=http://registry"], "parameter 'registry_url' needs 'publish_uri', which is empty"),
        (["--params", "publish_uri=models"], "parameter 'publish_uri' must be a URI such as s3://bucket/folder, got"),
        (
            ["--params", "prepared_uri=/mnt/dkan/p"],
            "parameter 'prepared_uri' must be a URI such as s3://bucket/folder, got",
        ),
        (
            ["--pipeline", "single-node-pvc", "--params", "prepared_uri=/data/p"],
            "a URI such as s3://bucket/folder, or a path below /mnt/dkan/, got '/data/p'",
        ),
        (["--params", "publish_uri=file:///models"], "must be a URI such as s3://bucket/folder, got 'file:///models'"),
        (["--params", "checkpoint_uri=s3:/bucket/run"], "parameter 'checkpoint_uri' must be a URI such as"),
        (["--params", "checkpoint_uri=minio://b/run"], "parameter 'checkpoint_uri' must be a URI such as"),
        (["--params", "split=80/20/0"], "split must leave rows to test on, got '80/20/0'"),
        (
            [*("--pipeline", "parallel-prepare", "--params", "num_parts=65"), *("--params", "prepared_uri=s3://b/p")],
            "parts (num_parts in Kubeflow) must be at most 64, got 65: each takes several pods",
        ),
        (["--run-as", "a b"], "--run-as must be a name of lowercase letters"),
        (["--experiment", " "], "--experiment must be a name, got ' '"),
        (["--host", "foo", "--dry-run"], "--host must be https://NAME"),
        (["--pipeline", "sweep", "--params", "sweep=[]"], "sweep must be a JSON list such as"),
        (["--params", "none.toml"], "none.toml: No such file or directory"),
        (["--pipeline", "sngle-node"], "unknown pipeline 'sngle-node' (did you mean 'single-node'?)"),
        (["--pipeline", "other"], "unknown pipeline 'other'; expected one of single-node, single-node-pvc"),
        (["--pipeline", "none.yaml"], "none.yaml: cannot be read: No such file or directory"),
        (["--pipeline", f"{package_of('smoke').with_name('metadata.yaml')}"], "is no pipeline that a cluster can run"),
        (["--timeout", "3"], "--timeout and --junit need --wait"),
        (["--timeout", "soon"], "must be a number, got 'soon'"),
        (["--token-file", "none"], "none: No such file or directory"),
        (["--token-file", "a", "--service-account"], "give one of"),
        (["--token-file", "a", "--cookies-file", "b"], "give one of"),
        (["--cookies-file", "a", "--service-account", "--dry-run"], "give one of"),
        (["--host", "https://me:pass@kubeflow"], "--host must be"),
        (["--host", "kubeflow"], "--host must be"),
        (["--ca", str(Path(__file__))], "expected certificates as PEM"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(
    run: Callable[..., Result], kubeflow: Kubeflow, options: list[str], message: str
) -> None:
    result = run(*options)
    assert result.exit_code == 2 and message in result.stderr and "pass@" not in result.output
    assert not kubeflow.requests


def test_missing_parameter_is_named_before_the_server_is_asked(kubeflow: Kubeflow) -> None:
    result = CliRunner().invoke(app, ["submit", "--host", kubeflow.host, "--experiment", "flights"])
    assert result.exit_code == 2
    assert "missing parameter data_uri, label; the pipeline requires data_uri, label" in result.stderr
    assert not kubeflow.requests


@pytest.mark.parametrize(
    ("given", "faults"),
    [
        (
            ["epochs=few", "epoch=3"],
            ["'epochs' must be a whole number", "unknown parameter 'epoch'", "missing parameter"],
        ),
        (
            ["data_uri=s3://b/f", "label=late", "memory=64GB", "registry_url=http://r", "epochs=-1"],
            ["parameter 'memory' must be", "parameter 'registry_url' needs 'publish_uri'"],
        ),
    ],
)
def test_everything_that_is_wrong_is_named_at_once(given: list[str], faults: list[str]) -> None:
    result = CliRunner().invoke(app, ["submit", *(word for text in given for word in ("--params", text))])
    found = result.stderr.strip().splitlines()
    expected = ["error: refused: --host must be https://NAME", "--experiment must be a name, got ''", *faults]
    assert result.exit_code == 2 and len(found) == len(expected), found
    assert all(start in line for start, line in zip(expected, found, strict=True)), found


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("settings.toml", 'num_gpus = "4"\nweight_decay = 1\nepochs = 5'),
        ("settings.json", '{"num_gpus": "4", "weight_decay": 1, "epochs": 5}'),
        ("settings.yaml", "num_gpus: '4'\nweight_decay: 1\nepochs: 5"),
    ],
)
def test_later_parameters_override_earlier_ones_and_files(
    run: Callable[..., Result], kubeflow: Kubeflow, tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    assert run("--params", "epochs=6", "--params", "epochs=7", "--params", str(tmp_path / name)).exit_code == 0
    parameters = kubeflow.runs[0]["runtime_config"]["parameters"]
    assert parameters == {
        "data_uri": "s3://bucket/flights", "label": "late", "num_gpus": "4", "weight_decay": 1, "epochs": 7
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("num_gpus = 4", "parameter 'num_gpus' must be text, got 4"),
        ("epochs = 1.5", "parameter 'epochs' must be a whole number, got 1.5"),
        ("epochs = true", "parameter 'epochs' must be a whole number, got True"),
        ("weight_decay = inf", "parameter 'weight_decay' must be finite"),
        ("gpus = 4", "unknown parameter 'gpus' (did you mean 'num_gpus'?)"),
        ("epochs", "settings.toml: Expected '=' after a key"),
    ],
)
def test_files_that_do_not_fit(
    run: Callable[..., Result], kubeflow: Kubeflow, tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "settings.toml").write_text(content)
    result = run("--params", str(tmp_path / "settings.toml"))
    assert result.exit_code == 2 and message in result.stderr and "settings.toml: " in result.stderr
    assert not kubeflow.requests
