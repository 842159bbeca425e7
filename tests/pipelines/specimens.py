"""Small pipelines that show each construct of the SDK, right and wrong, and the documents that they compile to."""

import warnings
from pathlib import Path
from typing import Any

from kfp import compiler, dsl, kubernetes
from kfp.dsl.base_component import BaseComponent

from pipelines.lint.documents import read_documents

IMAGE = "dkan:0.2.0"


def compiled(pipeline: BaseComponent, path: Path) -> list[dict[str, Any]]:
    """Compile ``pipeline`` to ``path`` and return the documents."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the SDK has opinions on images; they do not matter here
        compiler.Compiler().compile(pipeline, str(path))
    return read_documents(path)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def make(data: dsl.Output[dsl.Dataset], rows: int = 1) -> list[str]:
    return ["a"]


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def learn(data: dsl.Input[dsl.Dataset], model: dsl.Output[dsl.Model], name: str = "a") -> float:
    return 0.5


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def choose(scores: list, models: dsl.Input[list[dsl.Model]]) -> float:
    return 0.5


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def say(text: str) -> str:
    return text


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def count(number: int) -> int:
    return number


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def choose_from(names: list) -> str:
    return str(names[0])


@dsl.container_component
def pack(model: dsl.Input[dsl.Model], packed: dsl.Output[dsl.Model], note: str = "") -> dsl.ContainerSpec:
    return dsl.ContainerSpec(
        image=IMAGE,
        command=["pack", model.path, dsl.IfPresentPlaceholder("note", ["--note", note])],
        args=[packed.path, dsl.ConcatPlaceholder(["of ", note])],
    )


@dsl.pipeline
def learn_on_gpus(
    data: dsl.Input[dsl.Dataset],
    name: str,
    num_gpus: str,
    memory: str,
    secret: str,
    claim: str,
    where: dict,
    taints: list,
) -> dsl.Model:
    """Hold the settings of one task, so that all of them are arguments and none is lost in a condition or a loop."""
    task = learn(data=data, name=f"model {name}")
    task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(num_gpus)
    task.set_cpu_limit("2").set_memory_limit(memory)
    task.set_retry(2, backoff_duration="10s", backoff_factor=2.0)
    task.set_env_variable("MODE", "fast")
    kubernetes.use_secret_as_env(task, secret, {"key": "KEY"}, optional=True)
    kubernetes.use_config_map_as_env(task, "settings", {"region": "REGION"}, optional=True)
    kubernetes.mount_pvc(task, claim, "/data")
    kubernetes.add_node_selector_json(task, where)
    kubernetes.add_toleration_json(task, taints)
    kubernetes.empty_dir_mount(task, "shm", "/dev/shm", medium="Memory", size_limit="1Gi")
    kubernetes.set_security_context(task, run_as_user=1000, run_as_non_root=True)
    kubernetes.set_timeout(task, 3600)
    kubernetes.set_image_pull_secrets(task, ["registry"])
    kubernetes.set_image_pull_policy(task, "IfNotPresent")
    kubernetes.add_pod_label(task, "team", "tabular")
    return task.outputs["model"]


@dsl.pipeline(name="everything")
def everything(
    num_gpus: str = "1",
    memory: str = "16Gi",
    secret: str = "storage",
    claim: str = "data",
    where: dict = {"pool": "gpu"},  # noqa: B006
    taints: list = [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 300}],  # noqa: B006
    search: str = "yes",
    image: str = IMAGE,
) -> float:
    """Use every construct that the linter knows, without a fault."""
    made = make(rows=3).set_container_image(image)
    settings = {
        "num_gpus": num_gpus, "memory": memory, "secret": secret, "claim": claim, "where": where, "taints": taints
    }  # fmt: skip
    with dsl.If(search == "yes", "search"):
        with dsl.ParallelFor(made.outputs["Output"], parallelism=2) as name:
            found = learn_on_gpus(data=made.outputs["data"], name=name, **settings)
            scored = learn(data=made.outputs["data"], name=name)
        best = choose(scores=dsl.Collected(scored.outputs["Output"]), models=dsl.Collected(found.output))
    with dsl.Else():
        alone = learn(data=made.outputs["data"])
        kubernetes.use_secret_as_env(alone, secret, {"key": "KEY"}, optional=True)
        pack(model=alone.outputs["model"])
    last = say(text="bye")
    with dsl.ExitHandler(last):
        say(text=f"searched: {search}")
    return dsl.OneOf(best.output, alone.outputs["Output"])  # type: ignore[no-any-return] # kfp reads the type of the output
