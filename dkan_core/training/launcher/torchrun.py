"""Runs under torchrun, on one node or several: torchrun starts a launcher per rank, each with one collective worker.

The process of rank 0 is the launcher that writes the run, with the evaluator next to its collective worker. The
others write nothing: they learn from it what to train, and at the end how it went.
"""

import ipaddress
import itertools
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch._C._distributed_c10d import PrefixStore, TCPStore

from dkan_core.config import ResolvedTrainConfig, build_config
from dkan_core.data.format.manifest import PreparedData
from dkan_core.errors import ConfigError, DkanError, TrainingError
from dkan_core.model.architecture import ModelConfig
from dkan_core.training.communication.process_group import backend_for_devices, open_tcp_store, serve_loopback_store
from dkan_core.training.communication.rendezvous import Rendezvous, TorchRun
from dkan_core.training.compute.flat_model import parameter_count
from dkan_core.training.launcher.child_processes import Child
from dkan_core.training.launcher.fork_server_client import ForkServer
from dkan_core.training.launcher.run_log import describe
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.setup.parameter_groups import parameter_groups
from dkan_core.training.setup.placement import Placement
from dkan_core.training.setup.untrained_model import untrained_model
from dkan_core.training.state.shared_memory import MemoryShape, create_memory
from dkan_core.utils.signals import handle_signal
from dkan_core.utils.storage.scratch import scratch_folder

# Pause between two requests to the store, which is over the network.
POLL_SECONDS = 0.1
# How often rank 0 logs which ranks it waits for.
SILENCE_SECONDS = 10.0

# How long rank 0 keeps its own store open for ranks that have not read the result.
FAREWELL_SECONDS = 30.0

_runs = itertools.count()
AnswerT = TypeVar("AnswerT")

logger = logging.getLogger(__name__)


class Ranks:
    """The launchers of a run, and what they tell each other.

    Args:
        torchrun: This rank and its peers, from the variables that torchrun sets.
        timeout: Seconds to wait for an answer of the store.
    """

    def __init__(self, torchrun: TorchRun, timeout: float) -> None:
        self.torchrun = torchrun
        self.timeout = timeout
        self._keeps_store = torchrun.rank == 0 and not torchrun.agent_has_store
        self._prefix = f"dkan/{torchrun.attempt}/{next(_runs)}"
        try:
            store = self._open_rank_store()
        except (RuntimeError, OSError) as error:
            what = f"cannot listen at {torchrun.host}:{torchrun.port} for" if self._keeps_store else "lost"
            raise TrainingError(f"{what} the other ranks: {error}") from error
        self._store = PrefixStore(self._prefix, store)

    def _open_rank_store(self) -> TCPStore:
        """Connect to the store, or serve it: on the loopback alone where every rank is on this node."""
        torchrun = self.torchrun
        if self._keeps_store and torchrun.one_node:
            address = socket.gethostbyname(torchrun.host)
            if ipaddress.ip_address(address).is_loopback:
                return serve_loopback_store(self.timeout, address, torchrun.port)
        return open_tcp_store(torchrun.host, torchrun.port, self.timeout, is_master=self._keeps_store)

    def wait_until_ready(self, device: str, data: str) -> None:
        """Signal that this rank has its data; rank 0 waits for all signals, as ranks wait only shortly for each other.

        Rank 0 also waits for a rank that dies before its signal and is started again.

        Args:
            device: A device that this rank has found; its kind must be that of the other ranks.
            data: Fingerprint of its data.

        Raises:
            ConfigError: A rank has found another kind of device, or other data.
            TrainingError: A rank cannot read its data, or its settings are wrong.
        """
        facts = {"device": device.partition(":")[0], "prepared data with fingerprint": data[:12]}
        self.publish_value(f"ready/{self.torchrun.rank}", facts)
        # Reading the data may take minutes on one node; the exchange between ranks has a short timeout.
        missing = [] if self.torchrun.rank else list(range(self.torchrun.size))
        patience = time.monotonic() + SILENCE_SECONDS
        while missing := [rank for rank in missing if not self._has(f"ready/{rank}")]:
            if self._has("failed"):
                raise TrainingError(self._read("failed"))
            if time.monotonic() > patience:
                logger.info("waiting for the data of ranks %s", ", ".join(map(str, missing)))
                patience = time.monotonic() + SILENCE_SECONDS
            time.sleep(POLL_SECONDS)
        if self.torchrun.rank == 0:
            self._check_ranks_have(facts)

    def _check_ranks_have(self, facts: dict[str, str]) -> None:
        """Raise ConfigError unless every rank has the same facts."""
        for rank in range(1, self.torchrun.size):
            for name, theirs in self.wait_for_value(f"ready/{rank}").items():
                if theirs != facts[name]:
                    raise ConfigError(f"rank {rank} has {name} {theirs}, but rank 0 has {facts[name]}")

    def report_failure(self, error: DkanError) -> None:
        """Tell rank 0, which waits for this rank, why it failed."""
        self.publish_value("failed", f"rank {self.torchrun.rank}: {error}")

    @contextmanager
    def told_of_failure(self) -> Iterator[None]:
        """Tell the others, which wait for values of this rank 0, if it ends with an exception, such as by Ctrl-C."""
        try:
            yield
        except BaseException as error:
            with suppress(TrainingError):
                self.publish_value("ended", describe(error))
            raise

    def rendezvous(self, config: ResolvedTrainConfig) -> Rendezvous:
        """Return where the ranks find each other."""
        backend = backend_for_devices(config.devices[: self.torchrun.local_size])
        host = self.torchrun.host
        port = self.torchrun.port
        return Rendezvous(host=host, port=port, prefix=f"{self._prefix}/ranks", backend=backend, one_node=False)

    def publish_value(self, key: str, value: Any) -> None:
        """Publish a value to the other ranks."""
        self._ask(lambda: self._store.set(key, json.dumps(value)))

    def wait_for_value(self, key: str) -> Any:
        """Wait for a value that rank 0 publishes.

        Raises:
            TrainingError: Rank 0 has failed.
        """
        while not self._has(key):
            if self._has("ended"):
                raise TrainingError(f"rank 0 has ended without a result ({self._read('ended')})")
            time.sleep(POLL_SECONDS)
        return self._read(key)

    def leave(self) -> None:
        """Signal that this rank has read everything; the rank with the store waits for the signals of the others."""
        deadline = time.monotonic() + FAREWELL_SECONDS
        count = self._ask(lambda: self._store.add("parted", 1))
        while self._keeps_store and count < self.torchrun.size and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            count = self._ask(lambda: self._store.add("parted", 0))

    def _has(self, key: str) -> bool:
        return self._ask(lambda: self._store.check([key]))

    def _read(self, key: str) -> Any:
        return json.loads(self._ask(lambda: self._store.get(key)))

    def _ask(self, call: Callable[[], AnswerT]) -> AnswerT:
        """Return the store's answer; with a timeout, as the store's client waits forever if the network was cut.

        Raises:
            TrainingError: The store is gone, or does not answer.
        """
        answer: Future[AnswerT] = Future()

        def ask() -> None:
            try:
                answer.set_result(call())
            except Exception as error:
                answer.set_exception(error)

        threading.Thread(target=ask, daemon=True).start()
        try:
            return answer.result(self.timeout)
        except TimeoutError:
            where = f"{self.torchrun.host}:{self.torchrun.port}"
            raise TrainingError(f"lost the other ranks: no answer from {where} for {self.timeout:g} s") from None
        except RuntimeError as error:
            raise TrainingError(f"lost the other ranks: {error}") from error


def run_following_rank(
    ranks: Ranks, data: Path, manifest: PreparedData, config: ResolvedTrainConfig, logs: str
) -> dict[str, Any]:
    """Run this rank's collective worker, if there is something to train; return the result that rank 0 publishes.

    Args:
        ranks: This one and the others.
        data: Prepared folder.
        manifest: What is in it.
        config: Resolved settings.
        logs: Folder of the run for libraries' debug output; empty if the run's folder is remote.

    Raises:
        UserError: The collective worker found the data wrong.
        TrainingError: The collective worker died, or rank 0 is gone.
    """
    # Ctrl-C is left to rank 0, which ends the run for all.
    with ForkServer() as fork_server, handle_signal(signal.SIGINT, signal.SIG_IGN):
        ranks.wait_until_ready(config.devices[0], manifest.fingerprint)
        facts = ranks.wait_for_value("facts")
        if facts is not None:
            spec = replace(_collective_worker_spec(ranks, data, manifest, config, facts), logs=logs)
            with scratch_folder() as scratch:
                child = fork_server.spawn(spec, scratch / f"{spec.name}.log")
                try:
                    _watch(child)
                finally:
                    child.end()
                    os.close(spec.memory)
        result: dict[str, Any] = ranks.wait_for_value("result")
        ranks.leave()
        return result


def _collective_worker_spec(
    ranks: Ranks, data: Path, manifest: PreparedData, config: ResolvedTrainConfig, facts: dict[str, Any]
) -> ProcessSpec:
    """Return the spec of this rank's collective worker; ``facts`` are the ``run_facts`` of rank 0."""
    # Settings may follow from the model of init_from, which rank 0 alone has read.
    shared = build_config(ResolvedTrainConfig, facts["settings"])
    config = replace(shared, device=config.device, data_in=config.data_in)
    model = facts["architecture"]
    untrained = untrained_model(ModelConfig.from_dict(model), manifest, config)
    rank = ranks.torchrun.rank
    rows = manifest.splits["train"].rows
    placement = Placement.from_config(config, ranks.torchrun)
    shape = MemoryShape.from_config(config, parameter_count(untrained))
    return ProcessSpec(
        role="collective-worker",
        rank=rank,
        device=placement.device_of("collective-worker", rank),
        threads=placement.threads,
        prepared=str(data),
        fingerprint=manifest.fingerprint,
        run="",
        config=config,
        model=model,
        train_rows=rows,
        groups=parameter_groups(untrained, config, rows),
        shape=shape,
        memory=create_memory(shape).handle,
        wakeups={},
        rendezvous=ranks.rendezvous(config).for_generation(1),
    )


def _watch(child: Child) -> None:
    """Wait for the end of a collective worker, and raise the error that it reports."""
    while not child.channel.lost:
        list(child.messages())  # it has nothing to say but an error, which is raised here
        time.sleep(POLL_SECONDS)
    if child.wait():
        raise TrainingError(child.describe_death())
