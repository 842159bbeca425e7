"""The machine that a benchmark runs on."""

import platform
from pathlib import Path


def processor() -> str:
    """Return the name of the processor, or its architecture where Linux does not know a name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return name or platform.machine()
