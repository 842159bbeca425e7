"""A model to edit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import open_split
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.additive_terms import purified, trained_terms
from dkan_core.model.saved_model import save_model
from dkan_core.training.additive_fit.additive_tables import count_codes
from dkan_core.training.setup.architecture import choose_architecture
from tests.additive_data import prepare_rows
from tests.settings import resolved


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_rows(tmp_path_factory.mktemp("edit"))


@pytest.fixture(scope="module")
def model(data: Path) -> Path:
    """Return a model whose terms are random."""
    return random_model(data, "model", pairs="2")


@pytest.fixture(scope="module")
def monotone_model(data: Path) -> Path:
    """Return a model whose terms are random, but for two whose curves were trained to rise and to fall."""
    return random_model(data, "monotone", pairs="0", monotone=("z:+", "count:-"))


def random_model(data: Path, name: str, **settings: Any) -> Path:
    """Write a model whose terms are random beside the data; return its folder."""
    manifest = read_manifest(data)
    with open_split(data, manifest, "train") as reader:
        config = choose_architecture(reader, manifest, resolved(labels=2, model="additive", members=3, **settings))
        module = AdditiveFastKAN(config)
        torch.manual_seed(0)
        torch.nn.init.normal_(module.table)
        final = purified(trained_terms(module, count_codes(module, reader)[0])).to_model()
    metrics: dict[str, Any] = {"labels": {name: {"threshold": 0.5} for name in manifest.labels}}
    metrics |= {"epoch": 1, "step": 1, "average_precision": 0.5}
    save_model(data.parent / name, final, manifest.preprocessor, metrics)
    return data.parent / name
