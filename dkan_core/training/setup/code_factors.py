"""Embeddings of two columns of many codes that start as the factors of their joint effects, not at random.

A user's opinion of an item is a product of traits of both, and there are too many pairs for a cross. A network learns
such factors slowly, one by one, and memorizes codes meanwhile. So if unseen rows show that there are factors, they are
estimated before training: logistic matrix factorization by variational Bayes (Lim and Teh 2007; the bound on the
likelihood is that of Jaakkola and Jordan 2000). Automatic relevance determination shrinks useless factors to 0.

Shape suffixes: N rows, P pairs of codes that rows have, C codes of a column, D codes of the other one, K an effect and
the factors after it.
"""

import itertools
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.loader import RowReader, read_sample
from dkan_core.model.architecture import MAX_ONE_HOT_CODES, ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.encoder import EMBEDDING_STD
from dkan_core.training.likelihood import target_of
from dkan_core.training.setup.parameter_groups import EMBEDDINGS
from dkan_core.training.setup.trials import held_out
from dkan_core.utils.arrays import Arrays, Float64

# Half of an embedding; eight factors gained as much. Then the rounds to test for factors, and to estimate them.
FACTORS = 4
TRIAL_ROUNDS, ROUNDS = 6, 15
# First rounds, in which no precision is estimated, as factors are still random.
FIXED_ROUNDS = 2
# A sample of the train split: labels (rows times labels) and values (rows times columns) at most.
MAX_LABELS, MAX_VALUES = 400_000, 16_000_000
# Of the columns with the most codes, how many are tried in pairs.
MAX_COLUMNS = 3
# Most mean rows of a code, of the column that has more codes: with more, embeddings learn factors by themselves.
MAX_CODE_ROWS = 135
# Log-likelihood, in nats, that factors must save on unseen rows. Pairs without factors gained 3.5 at most.
MIN_GAIN = 10.0
# Precisions of the effects and of the factors at the start, and the spread of the latter.
EFFECT_PRECISION, FACTOR_PRECISION, FACTOR_STD = 2.0, 4.0, 0.5
# Lower limit of the log-odds in the bound's curvature, tanh(z / 2) / 2z, which has a limit at 0.
LEAST_LOG_ODDS = 1e-3

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Codes = npt.NDArray[np.int64]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rows:
    """Rows by the codes of two columns: ``codes`` (2, N), ``target_N`` and the weight of each row."""

    codes: Codes
    target_N: npt.NDArray[np.bool_]
    weight_N: Float64

    def where(self, kept_N: npt.NDArray[np.bool_]) -> "Rows":
        """Return some of the rows, without those of weight 0."""
        kept_N = kept_N & (self.weight_N > 0)
        return Rows(self.codes[:, kept_N], self.target_N[kept_N], self.weight_N[kept_N])


class FactorPosterior:
    """The posterior of the effect and the factors of each code of a column: normal distributions.

    Args:
        codes_P: Codes of this column in the distinct pairs of codes that rows have.
        size: How many codes there are, C.
        factors: Number of factors.
        random: Source of the factors' start values.
    """

    def __init__(self, codes_P: Codes, size: int, factors: int, random: np.random.Generator) -> None:
        self.codes_P = codes_P
        self.known_C = np.bincount(codes_P, minlength=size) > 0
        self.mean_CK = np.zeros((size, 1 + factors))
        self.mean_CK[:, 1:] = FACTOR_STD * random.normal(size=(size, factors))
        self.covariance_CKK = np.zeros((size, 1 + factors, 1 + factors))
        self.precision_K = np.array([EFFECT_PRECISION] + factors * [FACTOR_PRECISION])

    def expected_products(self) -> Float64:
        """Return the posterior means of the products of an effect and factors, ``(C, K, K)``."""
        return self.mean_CK[:, :, None] * self.mean_CK[:, None, :] + self.covariance_CKK

    def learn_precision(self) -> None:
        """Set the prior's precision from the posterior of the codes that rows have."""
        second_CK = np.diagonal(self.expected_products(), axis1=1, axis2=2)
        self.precision_K = self.known_C.sum() / second_CK[self.known_C].sum(0)


class Factorization:
    """Log-odds of rows: a constant, an effect of each of two codes, and the inner product of their factors."""

    def __init__(self, rows: Rows, sizes: tuple[int, int], factors: int, rounds: int) -> None:
        random = np.random.default_rng(0)
        prior = np.average(rows.target_N, weights=rows.weight_N)
        self.constant = math.log(prior / (1 - prior))
        # Rows with the same two codes have the same log-odds.
        pairs_P, pair_N = np.unique(rows.codes[0] * sizes[1] + rows.codes[1], return_inverse=True)
        self.codes = np.stack(np.divmod(pairs_P, sizes[1]))
        self.weight_P = np.bincount(pair_N, rows.weight_N).astype(np.float64)
        self.pull_P = np.bincount(pair_N, rows.weight_N * (rows.target_N - 0.5)).astype(np.float64)
        self.sides = [FactorPosterior(*each, factors, random) for each in zip(self.codes, sizes, strict=True)]
        for round_ in range(rounds):
            for own, other in (self.sides, self.sides[::-1]):
                self._update(own, other)
                if round_ >= FIXED_ROUNDS:
                    own.learn_precision()
        for side in self.sides:
            side.mean_CK[~side.known_C] = 0

    def log_odds(self, codes: Codes) -> Float64:
        """Return the log-odds of rows with codes ``(2, N)``, at the posterior mean."""
        one_NK, other_NK = (side.mean_CK[each] for side, each in zip(self.sides, codes, strict=True))
        product_N = np.einsum("nk,nk->n", one_NK[:, 1:], other_NK[:, 1:])
        log_odds_N: Float64 = product_N + self.constant + one_NK[:, 0] + other_NK[:, 0]
        return log_odds_N

    def _update(self, own: FactorPosterior, other: FactorPosterior) -> None:
        """Set the posterior of one column, given that of the other one."""
        size_P = np.maximum(np.abs(self.log_odds(self.codes)), LEAST_LOG_ODDS)
        curvature_P = self.weight_P * np.tanh(size_P / 2) / (2 * size_P)
        # A row's log-odds are linear in the effect and factors of its own code: the other code's effect is an offset,
        # and a 1 and the other code's factors are the coefficients.
        products_DKK, features_DK = other.expected_products(), other.mean_CK.copy()
        offset_DK = self.constant * features_DK + products_DKK[:, 0]
        offset_DK[:, 0], features_DK[:, 0] = self.constant + other.mean_CK[:, 0], 1
        products_DKK[:, 0], products_DKK[:, :, 0] = features_DK, features_DK
        width = features_DK.shape[1]
        sums = _by_codes(own, other, curvature_P) @ np.hstack([products_DKK.reshape(-1, width * width), offset_DK])
        precision_CKK = sums[:, : width * width].reshape(-1, width, width) + np.diag(own.precision_K)
        pull_CK = _by_codes(own, other, self.pull_P) @ features_DK - sums[:, width * width :]
        own.covariance_CKK = np.linalg.inv(precision_CKK)
        own.mean_CK = np.einsum("ckl,cl->ck", own.covariance_CKK, pull_CK)


def _by_codes(own: FactorPosterior, other: FactorPosterior, value_P: Float64) -> "csr_array":
    """Return the values of pairs of codes as a matrix, ``(C, D)``."""
    from scipy.sparse import csr_array

    return csr_array((value_P, (own.codes_P, other.codes_P)), shape=(len(own.mean_CK), len(other.mean_CK)))


def start_at_factors(model: TabularModel, reader: RowReader, prepared: PreparedData) -> None:
    """Let two columns' embeddings start at factors, for the pair whose factors predict unseen rows best, if any help.

    Of several labels, the one for which they help most counts. Nothing is done if no two columns have more joint codes
    than a cross may have, or if their codes have many rows.
    """
    config = model.config
    pairs = _pairs(config, reader.rows)
    if config.model != "auto" or not pairs:
        return
    encoding = prepared.preprocessor
    sample = read_sample(reader, min(MAX_LABELS // len(config.labels), MAX_VALUES // encoding.row_values))
    held_N = held_out(sample)
    if held_N is None:
        return
    candidates = itertools.product(pairs, range(len(config.labels)))
    gains = {each: _gain(_rows(sample, *each), _sizes(config, each[0]), held_N) for each in candidates}
    best = max(gains, key=gains.__getitem__)
    names = " and ".join(encoding.coded[index].name for index in best[0])
    if gains[best] < MIN_GAIN:
        logger.info("columns of many codes have no factors that help on unseen rows; %s come nearest", names)
        return
    found = Factorization(_rows(sample, *best), _sizes(config, best[0]), FACTORS, ROUNDS)
    logger.info("embeddings of %s start at factors that save %.0f nats on unseen rows", names, gains[best])
    _write(model, best[0], found)


def _pairs(config: ModelConfig, rows: int) -> list[tuple[int, int]]:
    """Return the pairs of embedded columns that have too many joint codes for a cross, and few rows for each code."""
    columns = sorted(config.inputs.embedded, key=lambda index: -config.cardinalities[index])[:MAX_COLUMNS]
    pairs = [(pair, _sizes(config, pair)) for pair in itertools.combinations(sorted(columns), 2)]
    return [
        pair for pair, sizes in pairs if math.prod(sizes) > MAX_ONE_HOT_CODES and rows <= MAX_CODE_ROWS * max(sizes)
    ]


def _sizes(config: ModelConfig, pair: tuple[int, ...]) -> tuple[int, int]:
    return config.cardinalities[pair[0]], config.cardinalities[pair[1]]


def _rows(sample: Arrays, pair: tuple[int, int], label: int) -> Rows:
    """Return all rows of a sample; those without the label have weight 0."""
    rows = len(sample["labels"])
    weight_N = sample["weight"].astype(np.float64) if "weight" in sample else np.ones(rows)
    return Rows(sample["categorical"][:, pair].T.astype(np.int64), *target_of(sample["labels"][:, label], weight_N))


def _gain(rows: Rows, sizes: tuple[int, int], held_N: npt.NDArray[np.bool_]) -> float:
    """Return the log-likelihood that factors save beyond effects on rows held out of both fits, in nats."""
    seen, unseen = rows.where(~held_N), rows.where(held_N)
    if not seen.target_N.any() or seen.target_N.all():
        return 0.0
    losses = []
    for factors in (0, FACTORS):
        log_odds_N = Factorization(seen, sizes, factors, TRIAL_ROUNDS).log_odds(unseen.codes)
        losses.append(unseen.weight_N @ (np.logaddexp(0, log_odds_N) - unseen.target_N * log_odds_N))
    return float(losses[0] - losses[1])


def _write(model: TabularModel, pair: tuple[int, int], found: Factorization) -> None:
    """Write factors into the embeddings, of equal scale in both columns, the largest as large as embeddings start."""
    one_CK, other_CK = (side.mean_CK[:, 1:] for side in found.sides)
    size_2K = np.stack([np.sqrt(np.square(each).mean(0)) for each in (one_CK, other_CK)])
    size_2K = np.maximum(size_2K, np.finfo(np.float32).tiny)
    common_K = np.sqrt(size_2K.prod(0))
    indices = [model.config.inputs.embedded.index(index) for index in pair]
    for index, factors_CK, size_K in zip(indices, (one_CK, other_CK), size_2K, strict=True):
        scaled_CK = factors_CK * (common_K / size_K) * (EMBEDDING_STD / common_K.max())
        table_CE = model.get_parameter(f"{EMBEDDINGS}{index}.weight")
        with torch.no_grad():
            table_CE[:, :FACTORS] = torch.from_numpy(scaled_CK[:, : table_CE.shape[1]])
