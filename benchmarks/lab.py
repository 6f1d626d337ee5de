"""How does tuning grow with the boards of a lab? Search, builder's queue, measuring and records, on stand-in boards.

    python benchmarks/lab.py [--boards 1 8 32 100] [--seconds 60] [--candidate 1] [--model mlp]
                             [--tuner evolutionary-xgb] [--json FILE]

A board is a real board server of this machine, with a client of its own, and a candidate is a kernel that sleeps:
`--candidate` seconds, half of them to warm up, half of them to be timed. So boards cost little, and everything else is
as it is with boards of silicon, but for two things: compiling, which other machines may do (`--builders`), hands out
the same library each time, and there are no finals, which are held once at the end. Each lab has as many trials as
take it `--seconds` at best.

Figures: trials a second; how many times as many as one board; CPU time of the host for each trial, of the run itself
and of the boards' clients; what the board servers took beside that, which boards of silicon take themselves; most
memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.farm import RUNS, sleeper
from toolchain import board
from toolchain.backends.cpu.backend import Cpu
from toolchain.models import importer
from toolchain.models import source as models
from toolchain.native import programs
from toolchain.records import Key, RecordFile
from toolchain.records import tasks as kernels
from toolchain.records.metaschedule import target_table
from toolchain.records.results import TensorArg
from toolchain.rpc import Client
from toolchain.rpc.places import ServerPlace, local_server
from toolchain.tuning.measure import MeasurePool, Rules
from toolchain.tuning.plan import Plan, pace_for
from toolchain.tuning.run import Tuning
from toolchain.tuning.trials import Built, Options, Trial

_OPTIONS = Options(number=1, repeat=1, min_repeat_ms=0)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.5


class SleepingBuilds:
    """Makes of every candidate the kernel that sleeps."""

    def __init__(self, library: Path) -> None:
        self._library = library

    def build(self, modules: Sequence[Any]) -> list[Built]:
        """Hand out the same library for each."""
        return [Built(self._library, "", 0.0) for _ in modules]

    def discard(self, built: Built) -> None:
        """Keep it."""


class Searching(Tuning):
    """A run without finals."""

    def _hold_finals(self) -> None:
        """Hold none: with candidates of a second they take minutes, of which nothing grows with the boards."""


@dataclass(frozen=True)
class Row:
    """What one lab did.

    Attributes:
        boards: How many there were.
        trials: Trials.
        seconds: From the beginning of the run to the last result.
        rate: Trials a second.
        times: How many times as many as one board.
        run_ms: CPU time of the run for each trial, in milliseconds: search, learning, queue and records.
        clients_ms: The same of the boards' clients.
        boards_ms: CPU time of all else on this machine for each trial: the board servers.
        most_mb: Most memory of the run's own process in megabytes.
        waited_s: Seconds that the run waited, by what for.
    """

    boards: int
    trials: int
    seconds: float
    rate: float
    times: float
    run_ms: float
    clients_ms: float
    boards_ms: float
    most_mb: float
    waited_s: dict[str, float]


@contextlib.contextmanager
def lab(clients: Sequence[Client]) -> Iterator[list[ServerPlace]]:
    """Start a board server for each client; their times mean nothing."""
    kind = board.load("local")
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(local_server(kind)) for _ in clients]
        yield [
            replace(server, name=f"board-{number}", emulated=True, _client=client)
            for number, (server, client) in enumerate(zip(servers, clients, strict=True))
        ]


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def busy_s() -> float:
    """Return the CPU time that this machine has spent, in seconds."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    spent = [int(field) for field in fields]
    return (spent[0] + spent[1] + spent[2] + spent[5] + spent[6]) / _TICK


def resident_mb() -> float:
    """Return the memory of this process in megabytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 1e6


@contextlib.contextmanager
def watched(peak_mb: list[float]) -> Iterator[None]:
    """Look for the most memory."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            peak_mb[0] = max(peak_mb[0], resident_mb())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def tuned(count: int, options: argparse.Namespace, library: Path, folder: Path) -> Row:
    """Tune on so many boards, once all of them have measured something."""
    kind = board.load("local").resolved()
    backend = Cpu(kind, Cpu.template_names)
    module = backend.lower(importer.import_model(models.load(options.model)).module)
    tasks = kernels.extract(module, backend)
    trials = round(count * options.seconds / options.candidate)
    key = Key.of(target_table(backend.target), emulated=True)
    rules = Rules(waited=2.0, unsteady=1e9)
    clients = [Client() for _ in range(count)]
    with lab(clients) as servers, MeasurePool(servers, _OPTIONS, rules=rules) as pool:
        pool.measure([Trial(library, (TensorArg("float32", (4,)),), "first")] * (2 * count))
        plan = Plan(tuner=options.tuner, trials=trials, options=_OPTIONS, pace=pace_for(count, trials // len(tasks)))
        file = RecordFile(folder / f"{count}.jsonl")
        job = Searching(tasks, backend, key, file=file, plan=plan, builds=SleepingBuilds(library), measures=pool)
        pids = [client.pid or 0 for client in clients]
        peak_mb = [resident_mb()]
        begun = time.monotonic(), time.process_time(), sum(map(cpu_s, pids)), busy_s()
        with watched(peak_mb):
            job.run()
        ended = time.monotonic(), time.process_time(), sum(map(cpu_s, pids)), busy_s()
    seconds, run_s, clients_s, all_s = (after - before for before, after in zip(begun, ended, strict=True))
    each = 1e3 / job.trials
    others_ms = (all_s - run_s - clients_s) * each
    waits = {name: round(spent, 2) for name, spent in job.shares.seconds.items()}
    return Row(
        count,
        job.trials,
        seconds,
        job.trials / seconds,
        0.0,
        run_s * each,
        clients_s * each,
        others_ms,
        peak_mb[0],
        waits,
    )


def rendered(row: Row) -> str:
    """Say what a lab did."""
    waits = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row.waited_s.items())
    return (
        f"{row.boards:4} board(s): {row.trials} trials in {row.seconds:.1f} s, {row.rate:.2f} a second, "
        f"{row.times:.1f} times one board; CPU of each: run {row.run_ms:.1f} ms, clients {row.clients_ms:.1f} ms, "
        f"board servers {row.boards_ms:.1f} ms; {row.most_mb:.0f} MB; waited for {waits} s"
    )


def main() -> None:
    """Let labs of several sizes tune, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", type=int, nargs="+", default=[1, 8, 32, 100])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--candidate", type=float, default=1.0)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--tuner", default="evolutionary-xgb")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kind = board.load("local").resolved()
    programs.build(programs.BOARD_SERVER, kind.triple, kind.machine)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="lab-") as name:
        library = sleeper(kind, Path(name), options.candidate / RUNS)
        for count in options.boards:
            result = tuned(count, options, library, Path(name))
            single_rate = next((row.rate / row.boards for row in rows), result.rate / result.boards)
            rows.append(replace(result, times=result.rate / single_rate))
            print(rendered(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
