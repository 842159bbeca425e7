"""One small run of ``main`` that several files look at."""

import pytest

from dkan_core import MainResult, main
from tests.integrations.notebook.known import CONFIG, TEST, TRAIN


@pytest.fixture(scope="session")
def from_arrays(tmp_path_factory: pytest.TempPathFactory) -> MainResult:
    return main(TRAIN, TEST, CONFIG, run=tmp_path_factory.mktemp("arrays") / "run")
