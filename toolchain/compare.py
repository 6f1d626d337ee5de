"""Two bundles of one model on one device, run in turns: how much faster one is, and that both compute the same."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolchain import bench, deploy, runner, tensors
from toolchain.bench import Conditions, Latency
from toolchain.bundle import Bundle
from toolchain.deploy import Samples, Shipment
from toolchain.device_runtime import Program
from toolchain.errors import InputError, VerificationError
from toolchain.runner import Plan, Run
from toolchain.shell import Shell
from toolchain.store import Store
from toolchain.tensors import Difference

ROUNDS = 8
"""Turns of each bundle; an even number, since each goes first in every other one."""

_RESAMPLES = 2000
_LEAST_RUNS = 3


@dataclass(frozen=True)
class Ratio:
    """How many times faster the second bundle is.

    Attributes:
        value: Median latency of the first over that of the second.
        ci95: 95 % confidence interval, by bootstrap over the turns (Efron, 1979).
    """

    value: float
    ci95: tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """A finished comparison.

    Attributes:
        model: Model name.
        board: Board type.
        host: Name of the device.
        emulated: Whether the times are an emulator's.
        first: Statistics of the bundle that is the base, such as the untuned one.
        second: Statistics of the other.
        ratio: How many times faster the second is.
        difference: The second's outputs against the first's.
        reference: The second's outputs against the reference; None if the bundle has none.
        before: The device's conditions before the first turn.
        after: Its conditions after the last.
        threads: Threads of both.
        tasks: Kernels of the model.
        tuned: Kernels with a tuning record in the second.
    """

    model: str
    board: str
    host: str
    emulated: bool
    first: Latency
    second: Latency
    ratio: Ratio
    difference: Difference
    reference: Difference | None
    before: Conditions
    after: Conditions
    threads: int
    tasks: int
    tuned: int

    def document(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        return {"schema_version": 1, **asdict(self)}


def check_differ(first: Bundle, second: Bundle) -> None:
    """Refuse to compare a bundle with itself.

    Raises:
        InputError: No tuning record was applied to the second.
    """
    if first.digest == second.digest:
        raise InputError(
            f"no tuning record applies to {second.manifest.name} on {second.manifest.board}",
            details="the two builds are the same",
            hint=f"toolchain tune {second.manifest.name} --board {second.manifest.board}",
        )


def run(  # noqa: PLR0913 - a comparison has these independent parts
    bundles: tuple[Bundle, Bundle],
    program: Program,
    shell: Shell,
    store: Store,
    *,
    threads: int,
    budget_s: float,
    emulated: bool,
    keep: int,
    tolerance: float | None = None,
    pinned: bool = True,
) -> Comparison:
    """Run two bundles in turns on a device, which keeps the release that it has.

    Args:
        bundles: The base, and what is compared with it.
        program: The runner for the device.
        shell: The device.
        store: Its store.
        threads: Threads; 0 means every CPU.
        budget_s: Seconds to time, both together.
        emulated: Whether the device is an emulator.
        keep: Activations that the device keeps; what the comparison brought goes.
        tolerance: Limit for the outputs' relative difference; by default it follows from the dtype.
        pinned: Whether each thread has a CPU of its own.

    Raises:
        VerificationError: The device does not fit, or the two compute different outputs.
        DeviceError: The device is lost, busy or full, or a model does not run on it.
    """
    samples = deploy.samples_of(bundles[1])
    facts = store.facts()
    for one in bundles:
        deploy.check_fits(one.manifest, program, facts)
    with tempfile.TemporaryDirectory(prefix="toolchain-") as work, store.lock(deploy.owner()):
        try:
            places = [_install(one, program, samples, store, Path(work)) for one in bundles]
            plan = Plan(budget_s / ROUNDS / len(places), warmup_runs=1, min_runs=_LEAST_RUNS, pinned=pinned)
            before = bench.conditions(shell)
            turns = _turns(shell, store.root, places, threads, plan)
            after = bench.conditions(shell)
        finally:
            store.prune(keep)
    return _summed(bundles, turns, samples, shell.name, (before, after), emulated=emulated, tolerance=tolerance)


def _install(bundle: Bundle, program: Program, samples: Samples, store: Store, work: Path) -> dict[str, str]:
    shipment = Shipment.of_run(program, samples.inputs, work).with_release(bundle, work)
    deploy.send(shipment, store, store.facts())
    return deploy.install(shipment, store)


def _turns(
    shell: Shell, root: str, places: Sequence[dict[str, str]], threads: int, plan: Plan
) -> tuple[list[Run], list[Run]]:
    """Run each bundle in `ROUNDS` turns; what drifts then drifts for both."""
    found: tuple[list[Run], list[Run]] = ([], [])
    for number in range(ROUNDS):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            at = places[which]
            found[which].append(runner.call(shell, root, at, release=at["releases"], threads=threads, plan=plan))
    return found


def _summed(  # noqa: PLR0913 - a comparison has these independent parts
    bundles: tuple[Bundle, Bundle],
    turns: tuple[list[Run], list[Run]],
    samples: Samples,
    host: str,
    conditions: tuple[Conditions, Conditions],
    *,
    emulated: bool,
    tolerance: float | None,
) -> Comparison:
    manifest = bundles[1].manifest
    limit = samples.tolerance if tolerance is None else tolerance
    difference = tensors.compare(turns[1][0].outputs, turns[0][0].outputs, limit)
    if not difference.ok:
        raise VerificationError(
            f"the two builds of {manifest.name} compute different outputs",
            details=f"largest relative difference {difference.max_rel:.3g}, tolerance {difference.tolerance:.3g}",
            hint="`toolchain records show` lists what was applied; --tolerance sets another limit",
        )
    milliseconds = [[[value / 1e6 for value in run.samples_ns] for run in runs] for runs in turns]
    first, second = (bench.statistics([value for turn in one for value in turn]) for one in milliseconds)
    return Comparison(
        model=manifest.name,
        board=manifest.board,
        host=host,
        emulated=emulated,
        first=first,
        second=second,
        ratio=ratio(*milliseconds),
        difference=difference,
        reference=deploy.check_outputs(turns[1][0], samples, manifest, tolerance),
        before=conditions[0],
        after=conditions[1],
        threads=turns[1][0].threads,
        tasks=manifest.records.tasks if manifest.records else 0,
        tuned=manifest.records.tuned if manifest.records else 0,
    )


def ratio(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Ratio:
    """Compare two sets of turns.

    Args:
        first: Samples of the base, one list per turn.
        second: Samples of the other, in the same turns.

    Returns:
        The ratio of the medians. The interval comes from drawing whole turns, since the runs of one are alike.
    """
    bases = np.array([np.median(turn) for turn in first])
    others = np.array([np.median(turn) for turn in second])
    drawn = np.random.default_rng(0).integers(0, len(bases), (_RESAMPLES, len(bases)))
    ratios = _over(np.median(bases[drawn], axis=1), np.median(others[drawn], axis=1))
    low, high = np.percentile(ratios, [2.5, 97.5])
    value = float(_over(np.median(bases), np.median(others)))
    return Ratio(value, (float(low), float(high)))


def _over(value: Any, base: Any) -> Any:
    """Divide; a clock too coarse for a fast model makes 0 of its latency, and 1 of the ratio."""
    return np.divide(value, base, out=np.ones_like(np.asarray(value)), where=np.asarray(base) > 0)


def table(found: Comparison) -> str:
    """Render a comparison for a terminal, as the tutorials of old end: mean, median and std of both."""
    mark = "  emulated: says nothing about the real board" if found.emulated else ""
    rows: list[tuple[str, ...]] = [("", "mean", "median", "std", "min", "runs")]
    for name, one in (("untuned", found.first), ("tuned", found.second)):
        values = (f"{value:.3f} ms" for value in (one.mean, one.median, one.std, one.min))
        rows.append((name, *values, str(len(one.samples))))
    low, high = found.ratio.ci95
    lines = [
        f"{found.model} on {found.board} at {found.host}, {found.threads} thread(s), in {ROUNDS} turns of each{mark}",
        "\n".join("  ".join(f"{cell:>12}" for cell in row).rstrip() for row in rows),
        f"tuned is {found.ratio.value:.2f} times as fast, 95 % within {low:.2f} to {high:.2f}",
        f"records applied to {found.tuned} of {found.tasks} kernels",
        f"outputs are the same, largest relative difference {_difference(found.difference)}",
    ]
    return "\n".join(lines)


def _difference(found: Difference) -> str:
    value = f"{found.max_rel:.1e}" if math.isfinite(found.max_rel) else "infinite"
    return f"{value} (limit {found.tolerance:.0e})"
