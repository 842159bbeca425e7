"""Component: prepared shards to the best model."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train_fastkan(
    prepared: dsl.Input[dsl.Dataset],
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    # Settings of TrainConfig, by: python -m pipelines signatures
    model_kind: str = "auto",
    members: int = 0,
    hidden: str = "auto",
    architecture_search: bool = True,
    quality: str = "default",
    pairs: str = "auto",
    monotone: str = "",
    num_centers: int = 0,
    dropout: float = -1.0,
    sketch_rank: int = 0,
    blend: bool = True,
    initial_model_uri: str = "",
    strategy: str = "auto",
    epochs: int = 0,
    batch_size: int = 0,
    learning_rate: float = 0.0,
    weight_decay: float = 1.0,
    pos_weight: float = 1.0,
    label_weights: str = "",
    patience: int = 5,
    refit: bool = False,
    max_seconds: float = 0.0,
    seed: int = 0,
    # End of settings.
    num_gpus: str = "0",
    workers: int = 0,
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
        model_kind: "auto" extends FastKAN with what suits the data; "fastkan" is plain; "additive" has no hidden layer.
            One of: auto, fastkan, additive.
        members: Networks in the ensemble, trained together, with averaged probabilities. 0: from the number of rows.
        hidden: Units in each member's hidden layer; several values make several layers; separate several by commas.
            auto: from the number of rows; the search may add a second layer.
        architecture_search: Whether trials may change num_centers, hidden and dropout, and leave out useless columns,
            with model auto. Nothing is tried if one of the three is set, below 2,000 training rows, when continuing
            from a model, or with a strategy that divides the model; columns are left out only with one label and up to
            30,000 rows, and a second hidden layer is tried only from 50,000 on.
        quality: Trade accuracy for time: "fast" trains a smaller network for fewer epochs, "best" a larger ensemble.
            Settings that you give are not changed. One of: fast, default, best.
        pairs: Pairs of columns with a term of their own, with model additive. "auto": up to 96, of which the penalized
            fit keeps those with an effect; without that fit, as many as improve predictions on unseen rows.
        monotone: Numeric columns along which log-odds never fall (age:+) or never rise (age:-), with model additive;
            separate several by commas. Empty: none.
        num_centers: Gaussian basis functions per edge. 0: 8; 16 if trials find that more help.
        dropout: Fraction of hidden units dropped during training. -1.0: 0.2; 0 if the search chooses 16 basis functions
            or a second hidden layer.
        sketch_rank: Rank of the random sketches whose factors are trained instead of the first layer's weights; 0 for
            no sketches.
        blend: Average the network of model auto with an additive model of the same rows; validation AP chooses the
            weight.
        initial_model_uri: Earlier model to continue from: its encoding, labels and weights. Empty: start from scratch.
        strategy: How workers synchronize. "auto": allreduce under torchrun; otherwise parameter-server if mode is not
            sync, single with one worker, allreduce if each worker has its own GPU, and parameter-server in all other
            cases. One of: auto, parameter-server, allreduce, ddp, ring, local-sgd, single, tensor-parallel, hybrid,
            pipeline.
        epochs: Maximum passes over the train split; may be raised when resuming. 0: from the number of rows.
        batch_size: Rows per step over all workers. 0: from the number of rows.
        learning_rate: Peak learning rate of AdamW. 0: from the batch size; a tenth of that when continuing from a
            model.
        weight_decay: AdamW's decoupled weight decay.
        pos_weight: Weight of positives in the loss; predicted probabilities are corrected for it.
        label_weights: Weight of each label in the loss, in the order of the labels; separate several by commas. Empty:
            equal weights.
        patience: Stop after this many evaluations without a better validation AP; may be raised when resuming.
        refit: Train once more, on the train and valid splits together, with everything that was chosen on valid. The
            second training takes as many epochs as the best model of the first. Metrics stay those of the first model,
            which had not seen valid.
        max_seconds: Stop after this many seconds of training and keep the best model. 0: no limit.
        seed: Seed of initialization, batch order and dropout.
        num_gpus: GPUs of the training pod, one worker each; fewer visible ones are an error. 0: the pod has none and
            trains on the CPU.
        workers: Training processes when num_gpus is 0; 0 means one per visible GPU, or one on the CPU.
        settings: Further settings of dkan train by name, which override the ones above.
        checkpoint_uri: Folder or bucket for checkpoints: a retried step resumes from there. Empty: none kept.
        checkpoint_key: Folder under checkpoint_uri; data and settings determine a folder within it.
        data_fingerprint: Output of fingerprint_parquet: part of the cache key, not used otherwise.
    """
    form = dict(locals())
    from dkan_core import train, training_from_form

    # Beside the artifact and not in it: Kubeflow would upload checkpoints with the model.
    folder = f"{checkpoint_uri.rstrip('/')}/{checkpoint_key}" if checkpoint_uri else f"{model.path}.checkpoints"
    # A pod that is started again resumes.
    resumed = {"checkpoint_uri": f"{folder}/{{run}}", "resume": "auto"}
    config = training_from_form(form, {**resumed, **settings})
    result = train(prepared.path, model.path, config)
    metrics.log_metric("validation_average_precision", result.average_precision)
    model.metadata["validation_average_precision"] = result.average_precision
