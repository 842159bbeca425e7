"""The image under test, built by ``make image`` from the Dockerfile as it is."""

import os
import platform
import re
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.image.base import ROOT, dockerfile_default
from tests.image.engine import docker_output

BUILD_SECONDS = 1500
REVISION = "0123456789abcdef0123456789abcdef01234567"
# The recipes need no new environment: the tests run in it.
MAKE = ("make", "--no-print-directory", "--old-file=.venv/.ready", f"BIN={Path(sys.executable).parent}")


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image that was built."""

    tag: str
    variant: str
    torch: str
    """The version of torch in it, without its build."""

    seconds: float
    """How long the build took."""

    @property
    def bytes(self) -> int:
        return int(docker_output("image", "inspect", "--format", "{{.Size}}", self.tag))


def locked_versions() -> dict[str, set[str]]:
    """Return the versions that the lock has of each package: some depend on the version of Python."""
    versions: dict[str, set[str]] = {}
    for entry in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
        versions.setdefault(entry["name"], set()).add(entry["version"])
    return versions


def locked_version(package: str) -> str:
    (version,) = locked_versions()[package]
    return version


def make(*arguments: str, seconds: float) -> str:
    """Run make, which must succeed; return what it printed."""
    done = subprocess.run([*MAKE, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"make {' '.join(arguments)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


def build_image(variant: str, base: str) -> Image:
    """Build a variant on ``base``."""
    if variant == "gpu":
        return run_build(variant, locked_version("torch"), f"BASE={base}")
    version = pinned_torch().partition("+")[0]
    if reachable(dockerfile_default("TORCH_CPU_INDEX")):
        return run_build(variant, version, f"BASE={base}")
    wheel = local_wheel(base)
    assert wheel, "no index of CPU builds of torch answers, and pip's find-links have none"
    with index_of(wheel) as url:
        return run_build(variant, version, f"BASE={base}", f"TORCH_CPU_INDEX={url}")


def pinned_torch() -> str:
    """Return the version of torch in the cpu variant."""
    (version,) = re.findall(r"^torch==(\S+)", (ROOT / "requirements-torch-cpu.txt").read_text(), re.MULTILINE)
    return str(version)


def can_build_cpu(base: str) -> bool:
    return reachable(dockerfile_default("TORCH_CPU_INDEX")) or local_wheel(base) is not None


def run_build(variant: str, torch: str, *build_arguments: str) -> Image:
    tag = f"dkan-test:{variant}"
    # The host's network: an engine started by the tests has no other.
    options = " ".join(["--network=host", *(f"--build-arg={argument}" for argument in build_arguments)])
    start = time.monotonic()
    names = (f"IMAGE={tag}", f"VARIANT={variant}", f"REVISION={REVISION}", f"BUILD_ARGS={options}")
    make("image", *names, seconds=BUILD_SECONDS)
    return Image(tag=tag, variant=variant, torch=torch, seconds=time.monotonic() - start)


def reachable(index: str) -> bool:
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=20) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError):
        return False


def local_wheel(base: str) -> Path | None:
    """Find the pinned CPU build of torch for the base's Python where pip is told to look for wheels."""
    tag = "import sys; print('cp%d%d' % sys.version_info[:2])"
    python = docker_output("run", "--rm", "--network=none", base, "python", "-c", tag)
    name = re.compile(rf"torch-{re.escape(pinned_torch())}-{python}-.*{platform.machine()}\.whl")
    places = [Path(place) for place in os.environ.get("PIP_FIND_LINKS", "").split()]
    wheels = [path for place in places if place.is_dir() for path in place.iterdir() if name.fullmatch(path.name)]
    return max(wheels, default=None)


@contextmanager
def index_of(wheel: Path) -> Iterator[str]:
    """Serve one wheel as the build's index; yield its address."""
    # A folder's listing is all that the simple index is.
    folder = ROOT / "build" / "image" / "index"
    link = folder / "torch" / wheel.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(wheel)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class QuietHandler(SimpleHTTPRequestHandler):
    """Logs no requests."""

    def log_message(self, *arguments: object) -> None:
        pass
