"""Component: prepared shards to the best model."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train_fastkan(
    prepared: dsl.Input[dsl.Dataset],
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
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
    strategy: str = "auto",
    num_gpus: str = "0",
    workers: int = 0,
    seed: int = 0,
    initial_model_uri: str = "",
    settings: dict = {},  # noqa: B006 - kfp asks for a value, and never changes it
    checkpoint_uri: str = "",
    checkpoint_key: str = "train_fastkan",
    data_fingerprint: str = "",
) -> None:
    """Train FastKAN on prepared data and keep the model with the highest validation average precision.

    Args:
        prepared: Folder that prepare_parquet wrote.
        model: Run folder: the best model under model/, its metrics, the history and the logs.
        metrics: Validation average precision of the best model.
        hidden: Units in each member's hidden layer; several, by commas, make more layers; auto chooses from the data.
        members: Networks in the ensemble, with averaged probabilities; 0 chooses from the data.
        num_centers: Gaussian basis functions per edge.
        dropout: Fraction of hidden units dropped during training.
        epochs: Maximum passes over the train split; 0 chooses from the data.
        batch_size: Rows per step over all workers; 0 chooses from the data.
        learning_rate: Peak learning rate of AdamW; 0 chooses from the data.
        weight_decay: Weight decay of AdamW.
        pos_weight: Weight of positives in the loss; probabilities are corrected for it.
        label_weights: Weight of each label in the loss, separated by commas; empty: equal weights.
        patience: Stop after this many evaluations without a better validation average precision.
        max_seconds: Stop after this many seconds of training, keeping the best model; 0 sets no limit.
        strategy: How workers synchronize: auto, parameter-server, allreduce, ddp, ring, local-sgd or single.
        num_gpus: GPUs to train on, one worker each; fewer visible ones are an error. 0 takes what there is.
        workers: Training processes when num_gpus is 0; 0 means one per visible GPU, or one on the CPU.
        seed: Decides initialization, batch order and dropout.
        initial_model_uri: Earlier model to continue from: its encoding, labels and weights. Empty: start from scratch.
        settings: Further settings of dkan train by name, which override the ones above.
        checkpoint_uri: Folder or bucket for checkpoints: a retried step resumes from there. Empty: none kept.
        checkpoint_key: Folder under checkpoint_uri; data and settings choose one within it.
        data_fingerprint: Output of fingerprint_parquet: part of the cache key, and not used otherwise.
    """
    from dkan_core import TrainConfig, build_config, train

    folder = f"{checkpoint_uri.rstrip('/')}/{checkpoint_key}" if checkpoint_uri else f"{model.path}.checkpoints"
    chosen = {
        "hidden": None if hidden == "auto" else hidden,
        "members": members or None,
        "num_centers": num_centers,
        "dropout": dropout,
        "epochs": epochs or None,
        "batch_size": batch_size or None,
        "learning_rate": learning_rate or None,
        "weight_decay": weight_decay,
        "pos_weight": pos_weight,
        "label_weights": label_weights,
        "patience": patience,
        "max_seconds": max_seconds or None,
        "strategy": strategy,
        "device": "auto" if num_gpus in ("", "0") else "cuda",
        "workers": int(num_gpus) if num_gpus.isdecimal() and num_gpus != "0" else workers or None,
        "seed": seed,
        "init_from": initial_model_uri or None,
        "checkpoint_uri": f"{folder}/{{run}}",
        "resume": "auto",
    }
    result = train(prepared.path, model.path, build_config(TrainConfig, {**chosen, **settings}))
    metrics.log_metric("validation_average_precision", result.average_precision)
    model.metadata["validation_average_precision"] = result.average_precision
