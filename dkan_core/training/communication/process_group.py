"""The ranks of a run as one of them sees them: sums, exchanges and broadcasts over torch.distributed.

Shape suffixes: N numbers of a buffer.
"""

import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore

from dkan_core.config import ResolvedTrainConfig
from dkan_core.training.communication.flight_recorder import FlightRecorder
from dkan_core.training.communication.rendezvous import PEER_LOST, Rendezvous
from dkan_core.training.state.stopwatch import Stopwatch
from dkan_core.utils import gpu

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

MEETING_SECONDS = 1800.0
"""How long ranks wait until all are ready: as long as the launcher keeps trying to start one."""

POLL_SECONDS = 0.1
"""How often they check."""

logger = logging.getLogger(__name__)


def open_tcp_store(host: str, port: int, timeout: float, *, is_master: bool, listening: int | None = None) -> TCPStore:
    """Connect to a store, or serve one.

    Args:
        host: Host of the store.
        port: Port of the store.
        timeout: Seconds to wait for it.
        is_master: Whether this process serves it.
        listening: Socket that the store takes over; without one it listens on every address.
    """
    return TCPStore(
        host,
        port,
        is_master=is_master,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout),
        use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
        multi_tenant=True,
        master_listen_fd=listening,
    )


def serve_loopback_store(timeout: float, address: str = "127.0.0.1", port: int = 0) -> TCPStore:
    """Serve a store to the ranks on this node: it has no password, so it listens on the loopback alone.

    Args:
        timeout: Seconds that its clients wait for it.
        address: Loopback address.
        port: To listen at. Default: a free one.

    Raises:
        OSError: The port is in use.
    """
    listener = socket.create_server((address, port))
    port = listener.getsockname()[1]
    return open_tcp_store(address, port, timeout, is_master=True, listening=listener.detach())


def local_rendezvous(store: TCPStore, config: ResolvedTrainConfig) -> Rendezvous:
    """Return the rendezvous of ranks on this node."""
    return Rendezvous(port=store.port, backend=backend_for_devices(config.devices))


def backend_for_devices(devices: Sequence[str]) -> str:
    """Return the backend for ranks on these devices of a node.

    >>> backend_for_devices(["cuda:0", "cuda:1"]), backend_for_devices(["cuda:0", "cuda:0"])
    ('cpu:gloo,cuda:nccl', 'gloo')
    """
    # NCCL refuses two ranks on one GPU.
    own = len(set(devices)) == len(devices) and "cpu" not in devices
    return "cpu:gloo,cuda:nccl" if own else "gloo"


class ProcessGroup:
    """One rank's connection to the others.

    Args:
        rendezvous: Where the ranks find each other.
        rank: This rank's number.
        size: Number of ranks.
        device: Device that the rank computes on.
        timeout: Seconds to wait for the other ranks before giving them up for lost.
        recorder: Records the collectives, and dumps them if other ranks are lost. Default: none.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        rank: int,
        size: int,
        device: torch.device,
        timeout: float,
        recorder: FlightRecorder | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.stopwatch = Stopwatch()
        """Receives the time spent on exchanges; by default a stopwatch that nobody reads."""

        self.device = device if rendezvous.backend != "gloo" else torch.device("cpu")
        """Where buffers are summed."""

        self._recorder = recorder
        if recorder is not None:
            recorder.start(self.device)
        if rendezvous.one_node:
            # Listen only on the loopback: neither library has a password.
            os.environ |= {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
        with self.exit_on_peer_loss():
            # By default, torch.distributed waits 30 minutes for a rank whose node is gone.
            patience = timedelta(seconds=timeout)
            self._store = PrefixStore(
                rendezvous.prefix, open_tcp_store(rendezvous.host, rendezvous.port, timeout, is_master=False)
            )
            dist.init_process_group(rendezvous.backend, store=self._store, rank=rank, world_size=size, timeout=patience)

    @contextmanager
    def exit_on_peer_loss(self) -> Iterator[None]:
        """Exit with ``PEER_LOST`` when another rank is gone."""
        try:
            yield
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            # This rank's own device has failed.
            raise
        except RuntimeError:
            # An operation that fails while a CUDA graph is captured may still work without a graph.
            if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise
            # If a GPU has failed, NCCL reports only that a call of CUDA has failed.
            gpu.check_works(self.device)
            logger.exception("lost the other ranks")
            if self._recorder is not None:
                self._recorder.keep_dump(self.device)
            sys.stderr.flush()
            # Exit at once: closing what is left of the connections may wait for the lost ranks.
            os._exit(PEER_LOST)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        self.stopwatch.lap("compute")
        yield
        self.stopwatch.lap("exchange")

    def wait_for_all(self, record_activity: Callable[[], None]) -> None:
        """Wait, once, until every rank is ready for steps, as some take minutes longer than others.

        Args:
            record_activity: Called while waiting: a rank that waits is not stuck, but the one that it waits for may be.
        """
        deadline = time.monotonic() + MEETING_SECONDS
        with self.exit_on_peer_loss():
            self._store.set(f"steps/{self.rank}", "")
            while not self._store.check([f"steps/{rank}" for rank in range(self.size)]):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the other ranks were not ready for steps within {MEETING_SECONDS:g} s")
                record_activity()
                time.sleep(POLL_SECONDS)

    def all_reduce(self, buffer_N: Tensor) -> None:
        """Replace the numbers of every rank by their sum over all ranks."""
        with self._timed(), self.exit_on_peer_loss():
            dist.all_reduce(buffer_N)

    def exchange_with_neighbors(self, out_N: Tensor, into_N: Tensor) -> None:
        """Send numbers to the next rank of the ring, and receive as many as fit from the one before."""
        after = (self.rank + 1) % self.size
        before = (self.rank - 1) % self.size
        pairs = ((dist.isend, out_N, after), (dist.irecv, into_N, before))
        transfers = [dist.P2POp(way, part_N, peer) for way, part_N, peer in pairs if part_N.numel()]
        with self._timed(), self.exit_on_peer_loss():
            for transfer in dist.batch_isend_irecv(transfers) if transfers else ():
                transfer.wait()

    def broadcast(self, arrays: list[Tensor], facts: list[object]) -> None:
        """Replace the values of all other ranks by the first rank's.

        Args:
            arrays: Of the same shapes in every rank.
            facts: Values that JSON can hold, so that a stranger on the network can inject nothing worse than wrong
                values.
        """
        with self.exit_on_peer_loss():
            # JSON and not pickle, which could run code: torch's own broadcast of objects unpickles.
            text = torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8).to(self.device)
            size = torch.tensor([len(text)], device=self.device)
            dist.broadcast(size, src=0)
            text = text if self.rank == 0 else text.new_empty(int(size))
            dist.broadcast(text, src=0)
            facts[:] = json.loads(text.cpu().numpy().tobytes())
            for array in arrays:
                # Views of padded arrays are not contiguous: gloo would send the first N numbers in memory.
                ours = array.to(self.device).contiguous()
                dist.broadcast(ours, src=0)
                array.copy_(ours)

    def close(self) -> None:
        """Wait for the others and close the connections."""
        with self.exit_on_peer_loss():
            dist.barrier()
        dist.destroy_process_group()
