"""What a training starts from, once its settings are resolved."""

from dataclasses import dataclass
from pathlib import Path

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.training.launcher.torchrun import Ranks
from dkan_core.training.setup.initial_model import InitialModel
from dkan_core.training.state.checkpoint_file import Checkpoint
from dkan_core.training.state.refit_choices import RefitChoices


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """Data, settings and state of a training before its first step."""

    data: Path
    """Prepared folder."""

    manifest: PreparedData
    """What is in it."""

    folder: Path
    """Local folder of the run."""

    config: ResolvedTrainConfig
    checkpoints: str
    """Folder or URI for checkpoints."""

    checkpoint: Checkpoint | None
    """The one to resume from."""

    initial: InitialModel | None
    """Model to start from, where there is no checkpoint. None: an untrained one."""

    ranks: Ranks | None = None
    """The other launchers, under torchrun."""

    choices: RefitChoices | None = None
    """Those of the first training, where this is a refit."""

    @property
    def train_rows(self) -> int:
        """Rows of the train split."""
        return self.manifest.splits["train"].rows
