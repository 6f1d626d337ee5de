"""Run two bundles of one model in turns on one device: how much faster one is, and that both compute the same."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from toolchain import bundle, stats, temporary
from toolchain.bundle import Bundle
from toolchain.device import bench, verification
from toolchain.device.bench import Conditions, Latency
from toolchain.device.connected import ConnectedDevice
from toolchain.device.deploy import Settings
from toolchain.device.installed import installed_temporarily
from toolchain.device.lock import Owner
from toolchain.device.runner import Plan, Run
from toolchain.device.waiting import Waited
from toolchain.errors import InputError
from toolchain.native.programs import Program
from toolchain.pipeline import ab, device_programs
from toolchain.pipeline.ab import Side, Turns
from toolchain.pipeline.source import BundleSource, Loaded
from toolchain.progress import Step, stage
from toolchain.stats import Ratio
from toolchain.tensors import Difference
from toolchain.units import duration

# Turns of each bundle: an even number, since each goes first in every other round, and enough for an interval of 99 %
# that a single disturbed turn does not decide.
ROUNDS = 12

SCHEMA_VERSION = 3
_CODE_FILES = (bundle.LIBRARY, bundle.GRAPH, bundle.PARAMS)
_MIN_RUNS = 3


@dataclass(frozen=True)
class Comparison:
    """A finished comparison."""

    model: str
    board: str
    host: str
    emulated: bool  # whether the times are an emulator's
    first: Latency  # statistics of the base, such as the untuned bundle
    second: Latency
    ratio: Ratio  # how many times faster the second is
    difference: Difference  # the second's outputs against the first's
    reference: Difference | None  # the second's outputs against the reference; None if the bundle has none
    before: Conditions
    after: Conditions
    threads: int
    tasks: int  # kernels of the model
    tuned: int  # kernels with a tuning record in the second
    shipped: int  # kernels there with a record that comes with the toolchain
    waited: tuple[Waited, ...] = ()  # who was at work on the device before, and how long they were waited for
    digests: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        return bench.disturbances(self.before, self.after)

    @property
    def outcome(self) -> str:
        value = f"{self.ratio.value:.2f} times as fast as untuned"
        if self.ratio.ci99 is None:
            return f"tuned is {value}, in too few rounds to be sure"
        within = f"99 % within {self.ratio.ci99[0]:.2f} to {self.ratio.ci99[1]:.2f}"
        outcomes = {
            "faster": f"tuned is {value}, {within}",
            "slower": f"tuned is SLOWER: {value}, {within}",
            "": f"tuned is NOT measurably faster: {value}, {within}",
        }
        return outcomes[self.ratio.verdict]

    def document(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            **asdict(self),
            "verdict": self.ratio.verdict,
            "warnings": list(self.warnings),
        }


def check_differ(first: Bundle, second: Bundle, remedy: str) -> None:
    """Refuse to compare a bundle with itself: noise would make one of the two look faster.

    `remedy` is the command that tunes the model.

    Raises:
        InputError: Both have the same code and data.
    """
    first_files, second_files = (bundle.manifest.files for bundle in (first, second))
    if any(first_files[name].sha256 != second_files[name].sha256 for name in _CODE_FILES):
        return
    records = second.manifest.records
    applied = records.tuned if records else 0
    if not applied:
        raise nothing_to_compare(second.manifest.name, second.manifest.board, "no tuning record applies to it", remedy)
    why = f"for all {applied} kernel(s) with records, the untuned version is the fastest"
    raise nothing_to_compare(second.manifest.name, second.manifest.board, why, f"{remedy}, with more --trials")


class SameCodeError(InputError):
    """Two builds that were to be compared are the same code."""


def nothing_to_compare(model: str, board: str, why: str, remedy: str) -> SameCodeError:
    message = f"nothing to compare: {model} for {board} is the same code tuned and untuned"
    return SameCodeError(message, details=why, hint=remedy)


def build_and_compare(
    sources: tuple[BundleSource, BundleSource],
    loaded: Loaded | None,
    connect: Callable[[], contextlib.AbstractContextManager[ConnectedDevice]],
    settings: Settings,
    remedy: str,
) -> Comparison:
    """Build a model untuned and tuned, and run both in turns.

    `sources` build it untuned, as a deploy without the user's records does, and tuned; `remedy` is the tuning command.

    Raises:
        InputError: Both are the same.
        ToolchainError: As a build, or as `run`.
    """
    request, stages = sources[1].request, sources[1].stages
    with connect() as device:
        triple = device.triple
    with temporary.folder() as work:
        with device_programs.building_runner(triple):
            untuned, tuned = (
                _build(source, name, Path(work) / name, loaded)
                for source, name in zip(sources, ("untuned", "tuned"), strict=True)
            )
            check_differ(untuned, tuned, remedy)
            runner = device_programs.runner(triple, stages)
        with connect() as device:
            request.progress(stage(f"measuring for {settings.budget_s:g} s"))
            return run((untuned, tuned), runner, device, settings)


def _build(source: BundleSource, name: str, folder: Path, loaded: Loaded | None) -> Bundle:
    """Build with one line of progress: the stages of the two builds are the same."""
    progress = source.request.progress
    progress(stage(f"building {source.request.model.source} {name}"))

    def report_counted(line: str) -> None:
        if not isinstance(line, Step) or line.is_counted:
            progress(line)

    return replace(source, request=replace(source.request, progress=report_counted)).build(folder, loaded)


def run(bundles: tuple[Bundle, Bundle], program: Program, device: ConnectedDevice, settings: Settings) -> Comparison:
    """Run two bundles in turns on a device, which keeps its current release; everything that was sent is removed.

    Raises:
        VerificationError: The device does not fit, or the two compute different outputs.
        DeviceError: The device is lost, busy or full, or a model does not run on it.
    """
    sides = [
        Side.of(bundle, f"the {build} build of {bundle.manifest.name}")
        for bundle, build in zip(bundles, ("untuned", "tuned"), strict=True)
    ]
    samples = verification.samples_of(bundles[1])
    releases = [(side.release(program, device, settings.threads), samples.inputs) for side in sides]
    runs: tuple[list[Run], list[Run]] = ([], [])
    plan = Plan(settings.budget_s / ROUNDS / len(sides), warmup_runs=1, min_runs=_MIN_RUNS, pinned=settings.pinned)
    with device.store.lock(Owner.here("compare")), installed_temporarily(releases) as installed:
        before = bench.conditions(device.shell)
        for _, order in Turns().rounds(ROUNDS):
            for index in order:
                runs[index].append(installed[index].run(plan))
        after = bench.conditions(device.shell)
    untuned, tuned = runs[0][0], runs[1][0]
    manifest, records = bundles[1].manifest, bundles[1].manifest.records
    hint = "`toolchain records show` lists what was applied; --tolerance sets another limit"
    difference = ab.check_same_outputs(sides[::-1], (tuned, untuned), samples, settings.tolerance, hint)
    times_ns = [[run.samples_ns for run in turns] for turns in runs]
    first, second = (bench.statistics([value / 1e6 for turn in turns for value in turn]) for turns in times_ns)
    return Comparison(
        model=manifest.name,
        board=manifest.board,
        host=device.name,
        emulated=device.emulated,
        first=first,
        second=second,
        ratio=stats.ratio(*times_ns),
        difference=difference,
        reference=verification.check_outputs(tuned, samples, manifest, settings.tolerance),
        before=before,
        after=after,
        threads=tuned.threads,
        tasks=records.tasks if records else 0,
        tuned=records.tuned if records else 0,
        shipped=records.shipped if records else 0,
        waited=device.store.waited,
        digests=tuple(f"sha256:{bundle.digest}" for bundle in bundles),
    )


def table(comparison: Comparison) -> str:
    """Render mean, median and std of both for a terminal."""
    mark = "  emulated: says nothing about the real board" if comparison.emulated else ""
    rows: list[tuple[str, ...]] = [("", "MEAN", "MEDIAN", "STD", "MIN", "RUNS")]
    for name, latency in (("untuned", comparison.first), ("tuned", comparison.second)):
        values = map(duration, (latency.mean, latency.median, latency.std, latency.min))
        rows.append((name, *values, str(len(latency.samples))))
    where = f"{comparison.model} on {comparison.board} at {comparison.host}"
    applied = f"records applied to {comparison.tuned} of {comparison.tasks} kernels"
    difference = comparison.difference
    largest = f"{difference.max_rel:.1e}" if math.isfinite(difference.max_rel) else "infinite"
    lines = [
        f"{where}, {comparison.threads} thread(s), {ROUNDS} rounds of each{mark}",
        "\n".join("  ".join(f"{cell:>12}" for cell in row).rstrip() for row in rows),
        comparison.outcome,
        f"{applied}, the toolchain's own to {comparison.shipped}",
        f"outputs are the same, largest relative difference {largest} (limit {difference.tolerance:.0e})",
        *(f"warning: {warning}" for warning in comparison.warnings),
        *(f"waited {waited.seconds:.1f} s: {waited.owner}" for waited in comparison.waited),
    ]
    return "\n".join(lines)
