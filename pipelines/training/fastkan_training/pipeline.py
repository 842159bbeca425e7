"""Pipeline: raw Parquet to a trained FastKAN, its test metrics and a report."""

from typing import NamedTuple

from kfp import dsl

from components.data_processing.prepare_parquet import prepare_parquet
from components.evaluation.evaluate_fastkan import evaluate_fastkan
from components.training.train_fastkan import train_fastkan


class Outputs(NamedTuple):
    """What the pipeline hands to whoever runs it."""

    average_precision: float
    model: dsl.Model
    report: dsl.HTML


@dsl.pipeline(name="fastkan-training", display_name="FastKAN training")
def fastkan_training(
    data_uri: str,
    label: str,
    drop: str = "",
    group: str = "",
    split_column: str = "",
    split: str = "70/10/20",
    weight: str = "",
    numeric_dtype: str = "uint8",
    hidden: str = "auto",
    members: int = 0,
    num_centers: int = 8,
    dropout: float = 0.2,
    epochs: int = 0,
    batch_size: int = 0,
    learning_rate: float = 0.0,
    weight_decay: float = 1.0,
    pos_weight: float = 1.0,
    label_weights: str = "",
    patience: int = 5,
    max_seconds: float = 0.0,
    gpu_type: str = "nvidia.com/gpu",
    num_gpus: str = "0",
    cpu: str = "4",
    memory: str = "16Gi",
    workers: int = 0,
    seed: int = 0,
) -> Outputs:
    """Train FastKAN on tabular Parquet data for binary or multi-label classification, and report its test metrics.

    Args:
        data_uri: Parquet files, folders or globs, local or s3:// or gs://; several separated by a comma or a new line.
        label: Label column holding 0, 1 or null (not measured); several separated by a comma make a multi-label model.
        drop: Columns to leave out, separated by a comma.
        group: Column whose equal values stay in one split; it is no feature. Empty: every row by itself.
        split_column: Column holding train, valid or test for each row; it is no feature. Empty: split by hash.
        split: Percent of rows (or groups) in train/valid/test when there is no split column.
        weight: Column holding a non-negative weight for each row; it is no feature. Empty: all rows weigh the same.
        numeric_dtype: Storage type of the numeric columns: uint8, float16 or float32.
        hidden: Width of a member's hidden layer; several, by commas, make it deeper; auto chooses from the data.
        members: Networks trained as one, whose probabilities are averaged; 0 chooses from the data.
        num_centers: Gaussian basis functions on each edge.
        dropout: Share of hidden units dropped while training.
        epochs: Passes over the train split at most; 0 chooses from the data.
        batch_size: Rows of one step over all workers; 0 chooses from the data.
        learning_rate: Peak learning rate of AdamW; 0 chooses from the data.
        weight_decay: Weight decay of AdamW.
        pos_weight: Weight of positives in the loss; probabilities are corrected for it.
        label_weights: Weight of each label in the loss, separated by commas; empty: all the same.
        patience: Stop after this many evaluations without a better validation average precision.
        max_seconds: Stop after this many seconds of training, keeping the best model; 0 sets no limit.
        gpu_type: Resource name of the GPUs on the cluster.
        num_gpus: GPUs to train on, one worker each; fewer visible ones are an error. 0 takes what there is.
        cpu: CPU limit of the training step.
        memory: Memory limit of the training step.
        workers: Training processes when num_gpus is 0; 0 means one a visible GPU, or one on the CPU.
        seed: Decides split, shuffle, initialization, batch order and dropout.

    Returns:
        average_precision: Average precision on the test split.
        model: Run folder: the best model under model/, its metrics, the history and the logs.
        report: One self-contained page: curves, calibration, thresholds, training history.
    """
    prepared = prepare_parquet(
        data_uri=data_uri,
        label=label,
        drop=drop,
        group=group,
        split_column=split_column,
        split=split,
        weight=weight,
        numeric_dtype=numeric_dtype,
        seed=seed,
    )
    # The cache key holds the URI, not what lies there: other data under the same name must not reuse an old result.
    prepared.set_caching_options(False)
    trained = train_fastkan(
        prepared=prepared.outputs["prepared"],
        hidden=hidden,
        members=members,
        num_centers=num_centers,
        dropout=dropout,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        pos_weight=pos_weight,
        label_weights=label_weights,
        patience=patience,
        max_seconds=max_seconds,
        num_gpus=num_gpus,
        workers=workers,
        seed=seed,
    )
    # Resources set from parameters reach the pod only on a task at the root, and a GPU count only as a string.
    trained.set_accelerator_type(gpu_type).set_accelerator_limit(num_gpus)
    trained.set_cpu_limit(cpu).set_memory_limit(memory)
    evaluated = evaluate_fastkan(prepared=prepared.outputs["prepared"], model=trained.outputs["model"])
    return Outputs(evaluated.outputs["average_precision"], trained.outputs["model"], evaluated.outputs["report"])
