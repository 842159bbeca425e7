"""Parts of a model with learning rates of their own: by the names of their tensors, and by the rows of their codes."""

import itertools

from dkan_core.config import TrainConfig
from dkan_core.config.train import part_factors
from dkan_core.errors import ConfigError
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.base import TabularModel
from dkan_core.training.compute.gradient import code_rate
from dkan_core.training.state.adamw import Rate

# What the names of embeddings begin with: each is that of one column. An additive model has none.
EMBEDDINGS = "encoder.embeddings."


def learning_rate_factors(model: TabularModel, config: TrainConfig, rows: int) -> list[Rate]:
    """Return the ranges of the flat parameters whose learning rate has a factor other than 1, in order.

    Embeddings learn the slower, the fewer rows their codes have; ``freeze`` and ``lr_multipliers`` apply as well.

    Args:
        model: Whose parameters they are.
        config: Names parts as the model's tensors do: ``encoder``, ``network.first``.
        rows: Rows of the train split.

    Raises:
        ConfigError: The model has no such part, or nothing is left to train, or nothing can stay as it is.
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


def part_names(parameters: list[str]) -> list[str]:
    """Return the names of parts: what the names of parameters begin with, down to these, in their order.

    >>> part_names(["encoder.embeddings.0.weight", "bias"])
    ['encoder', 'encoder.embeddings', 'encoder.embeddings.0', 'encoder.embeddings.0.weight', 'bias']
    """
    parts = (itertools.accumulate(name.split("."), "{}.{}".format) for name in parameters)
    return [*dict.fromkeys(itertools.chain.from_iterable(parts))]


def _listed(parts: list[str]) -> str:
    """Return parts for a message: those of one or two words, of which the others are parts."""
    return ", ".join(part for part in parts if part.count(".") < 2)


def _factor_of(parameter: str, factors: dict[str, float]) -> float:
    """Return the factor of the longest part that a parameter is in, else 1.

    >>> _factor_of("network.first.bias", {"network": 0.5, "network.first": 0.0, "net": 9.0})
    0.0
    """
    parts = [part for part in factors if f"{parameter}.".startswith(f"{part}.")]
    return factors[max(parts, key=len)] if parts else 1.0
