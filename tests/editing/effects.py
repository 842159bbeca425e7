"""What the terms of a model add to rows."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.explanation.additive import AdditiveExplainer
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.additive_terms import terms_of
from dkan_core.model.saved_model import SavedModel

Float64 = npt.NDArray[np.float64]


def effects(model: Path, table: pa.Table) -> tuple[dict[str, Float64], Float64]:
    """Return what each term adds to rows, by label, and the intercept."""
    saved = SavedModel(model)
    assert isinstance(saved.module, AdditiveFastKAN)
    explainer = AdditiveExplainer(saved.module, saved.preprocessor)
    found_NGL = explainer.exact(saved.preprocessor.transform(table, "rows"))
    names = [" x ".join(columns) for columns in explainer.sources]
    return {name: found_NGL[:, index] for index, name in enumerate(names)}, terms_of(saved.module).intercept_L
