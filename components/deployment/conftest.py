"""A trained model and its raw rows, for the tests of the components that score."""

from tests.conftest import prepared, source, trained  # noqa: F401 - fixtures
