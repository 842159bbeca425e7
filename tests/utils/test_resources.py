"""What a process may use of the machine."""

import resource
from pathlib import Path
from typing import Any

import pytest

from dkan_core.utils import resources

GB = 1 << 30


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, 64),
        ({"cpu.max": ""}, 64),
        ({}, 64),
        ({"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
    ],
)
def test_cores_are_bounded_by_the_containers_quota(
    files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, files)
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    assert resources.available_cores() == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": 2 * GB, "memory.current": GB}, None),
        ({"memory.max": 2 * GB, "memory.current": GB, "memory.stat": "anon 7\ninactive_file 0\nactive_file 0"}, GB),
        (
            {
                "memory.max": 2 * GB,
                "memory.current": 2 * GB - 7,
                "memory.stat": f"anon 7\ninactive_file {GB}\nactive_file 500\ninactive_file_of_others 9",
            },
            GB + 507,
        ),
        (
            {
                "memory/memory.limit_in_bytes": 2 * GB,
                "memory/memory.usage_in_bytes": 2 * GB - 7,
                "memory/memory.stat": f"inactive_file 3\ntotal_inactive_file {GB}\ntotal_active_file 500",
            },
            GB + 507,
        ),
        ({"memory.max": "max", "memory.current": GB, "memory.stat": "anon 7"}, None),
        ({}, None),
    ],
)
def test_memory_of_a_container_includes_its_page_cache(
    files: dict[str, Any], expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that has just read or downloaded its data is near its limit by them alone."""
    write(tmp_path, files)
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    found = resources.available_memory()
    assert found > 3 * GB if expected is None else found == expected


def test_limit_of_open_files_is_raised_and_never_lowered() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
        resources.allow_open_files(100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 100
        resources.allow_open_files(80)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
