"""Measures trials on boards: one thread for each board. No trial is lost with its board, and lost boards may return."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from toolchain.errors import InputError
from toolchain.rpc.places import Place, ServerPlace, TrackerPlace, local_server
from toolchain.tuning.measure.health import Event, Observer, Rules
from toolchain.tuning.measure.jobs import Job, Jobs
from toolchain.tuning.measure.worker import Worker
from toolchain.tuning.trials import Measured, Options, Trial

__all__ = ["Event", "MeasurePool", "Observer", "Place", "Rules", "ServerPlace", "TrackerPlace", "local_server"]

_CLOSE_S = 15.0


class MeasurePool:
    """Measures trials on all places at once. Use it as a context manager.

    Args:
        places: Where trials run; their names differ.
        observer: Called with every event, in the thread of the place.
        rules: When a board is no longer trusted, and how long everything may take.

    Raises:
        InputError: There is no place, or two have one name.
    """

    def __init__(
        self,
        places: Sequence[Place],
        options: Options,
        observer: Observer = lambda _event: None,
        rules: Rules | None = None,
    ) -> None:
        names = [place.name for place in places]
        if not names or len(set(names)) < len(names):
            raise InputError(
                "the boards of a run need different names",
                details=", ".join(names) or "no board",
            )
        self._options, self._observer, self._rules = options, observer, rules or Rules()
        self._jobs = Jobs(names, self._rules.patience_s)
        self._workers = [Worker(place, self._jobs, options, self._rules, observer) for place in places]
        self._added: list[Place] = []
        self._changing, self._closed = threading.Lock(), False
        for worker in self._workers:
            worker.start()

    def add(self, place: Place, fits: Callable[[], bool]) -> None:
        """Measure on one more place from now on.

        Args:
            place: The place; no working place has its name. It is closed with the pool.
            fits: Called first, in the place's thread: whether it may be measured on.
        """
        with self._changing:
            if self._closed:
                return
            former = [worker for worker in self._workers if worker.name == place.name]
            for worker in former:  # the board was lost, and is back under another key
                worker.retire(lambda: None)

            def begin() -> bool:
                for worker in former:
                    worker.join(None)
                self._jobs.found(place.name)
                return fits()

            added = Worker(place, self._jobs, self._options, self._rules, self._observer, fits=begin)
            self._workers = [worker for worker in self._workers if worker not in former] + [added]
            self._added.append(place)
            added.start()

    def retire(self, name: str, on_end: Callable[[], None]) -> None:
        """Stop measuring on a place after the trial that runs there, whose result counts; then call `on_end`."""
        with self._changing:
            for worker in self._workers:
                if worker.name == name:
                    worker.retire(on_end)

    def submit(self, trial: Trial) -> Future[Measured]:
        """Queue a trial for the next free board.

        Returns:
            Its result. The future fails with a `DeviceError` if there is no board for too long, with an `InputError` if
            the options do not fit the board, and is cancelled when the pool is closed.
        """
        job = Job(trial)
        self._jobs.put(job)
        return job.future

    def measure(self, trials: Iterable[Trial]) -> list[Measured]:
        """Measure trials.

        Returns:
            Their results in the same order.

        Raises:
            DeviceError: There is no board for too long; the details have the fault of each.
            InputError: The options do not fit a board.
        """
        futures = [self.submit(trial) for trial in trials]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End all work, running trials included; missing results are cancelled."""
        with self._changing:
            self._closed, workers = True, self._workers
        self._jobs.close()
        for worker in workers:
            worker.stop()
        end = time.monotonic() + _CLOSE_S
        for worker in workers:
            worker.join(max(end - time.monotonic(), 0.0))
        for place in self._added:
            place.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
