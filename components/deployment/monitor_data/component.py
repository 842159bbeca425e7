"""Component: the drift of new rows from the training data of a model, and the gate."""

from typing import NamedTuple

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def monitor_data(
    metrics: dsl.Output[dsl.Metrics],
    report: dsl.Output[dsl.HTML],
    drift: dsl.Output[dsl.Artifact],
    data_uri: str,
    model_uri: str = "",
    max_psi: float = 0.0,
    fail_on_drift: bool = False,
    model: dsl.Input[dsl.Model] = None,
) -> NamedTuple("Outputs", [("largest_psi", float), ("stable", bool)]):
    """Measure the drift of raw Parquet, and of a model's scores on it, from the training data of the model.

    Args:
        metrics: Rows and the largest PSI.
        report: One self-contained page with the drift of each column and score.
        drift: The same as JSON.
        data_uri: Parquet files, folders or globs, local or s3:// or gs://; several separated by a comma or a new line.
        model_uri: Published model or run folder: s3://, gs:// or a shared volume.
        max_psi: Limit of the population stability index of every column and score; 0 sets none.
        fail_on_drift: Fail above max_psi, which must be set. A failed step leaves its log, neither page nor metrics.
        model: Run folder or published model of an upstream step, instead of model_uri.

    Returns:
        largest_psi: Largest population stability index; 0 if the model has no record of its training distribution.
        stable: Whether no index is above the limit, for a condition on the steps that follow.
    """
    from dkan_core import ConfigError, summarize_drift

    if fail_on_drift and not max_psi > 0:
        raise ConfigError(f"fail_on_drift: max_psi must be above 0, got {max_psi:g}")
    summary = summarize_drift(model.path if model else model_uri, data_uri)
    # The artifact is the page, not the folder around it: the Kubeflow UI shows a single file only.
    report.path, drift.path = f"{report.path}/report.html", f"{drift.path}/drift.json"
    summary.save(report.path, drift.path)
    scalars = summary.scalars()
    for name, value in scalars.items():
        metrics.log_metric(name, value)
    if fail_on_drift:
        summary.drift.check(max_psi)
    return (scalars.get("max_psi", 0.0), summary.drift.is_stable(max_psi))
