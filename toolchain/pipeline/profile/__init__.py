"""What each kernel of a model takes on a device: its time, its work, and what of the device's peak that is.

The model runs in turns watched and unwatched, in one process. `against` holds two releases against each other.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolchain import temporary
from toolchain.backends import backend_of
from toolchain.device import bench, deploy, profiling
from toolchain.device.bench import Conditions
from toolchain.device.lock import Owner
from toolchain.device.processor import Processor
from toolchain.device.profiling import Peak, Watched
from toolchain.device.shipment import Shipment, install, send
from toolchain.device.waiting import Waited
from toolchain.errors import DeviceError
from toolchain.models import inputs
from toolchain.native.programs import Program
from toolchain.pipeline.device import Lab
from toolchain.pipeline.profile.rows import MACHINE, Row, rows_of
from toolchain.pipeline.profile.sides import Side, of_bundle, of_release
from toolchain.pipeline.profile.split import Split, split
from toolchain.progress import stage
from toolchain.tensors import Tensors

__all__ = ["MACHINE", "Profile", "Row", "Side", "Wanted", "of_bundle", "of_release", "paced", "placed", "run"]

SCHEMA_VERSION = 1
_FEW_RUNS = 10
_LONG_MINUTES = 2.0
_HOOK, _LEAST_SUM, _MOST_SUM, _BUSY = 0.02, 0.95, 1.01, 0.1


@dataclass(frozen=True)
class Wanted:
    """How to profile.

    Attributes:
        runs: How often, watched and unwatched each.
        threads: Threads of the model; 0 means the board file's number.
        pinned: Whether each thread has a CPU of its own.
    """

    runs: int = 50
    threads: int = 0
    pinned: bool = True


@dataclass(frozen=True)
class Profile:
    """What a release takes on a device, kernel by kernel.

    Attributes:
        model: Model name.
        board: Board type.
        host: Name of the device.
        bundle_digest: Digest of the release.
        emulated: Whether the times are an emulator's.
        threads: Threads asked for; 0 means every CPU.
        runs: Runs that were watched.
        other_runs: Watched runs that made other calls, and do not count.
        plain_ms: Median of the runs without profiling.
        watched_ms: Median of those with it.
        sum_ms: Sum of the rows.
        waits: Whether each call was waited for, which forbids the overlap that a GPU has otherwise.
        rows: The kernels in order, and what is between them.
        peak: What the device reaches; None with a reason.
        no_peak: The reason.
        before: The device's conditions before the runs.
        after: Those after.
        waited: Who was at work on the device before, and how long they were waited for.
        warnings: What makes the numbers doubtful.
        typical: Nanoseconds of each call of the run that is nearest to the median, by name, in order.
        processor: What the kernels ran on; None for the CPU.
    """

    model: str
    board: str
    host: str
    bundle_digest: str
    emulated: bool
    threads: int
    runs: int
    other_runs: int
    plain_ms: float
    watched_ms: float
    sum_ms: float
    waits: bool
    rows: tuple[Row, ...]
    peak: Peak | None
    no_peak: str
    before: Conditions
    after: Conditions
    waited: tuple[Waited, ...]
    warnings: tuple[str, ...]
    typical: tuple[tuple[str, int], ...]
    processor: Processor | None = None

    @property
    def hook_share(self) -> float:
        """How much longer a watched run takes, as a share of a plain one."""
        return self.watched_ms / self.plain_ms - 1 if self.plain_ms else 0.0

    @property
    def sum_share(self) -> float:
        """The sum of the rows over a plain run."""
        return self.sum_ms / self.plain_ms if self.plain_ms else 0.0

    @property
    def split(self) -> Split | None:
        """What an accelerator takes of a run, and what the CPU; None without one."""
        return split(self.rows, emulated=self.emulated)

    def document(self) -> dict[str, Any]:
        """Return it as JSON's types; docs/profile.md describes every field."""
        found = asdict(self)
        del found["typical"]
        found["peak"] = {**asdict(self.peak), "method": self.peak.method} if self.peak else None
        derived = {"hook_share": round(self.hook_share, 5), "sum_share": round(self.sum_share, 5)}
        return {
            "schema_version": SCHEMA_VERSION,
            **found,
            **derived,
            "split": asdict(self.split) if self.split else None,
            "bundle_digest": f"sha256:{self.bundle_digest}",
        }

    def trace(self) -> bytes:
        """Return one typical run as trace events, which Perfetto and Chrome's about:tracing show.

        Only what calls take was measured, so they follow each other without what is between them.
        """
        kernels = {row.kernel for row in self.rows}
        rows = (row for row in self.rows if row.kernel)
        events: list[dict[str, Any]] = []
        now = 0.0
        for name, taken in self.typical:
            row = next(rows, None) if name in kernels else None
            about: dict[str, Any] = {}
            if row:
                about = {"operator": row.operator, "shape": row.shape, "gflop": row.gflop, "nodes": row.nodes}
            one = {"name": row.brief if row else name, "cat": "kernel" if row else "machine", "ph": "X"}
            events.append(
                {**one, "ts": round(now, 3), "dur": taken / 1e3, "pid": 1, "tid": 1, "args": {"call": name, **about}}
            )
            now += taken / 1e3
        about = {"model": self.model, "board": self.board, "release": self.bundle_digest, "emulated": self.emulated}
        document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
        return (json.dumps(document) + "\n").encode()


def run(  # noqa: PLR0913, PLR0917 - a profile takes these
    side: Side, given: inputs.Source, program: Program, lab: Lab, wanted: Wanted, tell: Callable[[str], None]
) -> Profile:
    """Profile a release on a device, which keeps the release that it has; what was brought for this goes.

    Args:
        side: The release.
        given: What it is run with.
        program: The runner for the device.
        lab: The device.
        wanted: How.
        tell: Told about the stages.

    Raises:
        VerificationError: The device does not fit.
        DeviceError: It is lost, busy or full, or the model does not run on it.
    """
    store, facts = lab.store, lab.store.facts()
    deploy.check_fits(side.manifest, program, facts)
    fed = inputs.make(given, side.manifest.inputs)
    threads = wanted.threads or lab.board.threads
    with temporary.folder() as work, store.lock(Owner.here("profile")):
        try:
            places = placed(side, program, fed, lab, Path(work))
            before = bench.conditions(lab.shell)
            tell(stage("measuring the peak of the device"))
            measure = functools.partial(profiling.peak, lab.shell, places["runners"], program, facts)
            peak, no_peak = _peak(side, functools.partial(measure, threads=threads, kept=before.busy <= _BUSY))
            run_s = paced(lab, places, threads, pinned=wanted.pinned)
            tell(stage(f"profiling {wanted.runs} runs{_about(wanted.runs, run_s)}"))
            watched = profiling.watch(
                lab.shell,
                store.root,
                places,
                release=places["releases"],
                threads=threads,
                runs=wanted.runs,
                run_s=run_s,
                pinned=wanted.pinned,
            )
            after = bench.conditions(lab.shell)
        finally:
            if side.bundle:
                store.prune(lab.board.keep)
    made = rows_of(watched, side.kernels, backend_of(lab.board), peak)
    return _profile(side, lab, threads, watched, made, peak, no_peak, (before, after))


def placed(side: Side, program: Program, fed: Tensors, lab: Lab, work: Path) -> dict[str, str]:
    """Bring what a side's runs need to the device, whose lock the caller holds; return the folders there.

    The folder `releases` among them is that of the side, be it brought now or kept there.
    """
    shipment = Shipment.of_run(program, fed, work)
    if side.bundle:
        shipment = shipment.with_release(side.bundle, work)
    send(shipment, lab.store, lab.store.facts())
    return {"releases": f"{lab.store.root}/releases/{side.digest}", **install(shipment, lab.store)}


def paced(lab: Lab, places: Mapping[str, str], threads: int, *, pinned: bool) -> float:
    """Return the seconds of a run of a side, of which `placed` told the folders."""
    release = places["releases"]
    return profiling.pace(lab.shell, lab.store.root, places, release=release, threads=threads, pinned=pinned)


def _about(runs: int, run_s: float) -> str:
    """Say how long so many runs of both kinds take, where that is long."""
    minutes = 2 * runs * run_s / 60
    return f", which takes about {minutes:.0f} minutes" if minutes >= _LONG_MINUTES else ""


def _peak(side: Side, measure: Callable[[], Peak]) -> tuple[Peak | None, str]:
    """Return what the device reaches, or why that is not known."""
    kind = str(side.manifest.target.get("kind", ""))
    if kind != "llvm":
        return None, f"the peak is measured on CPUs only, and this release computes on {kind}"
    try:
        return measure(), ""
    except DeviceError as fault:
        return None, fault.message


def _profile(  # noqa: PLR0913, PLR0917 - a profile has these sources
    side: Side,
    lab: Lab,
    threads: int,
    watched: Watched,
    made: tuple[Row, ...],
    peak: Peak | None,
    no_peak: str,
    conditions: tuple[Conditions, Conditions],
) -> Profile:
    plain, seen = (float(np.median(values)) / 1e6 for values in (watched.plain_ns, watched.watched_ns))
    found = Profile(
        model=side.manifest.name,
        board=lab.board.name,
        host=lab.shell.name,
        bundle_digest=side.digest,
        emulated=lab.emulated,
        threads=threads,
        runs=len(watched.watched_ns),
        other_runs=watched.other_runs,
        plain_ms=plain,
        watched_ms=seen,
        sum_ms=sum(row.ms for row in made),
        waits=watched.waits,
        rows=made,
        peak=peak,
        no_peak=no_peak,
        before=conditions[0],
        after=conditions[1],
        waited=lab.store.waited,
        warnings=(),
        typical=_typical(watched),
        processor=watched.processor,
    )
    return _with_warnings(found)


def _typical(watched: Watched) -> tuple[tuple[str, int], ...]:
    order = np.argsort(watched.watched_ns, kind="stable")
    place = int(order[len(order) // 2])
    return tuple((call.name, call.own_ns[place]) for call in watched.calls)


def _with_warnings(found: Profile) -> Profile:
    checks = [
        (found.emulated, "emulated: these times say nothing about the real board"),
        (
            any(row.modelled_ms is not None for row in found.rows),
            "modelled: the accelerator's times were computed by a model, not measured",
        ),
        (found.waits, "each call was waited for, so calls could not overlap: their sum is longer than a run"),
        (found.runs < _FEW_RUNS, f"only {found.runs} runs: use more --runs for reliable medians"),
        (
            found.other_runs > 0,
            f"{found.other_runs} runs are not counted: this model's data made them call other kernels",
        ),
        (found.hook_share > _HOOK, f"profiling makes a run {found.hook_share:.1%} longer"),
        (
            not _LEAST_SUM <= found.sum_share <= _MOST_SUM and not found.waits,
            f"the kernels add up to {found.sum_share:.1%} of a run without profiling: other work or very short kernels",
        ),
        (found.before.busy > _BUSY, f"busy: other work used {found.before.busy:.0%} of the CPUs just before the runs"),
    ]
    return dataclasses.replace(found, warnings=tuple(text for doubtful, text in checks if doubtful))
