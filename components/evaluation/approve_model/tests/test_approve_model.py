"""A model is approved when it is good enough and no worse than the one before."""

import pytest

from components.evaluation.approve_model import approve_model


@pytest.mark.parametrize(
    ("scores", "approved"),
    [
        ((0.5,), True),
        ((0.5, 0.5), True),
        ((0.5, 0.51), False),
        ((0.5, 0.4, 0.5), True),
        ((0.5, 0.4, 0.51), False),
        ((0.5, 0.4, 0.0, False), False),
    ],
)
def test_model_is_approved_by_its_limit_and_by_the_previous_model(scores: tuple[float, ...], approved: bool) -> None:
    assert approve_model.python_func(*scores) is approved
