"""The pool of processes that compile candidates: each is ended at the deadline of its job, and replaced."""

from __future__ import annotations

import contextlib
import itertools
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from toolchain import process
from toolchain.errors import BuildError
from toolchain.tuning.report import BuilderRow
from toolchain.worker import receive, send

# Without -P a file in the user's folder would be imported instead of a module of the same name.
_COMMAND = (sys.executable, "-P", "-m", "toolchain.tuning.build.worker")
_ENVIRONMENT = {"TVM_NUM_THREADS": "1"}
_START_TIMEOUT_S = 180.0
_STARTS = 3
# LLVM and TVM leak some memory with every module.
_MOST_JOBS = 500
_MOST_BYTES = 2 * 2**30

_T = TypeVar("_T")


class Worker:
    """One compiler process, which does one job after the other.

    Args:
        target: TVM target as JSON text.
        log: File for its output.
    """

    def __init__(self, target: str, log: Path) -> None:
        self._log = log
        self._jobs = 0
        self._rss_bytes = 0
        self._is_ready = False
        self._is_late = threading.Event()
        self._process = process.serve(_COMMAND, log=log, env=_ENVIRONMENT)
        with contextlib.suppress(BrokenPipeError):  # the first job will notice that the process has ended
            send(self._streams[0], {"target": target})

    @property
    def pid(self) -> int:
        """Its process ID, which is also the ID of its process group."""
        return self._process.pid

    @property
    def is_spent(self) -> bool:
        """Whether it must be replaced: it has ended, or has done its share of jobs."""
        ended = self._process.poll() is not None or self._is_late.is_set()
        return ended or self._jobs >= _MOST_JOBS or self._rss_bytes > _MOST_BYTES

    @property
    def _streams(self) -> tuple[Any, Any]:
        return self._process.stdin, self._process.stdout

    def wait_until_ready(self) -> bool:
        """Wait for its first answer; False if there is none."""
        self._is_ready = self._is_ready or self._answer(None, _START_TIMEOUT_S) is not None
        return self._is_ready

    def ask(self, job: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        """Do a job.

        Args:
            job: See `tuning.build.worker`.
            timeout_s: Seconds until the process is ended.

        Returns:
            Its answer, or a dict with an `error`; None if it had ended before the job.
        """
        # Only the output of this job is part of a crash report.
        mark = self._log.stat().st_size
        self._jobs += 1
        try:
            answer = self._answer(job, timeout_s)
        except BrokenPipeError:
            answer = None
            if not self._is_late.is_set():
                return None
        if answer is None:
            self.kill()
            late = f"was not compiled within {timeout_s:g} s"
            return {"error": late if self._is_late.is_set() else self._crash_text(mark)}
        self._rss_bytes = answer["rss_bytes"]
        return dict(answer)

    def _answer(self, message: dict[str, Any] | None, timeout_s: float) -> Any:
        """Send a message, if any, and wait for the next answer; None if the process ends or is ended."""

        def expire() -> None:
            self._is_late.set()
            process.kill_group(self._process)

        guard = threading.Timer(timeout_s, expire)
        guard.daemon = True
        guard.start()
        try:
            if message is not None:
                send(self._streams[0], message)
            return receive(self._streams[1])
        finally:
            guard.cancel()
            guard.join()  # if the timer has fired, it must have killed the process before this job ends

    def _crash_text(self, mark: int) -> str:
        """Return how the process ended, with its output since a position in the log."""
        code = self._process.returncode
        end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        output = self._log.read_bytes()[mark:].decode(errors="replace")
        return f"the compiler crashed: {end}\n{process.tail(output)}".strip()

    def kill(self) -> None:
        if self._process.poll() is None:
            process.kill_group(self._process)

    def close(self) -> None:
        """End the process and close its streams; no other thread may be using them."""
        self.kill()
        for stream in self._streams:
            with contextlib.suppress(BrokenPipeError):  # part of a message may still be buffered
                stream.close()

    def output(self) -> str:
        return process.tail(self._log.read_text(encoding="utf-8", errors="replace"))


class Crew(Protocol):
    """Compiles candidates for a builder, several at a time. Use it in a `with` statement."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """End, and cancel the jobs."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process IDs of the workers on this machine."""

    @property
    def rows(self) -> tuple[BuilderRow, ...]:
        """The work of each builder; empty if only this machine builds."""

    def map(self, call: Callable[..., _T], *arguments: Iterable[Any]) -> Iterator[_T]:
        """Call a function, which must call `ask` once, with each tuple of arguments."""

    def ask(self, job: dict[str, Any], timeout_s: float) -> tuple[dict[str, Any], float]:
        """Do a job.

        Args:
            job: See `worker`; the objects are written to its `folder`.
            timeout_s: Seconds that compiling may take.

        Returns:
            The answer, and the seconds that it took.

        Raises:
            BuildError: There is no worker.
        """


Hire = Callable[[str, Path], Crew]
"""Creates a crew for a TVM target, as JSON text, with a folder for its files."""


class LocalCrew:
    """Workers of this machine, each with a thread that gives it jobs. Use it in a `with` statement.

    `target` is JSON.
    """

    def __init__(self, target: str, folder: Path, count: int) -> None:
        self._target = target
        self._folder = folder
        self._count = count
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._is_closed = False
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._workers: set[Worker] = set()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="build")

    def __enter__(self) -> Self:
        for _ in range(self._count):
            self._idle.put(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_closed = True
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()

    @property
    def pids(self) -> tuple[int, ...]:
        with self._lock:
            return tuple(worker.pid for worker in self._workers)

    @property
    def rows(self) -> tuple[BuilderRow, ...]:
        return ()

    def map(self, call: Callable[..., _T], *arguments: Iterable[Any]) -> Iterator[_T]:
        return self._threads.map(call, *arguments)

    def ask(self, job: dict[str, Any], timeout_s: float) -> tuple[dict[str, Any], float]:
        """Give a job to the next free worker.

        Returns:
            The answer, and the seconds that the worker took.

        Raises:
            BuildError: No worker can be started.
        """
        # A worker may have ended between two jobs; then the next one gets the job.
        for _ in range(_STARTS):
            with self._ready_worker() as worker:
                start = time.monotonic()
                answer = worker.ask(job, timeout_s)
                if answer is not None:
                    return answer, time.monotonic() - start
        raise BuildError("the compiler's processes end before they are asked", details=worker.output())

    @contextlib.contextmanager
    def _ready_worker(self) -> Iterator[Worker]:
        """Take an idle worker and return it at the end; a spent one is replaced."""
        worker = self._idle.get()
        starts = 1
        try:
            while worker.is_spent or not worker.wait_until_ready():
                if starts == _STARTS:
                    raise BuildError("the compiler's process does not start", details=worker.output())
                worker = self._replace(worker)
                starts += 1
            yield worker
        finally:
            # Put back even on errors: a lost worker would block a thread of `map` for ever.
            self._idle.put(self._replace(worker) if worker.is_spent else worker)

    def _replace(self, worker: Worker) -> Worker:
        """Replace a worker by a new one, unless the crew is being closed."""
        with self._lock:
            if self._is_closed:
                return worker
            worker.close()
            self._workers.discard(worker)
            return self._start()

    def _start(self) -> Worker:
        worker = Worker(self._target, self._folder / f"worker-{next(self._numbers)}.log")
        self._workers.add(worker)
        return worker
