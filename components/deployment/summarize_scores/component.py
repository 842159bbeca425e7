"""Component: the scores of all parts to metrics and drift."""

from typing import NamedTuple

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def summarize_scores(
    metrics: dsl.Output[dsl.Metrics],
    report: dsl.Output[dsl.HTML],
    drift: dsl.Output[dsl.Artifact],
    output_uri: str,
) -> NamedTuple("Outputs", [("average_precision", float), ("max_psi", float)]):
    """Compute the drift of every column and score over the rows of all parts, and exact metrics if there are labels.

    Args:
        metrics: Rows, the largest PSI, and with labels average precision, ROC AUC, log loss, Brier score, prevalence.
        report: One self-contained page: metrics, and a table of the drift of each column and score.
        drift: The same as JSON.
        output_uri: Where the scores go, one file for each file of data_uri: s3://, gs:// or a shared volume. In a
            pipeline, {date} is the run's date.

    Returns:
        average_precision: Mean over the labels; 0 without label columns.
        max_psi: Largest population stability index of a column or score; 0 if the model has no record of its training
            distribution.
    """
    from dkan_core import summarize_scoring

    summary = summarize_scoring(output_uri)
    # The artifact is the page, not the folder around it: the Kubeflow UI shows a single file only.
    report.path, drift.path = f"{report.path}/report.html", f"{drift.path}/drift.json"
    summary.save(report.path, drift.path)
    scalars = summary.scalars()
    for name, value in scalars.items():
        metrics.log_metric(name, value)
    return (scalars.get("average_precision", 0.0), scalars.get("max_psi", 0.0))
