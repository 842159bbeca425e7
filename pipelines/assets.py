"""The components and pipelines of this repository, each in a folder of its own."""

import importlib
from pathlib import Path

from kfp.dsl.base_component import BaseComponent

ROOT = Path(__file__).parents[1]


def asset_folders() -> list[str]:
    """Return the folders of all components and pipelines, relative to the repository: components first."""
    sources = [*sorted(ROOT.glob("components/*/*/component.py")), *sorted(ROOT.glob("pipelines/*/*/pipeline.py"))]
    return [source.parent.relative_to(ROOT).as_posix() for source in sources]


def load_asset(folder: str) -> BaseComponent:
    """Import the component or pipeline of a folder, which has the folder's name."""
    asset: BaseComponent = getattr(importlib.import_module(folder.replace("/", ".")), Path(folder).name)
    return asset
