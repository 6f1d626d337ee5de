"""What each kernel of a model takes on a device: its time, its work, and what of the device's peak that is.

The model runs in turns watched and unwatched, in one process. `against` holds two releases against each other.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolchain import temporary
from toolchain.backends import backend_of
from toolchain.device import bench, profiling
from toolchain.device.bench import Conditions
from toolchain.device.connected import ConnectedDevice
from toolchain.device.installed import DeviceRelease, Installed
from toolchain.device.lock import Owner
from toolchain.device.processor import Processor
from toolchain.device.profiling import Peak, Watched
from toolchain.device.waiting import Waited
from toolchain.errors import DeviceError
from toolchain.models import inputs
from toolchain.native.programs import Program
from toolchain.pipeline.profile.rows import MACHINE, Row, rows_of
from toolchain.pipeline.profile.split import Split, split
from toolchain.pipeline.sides import Side
from toolchain.progress import stage

__all__ = [
    "MACHINE",
    "Profile",
    "ProfileRequest",
    "Row",
    "Side",
    "run",
    "run_seconds",
    "watch",
]

SCHEMA_VERSION = 1
_FEW_RUNS = 10
_LONG_MINUTES = 2.0
_HOOK, _LEAST_SUM, _MOST_SUM, _BUSY = 0.02, 0.95, 1.01, 0.1


@dataclass(frozen=True)
class ProfileRequest:
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
        document = asdict(self)
        del document["typical"]
        document["peak"] = {**asdict(self.peak), "method": self.peak.method} if self.peak else None
        derived = {"hook_share": round(self.hook_share, 5), "sum_share": round(self.sum_share, 5)}
        return {
            "schema_version": SCHEMA_VERSION,
            **document,
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
        for name, duration_ns in self.typical:
            row = next(rows, None) if name in kernels else None
            about: dict[str, Any] = {}
            if row:
                about = {"operator": row.operator, "shape": row.shape, "gflop": row.gflop, "nodes": row.nodes}
            event = {"name": row.brief if row else name, "cat": "kernel" if row else "machine", "ph": "X"}
            times = {"ts": round(now, 3), "dur": duration_ns / 1e3}
            events.append({**event, **times, "pid": 1, "tid": 1, "args": {"call": name, **about}})
            now += duration_ns / 1e3
        about = {"model": self.model, "board": self.board, "release": self.bundle_digest, "emulated": self.emulated}
        document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
        return (json.dumps(document) + "\n").encode()


def run(
    side: Side,
    given: inputs.Source,
    program: Program,
    device: ConnectedDevice,
    request: ProfileRequest,
    tell: Callable[[str], None],
) -> Profile:
    """Profile a release on a device, which keeps the release that it has; what was brought for this is removed.

    Args:
        side: The release.
        given: What it is run with.
        program: The runner for the device.
        device: The device.
        request: How.
        tell: Called with the stages.

    Raises:
        VerificationError: The device does not fit.
        DeviceError: It is lost, busy or full, or the model does not run on it.
    """
    release = side.release(program, device, request.threads)
    arrays = inputs.make(given, side.manifest.inputs)
    with temporary.folder() as work, device.store.lock(Owner.here("profile")):
        try:
            installed, kernels = release.install(arrays, Path(work)), side.kernels(device)
            before = bench.conditions(device.shell)
            tell(stage("measuring the peak of the device"))
            peak, no_peak = _peak(installed, kept=before.busy <= _BUSY)
            run_s = run_seconds(installed, pinned=request.pinned)
            tell(stage(f"profiling {request.runs} runs{_about(request.runs, run_s)}"))
            watched = watch(installed, request.runs, run_s, pinned=request.pinned)
            after = bench.conditions(device.shell)
        finally:
            if side.bundle:
                device.store.prune(device.board.keep)
    rows = rows_of(watched, kernels, backend_of(device.board), peak)
    return _profile(release, watched, rows, (peak, no_peak), (before, after))


def run_seconds(installed: Installed, *, pinned: bool) -> float:
    """Return the seconds of a run of a release."""
    device, folders = installed.release.device, installed.folders
    return profiling.pace(
        device.shell,
        device.store.root,
        folders,
        release=folders["releases"],
        threads=installed.release.threads,
        pinned=pinned,
    )


def watch(installed: Installed, runs: int, run_s: float, *, pinned: bool) -> Watched:
    """Run a release and watch its calls; see `profiling.watch`."""
    device, folders = installed.release.device, installed.folders
    return profiling.watch(
        device.shell,
        device.store.root,
        folders,
        release=folders["releases"],
        threads=installed.release.threads,
        runs=runs,
        run_s=run_s,
        pinned=pinned,
    )


def _about(runs: int, run_s: float) -> str:
    """Say how long so many runs of both kinds take, where that is long."""
    minutes = 2 * runs * run_s / 60
    return f", which takes about {minutes:.0f} minutes" if minutes >= _LONG_MINUTES else ""


def _peak(installed: Installed, *, kept: bool) -> tuple[Peak | None, str]:
    """Return what the device reaches, or why that is not known."""
    release, runner = installed.release, installed.folders["runners"]
    kind = str(release.manifest.target.get("kind", ""))
    if kind != "llvm":
        return None, f"the peak is measured on CPUs only, and this release computes on {kind}"
    try:
        shell = release.device.shell
        return profiling.peak(shell, runner, release.program, release.facts, threads=release.threads, kept=kept), ""
    except DeviceError as fault:
        return None, fault.message


def _profile(
    release: DeviceRelease,
    watched: Watched,
    rows: tuple[Row, ...],
    peak: tuple[Peak | None, str],
    conditions: tuple[Conditions, Conditions],
) -> Profile:
    device = release.device
    plain_ms, watched_ms = (float(np.median(values)) / 1e6 for values in (watched.plain_ns, watched.watched_ns))
    profile = Profile(
        model=release.manifest.name,
        board=device.board.name,
        host=device.name,
        bundle_digest=release.digest,
        emulated=device.emulated,
        threads=release.threads,
        runs=len(watched.watched_ns),
        other_runs=watched.other_runs,
        plain_ms=plain_ms,
        watched_ms=watched_ms,
        sum_ms=sum(row.ms for row in rows),
        waits=watched.waits,
        rows=rows,
        peak=peak[0],
        no_peak=peak[1],
        before=conditions[0],
        after=conditions[1],
        waited=device.store.waited,
        warnings=(),
        typical=_typical(watched),
        processor=watched.processor,
    )
    return _with_warnings(profile)


def _typical(watched: Watched) -> tuple[tuple[str, int], ...]:
    order = np.argsort(watched.watched_ns, kind="stable")
    median_run = int(order[len(order) // 2])
    return tuple((call.name, call.own_ns[median_run]) for call in watched.calls)


def _with_warnings(profile: Profile) -> Profile:
    shown_sum = f"{profile.sum_share:.1%}"
    checks = [
        (profile.emulated, "emulated: these times say nothing about the real board"),
        (
            any(row.modelled_ms is not None for row in profile.rows),
            "modelled: the accelerator's times were computed by a model, not measured",
        ),
        (profile.waits, "each call was waited for, so calls could not overlap: their sum is longer than a run"),
        (profile.runs < _FEW_RUNS, f"only {profile.runs} runs: use more --runs for reliable medians"),
        (
            profile.other_runs > 0,
            f"{profile.other_runs} runs are not counted: this model's data made them call other kernels",
        ),
        (profile.hook_share > _HOOK, f"profiling makes a run {profile.hook_share:.1%} longer"),
        (
            not _LEAST_SUM <= profile.sum_share <= _MOST_SUM and not profile.waits,
            f"the kernels add up to {shown_sum} of a run without profiling: other work or very short kernels",
        ),
        (
            profile.before.busy > _BUSY,
            f"busy: other work used {profile.before.busy:.0%} of the CPUs just before the runs",
        ),
    ]
    return dataclasses.replace(profile, warnings=tuple(text for doubtful, text in checks if doubtful))
