"""Component: a model and a prepared split to metrics and report."""

from typing import NamedTuple

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def evaluate_fastkan(
    prepared: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    classification: dsl.Output[dsl.ClassificationMetrics],
    report: dsl.Output[dsl.HTML],
    summary: dsl.Output[dsl.Markdown],
    split: str = "test",
    previous_model_uri: str = "",
    worst_errors: int = 10,
) -> NamedTuple("Outputs", [("average_precision", float), ("previous_average_precision", float), ("comparable", bool)]):
    """Evaluate a trained FastKAN on one split of the prepared data.

    Args:
        prepared: Folder that prepare_parquet wrote.
        model: Run folder that train_fastkan wrote.
        metrics: Average precision, ROC AUC, log loss, Brier score, prevalence and rows of the split.
        classification: ROC curve, and the confusion matrix at the threshold chosen on validation.
        report: One self-contained page: curves, calibration, thresholds, training history.
        summary: The metrics as Markdown.
        split: Split to evaluate: train, valid or test.
        previous_model_uri: Earlier model to compare the new one with, such as the published one; it need not exist.
            Empty: none.
        worst_errors: Rows of each label to show in the report, with their values and reasons; 0 for none.

    Returns:
        average_precision: Average precision on the split; with several labels, their mean.
        previous_average_precision: That of the earlier model on the same rows; 0 if there is none.
        comparable: False if there is an earlier model that could not be scored, such as one with other columns or
            labels.
    """
    from dkan_core import evaluate

    earlier = previous_model_uri or None
    # A step that is tried again may find what it wrote before.
    evaluation = evaluate(
        model.path,
        prepared.path,
        report.path,
        split=split,
        previous=earlier,
        worst_errors=worst_errors,
        overwrite=True,
    )
    # The artifact is the page, not the folder around it: the Kubeflow UI shows a single file only.
    report.path = f"{report.path}/report.html"
    with open(summary.path, "w", encoding="utf-8") as file:  # noqa: PTH123 - a component imports dkan_core alone
        file.write(evaluation.summary())
    scalars = evaluation.scalars()
    for name, value in scalars.items():
        metrics.log_metric(name, value)
    classification.log_roc_curve(*evaluation.roc_curve())
    classification.log_confusion_matrix(["negative", "positive"], evaluation.confusion_matrix())
    previous = scalars.get("previous_average_precision", 0.0)
    # Without one where no positive row of the split has a weight.
    precision = scalars.get("average_precision", 0.0)
    return (precision, previous, evaluation.metrics.get("comparable", True))
