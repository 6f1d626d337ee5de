"""Writes the records of a tuning run as soon as their results are known."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from toolchain.records import Key, Record, RecordFile
from toolchain.records.results import LEAST_S
from toolchain.records.tasks import Task
from toolchain.tuning.plan import Plan
from toolchain.tuning.search import Candidate
from toolchain.tuning.trials import Measured

_TOO_SHORT = "a run is shorter than the resolution of the board's clock; increase --number or --min-repeat-ms"


class Ledger:
    """Writes the records of one run; thread-safe.

    Attributes:
        lock: Held while a record is written and noted.
    """

    def __init__(self, file: RecordFile, run: str, key: Key, plan: Plan) -> None:
        self._file = file
        self._run = run
        self._key = key
        self._target = json.loads(key.target)
        self._plan = plan
        self.lock = threading.Lock()

    def write(self, record: Record, note: Callable[[], None]) -> None:
        """Write a record, and call `note` before the next one is written.

        Raises:
            InputError: It cannot be written.
        """
        with self.lock:
            # Both under one lock: the order of the counts is that of the file.
            self._file.append([record])
            note()

    def line(self, task: Task, candidate: Candidate, measured: Measured, **fields: Any) -> Record:
        """Return the record of a measurement with further `fields`; impossibly short times are a failure."""
        # A coarse clock reads 0 for a short run; such a time would win every final.
        if any(sample < LEAST_S for sample in measured.samples_s):
            measured = replace(measured, samples_s=(), cause="suspicious", error=_TOO_SHORT)
        return Record(
            workload=task.workload,
            target=self._target,
            tvm=self._key.tvm,
            emulated=self._key.emulated,
            modelled=self._key.modelled,
            candidate=candidate.key,
            trace=json.dumps(candidate.trace, separators=(",", ":")),
            samples_s=measured.samples_s,
            cause=measured.cause,
            error=measured.error,
            board=measured.board,
            run=self._run,
            tuner=self._plan.tuner,
            seed=self._plan.seed,
            time=round(time.time(), 3),
            threads=self._key.threads,
            options=self._plan.options.recorded,
            **fields,
        )
