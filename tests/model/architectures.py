"""Small architectures that tests share: one with every kind of input, and a plain one."""

from typing import Any

from dkan_core.model.additive_shape import AdditiveShape, Blend, FeatureCuts
from dkan_core.model.architecture import ModelConfig

CONFIG = ModelConfig(
    labels=("a", "b"),
    model="auto",
    num_numeric=3,
    binary=(1,),
    cardinalities=(5, 4),
    embedded=(0,),
    one_hot_groups=((0,), (0, 1)),
    missing=(1,),
    embedding_dim=2,
    members=3,
    hidden=(6,),
    num_centers=4,
    grid_min=-2.0,
    grid_max=2.0,
    input_norm="none",
    dropout=0.0,
    binary_dropout=0.0,
)


def changed(config: ModelConfig, **changes: Any) -> ModelConfig:
    """Return an architecture with other settings."""
    return ModelConfig.from_dict({**config.to_dict(), **changes})


PLAIN = changed(CONFIG, model="fastkan", members=1, binary=(), indicators=(), missing=())

# A number with a category, two numbers, two categories.
BLEND = Blend(
    weight=0.25,
    coded=(0, 1),
    additive=AdditiveShape(
        form="tables",
        upper=(128,),
        pairs=((0, 2), (0, 3), (3, 4)),
        binned=tuple(
            FeatureCuts(feature=feature, cuts=cuts)
            for feature, cuts in {0: (1, 60, 128, 200), 2: (1, 100), 3: (1, 2, 3), 4: (1, 2)}.items()
        ),
    ),
)
BLENDED = changed(CONFIG, blended=BLEND.model_dump())
