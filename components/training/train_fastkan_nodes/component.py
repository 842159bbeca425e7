"""Component: prepared shards to the best model, trained on several nodes."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train_fastkan_nodes(
    prepared: dsl.Input[dsl.Dataset],
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    run_uri: str,
    image: str,
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
    # Settings of NodesConfig, by: python -m pipelines signatures
    nodes: int = 2,
    gpus_per_node: int = 1,
    gpu_type: str = "nvidia.com/gpu",
    workers_per_node: int = 1,
    cpu_per_node: str = "4",
    memory_per_node: str = "16Gi",
    shm_size: str = "2Gi",
    namespace: str = "",
    runtime: str = "torch-distributed",
    timeout_seconds: int = 86400,
    pvc_name: str = "",
    mount_path: str = "/data",
    secret_name: str = "",
    config_map_name: str = "",
    service_account: str = "",
    run_as_user: int = 0,
    node_selector: dict = {},  # noqa: B006 - kfp asks for a value, and never changes it
    tolerations: list = [],  # noqa: B006 - kfp asks for a value, and never changes it
    env: dict = {},  # noqa: B006 - kfp asks for a value, and never changes it
    labels: dict = {},  # noqa: B006 - kfp asks for a value, and never changes it
    # End of settings.
    settings: dict = {},  # noqa: B006 - kfp asks for a value, and never changes it
    data_fingerprint: str = "",
) -> None:
    """Train FastKAN on several nodes, as a TrainJob of Kubeflow Trainer v2, and keep the best model.

    Args:
        prepared: Folder that prepare_parquet wrote, accessible to all nodes: under a URI or on the claim.
        model: Run folder without the checkpoints: the best model under model/, its metrics, the history and the logs.
        metrics: Validation average precision of the best model.
        run_uri: Folder or bucket for runs and their checkpoints, each in its own folder; a path is on the claim.
        image: Image of the nodes, the same as the launcher's.
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
        nodes: Nodes to train on.
        gpus_per_node: GPUs of each node, one worker each; 0 trains on the CPU.
        gpu_type: Resource name of the GPUs on the cluster.
        workers_per_node: Training processes of each node when gpus_per_node is 0.
        cpu_per_node: CPUs of each node, such as 8; empty: none requested.
        memory_per_node: Memory limit of each node, with its /dev/shm, such as 64Gi; empty: none requested.
        shm_size: Size of /dev/shm on each node, such as 8Gi, for NCCL; empty: the cluster's default, usually 64 MB.
        namespace: Namespace of the job; empty: the one that the launcher runs in.
        runtime: ClusterTrainingRuntime of the job, one for torch.
        timeout_seconds: Seconds after which the job is deleted and the run fails, including the wait for nodes.
        pvc_name: PersistentVolumeClaim (ReadWriteMany) that nodes and launcher mount; empty: none, all is under URIs.
        mount_path: Where the PersistentVolumeClaim is mounted, on nodes and launcher.
        secret_name: Secret with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY for the nodes' environment; empty: none.
        config_map_name: ConfigMap with AWS_ENDPOINT_URL and AWS_DEFAULT_REGION; empty: the secret may have them, too.
        service_account: Service account of the nodes; empty: the namespace's default one.
        run_as_user: uid of the nodes, such as the owner of the volume; 0: the image's, or what the cluster chooses.
        node_selector: Labels that the nodes must have, a JSON object; empty: none.
        tolerations: Tolerations for the nodes' taints, a JSON list; empty: none.
        env: JSON object of further environment variables of the nodes; empty: none.
        labels: JSON object of labels of the job, such as a queue's; empty: none.
        settings: Further settings of dkan train by name, which override the ones above.
        data_fingerprint: Output of fingerprint_parquet: part of the cache key, not used otherwise.
    """
    form = dict(locals())
    from dkan_core import NodesConfig, TrainConfig, config_from_form, train_on_nodes

    data = prepared.metadata.get("uri") or prepared.path
    config = config_from_form(TrainConfig, form, settings)
    nodes_config = config_from_form(NodesConfig, form)
    result = train_on_nodes(data, f"{run_uri.rstrip('/')}/{{run}}", config, nodes_config, copy_to=model.path)
    metrics.log_metric("validation_average_precision", result.average_precision)
    model.metadata["validation_average_precision"] = result.average_precision
