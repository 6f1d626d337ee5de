"""The time and the work of each kernel of a model on a device, and its share of the device's peak.

The model runs in turns with and without profiling, in one process. `against` compares two releases.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from toolchain.backends import backend_of
from toolchain.device import bench, profiling
from toolchain.device.bench import Conditions
from toolchain.device.connected import ConnectedDevice
from toolchain.device.installed import DeviceRelease, Installed, installed_temporarily
from toolchain.device.lock import Owner
from toolchain.device.profiling import Watched
from toolchain.device.roofline import Peak
from toolchain.device.runner import Processor
from toolchain.device.waiting import Waited
from toolchain.errors import DeviceError
from toolchain.models import inputs
from toolchain.native.programs import Program
from toolchain.pipeline import steps
from toolchain.pipeline.ab import Side
from toolchain.pipeline.profile.rows import MACHINE, Row, rows_of
from toolchain.pipeline.profile.split import Split, split
from toolchain.progress import Progress, stage

__all__ = [
    "MACHINE",
    "Profile",
    "ProfileRequest",
    "Row",
    "run",
]

SCHEMA_VERSION = 1
_FEW_RUNS = 10
_LONG_MINUTES = 2.0
_MAX_HOOK_SHARE, _MIN_SUM_SHARE, _MAX_SUM_SHARE, _MAX_BUSY = 0.02, 0.95, 1.01, 0.1


@dataclass(frozen=True)
class ProfileRequest:
    """How to profile."""

    runs: int = 50  # number of runs with profiling, and as many without
    threads: int = 0  # threads of the model; 0 means the board file's number
    pinned: bool = True  # whether each thread has a CPU of its own


@dataclass(frozen=True)
class Profile:
    """The time of a release on a device, kernel by kernel."""

    model: str
    board: str
    host: str
    bundle_digest: str
    emulated: bool
    threads: int  # as requested; 0 means every CPU
    runs: int  # runs that were profiled
    other_runs: int  # profiled runs that made other calls, and do not count
    plain_ms: float  # median of the runs without profiling
    watched_ms: float  # median of those with it
    sum_ms: float  # sum of the rows
    waits: bool  # whether each call was waited for, which forbids the overlap that a GPU has otherwise
    rows: tuple[Row, ...]  # the kernels in order, then everything between them
    peak: Peak | None  # None with a reason in `no_peak`
    no_peak: str
    before: Conditions
    after: Conditions
    waited: tuple[Waited, ...]
    warnings: tuple[str, ...]
    # Nanoseconds of each call of the run that is nearest to the median, by name, in order
    typical: tuple[tuple[str, int], ...]
    processor: Processor | None = None  # on which the kernels ran; None for the CPU

    @property
    def hook_share(self) -> float:
        """How much longer a run with profiling takes, as a share of a plain one."""
        return self.watched_ms / self.plain_ms - 1 if self.plain_ms else 0.0

    @property
    def sum_share(self) -> float:
        """The sum of the rows over a plain run."""
        return self.sum_ms / self.plain_ms if self.plain_ms else 0.0

    @property
    def split(self) -> Split | None:
        """The times of an accelerator and of the CPU; None without an accelerator."""
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

        Only the calls were measured, so they follow each other without the gaps between them.
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
    source: inputs.Source,
    program: Program,
    device: ConnectedDevice,
    request: ProfileRequest,
    progress: Progress,
) -> Profile:
    """Profile a release on a device, which keeps its current release.

    Raises:
        VerificationError: The device does not fit.
        DeviceError: It is lost, busy or full, or the model does not run on it.
    """
    release = side.release(program, device, request.threads)
    arrays = steps.make_inputs(source, side.manifest)
    with device.store.lock(Owner.here("profile")), installed_temporarily([(release, arrays)]) as (installed,):
        kernels = side.kernels
        before = bench.conditions(device.shell)
        progress(stage("measuring the peak of the device"))
        peak, no_peak = _peak(installed, reusable=before.busy <= _MAX_BUSY)
        run_s = profiling.pace(installed, pinned=request.pinned)
        minutes = 2 * request.runs * run_s / 60
        about = f", which takes about {minutes:.0f} minutes" if minutes >= _LONG_MINUTES else ""
        progress(stage(f"profiling {request.runs} runs{about}"))
        watched = profiling.watch(installed, request.runs, run_s, pinned=request.pinned)
        after = bench.conditions(device.shell)
    rows = rows_of(watched, kernels, backend_of(device.board), peak)
    return _profile(release, watched, rows, (peak, no_peak), (before, after))


def _peak(installed: Installed, *, reusable: bool) -> tuple[Peak | None, str]:
    """Return the peak of the device, or why it is unknown."""
    release, runner = installed.release, installed.folders["runners"]
    kind = str(release.manifest.target.get("kind", ""))
    if kind != "llvm":
        return None, f"the peak is measured on CPUs only, and this release computes on {kind}"
    try:
        shell = release.device.shell
        return profiling.peak(shell, runner, release.program, release.facts, threads=release.threads, kept=reusable), ""
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
    by_time = np.argsort(watched.watched_ns, kind="stable")
    median_run = int(by_time[len(by_time) // 2])
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
        typical=tuple((call.name, call.own_ns[median_run]) for call in watched.calls),
        processor=watched.processor,
    )
    return dataclasses.replace(profile, warnings=_warnings(profile))


def _warnings(profile: Profile) -> tuple[str, ...]:
    share = f"{profile.sum_share:.1%}"
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
        (profile.hook_share > _MAX_HOOK_SHARE, f"profiling makes a run {profile.hook_share:.1%} longer"),
        (
            not _MIN_SUM_SHARE <= profile.sum_share <= _MAX_SUM_SHARE and not profile.waits,
            f"the kernels add up to {share} of a run without profiling: other work or very short kernels",
        ),
        (
            profile.before.busy > _MAX_BUSY,
            f"busy: other work used {profile.before.busy:.0%} of the CPUs just before the runs",
        ),
    ]
    return tuple(text for doubtful, text in checks if doubtful)
