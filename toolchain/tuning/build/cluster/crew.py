"""A crew whose candidates are compiled by the workers of a Dask cluster, or on this machine if that fails.

The answers of remote workers are not trusted, so each is validated.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from toolchain import files
from toolchain.errors import BuildError
from toolchain.native.elf import is_object
from toolchain.tuning.build.cluster.scheduler import Scheduler, error_text
from toolchain.tuning.build.crew import LocalCrew
from toolchain.tuning.report import BuilderRow

_MOST_OBJECTS = 16
_MOST_BYTES = 64 << 20
_LONGEST_S = 86400.0
_SHAPE = {"worker": str, "objects": list, "seconds": float}

_MOST_JOBS = 64  # at a time
_TICK_S = 0.5
# A worker hangs if no job at all was answered for so long after the deadline of its job.
# A crew also starts in that time.
_SILENCE_S = 120.0
_SCHEDULER_S = 10.0
# Why a job is done on this machine.
_FAILED, _LOST, _WRONG, _ALONE = "failed there", "lost", "answered wrongly", "without a builder"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Answer:
    """The result of compiling a candidate on a remote worker.

    Attributes:
        worker: The address of the worker, by its own account.
        objects: The object files; empty if the compilation failed.
        seconds: Its duration.
    """

    worker: str
    objects: tuple[bytes, ...]
    seconds: float

    def put(self, folder: Path) -> dict[str, Any]:
        """Write the objects to a new folder, and return the answer as a worker of this machine gives it.

        Raises:
            InputError: They cannot be written.
        """
        # Names are ours, not those of the worker.
        paths = [folder / f"{number}.o" for number in range(len(self.objects))]
        try:
            folder.mkdir()
            for path, data in zip(paths, self.objects, strict=True):
                path.write_bytes(data)
        except OSError as fault:
            raise files.unwritable(folder, fault) from fault
        return {"objects": list(map(str, paths))}


def read_answer(answer: Any, triple: str) -> Answer | str:
    """Return an answer as an `Answer`, or what is wrong with it as text."""
    # Exact types, since subclasses could redefine what is called below.
    if type(answer) is not dict or {name: type(value) for name, value in answer.items()} != _SHAPE:
        return "it is not a valid answer"
    objects = answer["objects"]
    are_valid = all(type(data) is bytes and is_object(data, triple) for data in objects)
    sizes = [len(data) if type(data) is bytes else 0 for data in objects]
    faults = {
        "its duration is not possible": not 0 <= answer["seconds"] <= _LONGEST_S,  # which NaN fails, too
        "its objects are too many": len(objects) > _MOST_OBJECTS,
        f"its objects are not for {triple}": not are_valid,
        f"its objects have more than {_MOST_BYTES >> 20} MiB": sum(sizes) > _MOST_BYTES,
    }
    fault = next((text for text, is_true in faults.items() if is_true), "")
    return fault or Answer(**{**answer, "objects": tuple(objects)})


class _NotDoneError(Exception):
    """The cluster did not do a job."""

    def __init__(self, why: str, message: str = "") -> None:
        super().__init__(why, message)
        self.why, self.message = why, message


class DaskCrew:
    """Gives jobs to the workers of a Dask scheduler; this machine does those that fail there. Use it in a `with`.

    Args:
        triple: GNU triple that the objects must be for.
        target: TVM target as JSON text.
        folder: Folder for the logs of processes of this machine.
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
        """Connect, and accept the workers with the same versions as this machine.

        Raises:
            ToolchainError: There are none; see `Roster`.
        """
        with contextlib.ExitStack() as stack:
            self._client = stack.enter_context(self._scheduler.client())
            from toolchain.tuning.build.cluster import member, roster  # noqa: PLC0415 - they import Dask, which is there

            self._compile = member.compile_candidate
            self._roster = stack.enter_context(roster.Roster(self._scheduler, self._client, self._target, self._tell))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
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
        return self._local.pids if self._local else ()

    @property
    def rows(self) -> tuple[BuilderRow, ...]:
        """The work of each worker, and at the end that of this machine, if it did any."""
        rows = [
            BuilderRow(worker.address, worker.threads if worker.is_used else 0, self._done[worker.address], worker.note)
            for worker in self._roster.workers
        ]
        if self._local is not None:
            causes = ", ".join(f"{number} {why}" for why, number in sorted(self._again.items()))
            rows.append(BuilderRow("this machine", _processors(), self._again.total(), causes))
        return tuple(rows)

    def map(self, call: Callable[..., _T], *arguments: Iterable[Any]) -> Iterator[_T]:
        return self._threads.map(call, *arguments)

    def ask(self, job: dict[str, Any], timeout_s: float) -> tuple[dict[str, Any], float]:
        """Give a job to a worker; if it fails there, repeat it on this machine, since the worker may be to blame.

        Returns:
            The answer, and the seconds that it took.

        Raises:
            BuildError: No process can be started on this machine.
            InputError: The objects cannot be written.
        """
        try:
            answer = self._ask_cluster(job, timeout_s)
        except _NotDoneError as fault:
            return self._local_crew(fault).ask(job, timeout_s)
        with self._lock:
            self._done[answer.worker] += 1
        return answer.put(Path(job["folder"])), answer.seconds

    def _ask_cluster(self, job: dict[str, Any], timeout_s: float) -> Answer:
        """Give a job to one of the present workers; Dask chooses which.

        Raises:
            _NotDoneError: It was not done.
        """
        workers = self._roster.used
        if not workers:
            raise _NotDoneError(_ALONE)
        try:
            args = (self._roster.name, job["module"], timeout_s)
            # Not pure: Dask would otherwise return the cached result of an equal job.
            future = self._client.submit(self._compile, *args, workers=list(workers), pure=False)
            try:
                answer = self._validate(future, self._result(future, workers, timeout_s))
            finally:
                future.release()
        except _NotDoneError:
            raise
        except Exception as fault:  # Dask raises many classes, and a worker may send its own
            raise _NotDoneError(_LOST, error_text(fault)) from fault
        if not answer.objects:
            raise _NotDoneError(_FAILED)
        return answer

    def _result(self, future: Any, workers: Sequence[str], timeout_s: float) -> Any:
        """Wait for the answer of a worker, as long as one of the workers is present and any jobs are answered."""
        began = time.monotonic()
        while True:
            try:
                result = future.result(timeout=_TICK_S)
            except TimeoutError:
                if future.status == "error":
                    raise
            else:
                self._heard = time.monotonic()
                return result
            if self._is_closed or not set(workers) & set(self._roster.used):
                raise _NotDoneError(_LOST)
            if time.monotonic() - max(began, self._heard) > timeout_s + _SILENCE_S:
                jobs = self._ask_scheduler(self._client.scheduler.processing, workers=None)
                silent = (address for address, keys in jobs.items() if future.key in keys)
                self._roster.strike(silent, "it does not answer")
                raise _NotDoneError(_LOST)

    def _validate(self, future: Any, result: Any) -> Answer:
        """Return a valid answer; a worker that gave an invalid one gets no further jobs."""
        answer = read_answer(result, self._triple)
        if isinstance(answer, Answer) and answer.worker in self._roster.used:
            return answer
        fault = answer if isinstance(answer, str) else "it says that it is another"
        # The worker that holds the result, not the one that the answer names.
        holders = self._ask_scheduler(self._client.scheduler.who_has, keys=[future.key]).get(future.key, ())
        self._roster.strike(holders, f"a wrong answer: {fault}")
        raise _NotDoneError(_WRONG)

    def _ask_scheduler(self, method: Callable[..., Any], **options: Any) -> Mapping[Any, Any]:
        return dict(self._client.sync(method, **options, callback_timeout=_SCHEDULER_S))

    def _local_crew(self, fault: _NotDoneError) -> LocalCrew:
        """Return the crew of this machine, which is started the first time that it is needed."""
        with self._lock:
            if self._is_closed:
                raise BuildError("the builders were closed in the middle of a job")
            if not self._again[fault.why]:
                message = f" ({fault.message})" if fault.message else ""
                self._tell(f"this machine compiles what builders do not: a candidate {fault.why}{message}")
            self._again[fault.why] += 1
            if self._local is None:
                self._local = LocalCrew(self._target, self._folder, _processors()).__enter__()
            return self._local


def _processors() -> int:
    return os.cpu_count() or 1
