"""Are winners winners? Tunes a few kernels, then measures each recorded winner against what it replaces, in turns.

    python benchmarks/tuning_winners.py [NETWORK ...] [--trials 12] [--tasks 6] [--turns 24] [--seeds 1] [--plain]
                                        [--loops 2] [--json FILE]

Of each network, the kernels with most work are tuned on board `local`, with few trials. Each record that a build would
apply is then measured again, alone, in turns with what a deploy makes of the kernel without it, each in a session of
its own. `--plain` leaves the toolchain's templates out: what is searched is found by MetaSchedule alone. `--seeds`
tunes so many times, each time from nothing. `--loops` keeps so many processes busy beside all of that.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._neighbours import loops
from benchmarks._peers_networks import obtain
from toolchain import board, files, stats
from toolchain.backends.cpu.backend import Cpu
from toolchain.compile import applicable_records
from toolchain.compile.request import BuildRequest
from toolchain.farm import boards
from toolchain.farm.boards import BoardRequest
from toolchain.models import flops, inputs
from toolchain.models.request import Model
from toolchain.native import cross
from toolchain.pipeline import tune
from toolchain.records import Record, RecordFile
from toolchain.records.apply import shipped_choices
from toolchain.records.tasks import Task, args_of
from toolchain.tuning.build import Builder
from toolchain.tuning.measure import MeasurePool, Rules
from toolchain.tuning.plan import Plan
from toolchain.tuning.search import Candidate, Search
from toolchain.tuning.trials import Measured, Options, Trial

NETWORKS = ("vit-script", "unet-script", "squeezenet_v1.1")
SLOWER = 0.02
Sides = list[list[list[float]]]
_PASSING = 64 << 20
_NS = 1e9


@dataclass(frozen=True)
class Winner:
    """A winner that was measured again.

    Attributes:
        kernel: Its name.
        recorded: How many times as fast as untuned its record says that it is.
        again: How many times as fast it is.
        low: Lower end of the 95 % interval of that.
        high: Upper end.
    """

    kernel: str
    recorded: float
    again: float
    low: float
    high: float

    @property
    def is_slower(self) -> bool:
        """Whether it is slower than untuned by more than may be."""
        return self.again < 1 - SLOWER


@dataclass(frozen=True)
class How:
    """How networks are tuned: trials of each kernel, kernels, seed, and the templates that are left out."""

    trials: int
    count: int
    seed: int
    without: tuple[str, ...]


def tuned(network: str, records: Path, how: How, folder: Path) -> tuple[tune.Extracted, list[Task], int]:
    """Tune the kernels of a network that have most work; return all, those, and the bytes of its weights."""
    kind = board.load("local").resolved()
    source = Model(obtain(network, folder).build, {}, inputs.Source())
    extracted = tune.extract(BuildRequest(source, kind, without=how.without))
    chosen = sorted(extracted.tasks, key=lambda task: -task.gflop * task.weight)[: how.count]
    options = Options(device="llvm")
    limits = Plan(trials=how.trials * how.count, per_task=how.trials, seed=how.seed, options=options)
    plan, ids = tune.plan_for(kind, limits), tuple(str(task.id) for task in chosen)
    request = tune.TuneRequest(source, BoardRequest(kind), plan, ids, records, without=how.without)
    tune.run(request, print, lambda _: None)
    return extracted, chosen, 4 * flops.parameters(extracted.imported.source.proto.graph)


def candidates(extracted: tune.Extracted, task: Task, record: Record) -> list[Candidate]:
    """Return what a deploy makes of a kernel without records, and the winner."""
    backend = extracted.backend
    choices = shipped_choices([task], applicable_records.shipped_records(backend), backend.templates)
    search = Search(backend, "random", 0, choices)
    winner = search.rebuild(task, json.loads(record.trace))
    return [search.base(task), *([winner] if winner else [])]


def in_turns(trials: Sequence[Trial], turns: int, measure: Callable[[Trial], Measured]) -> Sides:
    """Measure two candidates in turns; return the nanoseconds of each turn of each, of turns in which both were."""
    sides: Sides = [[], []]
    for number in range(turns):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        samples = {side: measure(trials[side]).samples_s for side in order}
        if all(samples.values()):
            for side in order:
                sides[side].append([second * _NS for second in samples[side]])
    return sides


def measured_again(
    extracted: tune.Extracted, task: Task, record: Record, passing: int, take: Callable[[list[Trial]], Sides]
) -> Winner:
    """Measure a winner and what it replaces."""
    backend, pair = extracted.backend, candidates(extracted, task, record)
    with Builder(backend.target, cross.choose(backend.board, ""), files.cache_root() / "candidates") as builder:
        built = builder.build([backend.add_half_blocks(candidate.module) for candidate in pair])
        trials = [
            Trial(result.library, args_of(candidate.module, packed=True), task.name, passing if task.layer else 0)
            for candidate, result in zip(pair, built, strict=True)
            if result.library is not None
        ]
        ratio = stats.ratio(*take(trials))
        for result in built:
            builder.discard(result)
    low, high = ratio.ci95 or (0.0, float("inf"))
    return Winner(task.name, (record.base_latency_s or 0.0) / record.latency_s, ratio.value, low, high)


def of_network(network: str, how: How, turns: int) -> dict[str, Any]:
    """Tune a network and measure its winners again."""
    with tempfile.TemporaryDirectory() as name:
        records = Path(name) / "records.jsonl"
        extracted, chosen, weights = tuned(network, records, how, Path(name))
        read = RecordFile(records).read()
        decided = {record.workload: record for key in read.keys for record in read.decided(key).values()}
        won = [task for task in chosen if task.workload in decided and decided[task.workload].verdict == "faster"]
        rules = Rules(waited=2.0, unsteady=1e9)  # all is measured: turns are the judge
        with (
            boards.open_boards(BoardRequest(extracted.backend.board), print) as opened,
            MeasurePool(opened.places, Options(), rules=rules) as pool,
        ):
            take = partial(in_turns, turns=turns, measure=lambda trial: pool.measure([trial])[0])
            passing = min(weights, _PASSING)
            winners = [measured_again(extracted, task, decided[task.workload], passing, take) for task in won]
    return {"network": network, "kernels": len(chosen), "finals": len(decided), "winners": winners}


def rendered(rows: Sequence[dict[str, Any]]) -> str:
    """Say what came out."""
    lines = []
    for row in rows:
        lines.append(
            f"{row['network']}: {row['kernels']} kernels, {row['finals']} finals, {len(row['winners'])} winners"
        )
        for winner in row["winners"]:
            mark = "  SLOWER" if winner.is_slower else ""
            within = f"95 % within {winner.low:.2f} to {winner.high:.2f}"
            lines.append(
                f"  {winner.kernel}: recorded {winner.recorded:.2f}, again {winner.again:.2f} ({within}){mark}"
            )
    winners = [winner for row in rows for winner in row["winners"]]
    slower = sum(winner.is_slower for winner in winners)
    lines.append(f"{slower} of {len(winners)} winners are slower than untuned by more than {SLOWER:.0%}")
    return "\n".join(lines)


def main() -> None:
    """Tune, measure again, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--loops", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with loops(options.loops):
        without = Cpu.template_names if options.plain else ()
        seeds = [How(options.trials, options.tasks, seed, without) for seed in range(options.seeds)]
        rows = [of_network(network, how, options.turns) for how in seeds for network in options.networks]
    print(rendered(rows))
    if options.json:
        plain = [{**row, "winners": [asdict(winner) for winner in row["winners"]]} for row in rows]
        options.json.write_text(json.dumps({"loops": options.loops, "plain": options.plain, "rows": plain}, indent=1))


if __name__ == "__main__":
    main()
