"""The crew of a builder whose candidates are compiled by the workers of a Dask cluster, and here where that fails."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from toolchain.errors import BuildError
from toolchain.tuning.build.cluster import answers
from toolchain.tuning.build.cluster.answers import Answer
from toolchain.tuning.build.cluster.scheduler import Scheduler, words_of
from toolchain.tuning.build.crew import LocalCrew
from toolchain.tuning.report import BuilderRow

_MOST_JOBS = 64  # at a time; a round has 16 candidates
_TICK_S = 0.5
# No answer of any job for so long after the deadline of one: whoever has it hangs. A crew starts within that, too.
_SILENCE_S = 120.0
_SCHEDULER_S = 10.0
# Why a job is done here.
_FAILED, _LOST, _WRONG, _ALONE = "failed there", "lost", "answered wrongly", "without a builder"

_T = TypeVar("_T")


class _NotDoneError(Exception):
    """A job that the cluster did not do.

    Args:
        why: One of the above.
        words: What was said about it.
    """

    def __init__(self, why: str, words: str = "") -> None:
        super().__init__(why, words)
        self.why, self.words = why, words


class DaskCrew:
    """Hands jobs to the workers of a Dask scheduler; what they do not do is done here. To be used in `with`.

    Args:
        scheduler: Where they are.
        triple: GNU triple that the objects have to be for.
        tell: Called with lines about the workers.
        target: TVM target as JSON text.
        folder: Where what processes of this machine print goes.
    """

    def __init__(
        self, scheduler: Scheduler, triple: str, tell: Callable[[str], None], target: str, folder: Path
    ) -> None:
        self._scheduler = scheduler
        self._triple = triple
        self._tell = tell
        self._target = target
        self._folder = folder
        self._lock = threading.Lock()
        self._local: LocalCrew | None = None
        self._heard = time.monotonic()
        self._is_closed = False
        self._done: Counter[str] = Counter()
        self._again: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(_MOST_JOBS, thread_name_prefix="build")
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Connect, and take the workers that are like this machine.

        Raises:
            ToolchainError: There are none; `Roster` says of which class.
        """
        with contextlib.ExitStack() as stack:
            self._client = stack.enter_context(self._scheduler.client())
            from toolchain.tuning.build.cluster import member, roster  # noqa: PLC0415 - they import Dask, which is there

            self._compiled = member.compiled
            self._roster = stack.enter_context(roster.Roster(self._scheduler, self._client, self._target, self._tell))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End what the workers do for us, and what is done here."""
        with self._lock:
            self._is_closed = True
        try:
            self._open.close()
        finally:
            if self._local is not None:
                self._local.__exit__()
            self._threads.shutdown(cancel_futures=True)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process IDs of the workers on this machine."""
        return self._local.pids if self._local else ()

    @property
    def rows(self) -> tuple[BuilderRow, ...]:
        """What each worker did, and this machine in the end, if it had to."""
        found = [
            BuilderRow(one.address, one.threads if one.is_taken else 0, self._done[one.address], one.note)
            for one in self._roster.workers
        ]
        if self._local is not None:
            causes = ", ".join(f"{number} {why}" for why, number in sorted(self._again.items()))
            found.append(BuilderRow("this machine", _processors(), self._again.total(), causes))
        return tuple(found)

    def map(self, call: Callable[..., _T], *arguments: Iterable[Any]) -> Iterator[_T]:
        """Call a function, which is to ask once, with each tuple of arguments."""
        return self._threads.map(call, *arguments)

    def ask(self, job: dict[str, Any], timeout_s: float) -> tuple[dict[str, Any], float]:
        """Have a job done by a worker; what fails there is done here, too, since it may be the fault of that machine.

        Returns:
            The answer, and the seconds that it took.

        Raises:
            BuildError: No process can be started here.
            InputError: There is no room for the objects.
        """
        try:
            answer = self._elsewhere(job, timeout_s)
        except _NotDoneError as fault:
            return self._here(fault).ask(job, timeout_s)
        with self._lock:
            self._done[answer.worker] += 1
        return answer.put(Path(job["folder"])), answer.seconds

    def _elsewhere(self, job: dict[str, Any], timeout_s: float) -> Answer:
        """Have a job done by one of the workers that are taken now, whichever Dask chooses.

        Raises:
            _NotDoneError: None did it.
        """
        among = self._roster.taken
        if not among:
            raise _NotDoneError(_ALONE)
        try:
            words = (self._roster.name, job["module"], timeout_s)
            future = self._client.submit(self._compiled, *words, workers=list(among), pure=False)
            try:
                found = self._checked(future, self._result(future, among, timeout_s))
            finally:
                future.release()
        except _NotDoneError:
            raise
        except Exception as fault:  # of Dask's many classes, and whatever a worker makes of its own
            raise _NotDoneError(_LOST, words_of(fault)) from fault
        if not found.objects:
            raise _NotDoneError(_FAILED)
        return found

    def _result(self, future: Any, among: Sequence[str], timeout_s: float) -> Any:
        """Wait for what a worker answers, as long as one that may be asked is there and some job is answered."""
        began = time.monotonic()
        while True:
            try:
                found = future.result(timeout=_TICK_S)
            except TimeoutError:
                if future.status == "error":
                    raise
            else:
                self._heard = time.monotonic()
                return found
            if self._is_closed or not set(among) & set(self._roster.taken):
                raise _NotDoneError(_LOST)
            if time.monotonic() - max(began, self._heard) > timeout_s + _SILENCE_S:
                asked = self._asked(self._client.scheduler.processing, workers=None)
                self._roster.strike((one for one, keys in asked.items() if future.key in keys), "it does not answer")
                raise _NotDoneError(_LOST)

    def _checked(self, future: Any, found: Any) -> Answer:
        """Return an answer that is one; whoever gave another is asked no more."""
        answer = answers.read(found, self._triple)
        if isinstance(answer, Answer) and answer.worker in self._roster.taken:
            return answer
        fault = answer if isinstance(answer, str) else "it says that it is another"
        holders = self._asked(self._client.scheduler.who_has, keys=[future.key]).get(future.key, ())
        self._roster.strike(holders, f"a wrong answer: {fault}")
        raise _NotDoneError(_WRONG)

    def _asked(self, question: Callable[..., Any], **words: Any) -> Mapping[Any, Any]:
        found: Mapping[Any, Any] = self._client.sync(question, **words, callback_timeout=_SCHEDULER_S)
        return found

    def _here(self, fault: _NotDoneError) -> LocalCrew:
        """Return the processes of this machine, which are started the first time that they are needed."""
        with self._lock:
            if self._is_closed:
                raise BuildError("the builders were sent home in the middle of a job")
            if not self._again[fault.why]:
                said = f" ({fault.words})" if fault.words else ""
                self._tell(f"this machine compiles what builders do not: a candidate {fault.why}{said}")
            self._again[fault.why] += 1
            if self._local is None:
                self._local = LocalCrew(self._target, self._folder, _processors()).__enter__()
            return self._local


def _processors() -> int:
    return os.cpu_count() or 1
