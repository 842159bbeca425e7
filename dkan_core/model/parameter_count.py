"""How many numbers a model's weights hold, from its architecture alone: before anything is allocated for them."""

import itertools
import math

from dkan_core.data.encoding.preprocessor import FIRST_CODE
from dkan_core.errors import ConfigError
from dkan_core.model.additive_shape import PAIR_FUNCTIONS
from dkan_core.model.architecture import (
    MAX_ONE_HOT_CODES,
    ModelConfig,
    additive_layout,
    curve_functions,
    embedding_width,
    sparse_rows,
)
from dkan_core.utils.resources import available_memory

# Least bytes of a parameter: its value, gradient and two moments, in float32.
TRAINING_BYTES = 4 * 4


def count_parameters(config: ModelConfig) -> int:
    """Return the numbers that a model's weights hold, before anything is allocated for them.

    Trained parameters, grids and calibration: as many as the tensors of ``TabularFastKAN.state_dict`` hold.
    """
    if config.additive is not None:
        rows = additive_layout(config).size if config.additive.form == "tables" else 0
        return count_trained(config) + rows + 2 * len(config.labels)
    layers = len(config.hidden) + (_basis_inputs(config) > 0)
    blended = 0 if config.partner is None else count_parameters(config.partner)
    return count_trained(config) + layers * config.num_centers + 2 * len(config.labels) + blended


def count_trained(config: ModelConfig) -> int:
    """Return P, the number of trainable parameters, before anything is allocated for them; those of no blend."""
    if config.additive is not None:
        layout = additive_layout(config)
        functions = sum(curve_functions(config)) if config.additive.form == "curves" else 0
        of_pairs = PAIR_FUNCTIONS**2 * len(layout.pairs) if config.additive.form == "curves" else 0
        rows = layout.size + functions * len(layout.curved) + of_pairs + sparse_rows(config)
        return config.members * len(config.labels) * rows + len(config.labels)
    sizes = [config.cardinalities[index] for index in config.inputs.embedded]
    embeddings = sum(size * embedding_width(size, config.embedding_dim) for size in sizes)
    inputs, first = _basis_inputs(config), config.members * config.widths[0]
    shifts = first * (len(config.inputs.binary) + _joint_codes(config) + sparse_rows(config))
    network = first_layer_weights(config, config.sketch_rank) + first if inputs else 0
    network += 2 * inputs * (config.input_norm == "layer")
    for before, after in itertools.pairwise(config.widths):
        network += config.members * (before * after * (config.num_centers + 1) + after + 2 * before)
    return embeddings + shifts + network + len(config.labels)


def first_layer_weights(config: ModelConfig, sketch_rank: int) -> int:
    """Return how many numbers are trained for the first layer's weights, by the rank of their sketches, 0 if full."""
    outputs, inputs = config.members * config.widths[0], _basis_inputs(config)
    widths = (inputs * config.num_centers, inputs)
    return sum(sketch_rank * (outputs + width) if sketch_rank else outputs * width for width in widths)


def _basis_inputs(config: ModelConfig) -> int:
    """Return the inputs that go through the basis: numeric ones, and embeddings."""
    inputs = config.inputs
    widths = [embedding_width(config.cardinalities[index], config.embedding_dim) for index in inputs.embedded]
    return len(inputs.curved) + sum(widths)


def _joint_codes(config: ModelConfig) -> int:
    """Return the rows of the table of one-hot weights."""
    groups = [[config.cardinalities[index] for index in group] for group in config.one_hot_groups]
    alone = sum(min(sizes[0], MAX_ONE_HOT_CODES) for sizes in groups if len(sizes) == 1)
    return alone + sum(math.prod(sizes) for sizes in groups if len(sizes) > 1) + FIRST_CODE * len(config.missing)


def product_bytes(config: ModelConfig) -> int:
    """Return the memory of the first layer's weights where they are the product of sketches and factors, else 0."""
    return 4 * first_layer_weights(config, 0) if config.sketch_rank else 0


def check_sketch(config: ModelConfig) -> None:
    """Raise ConfigError if the sketch of a first layer does not lower the number of its trained weights."""
    rank = config.sketch_rank
    if not rank:
        return
    full, per_rank = (first_layer_weights(config, each) for each in (0, 1))
    if rank * per_rank >= full:
        most = (full - 1) // per_rank if full else 0
        raise ConfigError(
            f"sketch_rank {rank}: the sketched first layer would have {rank * per_rank:,} weights and the full one has "
            f"{full:,}; " + (f"set at most {most}, or leave it out" if most else "leave it out")
        )


def check_fits_memory(config: ModelConfig) -> None:
    """Raise ConfigError where training a model takes more memory than this machine or container has left."""
    count = count_parameters(config)
    # At least: batches and bases come on top, but they follow the batch size, which can be lowered.
    needed, free = count * TRAINING_BYTES + 2 * product_bytes(config), available_memory()
    if needed > free:
        raise ConfigError(
            f"members {config.members} and hidden {config.hidden} make {count:,} parameters, which need "
            f"{needed / 1e9:,.1f} GB, and {free / 1e9:.1f} GB are free; lower members or hidden, or give more memory"
        )
