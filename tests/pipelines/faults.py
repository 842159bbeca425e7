"""Faults in the compiled pipeline ``everything``: what is put where, and what the linter must say of it."""

from typing import Any

DELETE = object()
"""Put in a place, takes out what is there."""

TASKS = "0/root/dag/tasks"
FOUND = "0/components/comp-for-loop-2/dag/tasks/learn-on-gpus"
LEARN = "0/components/comp-learn-on-gpus/dag/tasks/learn"
GPUS = "0/deploymentSpec/executors/exec-learn/container/resources/accelerator"
POD = "1/platforms/kubernetes/deploymentSpec/executors/exec-learn"
PACK = "0/deploymentSpec/executors/exec-pack/container"

FAULTS: dict[str, tuple[str, Any, str]] = {
    "unknown field": ("0/root/dag/colour", "red", 'DagSpec" has no field named "colour" at "PipelineSpec.root.dag"'),
    "unknown field of an executor": (f"{PACK}/gpu", 1, 'PipelineContainerSpec" has no field named "gpu"'),
    "unknown field of a pod": (f"{POD}/gpu", 1, 'exec-learn: Message type "kfp_kubernetes.KubernetesExecutorConfig"'),
    "unknown field of a platform": ("1/platforms/kubernetes/gpu", 1, 'SinglePlatformSpec" has no field named "gpu"'),
    "unknown platform": ("1/platforms/vertex", {}, "unknown platform 'vertex'"),
    "unknown type": ("0/root/inputDefinitions/parameters/search/parameterType", "TEXT", "Invalid enum value TEXT"),
    "no type": ("0/root/inputDefinitions/parameters/search/parameterType", DELETE, "parameter 'search' has no type"),
    "field of another kind": (f"{TASKS}/make/cachingOptions/enableCache", "yes", "Expected true or false"),
    "default of another type": (
        "0/root/inputDefinitions/parameters/search/defaultValue",
        1,
        "root: parameter 'search' is STRING, but its default is 1",
    ),
    "missing component": (
        f"{TASKS}/make/componentRef/name",
        "comp-made",
        "root: task make: runs component 'comp-made', which does not exist",
    ),
    "missing executor": (
        "0/components/comp-make/executorLabel",
        "exec-made",
        "comp-make: executor 'exec-made' is not in the deploymentSpec",
    ),
    "neither tasks nor executor": (
        "0/components/comp-make/executorLabel",
        DELETE,
        "comp-make: has neither tasks nor an executor",
    ),
    "no tasks": ("0/components/comp-exit-handler-5/dag/tasks", DELETE, "comp-exit-handler-5: has neither tasks nor"),
    "nothing to run": (
        "0/deploymentSpec/executors/exec-say/container",
        DELETE,
        "executor exec-say: has nothing to run",
    ),
    "artifact of no type": (
        "0/components/comp-pack/outputDefinitions/artifacts/packed/artifactType",
        DELETE,
        "comp-pack: artifact 'packed' has no type",
    ),
    "settings of no executor": (
        "1/platforms/kubernetes/deploymentSpec/executors/exec-none",
        {},
        "executor 'exec-none' is not in the deploymentSpec",
    ),
    "missing parameter of the graph": (
        f"{TASKS}/condition-branches-1/inputs/parameters/pipelinechannel--search/componentInputParameter",
        "find",
        "input 'pipelinechannel--search' refers to parameter 'find', which root does not have",
    ),
    "missing producer": (
        f"{TASKS}/condition-branches-1/inputs/parameters/pipelinechannel--make-Output/taskOutputParameter/producerTask",
        "made",
        "refers to task 'made', which root does not have",
    ),
    "missing output": (
        f"{TASKS}/condition-branches-1/inputs/artifacts/pipelinechannel--make-data/taskOutputArtifact/outputArtifactKey",
        "dates",
        "refers to output artifact 'dates', which task make does not have",
    ),
    "missing artifact of the graph": (
        f"{FOUND}/inputs/artifacts/data/componentInputArtifact",
        "data",
        "input artifact 'data' refers to artifact 'data', which comp-for-loop-2 does not have",
    ),
    "needed input not given": (f"{TASKS}/say/inputs/parameters/text", DELETE, "task say: input 'text', which comp-say"),
    "needed artifact not given": (
        f"{FOUND}/inputs/artifacts/data",
        DELETE,
        "input artifact 'data', which comp-learn-on",
    ),
    "unknown input": (
        f"{TASKS}/make/inputs/parameters/lines",
        {"runtimeValue": {"constant": 1}},
        "task make: input 'lines' is no parameter of comp-make",
    ),
    "constant of another type": (
        f"{TASKS}/make/inputs/parameters/rows/runtimeValue/constant",
        "three",
        'input \'rows\' is NUMBER_INTEGER, but is given {"constant": "three"}, which is STRING',
    ),
    "constant that is none": (
        f"{TASKS}/make/inputs/parameters/rows/runtimeValue/constant",
        DELETE,
        "refers to nothing",
    ),
    "parameter of another type": (
        f"{FOUND}/inputs/parameters/where/componentInputParameter",
        "pipelinechannel--taints",
        "input 'where' is STRUCT, but is given \"pipelinechannel--taints\", which is LIST",
    ),
    "artifact of another type": (
        "0/components/comp-learn-on-gpus/inputDefinitions/artifacts/data/artifactType/schemaTitle",
        "system.Model",
        "input artifact 'data' is system.Model, but is given system.Dataset",
    ),
    "one artifact for a list": (
        "0/components/comp-choose/inputDefinitions/artifacts/models/isArtifactList",
        False,
        "input artifact 'models' is one, but is given a list",
    ),
    "missing neighbour": (f"{TASKS}/say/dependentTasks", ["said"], "task say: waits for task 'said', which root"),
    "not waiting for a producer": (
        f"{TASKS}/condition-branches-1/dependentTasks",
        DELETE,
        "takes an output of task 'make' without waiting for it",
    ),
    "circle": (
        f"{TASKS}/make/dependentTasks",
        ["condition-branches-1"],
        "root: tasks wait for one another: condition-branches-1, make",
    ),
    "condition on no input": (
        "0/components/comp-condition-branches-1/dag/tasks/condition-3/triggerPolicy/condition",
        "inputs.parameter_values['pipelinechannel--find'] == 'yes'",
        "task condition-3: condition names 'pipelinechannel--find', which is no input of the task",
    ),
    "condition without input": (
        "0/components/comp-condition-branches-1/dag/tasks/condition-3/triggerPolicy/condition",
        "true",
        "task condition-3: condition 'true' names no input",
    ),
    "loop over no input": (
        "0/components/comp-condition-3/dag/tasks/for-loop-2/parameterIterator/items/inputParameter",
        "names",
        "loops over 'names', which is no input of the task",
    ),
    "loop over no list": (
        "0/components/comp-condition-3/dag/tasks/for-loop-2/parameterIterator/items",
        {"raw": "1, 2"},
        "loops over '1, 2', which is no JSON list",
    ),
    "loop item of no input": (
        "0/components/comp-condition-3/dag/tasks/for-loop-2/parameterIterator/itemInput",
        "name",
        "loop item 'name' is no input of comp-for-loop-2",
    ),
    "output of no task": (
        "0/components/comp-learn-on-gpus/dag/outputs/artifacts/Output/artifactSelectors/0/producerSubtask",
        "teach",
        "comp-learn-on-gpus: output artifact 'Output' refers to task 'teach'",
    ),
    "output artifact of no task": (
        "0/components/comp-learn-on-gpus/dag/outputs/artifacts/Output/artifactSelectors",
        [],
        "comp-learn-on-gpus: output artifact 'Output' comes from no task",
    ),
    "output left out": ("0/root/dag/outputs", DELETE, "root: output parameter 'Output' comes from no task"),
    "output not declared": ("0/root/outputDefinitions", DELETE, "root: output parameter 'Output' is not declared"),
    "output of another type": (
        "0/root/outputDefinitions/parameters/Output/parameterType",
        "STRING",
        "output parameter 'Output' is STRING, but is given NUMBER_DOUBLE by condition-branches-1",
    ),
    "placeholder of no input in a constant": (
        f"{LEARN}/inputs/parameters/name/runtimeValue/constant",
        "model {{$.inputs.parameters['pipelinechannel--title']}}",
        "input 'name' refers to placeholder 'pipelinechannel--title', which is no input of the task",
    ),
    "placeholder of no artifact": (
        f"{PACK}/command/1",
        "{{$.inputs.artifacts['net'].path}}",
        "container.command[1] refers to artifact 'net', which is not among the inputs of the task",
    ),
    "placeholder of no output": (
        f"{PACK}/args/0",
        "{{$.outputs.artifacts['box'].path}}",
        "container.args[0] refers to artifact 'box', which is not among the outputs of the task",
    ),
    "condition on no input in a command": (
        f"{PACK}/command/2",
        '{"IfPresent": {"InputName": "remark", "Then": []}}',
        "container.command[2] refers to 'remark', which is not among the inputs",
    ),
    "placeholder of an unknown form": (
        f"{PACK}/args/0",
        "{{$.input.note}}",
        "holds {{$.input.note}}, which the backend does not know",
    ),
    "resource of no input": (
        f"{GPUS}/resourceCount",
        "{{$.inputs.parameters['pipelinechannel--gpus']}}",
        "container.resources.accelerator.resourceCount refers to parameter 'pipelinechannel--gpus'",
    ),
    "resource that the executor lost": (
        GPUS,
        DELETE,
        "the task gives accelerator_count as \"{{$.inputs.parameters['pipelinechannel--num_gpus']}}\", which no field",
    ),
    "resource in a longer text": (
        f"{GPUS}/resourceCount",
        "{{$.inputs.parameters['pipelinechannel--num_gpus']}}0",
        "the backend takes one placeholder and nothing else",
    ),
    "count that is none": (f"{GPUS}/resourceCount", "two", "resourceCount is 'two', which is no count"),
    "device without a type": (
        GPUS,
        {"resourceCount": "1"},
        "accelerator has a count but no type: the pod gets none",
    ),
    "quantity that is none": (
        "0/deploymentSpec/executors/exec-learn/container/resources/resourceCpuLimit",
        "two",
        "resourceCpuLimit is 'two', which is no quantity",
    ),
    "image left out": (f"{PACK}/image", "", "image is empty"),
    "secret of no input": (
        f"{POD}/secretAsEnv/0/secretNameParameter/componentInputParameter",
        "pipelinechannel--secret",
        "executor exec-learn, run by task learn of comp-learn-on-gpus: secretAsEnv[0].secretNameParameter refers to "
        "parameter 'pipelinechannel--secret', which comp-learn-on-gpus does not have",
    ),
    "credentials that the launcher reads": (
        f"{POD}/secretAsEnv/0/keyToEnv/0/envVar",
        "AWS_SECRET_ACCESS_KEY",
        "executor exec-learn: secretAsEnv[0] sets AWS_SECRET_ACCESS_KEY, which Kubeflow's launcher in the same "
        "container reads for its own artifacts; name it DKAN_AWS_SECRET_ACCESS_KEY",
    ),
    "secret of a task elsewhere": (
        f"{POD}/secretAsEnv/0/secretNameParameter",
        {"taskOutputParameter": {"producerTask": "make", "outputParameterKey": "Output"}},
        "secretAsEnv[0].secretNameParameter refers to task 'make', which comp-learn-on-gpus does not have",
    ),
    "claim of no input": (
        f"{POD}/pvcMount/0/componentInputParameter",
        "disk",
        "pvcMount[0].componentInputParameter refers to parameter 'disk'",
    ),
    "selector of another type": (
        f"{POD}/nodeSelector/nodeSelectorJson/componentInputParameter",
        "taints",
        "nodeSelector.nodeSelectorJson takes a STRUCT, but is given a LIST",
    ),
    "toleration of another type": (
        f"{POD}/tolerations/0/tolerationJson/componentInputParameter",
        "secret",
        "tolerations[0].tolerationJson takes a STRUCT or LIST, but is given a STRING",
    ),
}
"""By name: a path of keys in the documents, the value to put there, and a part of the finding."""
