"""What a process may use of the machine."""

import resource
from pathlib import Path

import pytest

from dkan_core.utils import resources


@pytest.mark.parametrize(
    ("quota", "expected"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 64), ("", 64)]
)
def test_cores_are_bounded_by_the_containers_quota(
    quota: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(resources, "CGROUP_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    assert resources.available_cores() == expected


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
