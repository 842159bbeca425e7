"""Prints how far the peak of memory grows per row from one size of a step to a larger one, as JSON."""

import json
import resource
import sys

import torch

from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.compute.flat_model import Replica, flatten
from tests.model.architectures import CONFIG, changed
from tests.settings import resolved

ARCHITECTURE = changed(
    CONFIG,
    labels=("a",),
    num_numeric=20,
    binary=(),
    cardinalities=(50, 400),
    embedded=(0, 1),
    members=2,
    hidden=(128,),
    num_centers=8,
    dropout=0.2,
)
UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes, in which the system counts."""


def peak_after_step(replica: Replica, rows: int) -> int:
    """Return the peak of this process's memory in bytes after a step on so many rows."""
    batch = {
        "numeric": torch.randint(256, (rows, 20), dtype=torch.uint8),
        "categorical": torch.randint(50, (rows, 2), dtype=torch.int32),
        "labels": torch.randint(2, (rows, 1), dtype=torch.uint8),
        "dropout_key": torch.arange(rows, dtype=torch.int32),
    }
    replica.compute_gradient({name: tensor.numpy() for name, tensor in batch.items()}, resolved(labels=1))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


def main() -> None:
    """Take a step of few rows, whose memory is that of weights and libraries, and one of many."""
    few, many = map(int, sys.argv[1:])
    model = TabularFastKAN(ARCHITECTURE).train()
    values_P = flatten(model).numpy()
    replica = Replica(model, torch.device("cpu"))
    replica.load(values_P)
    before, after = peak_after_step(replica, few), peak_after_step(replica, many)
    numbers = model.encoder.width + model.first_width
    json.dump({"bytes of a row": (after - before) / (many - few), "inputs and outputs": numbers}, sys.stdout)


if __name__ == "__main__":
    main()
