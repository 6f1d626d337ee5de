"""Two bundles of one model on one device, run in turns: how much faster one is, and that both compute the same."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from toolchain import bundle, rankings, stats, temporary
from toolchain.bundle import Bundle
from toolchain.device import bench, deploy, runner
from toolchain.device.bench import Conditions, Latency
from toolchain.device.deploy import Samples
from toolchain.device.lock import Owner
from toolchain.device.runner import Plan, Run
from toolchain.device.shipment import Shipment, install, send
from toolchain.device.store import Store
from toolchain.device.waiting import Waited
from toolchain.errors import InputError, VerificationError
from toolchain.native.programs import Program
from toolchain.pipeline import Loaded, Pipeline
from toolchain.pipeline.device import Lab, Settings
from toolchain.progress import Step, stage
from toolchain.stats import Ratio
from toolchain.tensors import Difference
from toolchain.units import duration

ROUNDS = 12
"""Turns of each bundle: an even number, since each goes first in every other one, and enough for an interval of 99 %
that one turn which went wrong does not decide."""

SCHEMA_VERSION = 3
_COMPUTING = (bundle.LIBRARY, bundle.GRAPH, bundle.PARAMS)
_LEAST_RUNS = 3


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
        shipped: Kernels there with a record that comes with the toolchain.
        waited: Who was at work on the device before, and how long they were waited for.
        digests: The digests of both bundles.
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
    shipped: int
    waited: tuple[Waited, ...] = ()
    digests: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What disturbed it, in words."""
        return bench.disturbances(self.before, self.after)

    @property
    def outcome(self) -> str:
        """What came of it, in one line."""
        value = f"{self.ratio.value:.2f} times as fast as untuned"
        if self.ratio.ci99 is None:
            return f"tuned is {value}, in too few rounds to be sure"
        within = f"99 % within {self.ratio.ci99[0]:.2f} to {self.ratio.ci99[1]:.2f}"
        sure = {
            "faster": f"tuned is {value}, {within}",
            "slower": f"tuned is SLOWER: {value}, {within}",
            "": f"tuned is NOT measurably faster: {value}, {within}",
        }
        return sure[self.ratio.verdict]

    def document(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        return {
            "schema_version": SCHEMA_VERSION,
            **asdict(self),
            "verdict": self.ratio.verdict,
            "warnings": list(self.warnings),
        }


def check_differ(first: Bundle, second: Bundle, remedy: str) -> None:
    """Refuse to compare a bundle with itself: noise would make one of the two look faster.

    Args:
        first: The base.
        second: The other.
        remedy: The command that tunes the model.

    Raises:
        InputError: The two compute the same with the same code.
    """
    one, other = (made.manifest.files for made in (first, second))
    if any(one[name].sha256 != other[name].sha256 for name in _COMPUTING):
        return
    known = second.manifest.records
    applied = known.tuned if known else 0
    if not applied:
        raise nothing_to_compare(second.manifest.name, second.manifest.board, "no tuning record applies to it", remedy)
    why = f"for all {applied} kernel(s) with records, the untuned version is the fastest"
    raise nothing_to_compare(second.manifest.name, second.manifest.board, why, f"{remedy}, with more --trials")


class SameCodeError(InputError):
    """Two builds that were to be compared are the same code."""


def nothing_to_compare(model: str, board: str, why: str, remedy: str) -> SameCodeError:
    """Describe a comparison of two builds that are the same."""
    message = f"nothing to compare: {model} for {board} is the same code tuned and untuned"
    return SameCodeError(message, details=why, hint=remedy)


def compared(
    jobs: tuple[Pipeline, Pipeline],
    read: Loaded | None,
    connect: Callable[[], contextlib.AbstractContextManager[Lab]],
    settings: Settings,
    remedy: str,
) -> Comparison:
    """Build a model untuned and tuned, and run both in turns.

    Args:
        jobs: What builds it as a deploy without the user's records does, and what builds it tuned.
        read: The model, if it was read before.
        connect: Opens the device, once both are built.
        settings: How to measure; the seconds are for both together.
        remedy: The command that tunes the model.

    Raises:
        InputError: Both are the same.
        ToolchainError: As a build, or as `run`.
    """
    tell = jobs[1].request.tell
    with temporary.folder() as work:
        with jobs[1].on_device.building_runner():
            untuned, tuned = (
                _in_one_line(job, how).build(Path(work) / how, read)
                for job, how in zip(jobs, ("untuned", "tuned"), strict=True)
            )
            check_differ(untuned, tuned, remedy)
            program = jobs[1].on_device.runner()
        with connect() as lab:
            tell(stage(f"measuring for {settings.budget_s:g} s"))
            return run((untuned, tuned), program, lab, settings)


def _in_one_line(job: Pipeline, how: str) -> Pipeline:
    """Say once what a build makes, and let it tell no stages: both builds have the same."""
    tell = job.request.tell
    tell(stage(f"building {job.request.model.source} {how}"))

    def tell_others(line: str) -> None:
        if not isinstance(line, Step) or line.is_counted:
            tell(line)

    return replace(job, request=replace(job.request, tell=tell_others))


def run(bundles: tuple[Bundle, Bundle], program: Program, lab: Lab, settings: Settings) -> Comparison:
    """Run two bundles in turns on a device, which keeps the release that it has; what the comparison brought goes.

    Args:
        bundles: The base, and what is compared with it.
        program: The runner for the device.
        lab: The device.
        settings: How to measure; the seconds are for both together.

    Raises:
        VerificationError: The device does not fit, or the two compute different outputs.
        DeviceError: The device is lost, busy or full, or a model does not run on it.
    """
    samples, store = deploy.samples_of(bundles[1]), lab.store
    facts = store.facts()
    for one in bundles:
        deploy.check_fits(one.manifest, program, facts)
    with temporary.folder() as work, store.lock(Owner.here("compare")):
        try:
            places = [_install(one, program, samples, store, Path(work)) for one in bundles]
            turns = _turns(bundles, lab, places, settings)
        finally:
            store.prune(lab.board.keep)
    return _summed(bundles, samples, turns, lab, settings.tolerance)


def _install(bundle: Bundle, program: Program, samples: Samples, store: Store, work: Path) -> dict[str, str]:
    shipment = Shipment.of_run(program, samples.inputs, work).with_release(bundle, work)
    send(shipment, store, store.facts())
    return install(shipment, store)


@dataclass(frozen=True)
class _Turns:
    """The runs of both bundles, and the conditions before and after them."""

    first: list[Run]
    second: list[Run]
    before: Conditions
    after: Conditions


def _turns(bundles: Sequence[Bundle], lab: Lab, places: Sequence[dict[str, str]], settings: Settings) -> _Turns:
    """Run each bundle in `ROUNDS` turns; what drifts then drifts for both."""
    budget_s = settings.budget_s / ROUNDS / len(places)
    plan = Plan(budget_s, warmup_runs=1, min_runs=_LEAST_RUNS, pinned=settings.pinned)
    threads = settings.threads or lab.board.threads
    before = bench.conditions(lab.shell)
    found: tuple[list[Run], list[Run]] = ([], [])
    for number in range(ROUNDS):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            at = places[which]
            run = runner.call(
                lab.shell,
                lab.store.root,
                at,
                release=at["releases"],
                threads=threads,
                plan=plan,
                outputs=bundles[which].manifest.outputs,
            )
            found[which].append(run)
    return _Turns(*found, before, bench.conditions(lab.shell))


def _summed(
    bundles: tuple[Bundle, Bundle], samples: Samples, turns: _Turns, lab: Lab, tolerance: float | None
) -> Comparison:
    last = turns.second[0]
    manifest = bundles[1].manifest
    limit = samples.tolerance if tolerance is None else tolerance
    difference = rankings.compare(last.outputs, turns.first[0].outputs, samples.rankings, limit)
    if not difference.ok:
        raise VerificationError(
            f"the tuned and the untuned build of {manifest.name} compute different outputs",
            details=f"largest relative difference {difference.max_rel:.3g}, tolerance {difference.tolerance:.3g}",
            hint="`toolchain records show` lists what was applied; --tolerance sets another limit",
        )
    sides = [[run.samples_ns for run in runs] for runs in (turns.first, turns.second)]
    first, second = (bench.statistics([value / 1e6 for turn in one for value in turn]) for one in sides)
    return Comparison(
        model=manifest.name,
        board=manifest.board,
        host=lab.shell.name,
        emulated=lab.emulated,
        first=first,
        second=second,
        ratio=stats.ratio(*sides),
        difference=difference,
        reference=deploy.check_outputs(last, samples, manifest, tolerance),
        before=turns.before,
        after=turns.after,
        threads=last.threads,
        tasks=manifest.records.tasks if manifest.records else 0,
        tuned=manifest.records.tuned if manifest.records else 0,
        shipped=manifest.records.shipped if manifest.records else 0,
        waited=lab.store.waited,
        digests=tuple(f"sha256:{one.digest}" for one in bundles),
    )


def table(found: Comparison) -> str:
    """Render a comparison for a terminal, as the tutorials of old end: mean, median and std of both."""
    mark = "  emulated: says nothing about the real board" if found.emulated else ""
    rows: list[tuple[str, ...]] = [("", "MEAN", "MEDIAN", "STD", "MIN", "RUNS")]
    for name, one in (("untuned", found.first), ("tuned", found.second)):
        values = map(duration, (one.mean, one.median, one.std, one.min))
        rows.append((name, *values, str(len(one.samples))))
    lines = [
        f"{found.model} on {found.board} at {found.host}, {found.threads} thread(s), {ROUNDS} rounds of each{mark}",
        "\n".join("  ".join(f"{cell:>12}" for cell in row).rstrip() for row in rows),
        found.outcome,
        f"records applied to {found.tuned} of {found.tasks} kernels, the toolchain's own to {found.shipped}",
        f"outputs are the same, largest relative difference {_difference(found.difference)}",
        *(f"warning: {one}" for one in found.warnings),
        *(f"waited {one.seconds:.1f} s: {one.owner}" for one in found.waited),
    ]
    return "\n".join(lines)


def _difference(found: Difference) -> str:
    value = f"{found.max_rel:.1e}" if math.isfinite(found.max_rel) else "infinite"
    return f"{value} (limit {found.tolerance:.0e})"
