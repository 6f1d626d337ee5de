"""A tuning run whose boards are a formula: repeatable to the last bit, and easy to kill."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import tvm

from toolchain import board
from toolchain.backends.cpu.backend import Cpu
from toolchain.models import importer
from toolchain.models import source as model
from toolchain.records import Key, RecordFile, best_bytes, tasks
from toolchain.records.metaschedule import target_table
from toolchain.tuning import run as tuner
from toolchain.tuning.measure.turns import TURNS
from toolchain.tuning.plan import Pace, Plan
from toolchain.tuning.search import Tuner
from toolchain.tuning.trials import Built, Measured, Trial


class FormulaBuilds:
    """Writes a candidate's structural hash where a library would be."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.built = 0

    def build(self, modules: Sequence[tvm.IRModule]) -> list[Built]:
        return [self._one(module) for module in modules]

    def _one(self, module: tvm.IRModule) -> Built:
        self.built += 1
        path = self._folder / f"{self.built}.txt"
        path.write_text(tasks.workload_hash(module))
        return Built(path, "", 0.0)

    def discard(self, built: Built) -> None:
        if built.library:
            built.library.unlink()


def crashes(name: str) -> bool:
    """Whether a candidate of this hash crashes, by the formula."""
    return int(name, 16) % 8 == 0


class FormulaMeasures:
    """Makes a latency of the hash; one candidate in eight crashes, and one in eight takes long to answer."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self._delay_s = delay_s
        self._workers = ThreadPoolExecutor(3)

    def submit(self, trial: Trial) -> Future[Measured]:
        if trial.rivals:
            return self._workers.submit(
                self._final, [candidate.library.read_text() for candidate in (trial, *trial.rivals)]
            )
        return self._workers.submit(self._measure, trial.library.read_text())

    def _final(self, names: Sequence[str]) -> Measured:
        """Measure in turns, in which everything takes longer and longer."""
        times = [[self.latency_s(name) * (1 + number / 10) for number in range(TURNS)] for name in names]
        return Measured(tuple(times[0]), board="formula", rivals_s=tuple(map(tuple, times[1:])))

    def latency_s(self, name: str) -> float:
        return 1e-5 + (int(name, 16) // 8 % 1000) * 1e-8

    def _measure(self, name: str) -> Measured:
        time.sleep(self._delay_s * (1 + 4 * (int(name, 16) % 8 == 1)))
        if crashes(name):
            return Measured((), "crash", "it crashed", board="formula")
        return Measured((self.latency_s(name),) * 2, board="formula")


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background
    source, records, folder, kind, trials, ahead, delay_s = sys.argv[1:]
    run(source, Path(records), Path(folder), kind, int(trials), int(ahead), float(delay_s))


def backend() -> Cpu:
    """Return a backend without any template, so that MetaSchedule tunes all kernels."""
    return Cpu(board.load("rpi4"), Cpu.template_names)


def lowered(source: str) -> tvm.IRModule:
    return backend().lower(importer.import_model(model.load(source)).module)


def run(source: str, records: Path, folder: Path, kind: Tuner, trials: int, ahead: int, delay_s: float) -> tuner.Tuning:
    extracted = tasks.extract(lowered(source), backend())
    key = Key.of(target_table(backend().target))
    file = RecordFile(records)
    job = tuner.Tuning(
        extracted[:4],
        backend(),
        key,
        file=file,
        plan=Plan(tuner=kind, trials=trials, pace=Pace(ahead=ahead)),
        builds=FormulaBuilds(folder),
        measures=FormulaMeasures(delay_s),
    )
    job.run()
    sys.stdout.write(best_bytes(file.read(), key).decode())
    return job


if __name__ == "__main__":
    main()
