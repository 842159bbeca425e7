"""Storage credentials of dkan's own win over those of the container, as a whole."""

import os

import pytest

from dkan_core.utils.storage.credentials import OWN_PREFIX, VARIABLES, own_name, use_own_credentials
from dkan_core.utils.storage.paths import filesystem

FOREIGN = {"AWS_SECURITY_TOKEN": "old", "AWS_ENDPOINT_URL_S3": "http://old"}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the environment as it was, also what the tested code sets."""
    for name in (*VARIABLES, *map(own_name, VARIABLES), *FOREIGN):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def found() -> dict[str, str]:
    return {name: os.environ[name] for name in (*VARIABLES, *FOREIGN) if name in os.environ}


@pytest.mark.parametrize("name", VARIABLES)
def test_own_variable_wins_and_an_empty_one_says_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "theirs")
    monkeypatch.setenv(f"{OWN_PREFIX}{name}", "")
    use_own_credentials()
    assert found() == {name: "theirs"}
    monkeypatch.setenv(f"{OWN_PREFIX}{name}", "ours")
    filesystem("memory://bucket")
    assert found() == {name: "ours"}, "whoever opens a file system has them"


def test_what_belongs_to_the_keys_or_the_endpoint_of_others_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of the pod's role does not fit a key of the user's, and the endpoint of one service wins over all."""
    theirs = {"AWS_ACCESS_KEY_ID": "theirs", "AWS_SESSION_TOKEN": "theirs", **FOREIGN}
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    use_own_credentials()
    assert found() == theirs, "without any of its own nothing changes"
    monkeypatch.setenv("DKAN_AWS_ACCESS_KEY_ID", "ours")
    use_own_credentials()
    assert found() == {"AWS_ACCESS_KEY_ID": "ours", "AWS_ENDPOINT_URL_S3": "http://old"}
    monkeypatch.setenv("DKAN_AWS_SESSION_TOKEN", "ours")
    monkeypatch.setenv("DKAN_AWS_ENDPOINT_URL", "http://ours")
    for _ in range(2):
        use_own_credentials()
        assert found() == {
            "AWS_ACCESS_KEY_ID": "ours",
            "AWS_SESSION_TOKEN": "ours",
            "AWS_ENDPOINT_URL": "http://ours",
        }
