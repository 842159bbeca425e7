"""The launcher's pod asks for no GPU: the nodes of the TrainJob do. The job itself is tested in tests/trainjob."""

from pipelines.compiled import inputs_of, package_of
from pipelines.lint.documents import read_documents

PACKAGE = package_of("multi-node")


def test_launcher_asks_for_no_gpu_and_has_its_time_limit_once() -> None:
    spec = read_documents(PACKAGE)[0]
    container = spec["deploymentSpec"]["executors"]["exec-train-fastkan-nodes"]["container"]
    assert "accelerator" not in container["resources"]
    task = spec["root"]["dag"]["tasks"]["train-fastkan-nodes"]
    assert "retryPolicy" not in task, "each attempt makes a new job and waits timeout_seconds for it"


def test_nodes_are_given_what_the_form_says() -> None:
    passed = read_documents(PACKAGE)[0]["root"]["dag"]["tasks"]["train-fastkan-nodes"]["inputs"]["parameters"]
    for name in (
        "nodes",
        "gpus_per_node",
        "gpu_type",
        "image",
        "secret_name",
        "node_selector",
        "tolerations",
        "run_uri",
    ):
        assert passed[name] == {"componentInputParameter": name}


def test_data_must_lie_where_all_nodes_reach_them() -> None:
    needed = {name for name, field in inputs_of(PACKAGE).items() if not field.get("isOptional")}
    assert needed == {"data_uri", "label", "prepared_uri", "run_uri"}
