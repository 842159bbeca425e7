"""Component: a check of the settings of a training."""

from typing import Optional

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def check_training(
    data_uri: str = "",
    label: str = "",
    split: str = "70/10/20",
    split_column: str = "",
    categorical: str = "",
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
    gpu_type: str = "nvidia.com/gpu",
    cpu: str = "4",
    memory: str = "16Gi",
    node_selector: dict = {},  # noqa: B006 - kfp asks for a value, and never changes it
    tolerations: list = [],  # noqa: B006 - kfp asks for a value, and never changes it
    workers: int = 0,
    settings: dict = {},  # noqa: B006 - kfp asks for a value, and never changes it
    sweep: Optional[list] = None,  # noqa: UP045 - kfp takes no union with None
) -> None:
    """Fail if settings of train_fastkan or of its pod are invalid, before preparation, which may take hours.

    Args:
        data_uri: Parquet files, folders or globs, local or s3:// or gs://; several separated by a comma or a new line.
        label: Label column, holding 0, 1 or null (not measured); several make it multi-label; separate several by
            commas. Empty: those of initial_model_uri.
        split: Percentages of rows (or groups) in train/valid/test, unless split_column is given.
        split_column: Column holding train, valid or test for each row; it is not used as a feature. Empty: split by
            hash.
        categorical: Column of integers that are codes, such as user or product IDs: each value is a category, not a
            number; separate several by commas. Empty: none.
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
        gpu_type: Resource name of the GPUs on the cluster.
        cpu: CPU limit of the training step.
        memory: Memory limit of the training step, with its /dev/shm.
        node_selector: Labels that nodes must have for the training step. Empty: any node.
        tolerations: Tolerations of the training step, as in a pod's spec. Empty: none.
        workers: Training processes when num_gpus is 0; 0 means one per visible GPU, or one on the CPU.
        settings: Further settings of dkan train by name, which override the ones above.
        sweep: Settings of dkan train by name, one run per entry, no two alike; the best by validation is published.
    """
    form = dict(locals())
    from dkan_core import check_training, trainings_from_form

    for config in trainings_from_form(form):
        check_training(config, data_uri, label, "" if split_column else split, categorical)
