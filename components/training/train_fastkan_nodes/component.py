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
    nodes: int = 2,
    gpus_per_node: int = 1,
    gpu_type: str = "nvidia.com/gpu",
    workers_per_node: int = 1,
    cpu_per_node: str = "",
    memory_per_node: str = "",
    shm_size: str = "",
    timeout_seconds: int = 86400,
    pvc_name: str = "",
    mount_path: str = "/data",
    secret_name: str = "",
    config_map_name: str = "",
    service_account: str = "",
    node_selector: dict = {},  # noqa: B006 - kfp asks for a value, and never changes it
    tolerations: list = [],  # noqa: B006
    env: str = "",
    labels: str = "",
    namespace: str = "",
    runtime: str = "torch-distributed",
    seed: int = 0,
    initial_model_uri: str = "",
    settings: dict = {},  # noqa: B006
    data_fingerprint: str = "",
) -> None:
    """Train FastKAN on several nodes, as a TrainJob of Kubeflow Trainer v2, and keep the best model.

    Args:
        prepared: Folder that prepare_parquet wrote, where all nodes reach it: under a URI or on the claim.
        model: Run folder without the checkpoints: the best model under model/, its metrics, the history and the logs.
        metrics: Validation average precision of the best model.
        run_uri: Folder or bucket for runs and their checkpoints, each in a folder of its own; a path is on the claim.
        image: Image of the nodes, the same as the launcher's.
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
        nodes: Nodes to train on.
        gpus_per_node: GPUs of each node, one worker each; 0 trains on the CPU.
        gpu_type: Resource name of the GPUs on the cluster.
        workers_per_node: Training processes of each node when gpus_per_node is 0.
        cpu_per_node: CPUs of each node, such as 8; empty: none requested.
        memory_per_node: Memory of each node, such as 64Gi; empty: none requested.
        shm_size: Size of /dev/shm on each node, such as 8Gi, for NCCL; empty: the cluster's default, usually 64 MB.
        timeout_seconds: Seconds after which the job is deleted and the run fails, including the wait for nodes.
        pvc_name: PersistentVolumeClaim (ReadWriteMany) that nodes and launcher mount; empty: none, all is under URIs.
        mount_path: Where the PersistentVolumeClaim is mounted, on nodes and launcher.
        secret_name: Secret with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY for the nodes' environment; empty: none.
        config_map_name: ConfigMap with AWS_ENDPOINT_URL and AWS_DEFAULT_REGION; empty: the secret may have them, too.
        service_account: Service account of the nodes; empty: the namespace's default one.
        node_selector: Labels that the nodes must have, a JSON object; empty: none.
        tolerations: Tolerations for the nodes' taints, a JSON list; empty: none.
        env: JSON object of further environment variables of the nodes; empty: none.
        labels: JSON object of labels of the job, such as a queue's; empty: none.
        namespace: Namespace of the job; empty: the one that the launcher runs in.
        runtime: ClusterTrainingRuntime of the job, one for torch.
        seed: Decides initialization, batch order and dropout.
        initial_model_uri: Earlier model to continue from: its encoding, labels and weights. Empty: start from scratch.
        settings: Further settings of dkan train by name, which override the ones above.
        data_fingerprint: Output of fingerprint_parquet: part of the cache key, and not used otherwise.
    """
    from dkan_core import NodesConfig, TrainConfig, build_config, train_on_nodes

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
        "seed": seed,
        "init_from": initial_model_uri or None,
    }
    cluster = NodesConfig(
        image=image,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        gpu_type=gpu_type,
        workers_per_node=workers_per_node,
        cpu_per_node=cpu_per_node,
        memory_per_node=memory_per_node,
        shm_size=shm_size,
        timeout_seconds=timeout_seconds,
        pvc_name=pvc_name,
        mount_path=mount_path,
        secret_name=secret_name,
        config_map_name=config_map_name,
        service_account=service_account,
        node_selector=node_selector,
        tolerations=tolerations,
        env=env,
        labels=labels,
        namespace=namespace,
        runtime=runtime,
    )
    data = prepared.metadata.get("uri") or prepared.path
    config = build_config(TrainConfig, {**chosen, **settings})
    result = train_on_nodes(data, f"{run_uri.rstrip('/')}/{{run}}", config, cluster, copy_to=model.path)
    metrics.log_metric("validation_average_precision", result.average_precision)
    model.metadata["validation_average_precision"] = result.average_precision
