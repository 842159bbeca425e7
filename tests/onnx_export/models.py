"""Rows of every kind of column, and models of them with random weights, as `dkan train` writes models."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch

from dkan_core.data.encoding.fitting import fit_preprocessor
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.model.architecture import ModelConfig, blended_config, features_of
from dkan_core.model.build import build_model
from dkan_core.model.saved_model import save_model
from tests.blends import blend_for

NUMERIC = ("age", "income", "member", "visits", "share", "price")
CATEGORIES = ("shop", "plan", "opted in")
ROWS = 900
NumericDtype = Literal["uint8", "float16", "float32"]


def table(rows: int = ROWS, seed: int = 0) -> pa.Table:
    """Return rows whose labels depend on single columns, on pairs of them, and on what is missing."""
    rng = np.random.default_rng(seed)
    age, visits = rng.integers(18, 70, rows), rng.integers(0, 6, rows)
    income, member = rng.lognormal(10, 1, rows), rng.integers(0, 2, rows)
    shop = rng.choice(["north", "south", "é, ß", "None"], rows)
    plan = rng.choice(["a", "b", "c"], rows, p=[0.6, 0.3, 0.1])
    opted = rng.random(rows) < 0.4
    odds = 3 * ((plan == "a") ^ opted) + 4 * (age % 2) + (age - 44) / 20 - member * (shop == "south")
    some = [rng.random(rows) < 0.15 for _ in range(3)]
    return pa.table(
        {
            "age": pa.array(age, pa.int64()),
            "income": pa.array(income, mask=some[0]),
            "member": pa.array(member, pa.uint8()),
            "visits": pa.array(visits, pa.int16(), mask=some[1]),
            "share": pa.array(rng.random(rows).astype(np.float32)),
            "price": pa.array([f"{value:.2f}" for value in rng.random(rows) * 9]).cast(pa.decimal128(6, 2)),
            "shop": pa.array(shop, pa.string(), mask=some[2]),
            "plan": pa.array(plan, pa.string()).dictionary_encode(),
            "opted in": pa.array(opted),
            "late": pa.array((odds + rng.logistic(size=rows) > 3).astype(np.int8)),
            "returned": pa.array((odds * 0.5 + rng.logistic(size=rows) > 0).astype(np.int8)),
            "importance": pa.array(rng.random(rows) + 0.5),
        }
    )


def new_rows(seed: int = 1) -> pa.Table:
    """Return rows with categories and numbers that ``table`` has not: unseen, beyond its range, none at all."""
    rows = table(300, seed)
    odd = {
        "shop": pa.array(["elsewhere", None, "north"] * 100),
        "plan": pa.array([None, "d", "a"] * 100),
        "opted in": pa.array([True, None, False] * 100),
        "age": pa.array([None, 17, 200] * 100),
        "income": pa.array([float("inf"), float("nan"), -1e300] * 100),
        "visits": pa.array([3.0, 2.5, None] * 100),
    }
    for name, values in odd.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, values)
    return rows


def random_model(
    folder: Path,
    *,
    numeric: tuple[str, ...] = NUMERIC,
    categories: tuple[str, ...] = CATEGORIES,
    dtype: NumericDtype = "uint8",
    rows: pa.Table | None = None,
    times: tuple[str, ...] = (),
    encoding: Preprocessor | None = None,
    blend: bool = False,
    **changes: Any,
) -> Path:
    """Write a model whose every weight is random, also those that start at zero.

    Args:
        folder: Where it goes.
        numeric: Columns of numbers to use.
        categories: Columns of categories to use.
        dtype: How normal scores are stored.
        rows: What the encoding is chosen from. Default: ``table``.
        times: Columns of dates and times to use.
        encoding: To be taken instead of one that is chosen from the columns.
        blend: Whether the network is blended with an additive model.
        changes: Of the architecture.
    """
    rows = table() if rows is None else rows
    preprocessor = encoding or fit_preprocessor(rows, numeric, categories, dtype, "rows", times=times)
    model = changes.get("model", "auto")
    changes = {**changes, "model": "auto" if model == "additive" else model}
    coded = range(0 if model == "fastkan" else len(preprocessor.coded))
    config = ModelConfig(
        **{
            "labels": ("late", "returned"),
            **features_of(preprocessor, changes["model"]),
            "one_hot_groups": (*((index,) for index in coded), *([tuple(coded[:3])] if len(coded) > 2 else [])),
            "missing": (),
            "embedding_dim": 3,
            "members": 1 if model == "fastkan" else 3,
            "hidden": (5,),
            "num_centers": 4,
            "grid_min": -2.0,
            "grid_max": 2.0,
            "input_norm": "none",
            "dropout": 0.0,
            "binary_dropout": 0.0,
            **changes,
        }
    )
    partner = blend_for(preprocessor)
    if blend:
        config = config.model_copy(update={"blended": partner})
    if model == "additive":
        config = blended_config(config, coded=partner.coded, additive=partner.additive)
        config = config.model_copy(update={"members": 2})
    generator = torch.Generator().manual_seed(7)
    module = build_model(config)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if not name.endswith("rbf.grid"):
                tensor.normal_(0.0, 0.4, generator=generator)
    module.calibrate(np.full(len(config.labels), 1.3, np.float32), np.full(len(config.labels), -0.2, np.float32))
    labels = {label: {"threshold": 0.5} for label in config.labels}
    save_model(folder, module, preprocessor, {"average_precision": 0.5, "epoch": 1.0, "labels": labels})
    return folder
