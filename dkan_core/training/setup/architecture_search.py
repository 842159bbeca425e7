"""Which architecture predicts unseen rows better: small networks are trained on a sample and compared.

Most tables are noisy: few broad basis functions and dropout fit the least noise. Measurements and images are not, and
profit from twice the basis functions. A second hidden layer pays where many columns interact in ways that no sum over
pairs expresses. Rows that no network was trained on show which of these holds. Rows of a group are on one side, as in
the search for crosses.

Shape suffixes: N rows.
"""

import logging
from dataclasses import replace
from functools import partial

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.loader import RowReader
from dkan_core.model.architecture import ModelConfig
from dkan_core.training.setup.search_space import DEPTH_SEARCH_ROWS, NO_DROPOUT, deepened, refined
from dkan_core.training.setup.trials import (
    HIDDEN,
    MinImprovement,
    held_out,
    helps,
    losses,
    mean_weight,
    sample_of,
    small_network,
    split_at,
    trained,
)
from dkan_core.training.setup.untrained_model import untrained_model
from dkan_core.utils.arrays import Float64
from dkan_core.utils.torch_resources import torch_threads

DEEP = (*HIDDEN, 16)

# With each of three seeds, more basis functions gain 0.048 to 0.34 of the log loss, and 2.1 to 22 errors, on 8 of 67
# real data sets of 2,000 rows or more; with one or two seeds, enough on four others. The other 55, among them all of
# 50,000 rows and more, stay below one of these bounds with every seed.
MIN_FINE_IMPROVEMENT = MinImprovement(standard_errors=2.0, relative=0.03)
# A second layer gains 5 to 21 errors on generated data that need it, and 3.9 at most on seven real data sets of 50,000
# rows and more, three seeds each.
MIN_DEEP_IMPROVEMENT = MinImprovement(standard_errors=4.0, relative=0.015)

logger = logging.getLogger(__name__)


def search_architecture(
    reader: RowReader, prepared: PreparedData, architecture: ModelConfig, config: ResolvedTrainConfig
) -> ResolvedTrainConfig:
    """Return the settings with the best basis functions, hidden layers and dropout; the search takes seconds."""
    sample = sample_of(reader, prepared)
    if sample is None:
        return config
    held_N = held_out(sample)
    if held_N is None:
        logger.info("too few groups of rows to compare architectures")
        return config
    seen, unseen = split_at(sample, held_N)
    logger.info("comparing architectures: small networks are trained on %s rows", f"{len(seen['labels']):,}")
    small = small_network(architecture)

    def loss(of: ResolvedTrainConfig, hidden: tuple[int, ...] = HIDDEN) -> Float64:
        network = small.model_copy(update={"hidden": hidden, "num_centers": of.num_centers, "dropout": of.dropout})
        # More threads make such small networks no faster; two cost a third more CPU time.
        with torch_threads(1):
            return losses(trained(network, seen, prepared, config), unseen, config)

    # With many rare categories, networks may learn only noise, and less of it with other basis functions.
    constant = losses(untrained_model(small, prepared, config).eval(), unseen, config).mean()
    tries_depth = len(held_N) >= DEPTH_SEARCH_ROWS
    # With dropout, such small networks learn too slowly for a second layer to be of use.
    plain = replace(config, dropout=NO_DROPOUT) if tries_depth else config
    fine = refined(config)
    plain_N, fine_N = loss(plain), loss(fine)
    pays = partial(helps, constant=constant, weight=mean_weight(unseen, config))
    is_fine = pays(f"{fine.num_centers} basis functions and no dropout", plain_N, fine_N, MIN_FINE_IMPROVEMENT)
    found = fine if is_fine else config
    if not tries_depth:
        return found
    deep = deepened(found)
    shallow_N = fine_N if is_fine else plain_N
    return deep if pays("a second hidden layer", shallow_N, loss(deep, DEEP), MIN_DEEP_IMPROVEMENT) else found
