"""What a run has saved."""

from pathlib import Path

from dkan_core.training.state.checkpoint_file import Checkpoint
from dkan_core.training.state.checkpoint_store import load_checkpoint


def last_checkpoint(run: Path) -> Checkpoint:
    """Return the newest checkpoint of a run that has one."""
    found = load_checkpoint(str(run / "checkpoints"))
    assert found is not None
    return found[1]
