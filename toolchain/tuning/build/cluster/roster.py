"""Which workers of a scheduler there are, which of them are taken, and why the others are not."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from toolchain.errors import BuildersError, ToolchainError, VerificationError
from toolchain.tuning.build.cluster import member
from toolchain.tuning.build.cluster.scheduler import Scheduler, short, words_of

_LOOK_S = 1.0
_ANSWER_S = 10.0


@dataclass
class Worker:
    """A worker of the scheduler's.

    Attributes:
        address: Its address, as Dask names it.
        id: What tells it from one that is started anew at the same address.
        threads: How many candidates it compiles at a time.
        refused: Why it is given nothing; empty if it is taken.
        is_there: Whether the scheduler still knows it.
    """

    address: str
    id: str
    threads: int
    refused: str = ""
    is_there: bool = True

    @property
    def is_taken(self) -> bool:
        """Whether it is given jobs."""
        return self.is_there and not self.refused

    @property
    def note(self) -> str:
        """What happened to it."""
        return f"refused: {self.refused}" if self.refused else "" if self.is_there else "gone"


@dataclass
class Roster:
    """The workers of a scheduler, looked at every second; to be used in a `with` statement.

    Attributes:
        scheduler: Where they are.
        client: A client of it.
        target: TVM target as JSON text.
        tell: Called with a line about a worker that comes, goes or is refused.
        name: What our crew is called at each worker.
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
        """Take the workers that there are.

        Raises:
            BuildersError: There is none, or the scheduler is lost.
            VerificationError: There are some, and all are refused, or the scheduler knows no toolchain.
        """
        self._check_scheduler()
        self._look(self._there())
        if not self._workers:
            raise BuildersError(
                f"the Dask scheduler at {self.scheduler} has no workers",
                hint=f"start one where candidates are to be compiled: `dask worker {self.client.scheduler.address}`",
            )
        if not self.taken:
            raise VerificationError(
                f"every worker of the Dask scheduler at {self.scheduler} is refused",
                details="\n".join(f"{one.address}: {one.refused}" for one in self._workers.values()),
                hint="install the same versions there: requirements.lock has them, and the image `host`",
            )
        self._thread = threading.Thread(target=self._keep_looking, name="builders", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Have the workers end our crew; one that does not answer does so by itself after a while."""
        self._ended.set()
        self._thread.join(_ANSWER_S)
        farewell = threading.Thread(target=self._dismiss, daemon=True)
        farewell.start()
        farewell.join(_ANSWER_S)

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All workers that there were."""
        return tuple(self._workers.values())

    @property
    def taken(self) -> tuple[str, ...]:
        """Addresses of those that are given jobs."""
        return tuple(one.address for one in self.workers if one.is_taken) if self._is_answering else ()

    def strike(self, addresses: Iterable[str], why: str) -> None:
        """Give some workers nothing more.

        Args:
            addresses: Which ones.
            why: What they did.
        """
        for address in addresses:
            if (worker := self._workers.get(address)) and worker.is_taken:
                worker.refused = why
                self.tell(f"warning: builder {address}: refused from now on: {why}")

    def _check_scheduler(self) -> None:
        """See that the scheduler, which reads what it passes on, can do so."""
        try:
            self.client.run_on_scheduler(member.identity)
        except Exception as fault:  # of Dask's many classes
            raise VerificationError(
                f"the Dask scheduler at {self.scheduler} has no toolchain that compiles for others",
                details=words_of(fault),
                hint="start it where the same toolchain is installed, or in the image `host`",
            ) from fault

    def _keep_looking(self) -> None:
        while not self._ended.wait(_LOOK_S):
            try:
                self._look(self._there())
            except ToolchainError as fault:
                if self._is_answering:
                    self.tell(f"warning: {fault.message}: candidates are compiled here meanwhile")
                self._is_answering = False

    def _there(self) -> Mapping[str, Mapping[str, Any]]:
        workers = there(self.scheduler, self.client)
        self._is_answering = True
        return workers

    def _look(self, present: Mapping[str, Mapping[str, Any]]) -> None:
        """See who came and who went."""
        for worker in self.workers:
            if worker.is_there and (worker.address not in present or present[worker.address]["id"] != worker.id):
                worker.is_there = False
                self.tell(f"builder {worker.address}: gone")
        known = {worker.id for worker in self.workers}
        fresh = [Worker(address, one["id"], int(one["nthreads"])) for address, one in present.items()]
        self._enlist([worker for worker in fresh if worker.id not in known])

    def _enlist(self, fresh: list[Worker]) -> None:
        """Have workers join, and compare what they are with what this machine is."""
        if not fresh:
            return
        wanted = member.identity()
        addresses = [worker.address for worker in fresh]
        try:
            answers = self.client.run(member.join, self.name, self.target, wanted, workers=addresses, on_error="return")
        except Exception as fault:  # as above
            raise BuildersError(f"the Dask scheduler at {self.scheduler} is lost", details=words_of(fault)) from fault
        for worker in fresh:
            worker.refused = difference(answers.get(worker.address), wanted)
            self._workers[worker.address] = worker
            said = f"refused: {worker.refused}" if worker.refused else f"{worker.threads} at a time"
            self.tell(f"{'warning: ' if worker.refused else ''}builder {worker.address}: {said}")

    def _dismiss(self) -> None:
        present = [worker.address for worker in self.workers if worker.is_there]
        try:
            self.client.run(member.leave, self.name, workers=present, on_error="ignore")
        except Exception as fault:  # noqa: BLE001 - as above
            self.tell(f"warning: builders were not told that this run is over, and find out: {words_of(fault)}")


def there(scheduler: Scheduler, client: Any) -> Mapping[str, Mapping[str, Any]]:
    """Ask a scheduler for its workers, by their addresses.

    Raises:
        BuildersError: It is lost.
    """
    try:
        known = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=_ANSWER_S)
    except Exception as fault:  # of Dask's many classes, and whatever a scheduler makes of its own
        raise BuildersError(f"the Dask scheduler at {scheduler} is lost", details=words_of(fault)) from fault
    workers: Mapping[str, Mapping[str, Any]] = known["workers"]
    return workers


def difference(answer: Any, wanted: Mapping[str, str]) -> str:
    """Say in what a worker is not what is wanted; nothing if it is."""
    if isinstance(answer, BaseException) or type(answer) is not dict:
        return f"it has no toolchain that compiles for others, {words_of(answer)}; toolchain {wanted['toolchain']} here"
    if answer == wanted:
        return ""
    parts = [f"{name} {short(str(answer.get(name)))} there, {mine} here" for name, mine in wanted.items()]
    return "; ".join(part for part, name in zip(parts, wanted, strict=True) if answer.get(name) != wanted[name])
