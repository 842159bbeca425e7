"""Diagnosis of ranks that wait for each other in vain, with torch's flight recorder and its debugging variables.

torch keeps each rank's last collectives in a ring buffer: their kind, size, order and state. If one times out, the
buffers of all ranks show which rank is missing (``TrainConfig.debug_distributed``).
"""

import json
import logging
import os
from pathlib import Path
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from dkan_core.utils.storage.files import write_json

# Collectives that a rank keeps, as in torch's documentation. A step of allreduce has one.
KEPT_COLLECTIVES = 2000

DUMP_NAMES = r"flight-recorder-(rank-\d+\.json|nccl-rank-\d+)|nccl-rank-\d+-\d+\.log"
"""Pattern of the names of the files that dkan, torch and NCCL write."""

logger = logging.getLogger(__name__)


class FlightRecorder:
    """The recorder of one rank.

    Args:
        folder: For dumps and logs of the libraries; empty if there is none, and diagnosis is only in the log.
        rank: Rank of this process.
    """

    def __init__(self, folder: str, rank: int) -> None:
        self.folder = Path(folder) if folder else None
        self.rank = rank

    def start(self, device: torch.device) -> None:
        """Record and check collectives; call this before the process group is made."""
        for name, value in self.variables().items():
            os.environ.setdefault(name, value)
        # gloo's ranks compare their next collectives, and so name the rank that does not join. With NCCL that would
        # take a synchronization per collective, which no CUDA graph may contain.
        level = c10d.DebugLevel.DETAIL if device.type == "cpu" else c10d.DebugLevel.INFO
        if "TORCH_DISTRIBUTED_DEBUG" not in os.environ:
            # torch read the variable when it was imported.
            c10d.set_debug_level(level)
        logger.info("collectives are recorded, debug level %s", c10d.get_debug_level().name)

    def variables(self) -> dict[str, str]:
        """Return the variables to set for torch and NCCL, unless they are set already."""
        variables = {
            "TORCH_FR_BUFFER_SIZE": str(KEPT_COLLECTIVES),
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_SHOW_CPP_STACKTRACES": "1",
            "NCCL_DEBUG": "INFO",
        }
        if self.folder is not None:
            variables["TORCH_FR_DUMP_TEMP_FILE"] = f"{self.folder}/flight-recorder-nccl-rank-"
            variables["NCCL_DEBUG_FILE"] = f"{self.folder}/nccl-rank-{self.rank}-%p.log"
        return variables

    def keep_dump(self, device: torch.device) -> None:
        """Write the last collectives of this rank, and log the newest of them."""
        found = recorded(device)
        entries = found.get("entries", [])
        if entries:
            logger.error("rank %d: %s", self.rank, describe(entries))
        if self.folder is None:
            return
        file = self.folder / f"flight-recorder-rank-{self.rank}.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(file, found)
            logger.error("rank %d: its last %d collectives are in %s", self.rank, len(entries), file)
        except OSError as error:
            logger.error("rank %d: %s cannot be written: %s", self.rank, file, error)


def recorded(device: torch.device) -> dict[str, Any]:
    """Return what torch has recorded in this process, parsed from its JSON."""
    # JSON, as the other format of a dump is a pickle.
    try:
        text = c10d._dump_fr_trace_json(backend="nccl" if device.type == "cuda" else "gloo")
    except TypeError:
        # Before 2.15, torch has one recorder for both.
        text = c10d._dump_fr_trace_json()
    found: dict[str, Any] = json.loads(text)
    return found


def describe(entries: list[dict[str, Any]]) -> str:
    """Return the newest collective in words.

    >>> describe([{"profiling_name": "gloo:all_reduce", "record_id": 7, "input_sizes": [[10]], "timeout_ms": 2000}])
    'its last collective, number 7, is gloo:all_reduce of [[10]] with a limit of 2 s'
    """
    last = entries[-1]
    return (
        f"its last collective, number {last['record_id']}, is {last['profiling_name']} of {last['input_sizes']} "
        f"with a limit of {last['timeout_ms'] / 1000:g} s"
    )
