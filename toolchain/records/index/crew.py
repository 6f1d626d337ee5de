"""A pool of processes that read chunks of a large file: one CPU takes 20 seconds for a million lines."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from toolchain import process, temporary
from toolchain.records.index.source import Source
from toolchain.records.tables import Row
from toolchain.worker import receive, send

LEAST = 256 << 20
"""Least number of new bytes for which the pool is started, which takes as long as reading some 50 MB."""

_MOST = 8  # more would deliver rows faster than they can be stored
_COMMAND = (sys.executable, "-P", "-m", "toolchain.records.index.worker")


@dataclass(frozen=True)
class Crew:
    """Processes that read one file.

    Attributes:
        workers: The idle processes.
        pool: Threads that wait for the processes.
        count: Number of processes.
    """

    workers: queue.SimpleQueue[process.Serving]
    pool: ThreadPoolExecutor
    count: int

    def rows(self, chunks: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, list[Row] | None]]:
        """Yield where each chunk begins and ends and its rows, in order; None for rows that no process could read."""
        waiting: deque[tuple[int, int, Future[list[Row] | None]]] = deque()
        for start, stop in chunks:
            waiting.append((start, stop, self.pool.submit(self._read, start, stop)))
            if len(waiting) > 2 * self.count:  # limits the memory for rows that wait
                first, last, future = waiting.popleft()
                yield first, last, future.result()
        for first, last, future in waiting:
            yield first, last, future.result()

    def _read(self, start: int, stop: int) -> list[Row] | None:
        worker = self.workers.get()
        jobs, answers = cast(BinaryIO, worker.stdin), cast(BinaryIO, worker.stdout)
        try:
            send(jobs, [start, stop])
            rows = receive(answers)
        except OSError:  # it has ended
            return None
        finally:
            self.workers.put(worker)
        return rows or None


def _end(worker: process.Serving) -> None:
    process.kill_group(worker)
    for stream in (worker.stdin, worker.stdout):
        with contextlib.suppress(OSError):  # part of a message may still be buffered
            cast(BinaryIO, stream).close()


@contextlib.contextmanager
def start_crew(source: Source) -> Iterator[Crew]:
    """Start a process for each CPU that may be used; they end with the block.

    Raises:
        OSError: They cannot be started.
    """
    count = min(len(os.sched_getaffinity(0)), _MOST)
    with contextlib.ExitStack() as stack:
        log = Path(stack.enter_context(temporary.folder())) / "log"
        workers: queue.SimpleQueue[process.Serving] = queue.SimpleQueue()
        pool = stack.enter_context(ThreadPoolExecutor(count))
        for _ in range(count):
            # A signal in between would leave a process without a callback that ends it.
            with process.signals_later():
                worker = process.serve([*_COMMAND, source.path_of_handle], log=log)
                stack.callback(_end, worker)
            workers.put(worker)
        # Last, so that it runs first at the end of the block: jobs are cancelled before their processes end.
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        yield Crew(workers, pool, count)
