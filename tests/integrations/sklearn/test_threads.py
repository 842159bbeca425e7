"""``FastKANClassifier`` takes the threads that it is told, and leaves torch and numpy as they were."""

import numpy as np
import pytest
import torch

from dkan_core.integrations.sklearn.parameters import thread_count
from tests.integrations.sklearn.test_estimator import frame, small


def test_torch_is_left_as_it_was() -> None:
    X, y = frame(200)
    before = torch.get_num_threads()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    state = np.random.get_state(legacy=False)["state"]["key"].tolist()
    small(n_jobs=before + 1).fit(X, y).predict(X)
    assert torch.get_num_threads() == before and torch.equal(torch.rand(3), expected)
    assert np.random.get_state(legacy=False)["state"]["key"].tolist() == state


def test_threads_are_those_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkan_core.integrations.sklearn.parameters.available_cores", lambda: 6)
    for limit, expected in (("2", 2), ("8", 6), ("0", 6), ("2,1", 6)):
        monkeypatch.setenv("OMP_NUM_THREADS", limit)
        assert thread_count(None) == expected and thread_count(3) == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    X, y = frame(200)
    threads = {None: 6, -1: 6, -2: 5, -100: 1, 3: 3, 10**6: 6}
    for n_jobs, expected in threads.items():
        asked.clear()
        small(n_jobs=n_jobs, epochs=1).fit(X, y)
        # Scoring has one thread for each chunk of rows.
        assert asked[0] == expected and {*asked[1:]} <= {1, torch.get_num_threads()}
