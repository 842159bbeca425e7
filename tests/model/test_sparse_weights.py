"""Weights of sparse columns: the sum of a row's vectors, its gradient, and the function of the same ones as columns."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from dkan_core import ConfigError, PrepareConfig, PreparedData, TrainConfig, prepare
from dkan_core.config.train import Kernel
from dkan_core.data.loading.loader import open_split
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.build import build_model
from dkan_core.model.decoding import decode_scores
from dkan_core.model.encoder import BINARY_SCALE
from dkan_core.model.kernels import use_kernel
from dkan_core.model.kernels.native_input import gradients_in_place
from dkan_core.model.parameter_count import count_parameters
from dkan_core.model.sparse_weights import SparseWeights
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.scoring.probabilities import score
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.defaults import resolve_for
from dkan_core.training.setup.parameter_groups import MAX_CODE_DECAY, code_decay, decayed_ranges
from tests.data.sparse_tables import IDS, list_table, make_ones, make_others
from tests.data.tables import read, write

CONFIG = PrepareConfig(label=("y",), drop=("row",))


@pytest.mark.parametrize("width", [8, 70])
@pytest.mark.parametrize("kernel", ["native", "recompute"])
@pytest.mark.parametrize("in_place", [False, True])
def test_gradient_is_that_of_a_product_with_all_columns(in_place: bool, kernel: Kernel, width: int) -> None:
    torch.manual_seed(0)
    codes_BS = torch.randint(0, 50, (700, 6), dtype=torch.int32)
    weights = SparseWeights(50, width)
    use_kernel(weights, kernel)
    torch.nn.init.normal_(weights.weight)
    weights.weight.grad = torch.ones(50, width)
    ones_BV = torch.zeros(700, 50).scatter_add_(1, codes_BS.long(), torch.ones(700, 6))
    ones_BV[:, 0] = 0
    out_BH, upstream_BH = weights(codes_BS), torch.randn(700, width)
    torch.testing.assert_close(out_BH, ones_BV @ weights.weight)
    if in_place:
        with gradients_in_place():
            out_BH.backward(upstream_BH)
    else:
        out_BH.backward(upstream_BH)
    torch.testing.assert_close(weights.weight.grad, 1 + ones_BV.T @ upstream_BH)
    assert (weights.weight.grad[0] == 1).all()


def prepared_pair(tmp_path: Path) -> list[tuple[Path, PreparedData]]:
    """Prepare the same rows with a column of lists, and with a column for each id."""
    ones_NV = make_ones()
    columns = {f"has_{number}": ones_N for number, ones_N in enumerate(ones_NV.T)}
    tables = {"sparse": list_table(ones_NV), "dense": pa.table({**make_others(ones_NV), **columns})}
    outs = {name: tmp_path / name for name in tables}
    return [
        (outs[name], prepare(write(table, tmp_path / f"raw-{name}"), outs[name], CONFIG))
        for name, table in tables.items()
    ]


def architecture_of(folder: Path, prepared: PreparedData, **settings: Any) -> ModelConfig:
    config = resolve_for(TrainConfig(**settings), prepared)
    with open_split(folder, prepared, "train") as reader:
        return choose_architecture(reader, prepared, config)


def as_columns(model: TabularFastKAN, scores_V2: torch.Tensor, config: ModelConfig) -> TabularModel:
    """Return the model that gives rows with a binary column for each id what ``model`` gives them with lists.

    Args:
        model: The model of lists.
        scores_V2: What the column of each id is decoded to where it is 0, and where it is 1.
        config: Architecture of the other model.
    """
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weight_VH = state.pop("encoder.sparse.weight")[1:]
    per_step_VH = weight_VH / (scores_V2[:, 1] - scores_V2[:, 0])[:, None]
    state["encoder.binary_linear.weight"] = per_step_VH.T / BINARY_SCALE
    state["network.first.base_linear.bias"] -= (per_step_VH * scores_V2[:, :1]).sum(0)
    other = build_model(config)
    other.load_state_dict(state)
    return other.eval()


def test_lists_give_the_function_of_binary_columns(tmp_path: Path) -> None:
    (lists, sparse), (columns, dense) = prepared_pair(tmp_path)
    settings: dict[str, Any] = {"members": 2, "hidden": (16,), "model": "auto"}
    config, other_config = architecture_of(lists, sparse, **settings), architecture_of(columns, dense, **settings)
    assert (config.num_numeric, config.sparse[0].codes) == (1, IDS)
    assert other_config.binary == tuple(range(1, 1 + IDS))
    torch.manual_seed(1)
    model = build_model(config)
    assert isinstance(model, TabularFastKAN) and model.encoder.sparse is not None
    torch.nn.init.normal_(model.encoder.sparse.weight.data[1:])
    rows, same_rows = read(lists, "test"), read(columns, "test")
    stored = same_rows["numeric"][:, 1:]
    both = np.stack([stored.min(axis=0), stored.max(axis=0)])
    other = as_columns(model, decode_scores(torch.from_numpy(both)).T, other_config)
    device = torch.device("cpu")
    expected_NL = score(other, same_rows, device)
    assert np.ptp(expected_NL) > 0.1
    np.testing.assert_allclose(score(model.eval(), rows, device), expected_NL, atol=2e-6)


def test_size_and_decay_follow_the_rows_of_an_id(tmp_path: Path) -> None:
    (folder, prepared), _ = prepared_pair(tmp_path)
    config = architecture_of(folder, prepared, members=1, hidden=(4,))
    model = build_model(config)
    assert count_parameters(config) == sum(tensor.numel() for tensor in model.state_dict().values())
    resolved = resolve_for(TrainConfig(members=1, hidden=(4,), weight_decay=0.5), prepared)
    rows, ones = 500, prepared.preprocessor.sparse[0].ones
    found = [decay for start, stop, decay in decayed_ranges(model, resolved, rows) if stop - start == 4 * (IDS + 1)]
    assert found == [pytest.approx(code_decay(0.5, rows * ones / (IDS + 1)))]
    assert found[0] < 0.5 * MAX_CODE_DECAY


def test_an_additive_model_refuses_ids_by_name(tmp_path: Path) -> None:
    (folder, prepared), _ = prepared_pair(tmp_path)
    with pytest.raises(ConfigError, match="model additive: column 'tags' holds IDs"):
        architecture_of(folder, prepared, model="additive")


def test_a_plain_fastkan_of_ids_alone_is_the_same_with_every_kernel(tmp_path: Path) -> None:
    rows = pa.table({"tags": list_table(make_ones())["tags"], "y": make_others(make_ones())["y"]})
    out = tmp_path / "data"
    prepared = prepare(write(rows, tmp_path / "raw"), out, PrepareConfig(label=("y",)))
    config = architecture_of(out, prepared, model="fastkan", hidden=(4,), dropout=0.0)
    model = build_model(config)
    assert count_parameters(config) == sum(tensor.numel() for tensor in model.state_dict().values())
    codes_BS = torch.randint(0, IDS, (50, 3), dtype=torch.int32)
    weight_VH = model.get_parameter("encoder.sparse.weight")
    torch.nn.init.normal_(weight_VH)
    kernels: list[Kernel] = ["eager", "recompute", "native"]
    found = []
    for kernel in kernels:
        use_kernel(model, kernel)
        logits_BL = model(sparse=codes_BS)
        found.append((logits_BL, *torch.autograd.grad(logits_BL.sum(), weight_VH)))
    for each in found[1:]:
        torch.testing.assert_close(each, found[0])
