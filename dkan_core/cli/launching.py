"""``dkan train --launch torchrun``: the command by which torchrun starts the ranks of a run on this node."""

import logging
import os
import shlex
import sys
from typing import NoReturn

from dkan_core.config import TrainConfig
from dkan_core.errors import ConfigError
from dkan_core.utils.prctl import die_with_parent

# The module behind the command ``torchrun``, which need not be on the path.
MODULE = "torch.distributed.run"

# Variable with the id of the process that becomes torchrun.
AGENT = "DKAN_TORCHRUN_AGENT"

logger = logging.getLogger(__name__)


def torchrun_command(prepared: str, out: str, config: TrainConfig, nproc: int | None, *, overwrite: bool) -> list[str]:
    """Return the command that trains with several processes on this node.

    Args:
        prepared: Folder or URI that ``dkan prepare`` wrote.
        out: Where the run goes.
        config: Settings.
        nproc: Processes. Default: one per GPU.
        overwrite: Whether an earlier run may be replaced.

    Raises:
        UserError: The ranks would refuse it, or there is no GPU and no number of processes.
    """
    from dkan_core.trainjob.body import arguments

    count = _processes(nproc)
    _check(prepared, out, config, count, overwrite=overwrite)
    options = ["--overwrite"] if overwrite else []
    return ["torchrun", "--standalone", f"--nproc-per-node={count}", *arguments(prepared, out, config), *options]


def replace_process(command: list[str]) -> NoReturn:
    """Replace this process by a command of ``torchrun_command``, which then gets its signals and sets its exit code."""
    from dkan_core.trainjob.body import SHUTDOWN

    logger.info("%s", shlex.join(command))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    environment = {**SHUTDOWN, **os.environ, AGENT: str(os.getpid())}
    os.execve(sys.executable, [sys.executable, "-m", MODULE, *command[1:]], environment)


def end_with_torchrun() -> None:
    """Make the kernel kill this process when torchrun dies, if ``replace_process`` became its parent."""
    parent = os.getppid()
    if os.environ.get(AGENT) == str(parent):
        die_with_parent(parent)


def _processes(nproc: int | None) -> int:
    from dkan_core.training.setup.placement import visible_gpus

    if nproc is not None and nproc < 1:
        raise ConfigError(f"nproc must be at least 1, got {nproc}")
    count = nproc or visible_gpus()
    if not count:
        raise ConfigError("nproc: no GPU is visible, so there is no default; set the number of processes with --nproc")
    return count


def _check(prepared: str, out: str, config: TrainConfig, count: int, *, overwrite: bool) -> None:
    """Check here what every rank would check: torchrun would show the errors of all ranks with tracebacks."""
    from dkan_core.cli.dry_run import resolve_training
    from dkan_core.training.communication.rendezvous import TorchRun
    from dkan_core.training.launcher.resuming import find_starting_point
    from dkan_core.training.launcher.run_log import quiet

    torchrun = TorchRun.read(
        {
            **{name: str(count) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")},
            **dict.fromkeys(("RANK", "MASTER_PORT"), "0"),
            "MASTER_ADDR": "localhost",
        }
    )
    manifest, resolved = resolve_training(prepared, out, config, torchrun, overwrite=overwrite)
    with quiet():  # rank 0 logs what it resumes from
        find_starting_point(out, resolved, manifest, overwrite=overwrite)
