"""A server for the tests of the Model Registry."""

from collections.abc import Iterator

import pytest

from tests.registry import registry_server


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run one server for all tests: each registers models of its own names."""
    with registry_server(tmp_path_factory.mktemp("registry")) as address:
        yield address
