"""A fitted additive classifier with some of its terms changed by hand."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from sklearn.utils.validation import check_is_fitted

from dkan_core.editing.edit import edit_terms
from dkan_core.editing.edits import Edit, read_edits
from dkan_core.integrations.sklearn.fitted import FittedClassifier


class EditingMixin(FittedClassifier):
    """The method that changes terms; a mixin for the classifier."""

    def edit(self, edits: str | Path | Sequence[Edit | Mapping[str, Any]]) -> Self:
        """Return a classifier with some terms changed, as ``dkan edit`` changes those of a saved model.

        This classifier is not changed. ``metrics_`` were measured before the edits; ``metrics_["edits"]``
        lists them, and so does the card of the model that ``save`` writes.

        Args:
            edits: A TOML file of ``[[edit]]`` tables, or the edits themselves: ``[{"term": "age", "action": "clip",
                "high": 1.0}]``. Terms have the names of the columns of ``explain``.

        Raises:
            ConfigError: An edit is wrong, or does not fit the model.
            DataError: The classifier is not additive.
        """
        check_is_fitted(self)
        changed, asked = copy.copy(self), read_edits(edits)
        changed._take_model(
            *edit_terms(self.module_, self.preprocessor_, self.metrics_, asked, where=type(self).__name__)
        )
        return changed
