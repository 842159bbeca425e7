"""Parameter groups: weight decay and learning rate factor of each part of a model.

Both depend on the rows per code; the learning rates also on the parts that ``freeze`` and ``lr_multipliers`` name.
"""

import itertools
import math

from dkan_core.config import ResolvedTrainConfig, TrainConfig
from dkan_core.config.train import part_factors
from dkan_core.errors import ConfigError
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.base import TabularModel
from dkan_core.training.state.adamw import Decayed, ParameterGroups, Rate

# Weights of single codes fit noise if a code has few rows. With this number of rows per code they decay like other
# weights; the factor is the root of the ratio, within the two bounds (docs/concepts/model.md).
EVEN_CODE_ROWS = 540
MIN_CODE_DECAY = 0.1
MAX_CODE_DECAY = 3.0

# AdamW's steps are as large for a code with few rows, whose gradient is mostly noise, as for any weight. So embeddings
# learn more slowly the fewer rows a code has on average; at EVEN_CODE_ROWS they learn like other weights.
MIN_CODE_RATE = 0.1
# Factor of an additive model's decay: at the rate of other models its curves stay too flat.
ADDITIVE_DECAY = 0.2

# Prefix of the names of embeddings, one per column. An additive model has none.
EMBEDDINGS = "encoder.embeddings."


def parameter_groups(model: TabularModel, config: ResolvedTrainConfig, rows: int) -> ParameterGroups:
    """Return the groups of a model's trained parameters; arguments and errors as for ``learning_rate_factors``."""
    decayed, rates = decayed_ranges(model, config, rows), learning_rate_factors(model, config, rows)
    return ParameterGroups(tuple(decayed), tuple(rates))


def decayed_ranges(model: TabularModel, config: ResolvedTrainConfig, rows: int) -> list[Decayed]:
    """Return the ranges of the flat parameters that decay, and how much.

    Matrices do; vectors such as biases and norms do not. Weights of single codes (embeddings and one-hots) decay more
    the fewer rows a code has on average.
    """
    sizes = model.code_tables
    base = config.weight_decay * (ADDITIVE_DECAY if config.model == "additive" else 1.0)
    ranges: list[Decayed] = []
    start = 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if name in sizes:
            width = parameter.shape[1]
            ends = itertools.accumulate((size * width for size in sizes[name]), initial=start)
            taken = model.codes_per_row.get(name, [1.0] * len(sizes[name]))
            rows_per_code = [rows * ones / size for ones, size in zip(taken, sizes[name], strict=True)]
            decays = [code_decay(base, max(1.0, each)) for each in rows_per_code]
            ranges += [
                (start, stop, decay) for (start, stop), decay in zip(itertools.pairwise(ends), decays, strict=True)
            ]
        elif name.endswith("weight") and "norm" not in name:
            ranges.append((start, start + parameter.numel(), base))
        start += parameter.numel()
    return ranges


def code_decay(weight_decay: float, rows_per_code: float) -> float:
    """Return the decay of weights of single codes with so many rows per code.

    >>> [round(code_decay(1.0, rows), 2) for rows in (10, 135, 540, 54_000)]
    [3.0, 2.0, 1.0, 0.1]
    """
    return weight_decay * min(MAX_CODE_DECAY, max(MIN_CODE_DECAY, math.sqrt(EVEN_CODE_ROWS / rows_per_code)))


def learning_rate_factors(model: TabularModel, config: TrainConfig, rows: int) -> list[Rate]:
    """Return the ranges of the flat parameters whose learning rate has a factor other than 1, in order.

    The factor of an embedding follows from the rows per code; ``freeze`` and ``lr_multipliers`` apply in addition.

    Args:
        model: The model.
        config: Settings; ``freeze`` and ``lr_multipliers`` name parts by tensor names: ``encoder``, ``network.first``.
        rows: Rows of the train split.

    Raises:
        ConfigError: The model has no such part, nothing is left to train, or an additive model is to be frozen.
    """
    factors = part_factors(config)
    if config.freeze and isinstance(model, AdditiveFastKAN):
        raise ConfigError("freeze: not supported with model additive, whose terms are all smoothed after training")
    trained = {name: each.numel() for name, each in model.named_parameters() if each.requires_grad}
    known = part_names([*trained])
    for part in factors:
        if part not in known:
            setting = "freeze" if part in config.freeze else "lr_multipliers"
            raise ConfigError(f"{setting} {part}: the model has no such part; it has {_listed(known)}")
    tables = {name: sizes for name, sizes in model.code_tables.items() if name.startswith(EMBEDDINGS)}
    slower = {name: code_rate(rows / cardinality) for name, (cardinality,) in tables.items()}
    of_parameters = [_factor_of(name, factors) * slower.get(name, 1.0) for name in trained]
    if not any(of_parameters):
        raise ConfigError(f"freeze {', '.join(config.freeze)}: nothing of the model is left to train")
    ends = itertools.accumulate(trained.values(), initial=0)
    ranges = zip(itertools.pairwise(ends), of_parameters, strict=True)
    return [(start, stop, factor) for (start, stop), factor in ranges if factor != 1]


def code_rate(rows_per_code: float) -> float:
    """Return the learning rate factor of embeddings with so many rows per code on average.

    >>> [round(code_rate(rows), 2) for rows in (10, 135, 540, 54_000)]
    [0.1, 0.25, 1.0, 1.0]
    """
    return min(1.0, max(MIN_CODE_RATE, rows_per_code / EVEN_CODE_ROWS))


def part_names(parameters: list[str]) -> list[str]:
    """Return the names of all parts: the prefixes of the parameters' names, and these themselves, in order.

    >>> part_names(["encoder.embeddings.0.weight", "bias"])
    ['encoder', 'encoder.embeddings', 'encoder.embeddings.0', 'encoder.embeddings.0.weight', 'bias']
    """
    parts = (itertools.accumulate(name.split("."), "{}.{}".format) for name in parameters)
    return [*dict.fromkeys(itertools.chain.from_iterable(parts))]


def _listed(parts: list[str]) -> str:
    """Return the parts with names of one or two words, for a message; all others are within these."""
    return ", ".join(part for part in parts if part.count(".") < 2)


def _factor_of(parameter: str, factors: dict[str, float]) -> float:
    """Return the factor of the longest part that a parameter is in, else 1.

    >>> _factor_of("network.first.bias", {"network": 0.5, "network.first": 0.0, "net": 9.0})
    0.0
    """
    parts = [part for part in factors if f"{parameter}.".startswith(f"{part}.")]
    return factors[max(parts, key=len)] if parts else 1.0
