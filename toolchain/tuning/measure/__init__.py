"""Trials measured on boards: one thread for each, no trial lost with its board, and no board lost for good."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from toolchain.errors import InputError
from toolchain.rpc.places import Place, ServerPlace, TrackerPlace, local_server
from toolchain.tuning.measure.events import Event, Observer
from toolchain.tuning.measure.health import Rules
from toolchain.tuning.measure.jobs import Job, Jobs
from toolchain.tuning.measure.worker import Worker
from toolchain.tuning.trials import Measured, Options, Trial

__all__ = ["Event", "MeasurePool", "Observer", "Place", "Rules", "ServerPlace", "TrackerPlace", "local_server"]

_CLOSE_S = 15.0


def _ignore(event: Event) -> None:
    """For who wants to hear nothing."""


class MeasurePool:
    """Measures trials on all places at once. Use it as a context manager.

    Args:
        places: Where trials run; their names differ.
        options: How they are measured.
        observer: Is called with every event, in the thread of the place.
        rules: When a board is no longer trusted, and how long everything may take.

    Raises:
        InputError: There is no place, or two have one name.
    """

    def __init__(
        self,
        places: Sequence[Place],
        options: Options,
        observer: Observer = _ignore,
        rules: Rules | None = None,
    ) -> None:
        names = [place.name for place in places]
        if not names or len(set(names)) < len(names):
            raise InputError(
                "one board or several of different names can measure at once",
                details=", ".join(names) or "there is none",
            )
        rules = rules or Rules()
        self._jobs = Jobs(names, rules.patience_s)
        self._workers = [Worker(place, self._jobs, options, rules, observer) for place in places]
        for worker in self._workers:
            worker.start()

    def submit(self, trial: Trial) -> Future[Measured]:
        """Let a trial wait for the next free board.

        Returns:
            Its result. It fails with a `DeviceError` if there is no board for too long, with an `InputError` if the
            options do not fit the board, and is cancelled when the pool is closed.
        """
        job = Job(trial)
        self._jobs.put(job)
        return job.future

    def measure(self, trials: Iterable[Trial]) -> list[Measured]:
        """Measure trials.

        Returns:
            Their results in the same order.

        Raises:
            DeviceError: There is no board for too long; it names what is wrong with each.
            InputError: The options do not fit a board.
        """
        futures = [self.submit(trial) for trial in trials]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End all work, running trials included; results that are not there yet are cancelled."""
        self._jobs.close()
        for worker in self._workers:
            worker.stop()
        end = time.monotonic() + _CLOSE_S
        for worker in self._workers:
            worker.join(max(end - time.monotonic(), 0.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
