"""What the Dockerfile builds on: its own base where a registry answers, a stand-in of Debian's packages elsewhere."""

import os
import re
import subprocess
from pathlib import Path

from tests.image.engine import docker, docker_output, need

ROOT = Path(__file__).parents[2]
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
PULL_SECONDS = 180
PACKAGES = "python3,python3-pip,python3-venv,ca-certificates,g++"


def dockerfile_default(argument: str) -> str:
    """Return the default of a build argument."""
    match = re.search(rf"^ARG {argument}=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert match, f"the Dockerfile has no default for {argument}"
    return match[1]


def base_image() -> tuple[str, str]:
    """Return the base to build on, and where it is from."""
    wanted = dockerfile_default("BASE")
    if docker("image", "inspect", wanted).returncode == 0:
        return wanted, "there already"
    try:
        pull = docker("pull", "--quiet", wanted, seconds=PULL_SECONDS)
        reason = (pull.stderr.strip().splitlines() or [""])[-1]
    except subprocess.TimeoutExpired:
        reason = f"no answer in {PULL_SECONDS} s"
    else:
        if pull.returncode == 0:
            return wanted, "pulled"
    suite = wanted.partition("@")[0].rpartition("-")[2]
    # Not under the real one's name: an engine that others use would take it for that.
    stand_in = f"dkan-test-base:{suite}"
    origin = f"made of Debian's packages, as {wanted} cannot be pulled: {reason}"
    if docker("image", "inspect", stand_in).returncode == 0:
        return stand_in, origin
    # pip and uv trust what this machine trusts, as a network may sign the registries' TLS again.
    trust = f"ENV SSL_CERT_FILE={CERTIFICATES} PIP_CERT={CERTIFICATES}"
    docker_output("import", "--change", trust, debian_with_python(suite), stand_in, seconds=300)
    return stand_in, origin


def debian_with_python(suite: str) -> Path:
    """Make the file system of a minimal Debian with Python, once."""
    archive = ROOT / "build" / "image" / f"{suite}.tar"
    if archive.exists():
        return archive
    need("mmdebstrap")
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_suffix(".partial.tar")
    certificates = os.environ.get("SSL_CERT_FILE", CERTIFICATES)
    hook = (
        'ln -sf python3 "$1/usr/bin/python"; rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED;'
        f' cp "{certificates}" "$1{CERTIFICATES}"'
    )
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", f"--customize-hook={hook}"]
    made = subprocess.run([*command, suite, unfinished], capture_output=True, text=True, timeout=600, check=False)
    assert made.returncode == 0, made.stderr[-2000:]
    unfinished.rename(archive)
    return archive
