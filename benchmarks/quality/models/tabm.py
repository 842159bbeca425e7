"""TabM (Gorishniy et al. 2025, arXiv:2410.24210) with piecewise-linear embeddings and the settings its README suggests.

k = 32, AdamW with learning rate 2e-3 and weight decay 3e-4, batches of 256 (of 1,024 from 100,000 rows), and patience
of 16 epochs on validation AP; the best epoch is kept. Numbers are quantile-transformed as in the package's example.

Shape suffixes: N rows, L labels, K members of the ensemble, F numeric columns, C categorical columns.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from rtdl_num_embeddings import PiecewiseLinearEmbeddings, compute_bins
from sklearn.preprocessing import QuantileTransformer
from tabm import TabM
from torch import Tensor, nn

from benchmarks.quality.data import Encoder
from benchmarks.quality.models import Array, Fitted, Job
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.evaluation.metrics import macro_average_precision

LEARNING_RATE, WEIGHT_DECAY, PATIENCE = 2e-3, 3e-4, 16
SMALL_BATCH, LARGE_BATCH, LARGE_ROWS = 256, 1024, 100_000
SCORING_ROWS = 2048
BINS, EMBEDDING = 48, 16


class _Inputs:
    """Numbers as normal scores, 0 where missing; categories, two-valued numbers and what is missing as codes."""

    def __init__(self, encoder: Encoder, train: pa.Table, seed: int) -> None:
        self.encoder = encoder
        x_NF = encoder.numeric_NF(train)
        distinct = [np.unique(column_N[~np.isnan(column_N)]) for column_N in x_NF.T]
        self.two_valued = [index for index, values in enumerate(distinct) if len(values) == 2]
        self.high = np.array([distinct[index][1] for index in self.two_valued])
        self.many = [index for index, values in enumerate(distinct) if len(values) > 2]
        self.gaps = [index for index in self.many if np.isnan(x_NF[:, index]).any()]
        self.quantiles = QuantileTransformer(
            n_quantiles=max(min(len(x_NF) // 30, 1000), 10),
            output_distribution="normal",
            subsample=10**9,
            random_state=seed,
        )
        if self.many:
            # noise parts equal values, as the package's example has it
            noise_NF = np.random.default_rng(seed).normal(0.0, 1e-5, (len(x_NF), len(self.many)))
            self.quantiles.fit(x_NF[:, self.many] + noise_NF)
        sizes = [len(values) + 1 for values in encoder.categories]
        self.cardinalities = [*sizes, *[3] * len(self.two_valued), *[2] * len(self.gaps)]

    def __call__(self, table: pa.Table) -> tuple[Tensor | None, Tensor | None]:
        x_NF = self.encoder.numeric_NF(table)
        pairs = x_NF[:, self.two_valued]
        codes = [
            self.encoder.codes_NC(table),
            np.where(np.isnan(pairs), 0, np.where(pairs >= self.high, 2, 1)),
            np.isnan(x_NF[:, self.gaps]),
        ]
        codes_NC = np.concatenate(codes, axis=1).astype(np.int64)
        numeric = None
        if self.many:
            numeric = torch.from_numpy(np.nan_to_num(self.quantiles.transform(x_NF[:, self.many])).astype(np.float32))
        return numeric, torch.from_numpy(codes_NC) if self.cardinalities else None


def fit_tabm(job: Job) -> Fitted:
    """Fit one TabM for all labels; cells that were not measured have no loss."""
    torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    train, valid = job.data.read("train"), job.data.read("valid")
    inputs = _Inputs(Encoder(job.data, train), train, job.seed)
    y_train_NL, y_valid_NL = job.data.labels_NL(train), job.data.labels_NL(valid)
    # a batch without any measured cell would have no loss
    used = np.flatnonzero((y_train_NL != NOT_MEASURED).any(axis=1))
    x_train, x_valid = inputs(train.take(used)), inputs(valid)
    model = _build(x_train[0], inputs.cardinalities, len(job.data.labels))

    def validate() -> float:
        return macro_average_precision(y_valid_NL, _score(model, x_valid))

    epochs = _train(model, x_train, torch.from_numpy(y_train_NL[used]), validate, job)
    return Fitted(score=lambda: _score(model, inputs(job.data.read("test"))), rounds=[epochs])


def _build(numeric_NF: Tensor | None, cardinalities: list[int], labels: int) -> nn.Module:
    embeddings, columns = None, 0
    if numeric_NF is not None:
        columns = numeric_NF.shape[1]
        bins = compute_bins(numeric_NF, n_bins=min(BINS, len(numeric_NF) - 1))
        embeddings = PiecewiseLinearEmbeddings(bins, EMBEDDING, activation=False, version="B")
    model: nn.Module = TabM.make(
        n_num_features=columns, cat_cardinalities=cardinalities, d_out=labels, num_embeddings=embeddings
    )
    return model


def _train(model: nn.Module, x: Any, labels_NL: Tensor, validate: Callable[[], float], job: Job) -> int:
    """Train until patience or budget is used up, and put the best epoch's weights into the model; return its number.

    An epoch that the budget breaks off is validated as it is, so that there is always something to keep.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    over = job.budget.share(1)
    size = LARGE_BATCH if len(labels_NL) >= LARGE_ROWS else SMALL_BATCH
    best_ap, best_epoch, best_state, epoch = -1.0, 0, model.state_dict(), 0
    while epoch - best_epoch < PATIENCE and not over():
        epoch += 1
        model.train()
        for rows in torch.randperm(len(labels_NL)).split(size):
            optimizer.zero_grad()
            loss = _loss(model(*(part if part is None else part[rows] for part in x)), labels_NL[rows])
            loss.backward()
            optimizer.step()
            if over():
                break
        ap = validate()
        if ap > best_ap:
            best_ap, best_epoch, best_state = ap, epoch, deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    return best_epoch


def _loss(logits_NKL: Tensor, labels_NL: Tensor) -> Tensor:
    """Return the mean over members and measured cells: each member learns by itself."""
    measured_NKL = (labels_NL != NOT_MEASURED).unsqueeze(1).expand_as(logits_NKL)
    targets_NKL = labels_NL.float().unsqueeze(1).expand_as(logits_NKL)
    return nn.functional.binary_cross_entropy_with_logits(logits_NKL[measured_NKL], targets_NKL[measured_NKL])


@torch.inference_mode()
def _score(model: nn.Module, x: Any) -> Array:
    model.eval()
    rows = len(next(part for part in x if part is not None))
    scored = [
        torch.sigmoid(model(*(part if part is None else part[start : start + SCORING_ROWS] for part in x))).mean(1)
        for start in range(0, rows, SCORING_ROWS)
    ]
    return torch.cat(scored).numpy()
