"""The workers of a scheduler: which of them are used, why the others are refused, and their status for the farm."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from toolchain.errors import BuildersError, ToolchainError, VerificationError
from toolchain.tuning.build.cluster import member
from toolchain.tuning.build.cluster.scheduler import Scheduler, error_text, shorten

_UPDATE_S = 1.0
_ANSWER_S = 10.0


@dataclass
class Worker:
    """A worker of the scheduler.

    Attributes:
        address: Its address, as Dask writes it.
        id: Distinguishes it from a worker that is restarted at the same address.
        threads: Candidates that it compiles at a time.
        refused: Why it gets no jobs; empty if it gets some.
        is_present: Whether the scheduler still knows it.
    """

    address: str
    id: str
    threads: int
    refused: str = ""
    is_present: bool = True

    @property
    def is_used(self) -> bool:
        return self.is_present and not self.refused

    @property
    def note(self) -> str:
        """What happened to it; empty if nothing did."""
        return f"refused: {self.refused}" if self.refused else "" if self.is_present else "gone"


@dataclass
class Roster:
    """The workers of a scheduler, updated every second. Use it in a `with` statement.

    Attributes:
        scheduler: The scheduler.
        client: A client of it.
        target: TVM target as JSON text.
        tell: Called with a line about a worker that joins, leaves or is refused.
        name: Name of our crew at each worker.
    """

    scheduler: Scheduler
    client: Any
    target: str
    tell: Callable[[str], None]
    name: str = field(default_factory=lambda: f"edge-toolchain-{uuid.uuid4().hex}")
    _workers: dict[str, Worker] = field(default_factory=dict)
    _is_answering: bool = True
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        """Accept the present workers.

        Raises:
            BuildersError: There is none, or the scheduler is lost.
            VerificationError: All are refused, or the scheduler has no toolchain.
        """
        try:  # the scheduler deserializes the jobs that it passes on, so it needs our modules, too
            self.client.run_on_scheduler(member.identity)
        except Exception as fault:  # Dask raises many classes
            raise VerificationError(
                f"the Dask scheduler at {self.scheduler} has no toolchain that compiles for others",
                details=error_text(fault),
                hint="start it where the same toolchain is installed, or in the image `host`",
            ) from fault
        self._update(self._present())
        if not self._workers:
            raise BuildersError(
                f"the Dask scheduler at {self.scheduler} has no workers",
                hint=f"start one where candidates are to be compiled: `dask worker {self.client.scheduler.address}`",
            )
        if not self.used:
            raise VerificationError(
                f"every worker of the Dask scheduler at {self.scheduler} is refused",
                details="\n".join(f"{worker.address}: {worker.refused}" for worker in self._workers.values()),
                hint="install the same versions there: requirements.lock has them, and the image `host`",
            )
        self._thread = threading.Thread(target=self._keep_updating, name="builders", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let the workers end our crew; one that does not answer ends it after a while by itself."""
        self._ended.set()
        self._thread.join(_ANSWER_S)
        # In a thread of its own, since a call to lost workers may take very long.
        dismissal = threading.Thread(target=self._dismiss, daemon=True)
        dismissal.start()
        dismissal.join(_ANSWER_S)

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(self._workers.values())

    @property
    def used(self) -> tuple[str, ...]:
        return tuple(worker.address for worker in self.workers if worker.is_used) if self._is_answering else ()

    def strike(self, addresses: Iterable[str], why: str) -> None:
        """Give some workers no further jobs."""
        for address in addresses:
            if (worker := self._workers.get(address)) and worker.is_used:
                worker.refused = why
                self.tell(f"warning: builder {address}: refused from now on: {why}")

    def _keep_updating(self) -> None:
        while not self._ended.wait(_UPDATE_S):
            try:
                self._update(self._present())
            except ToolchainError as fault:
                if self._is_answering:
                    self.tell(f"warning: {fault.message}: candidates are compiled here meanwhile")
                self._is_answering = False

    def _present(self) -> Mapping[str, Mapping[str, Any]]:
        workers = list_workers(self.scheduler, self.client)
        self._is_answering = True
        return workers

    def _update(self, present: Mapping[str, Mapping[str, Any]]) -> None:
        """Note the workers that have left, and let the new ones join."""
        for worker in self.workers:
            if worker.is_present and (worker.address not in present or present[worker.address]["id"] != worker.id):
                worker.is_present = False
                self.tell(f"builder {worker.address}: gone")
        # By ID, since a restarted worker has the address of its predecessor.
        ids = {worker.id for worker in self.workers}
        candidates = [Worker(address, facts["id"], int(facts["nthreads"])) for address, facts in present.items()]
        workers = [worker for worker in candidates if worker.id not in ids]
        if not workers:
            return
        identity = member.identity()
        args, addresses = (self.name, self.target, identity), [worker.address for worker in workers]
        try:
            answers = self.client.run(member.join, *args, workers=addresses, on_error="return")
        except Exception as fault:  # Dask raises many classes
            raise BuildersError(f"the Dask scheduler at {self.scheduler} is lost", details=error_text(fault)) from fault
        for worker in workers:
            worker.refused = difference(answers.get(worker.address), identity)
            self._workers[worker.address] = worker
            status = f"refused: {worker.refused}" if worker.refused else f"{worker.threads} at a time"
            self.tell(f"{'warning: ' if worker.refused else ''}builder {worker.address}: {status}")

    def _dismiss(self) -> None:
        present = [worker.address for worker in self.workers if worker.is_present]
        try:
            self.client.run(member.leave, self.name, workers=present, on_error="ignore")
        except Exception as fault:  # noqa: BLE001 - Dask raises many classes
            self.tell(f"warning: builders could not be told that this run is over: {error_text(fault)}")


def list_workers(scheduler: Scheduler, client: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return the workers of a scheduler by their addresses.

    Raises:
        BuildersError: It is lost.
    """
    try:
        identity = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=_ANSWER_S)
    except Exception as fault:  # Dask raises many classes, and a scheduler may send its own
        raise BuildersError(f"the Dask scheduler at {scheduler} is lost", details=error_text(fault)) from fault
    workers: Mapping[str, Mapping[str, Any]] = identity["workers"]
    return workers


def difference(answer: Any, identity: Mapping[str, str]) -> str:
    """Return how the identity of a worker differs from ours; empty if it does not."""
    if isinstance(answer, BaseException) or type(answer) is not dict:
        fault = f"it has no toolchain that compiles for others, {error_text(answer)}"
        return f"{fault}; toolchain {identity['toolchain']} here"
    return "; ".join(
        f"{name} {shorten(str(answer.get(name)))} there, {version} here"
        for name, version in identity.items()
        if answer.get(name) != version
    )


@dataclass(frozen=True)
class BuilderStatus:
    """The status of a builder.

    Attributes:
        name: Its address.
        processes: Candidates that it compiles at a time.
        candidates: Pending candidates of all tuning runs.
        refused: Why a tuning run of this toolchain would not use it; empty if it would.
    """

    name: str
    processes: int
    candidates: int
    refused: str = ""


def survey(scheduler: Scheduler) -> tuple[BuilderStatus, ...]:
    """Return the status of a scheduler's workers, in the order of their addresses.

    Raises:
        InputError: Dask is not installed, or the connection is not safe.
        BuildersError: No scheduler answers.
    """
    with scheduler.client() as client:
        workers = list_workers(scheduler, client)
        identity = member.identity()
        try:
            pending = client.processing()
            answers = client.run(member.identity, workers=list(workers), on_error="return") if workers else {}
        except Exception as fault:  # Dask raises many classes
            raise BuildersError(f"the Dask scheduler at {scheduler} is lost", details=error_text(fault)) from fault
    return tuple(
        BuilderStatus(
            address,
            int(facts["nthreads"]),
            len(pending.get(address, ())),
            difference(answers.get(address), identity),
        )
        for address, facts in sorted(workers.items())
    )
