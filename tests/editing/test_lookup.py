"""What the name of a term means."""

import pytest

from dkan_core import ConfigError
from dkan_core.editing.lookup import find_term
from dkan_core.explanation.additive import TermGroup

A, B = (TermGroup(columns=(name,), indices=(index,)) for index, name in enumerate("ab"))
PAIR = TermGroup(columns=("a", "b"), indices=(2,))


@pytest.mark.parametrize("name", ["a x b", "b x a", "a × b", "b × a"])
def test_a_pair_has_its_name_from_either_side_with_either_cross(name: str) -> None:
    assert find_term(name, [A, B, PAIR], "edit 1") is PAIR


@pytest.mark.parametrize("name", ["a x b", "a × b"])
def test_a_column_named_as_a_pair_is_ambiguous(name: str) -> None:
    column = TermGroup(columns=(name,), indices=(3,))
    with pytest.raises(ConfigError, match=r"edit 1: the name is ambiguous, .* the pair of 'a' and 'b' and a co"):
        find_term(name, [A, B, PAIR, column], "edit 1")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Hours x Ages", "did you mean 'hours x age'"),
        ("q x r", "expected one of 'age x hours'$"),
        ("q", "expected one of 'age', 'hours', 'age x hours', '0', .* and 5 more$"),
    ],
)
def test_an_unknown_term_has_a_hint(name: str, message: str) -> None:
    columns = [("age",), ("hours",), ("age", "hours"), *((str(number),) for number in range(22))]
    groups = [TermGroup(columns=each, indices=(index,)) for index, each in enumerate(columns)]
    with pytest.raises(ConfigError, match=f"edit 1: the model has no such term; {message}"):
        find_term(name, groups, "edit 1")
