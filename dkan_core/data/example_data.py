"""``write_sample``: a small real data set, to try the rest with."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_breast_cancer

# scikit-learn codes benign tumours as class 1. Here the rarer malignant ones (37%) are the positives to find.
LABEL = "malignant"


def write_sample(path: str | Path) -> None:
    """Write 569 tumours with 30 measurements each as Parquet; the label column is ``malignant``.

    The data are the Breast Cancer Wisconsin (Diagnostic) set that scikit-learn carries (Street, Wolberg and Mangasarian
    1993; CC BY 4.0).

    Args:
        path: File to write; folders are made.
    """
    data = load_breast_cancer()
    columns = {name.replace(" ", "_"): values for name, values in zip(data.feature_names, data.data.T, strict=True)}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({**columns, LABEL: pa.array(1 - data.target, pa.int8())}), path)
