"""The time of each kernel call in a run of a release on its device, and the peak performance of the device's CPUs."""

from __future__ import annotations

import dataclasses
import json
import shlex
from dataclasses import asdict, dataclass
from typing import Any

from toolchain import files
from toolchain.device import runner
from toolchain.device.installed import Installed
from toolchain.device.probe.facts import DeviceFacts
from toolchain.device.roofline import Peak, read_peak
from toolchain.device.runner import SMOKE, Plan, Processor
from toolchain.errors import DeviceError
from toolchain.native.programs import RUNNER, Program
from toolchain.shell import Shell

MOST_RUNS = 10_000
"""Most profiled runs of one call: kMaxWatched of runtime/runner/options.cc."""
_MOST_CALLS, _MOST_TIMES = 20_000, 2_000_000  # kMostCalls and kMostTimes of runtime/runner/profile.cc
_MOST_SAID = (1 << 20) + 24 * _MOST_TIMES + 400 * _MOST_CALLS
_LONGEST_NAME = 256
_LARGEST = 1 << 62
_WARMUPS = 2  # of each kind: kWarmupRuns of runtime/runner/profile.cc
_PATIENCE = 10.0  # times the expected duration: other work, heat, and a hook that waits for a GPU
_ONE_RUN = Plan(budget_s=0.0, min_runs=1, max_runs=1)
_PEAK_S = 300.0  # for a slow or an emulated board
_CLOCK = "cat /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_max_freq 2>/dev/null | sort -n | tail -n 1"
_DAMAGED = "deploy again; if that does not help, check that nothing else changed the device"


@dataclass(frozen=True)
class Call:
    """A call of a kernel, or of a function of the virtual machine, in a run of the model.

    Attributes:
        name: Name of the function.
        bytes: Size of the tensors among its arguments, results included.
        own_ns: Nanoseconds in each profiled run, without nested calls.
    """

    name: str
    bytes: int
    own_ns: tuple[int, ...]


@dataclass(frozen=True)
class Watched:
    """Profiled runs, in turns with plain runs, in one process.

    Attributes:
        calls: The calls in the order in which a run begins them.
        plain_ns: Nanoseconds of each plain run.
        watched_ns: Nanoseconds of each profiled run.
        other_runs: Number of profiled runs that made other calls, and are left out.
        waits: Whether each call was awaited, as on a GPU, which prevents calls from overlapping.
        processor: The accelerator of the kernels; None for the CPU.
    """

    calls: tuple[Call, ...]
    plain_ns: tuple[int, ...]
    watched_ns: tuple[int, ...]
    other_runs: int
    waits: bool
    processor: Processor | None = None


def pace(installed: Installed, *, pinned: bool = True) -> float:
    """Return the seconds of a single run of a release, for the time limit of `watch`.

    Raises:
        DeviceError: The runner failed, or its report is not valid.
        VerificationError: The device does not accept this release.
    """
    plan, shell = installed.complete(dataclasses.replace(_ONE_RUN, pinned=pinned)), installed.shell
    with installed.scratch() as folder:
        argv = installed.command(folder, plan)
        limit_s, limit_bytes = runner.longest_s(plan), runner.most_said(plan)
        report, took_s = runner.run_for_file(shell, argv, f"{folder}/report", limit_s=limit_s, limit_bytes=limit_bytes)
    return min(runner.timed(report)[0] / 1e9, took_s)  # the whole command is an upper bound of what the report claims


def longest_s(runs: int, run_s: float) -> float:
    """Return the time limit of `watch`: as many profiled and plain runs, of `run_s` each."""
    return runner.longest_s(SMOKE) + _PATIENCE * 2 * (runs + _WARMUPS) * run_s


def watch(installed: Installed, runs: int, run_s: float, *, pinned: bool = True) -> Watched:
    """Run a release on its device and profile its calls.

    Args:
        installed: The release.
        runs: Number of profiled runs, and of plain runs.
        run_s: Seconds of a run by `pace`, for the time limit.
        pinned: Whether each thread is pinned to one CPU.

    Raises:
        DeviceError: The runner failed, or its profile is not valid.
        VerificationError: The device does not accept this release.
    """
    shell = installed.shell
    with installed.scratch() as folder:
        argv = installed.command(folder, dataclasses.replace(SMOKE, pinned=pinned))
        argv += ["--profile", f"{folder}/profile", "--profile-runs", str(runs)]
        limit_s = longest_s(runs, run_s)
        report, _took_s = runner.run_for_file(shell, argv, f"{folder}/profile", limit_s=limit_s, limit_bytes=_MOST_SAID)
    return _read(report, shell.name, runs)


def _read(text: str, name: str, runs: int) -> Watched:
    try:
        report = json.loads(text)
        watched = _times(report["watched_ns"])
        if not watched and report["other_runs"] == runs:
            raise DeviceError(
                f"no two runs on {name} make the same calls, so the times of calls cannot be compared",
                hint="`toolchain bench` measures whole runs",
            )
        result = Watched(
            calls=tuple(_call(call, len(watched)) for call in report["calls"][:_MOST_CALLS]),
            plain_ns=_times(report["plain_ns"]),
            watched_ns=watched,
            other_runs=_number(report["other_runs"]),
            waits=bool(report["waits"]),
            processor=runner.read_processor(report["processor"]),
        )
        if len(result.watched_ns) + result.other_runs != runs or len(result.plain_ns) != runs:
            raise ValueError(f"it has {len(result.watched_ns)} runs instead of {runs}")  # noqa: TRY301 - of the report
        if not result.calls:
            raise ValueError("it has no calls")  # noqa: TRY301 - as above
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as fault:
        raise DeviceError(
            f"the runner on {name} returned an invalid profile",
            details=f"{type(fault).__name__}: {fault!s:.200}",
            hint=_DAMAGED,
        ) from fault
    return result


def _call(document: Any, runs: int) -> Call:
    name = str(document["name"])[:_LONGEST_NAME]
    own_ns = _times(document["own_ns"])
    if len(own_ns) != runs:
        raise ValueError(f"{name!r:.50} has {len(own_ns)} times of {runs} runs")
    return Call(name, _number(document["bytes"]), own_ns)


def _times(values: list[object]) -> tuple[int, ...]:
    return tuple(map(_number, values))


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST:
        raise ValueError(f"{value!r:.50} is not a valid time or size")
    return value


# --- the peak ----------------------------------------------------------------------------------------------------


def peak(shell: Shell, runners: str, program: Program, facts: DeviceFacts, *, threads: int, kept: bool) -> Peak:
    """Return the peak of a device: from the cache, for the same device and clock, or measured now.

    Args:
        shell: The device.
        runners: Folder of the runner on it.
        program: The runner.
        facts: The facts of the device.
        threads: Threads; 0 means every CPU.
        kept: Whether to cache a new measurement; not if the device was busy.

    Raises:
        DeviceError: It cannot be measured.
    """
    clock = shell.run(_CLOCK, check=False).stdout.strip()
    max_khz = int(clock) if clock.isdecimal() and len(clock) < 12 else 0  # noqa: PLR2004 - digits of what is a clock
    about = [shell.name, facts.machine, facts.cpu, facts.cpus, facts.kernel, threads, max_khz, program.sha256]
    path = files.cache_root() / "peaks" / f"{files.sha256_bytes(files.canonical_json(about))[:32]}.json"
    if (peak_found := _cached_peak(path)) is None:
        argv = [f"{runners}/{RUNNER}", "--peak", *(["--threads", str(threads)] if threads else [])]
        result = shell.run(shlex.join(argv), timeout=_PEAK_S, check=False)
        if result.returncode != 0:
            raise DeviceError(f"the peak of {shell.name} cannot be measured", details=result.stderr.strip()[:200])
        peak_found = _read_peak(result.stdout, shell.name, max_khz)
        if kept:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomic(path, files.canonical_json(asdict(peak_found)))
    return peak_found


def _cached_peak(path: Any) -> Peak | None:
    try:
        return read_peak(json.loads(path.read_bytes()))
    except (OSError, LookupError, OverflowError, RecursionError, TypeError, ValueError):  # no file, or a damaged one
        return None


def _read_peak(text: str, name: str, max_khz: int) -> Peak:
    try:
        return read_peak({**json.loads(text), "max_khz": max_khz})
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as fault:
        raise DeviceError(
            f"the runner on {name} returned an invalid peak", details=f"{fault!s:.200}", hint=_DAMAGED
        ) from fault
