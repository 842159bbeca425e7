"""The pages of docs/ do what they say: commands parse and run, code runs, nothing is left out."""

import ast
import inspect
import json
import os
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import typer

import dkan_core
from dkan_core import PrepareConfig, TrainConfig, build_config, cli, errors
from docs.generate import GENERATED, PART, filled, python_api
from docs.hooks import site_pages
from pipelines.__main__ import app as pipelines_app
from pipelines.assets import asset_folders
from tests import warm_python
from tests.command import dkan
from tests.pages import DOCS, FILES, PAGES, ROOT

SOURCES = [
    path.as_posix()
    for name in ("benchmarks", "components", "dkan_core", "docs", "examples", "pipelines", "tests")
    for path in (ROOT / name).rglob("*.py")
]
UNAVAILABLE = re.compile(r"s3://|cuda|^dkan serve |edits\.toml")
"""What a command needs that a test has not: a bucket, a GPU, somebody who ends it (as tests/serving does) or who
writes edits (tests/editing)."""
NOTHING_TO_RUN = {
    "guides/boosted-trees.md",
    "guides/ci.md",
    "guides/cluster.md",
    "guides/docker.md",
    "guides/kubeflow.md",
    "guides/multi-node.md",
    "guides/registry.md",
    "guides/serve.md",
    "guides/sparse.md",
}
"""Guides without a command, or whose every one needs a server, a container engine, several nodes, or rows that the
flights are not (as tests/evaluation/test_sparse_columns.py has them)."""
NEEDED_FIRST = {"guides/evaluate.md": "guides/train.md"}
"""A page, and the one whose commands leave what its own take."""
RESULTS = {
    "prepare": "manifest.json",
    "train": "model/model.safetensors",
    "evaluate": "report.html",
    "explain": "explanation.html",
}
"""What a command leaves in the folder that it writes; any other writes a file."""
OTHER_PROGRAMS = {"cd", "curl", "docker", "git", "kubectl", "mlflow", "pip", "sed", "source", "tensorboard"}
ROWS = 600
COLUMNS = ["month", "hour", "carrier", "origin", "distance", "temp", "date", "label", "split"]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def command_lines(page: str) -> Iterator[list[str]]:
    """Yield the words of each command on a page, without its variables."""
    for block in blocks(page, "bash"):
        open_quote = ""
        for line in block.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(open_quote + line, comments=True)
            except ValueError:  # A quoted text goes on in the next line.
                open_quote += f"{line}\n"
                continue
            open_quote = ""
            while words and re.match(r"[A-Z_]+=", words[0]):
                words = words[1:]
            if words:
                yield words
        assert not open_quote, f"{page}: a quoted text has no end: {open_quote}"


def check_command(words: list[str]) -> None:
    """Raise or fail where a command, its options or its settings do not exist."""
    if words[0] == "torchrun":
        words = ["dkan", *words[words.index("dkan_core") + 1 :]]
    if words[0] == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(), words
    elif words[0] == "dkan":
        settings = parsed(typer.main.get_command(cli.app), words[1:])
        kind = {"prepare": PrepareConfig, "train": TrainConfig, "tune-lr": TrainConfig, "plan": TrainConfig}
        if words[1] in kind:
            names = set(inspect.signature(kind[words[1]]).parameters)
            given = {name: value for name, value in settings.items() if name in names and value not in (None, [])}
            build_config(kind[words[1]], given)
    elif words[:3] == ["python", "-m", "pipelines"]:
        parsed(typer.main.get_command(pipelines_app), words[3:])
    elif words[0] == "python":
        path = words[2].replace(".", "/") if words[1] == "-m" else words[1].removesuffix(".py")
        assert (ROOT / f"{path}.py").exists() or (ROOT / path / "__main__.py").exists(), words
    elif Path(words[0]).name == "pytest":
        assert all((ROOT / word).exists() for word in words[1:] if "/" in word), words
    else:
        assert words[0] in OTHER_PROGRAMS, words


def parsed(command: Any, words: list[str]) -> dict[str, Any]:
    """Return the parameters of a command line; an unknown option or a value of another type is an error."""
    if words == ["--version"]:
        return {}
    while hasattr(command, "commands"):
        command = command.commands[words[0]]
        words = words[1:]
    params: dict[str, Any] = command.make_context("command", words).params
    return params


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_exist_with_their_options(path: Path) -> None:
    for words in command_lines(os.path.relpath(path, DOCS)):
        check_command(words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with few flights, as `python examples/flights.py flights` writes many, and the first model of them."""
    pytest.importorskip("pandas", reason="needs the demo extra")
    from examples.flights import flights_table, package_data

    folder = tmp_path_factory.mktemp("site")
    (folder / "flights").mkdir()
    table = flights_table(package_data()).select(COLUMNS)
    pq.write_table(table.take(list(range(0, len(table), len(table) // ROWS))), folder / "flights/flights-00.parquet")
    with pytest.MonkeyPatch.context() as patch:
        run_commands("getting-started/first-model.md", folder, patch, ("prepare", "train"))
    return folder


def run_commands(page: str, folder: Path, patch: pytest.MonkeyPatch, only: tuple[str, ...] = ()) -> list[str]:
    """Run the commands of a page that need nothing but its folder, each once; return those that have run by now."""
    patch.chdir(folder)
    log = folder / "commands.txt"
    done = log.read_text().splitlines() if log.exists() else []
    for words in command_lines(page):
        line = shlex.join(words)
        wanted = words[0] == "dkan" and (not only or words[1] in only)
        if wanted and line not in done and not UNAVAILABLE.search(line):
            assert dkan(*words[1:], monkeypatch=patch) == 0, line
            done.append(line)
    log.write_text("\n".join(done))
    return [line for line in map(shlex.join, command_lines(page)) if line in done]


def results(line: str, folder: Path) -> list[Path]:
    """Return the files that a command is there to write."""
    words = shlex.split(line)
    places = [value for option, value in pairwise(words) if option in ("--out", "--json", "--html")]
    leaves = "rows.html" if words[1] == "explain" and "--rows" in words else RESULTS.get(words[1], "")
    return [folder / place / leaves for place in places]


def test_first_model_leaves_what_the_page_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run_commands("getting-started/first-model.md", folder, monkeypatch)
    assert [line.split()[1] for line in ran] == ["prepare", "train", "evaluate", "explain", "predict"]
    assert all(path.is_file() for line in ran for path in results(line, folder))
    assert (folder / "eval/metrics.json").exists()
    assert pq.read_schema(folder / "scores.parquet").names == ["carrier", "label_probability"]
    assert pq.read_metadata(folder / "scores.parquet").num_rows == pq.read_table(folder / "flights").num_rows


def test_examples_of_the_help_are_commands_of_the_first_model() -> None:
    shown = re.findall(r"^\$ (.*)$", cli.app.info.epilog or "", re.MULTILINE)
    assert [line.split()[1] for line in shown] == ["prepare", "train", "evaluate", "predict"]
    assert set(shown) <= {shlex.join(words) for words in command_lines("getting-started/first-model.md")}


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("guides/")])
def test_commands_of_the_guides_run(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if page in NEEDED_FIRST:
        run_commands(NEEDED_FIRST[page], folder, monkeypatch)
    ran = run_commands(page, folder, monkeypatch)
    on_page = [shlex.join(words) for words in command_lines(page) if words[0] == "dkan"]
    assert ran == [line for line in on_page if not UNAVAILABLE.search(line)]
    assert bool(ran) == (page not in NOTHING_TO_RUN)
    printed = capsys.readouterr().out
    for line in ran:
        left = results(line, folder)
        assert left or "recommended: --strategy" in printed, line
        assert all(path.is_file() and path.stat().st_size for path in left), line


def test_two_models_of_the_guide_are_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for page in ("guides/train.md", "guides/evaluate.md"):
        run_commands(page, folder, monkeypatch)
    metrics = json.loads((folder / "eval_pair/metrics.json").read_text())
    assert metrics["comparable"] is True and 0 < metrics["previous_average_precision"] < 1


PYTHON = [(page, index) for page in PAGES for index in range(len(blocks(page, "python")))]


def imported_names(tree: ast.AST) -> dict[str, Any]:
    """Return what code imports by name, which must exist."""
    imports = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    return {
        alias.name: getattr(import_module(str(each.module)), alias.name) for each in imports for alias in each.names
    }


@pytest.mark.parametrize(("page", "index"), PYTHON)
def test_python_code_fits_the_functions(page: str, index: int) -> None:
    tree = ast.parse(blocks(page, "python")[index])
    names = imported_names(tree)
    bound = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in names:
            given = {str(keyword.arg): None for keyword in call.keywords}
            inspect.signature(names[call.func.id]).bind(*call.args, **given)
            bound.add(call.func.id)
    # Of the modules of others, as in `compiler.Compiler()`, something is called, and not the module.
    assert bound == {name for name, value in names.items() if callable(value)}
    assert bound or "import kfp\n" in blocks(page, "python")[index], "tests/test_docs.py checks that block"


PRINTED = {
    ("getting-started/first-model.md", 0): r"[01]\.\d+ [01]\.\d+\n",
    ("getting-started/notebook.md", 0): r"validation AP [01]\.\d{3}, model in /\S+\n\[[\d.e+\- \n]+\]\n",
    ("getting-started/notebook.md", 1): r"0\.9\d+\n",
    ("getting-started/notebook.md", 2): r"0\.\d+ 0\.\d+\n",
}
LEFT = {
    ("getting-started/first-model.md", 0): [
        "prepared_by_api/manifest.json",
        "run_by_api/model/model.safetensors",
        "eval_by_api/report.html",
        "scores_by_api.parquet",
    ],
    ("getting-started/notebook.md", 1): ["classifier/model.safetensors"],
}


# All pairs of 30 columns, five times, are most of what the code takes.
FEW_COLUMNS = {"as_frame=True)": "as_frame=True)\nX = X.iloc[:, :5]"}
LESS = {
    ("getting-started/notebook.md", 0): {"4000": "400", "3000": "300"},
    ("getting-started/notebook.md", 1): FEW_COLUMNS,
    ("getting-started/notebook.md", 2): FEW_COLUMNS,
}
"""What is put in the place of sizes of data."""


@pytest.mark.slow
@pytest.mark.parametrize(("page", "index"), [each for each in PYTHON if each[0].startswith("getting-started/")])
def test_python_code_runs_as_a_script(page: str, index: int, folder: Path) -> None:
    code = blocks(page, "python")[index]
    for there, here in LESS.get((page, index), {}).items():
        assert there in code
        code = code.replace(there, here)
    (folder / "code.py").write_text(code)
    done = warm_python.run(["code.py"], folder, TMPDIR=str(folder))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(PRINTED[page, index], done.stdout), done.stdout
    assert all((folder / name).stat().st_size for name in LEFT.get((page, index), []))


def test_alerts_of_the_guide_are_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (code,) = blocks("guides/boosted-trees.md", "python")
    exec(compile(code, "guides/boosted-trees.md", "exec"), {})
    assert re.search(r"^\d+ alerts by F1; \d+ by cost$", capsys.readouterr().out, re.MULTILINE)


def test_batch_scoring_of_the_guide_runs(folder: Path) -> None:
    (code,) = blocks("guides/predict.md", "python")
    places = {"models/late": "run/model", "new": "flights"}
    for name, target in places.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(folder / target)
    # The model of so few rows is worse than that of the guide.
    few = {"s3://bucket": str(folder), '("late",)': '("label",)', "precision=0.4": "precision=0"}
    for there, here in few.items():
        assert there in code
        code = code.replace(there, here)
    exec(compile(code, "guides/predict.md", "exec"), {})
    assert list((folder / "scores").rglob("_scoring.json"))


def test_exported_model_of_the_guide_scores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    run_commands("guides/export.md", folder, monkeypatch)
    (code,) = blocks("guides/export.md", "python")
    found: dict[str, Any] = {}
    exec(compile(code, "guides/export.md", "exec"), found)
    dkan_core.predict("run/model", "flights", "from_model.parquet")
    wanted = pq.read_table("from_model.parquet")["label_probability"].to_pylist()
    assert found["probabilities"][:, 0].tolist() == pytest.approx(wanted, abs=1e-5)


def first_cells(markdown: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", markdown, re.MULTILINE)


def test_every_generated_part_is_on_a_page() -> None:
    parts = [part for page in PAGES for part in PART.findall((DOCS / page).read_text())]
    assert sorted(name for name, _ in parts) == sorted(GENERATED)


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("reference/")])
def test_generated_parts_are_those_of_the_code(page: str) -> None:
    text = (DOCS / page).read_text()
    assert text == filled(text), "run: python -m docs.generate"


def test_configuration_has_every_setting() -> None:
    fields = [name for kind in (PrepareConfig, TrainConfig) for name in inspect.signature(kind).parameters]
    text = GENERATED["configuration"]()
    assert first_cells(text) == fields
    assert all(line.count(" | ") == 3 and not line.endswith("|  |") for line in text.splitlines() if line[:3] == "| `")


def test_commands_have_every_option() -> None:
    text = GENERATED["dkan-commands"]()
    for name, command in typer.main.get_command(cli.app).commands.items():  # type: ignore[attr-defined]
        assert f"### dkan {name}" in text
        assert all(option in text for parameter in command.params for option in parameter.opts if option[0] == "-")


def test_api_has_every_public_name() -> None:
    documented = re.findall(r"^::: dkan_core\.\S*?(\w+)$", python_api(), re.MULTILINE)
    assert sorted(documented) == sorted(first_cells(GENERATED["python-api"]())) == sorted(dkan_core.__all__)


def test_components_have_a_page_each() -> None:
    text = GENERATED["components"]()
    assert len(site_pages()) == len(asset_folders())
    assert all(f"](../../{folder}/README.md)" in text for folder in asset_folders())


def test_exit_codes_are_those_of_the_errors() -> None:
    text = GENERATED["exit-codes"]()
    for name in ("ConfigError", "DataError", "OutputError", "GateError", "TrainingError"):
        assert f"| {getattr(errors, name).exit_code} | `{name}` |" in text


def test_file_formats_have_the_keys_that_are_written(folder: Path) -> None:
    text = GENERATED["file-formats"]()
    sections = dict(re.findall(r"^### (\S+)[^\n]*\n\n(.*?)(?=\n\n###|\Z)", text.replace("A line of ", ""), re.M | re.S))
    written = {
        "manifest.json": "prepared/manifest.json",
        "config.json": "run/model/config.json",
        "preprocessor.json": "run/model/preprocessor.json",
        "files.json": "run/model/files.json",
        "history.jsonl": "run/history.jsonl",
    }
    for name, place in written.items():
        text = (folder / place).read_text()
        keys = set(json.loads(text.splitlines()[0] if place.endswith("jsonl") else text))
        assert keys <= set(first_cells(sections[name])), name


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_pages_name_exist(page: str) -> None:
    names = re.findall(r"`([\w/]+\.py)`", (DOCS / page).read_text())
    assert not [name for name in names if not any(source.endswith(f"/{name}") for source in SOURCES)]


def test_reliability_names_tests_that_exist() -> None:
    """A file of tests is followed by how their names begin, or by their beginning and end around an ellipsis."""
    text = (DOCS / "concepts/reliability.md").read_text()
    named = re.findall(r"`((?:\w+/)*test_\w+\.py)`(?:: ([^|;`)]+))?", text)
    assert len(named) > 25
    for file, tests in named:
        there = re.findall(r"^def test_(\w+)", (ROOT / "tests" / file).read_text(), re.MULTILINE)
        for words in filter(None, (each.strip().lower() for each in tests.split(","))):
            pattern = re.sub(r"[ -]", "_", words).replace("_…", ".*").replace("…_", ".*")
            assert any(re.match(pattern, name) for name in there), f"{file}: {words}"


def test_glossary_names_what_the_code_holds() -> None:
    rows = re.findall(r"^\| (.*) \|$", (DOCS / "concepts/glossary.md").read_text(), re.MULTILINE)
    entries = [row.split(" | ") for row in rows if not row.startswith(("---", "term "))]
    terms = {term: (identifier.strip("`"), module.strip("`")) for term, _, identifier, module in entries}
    assert len(terms) == len(entries) > 50
    for term, (identifier, module) in terms.items():
        assert re.search(rf"\b{identifier}\b", (ROOT / "dkan_core" / module).read_text()), f"{term}: {identifier}"
