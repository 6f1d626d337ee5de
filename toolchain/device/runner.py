"""Runs a release on a device with the C++ runner that is there, and brings back outputs and times."""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from toolchain import temporary, tensors
from toolchain.bundle import Manifest
from toolchain.device import copies, processor
from toolchain.device.copies import Copies
from toolchain.device.processor import Processor
from toolchain.errors import DeviceError, VerificationError
from toolchain.native.programs import RUNNER
from toolchain.process import Result
from toolchain.shell import Shell
from toolchain.tensors import TensorSpec

INPUTS = "inputs.safetensors"
UNTRUSTED = 7
"""How the runner ends where a device does not take a release: kExitUntrusted of runtime/model/fault.h."""
_SPARE = 1 << 20  # bytes beside the elements of outputs, and beside the times of a report
_PER_RUN = 24
_SHOWN = 200
_LARGEST = 1 << 62
_CLOCKS_APART, _SLACK_S = 10.0, 10.0  # what is told and what is seen may differ so much, for no good reason
_START_S, _LONGEST_START_S = 120.0, 600.0  # for loading and the first run
_SLOWEST = 64 << 10  # bytes of a network in a second, loaded and run for the first time, by an emulated board too
_RUNS_A_START = 10  # later runs that take as long as the first, with all that comes before it


@dataclass(frozen=True)
class Run:
    """What one call of the runner gave.

    Attributes:
        outputs: Output tensors by name; of a plan with samples each has one more axis in front.
        samples_ns: Duration of every timed run in nanoseconds, in order; empty for a smoke run.
        warmup_ns: Durations of the runs before those, at least one.
        load_ms: Time to load library and params.
        threads: Threads the model ran on.
        peak_rss_kib: Largest memory use of the process.
        each_ns: Durations of the runs whose outputs these are, in nanoseconds, one for each sample.
        involuntary_switches: How often others took a CPU from one of its threads during the timed runs.
        processor: What the kernels ran on; None for the CPU.
        copies: What an accelerator with memory of its own made each timed run copy; None where none ran.
    """

    outputs: Mapping[str, NDArray[Any]]
    samples_ns: tuple[int, ...]
    warmup_ns: tuple[int, ...]
    load_ms: float
    threads: int
    peak_rss_kib: int
    each_ns: tuple[int, ...] = ()
    involuntary_switches: int = 0
    processor: Processor | None = None
    copies: Copies | None = None


@dataclass(frozen=True)
class Plan:
    """How often to run: at least `min_runs` and at most `max_runs` times, until `budget_s` seconds are used up.

    The first run, whose outputs are kept, warms up and is not timed; `warmup_runs` adds more of them. Threads
    are `pinned`, each to a CPU of its own, or else the system moves them between those CPUs as it likes. With `samples`
    the inputs have one more axis in front, of so many samples, and each is run once for its outputs; 0 is one, without.
    """

    budget_s: float = 10.0
    warmup_runs: int = 0
    min_runs: int = 3
    max_runs: int = 10_000
    pinned: bool = True
    samples: int = 0


SMOKE = Plan(budget_s=0.0, min_runs=1, max_runs=0)


def call(  # noqa: PLR0913 - one call has these independent parts
    shell: Shell,
    root: str,
    folders: Mapping[str, str],
    *,
    release: str,
    threads: int,
    plan: Plan,
    outputs: Sequence[TensorSpec],
    size: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Run:
    """Run a release on a device.

    Args:
        shell: The device.
        root: The store's root on the device.
        folders: Folders on the device that hold the runner (`runners`) and the inputs (`inputs`).
        release: Folder of the release on the device.
        threads: Threads; 0 leaves it to the runner, which takes every CPU.
        plan: How often.
        outputs: What the model gives, as far as its size goes.
        size: Bytes of the release, by which the longest time of a run is estimated; None where they say nothing.
        environment: Variables to set for it.

    Raises:
        DeviceError: The runner failed; its own words are in the details. Or the device's answer is none.
        VerificationError: The outputs are no tensors, or the device takes signed releases only, and not this one.
    """
    with scratch(shell, root) as folder:
        argv = command(folders, release, folder, plan, threads)
        if environment:
            argv = ["env", *(f"{name}={value}" for name, value in environment.items()), *argv]
        report, took_s = run_for_file(
            shell, argv, f"{folder}/report", limit_s=longest_s(plan, size), limit_bytes=most_said(plan)
        )
        limit_bytes = _SPARE + sum(spec.bytes for spec in outputs) * max(plan.samples, 1)
        with temporary.folder() as work:
            local = Path(work) / "outputs.safetensors"
            shell.pull(f"{folder}/outputs", local, most=limit_bytes)
            run = read(report, tensors.load(local), shell.name, plan)
    check_times([run], took_s, shell.name)
    return run


@contextlib.contextmanager
def scratch(shell: Shell, root: str) -> Iterator[str]:
    """Give a folder on the device for what runs write, for the time of a block; whoever writes first makes it.

    Args:
        shell: The device.
        root: The store's root there; the next who changes it removes what a killed command left.
    """
    folder = f"{root}/run/{secrets.token_hex(8)}"
    try:
        yield folder
    finally:
        shell.run(f"rm -rf {shlex.quote(folder)}", check=False)


def command(folders: Mapping[str, str], release: str, folder: str, plan: Plan, threads: int = 0) -> list[str]:
    """Return the runner's command line.

    Args:
        folders: As for `call`.
        release: As for `call`.
        folder: Folder for its `outputs` and its `report`.
        plan: How often.
        threads: As for `call`.
    """
    argv = [f"{folders['runners']}/{RUNNER}", "--release", release, "--inputs", f"{folders['inputs']}/{INPUTS}"]
    argv += ["--outputs", f"{folder}/outputs", "--report", f"{folder}/report"]
    argv += ["--warmup-runs", str(plan.warmup_runs), "--min-runs", str(plan.min_runs)]
    argv += ["--max-runs", str(plan.max_runs), "--budget-ms", str(round(plan.budget_s * 1000))]
    argv += ["--samples", str(plan.samples)] if plan.samples else []
    argv += [] if plan.pinned else ["--no-pin"]
    return [*argv, "--threads", str(threads)] if threads else argv


def run_for_file(
    shell: Shell, argv: Sequence[str], file: str, *, limit_s: float, limit_bytes: int
) -> tuple[str, float]:
    """Run the runner on a device; return what it wrote to a file in `scratch`, and the seconds that all of it took.

    Args:
        shell: The device.
        argv: The runner's command line.
        file: The file.
        limit_s: Seconds after which it is ended.
        limit_bytes: Most bytes of the file.

    Raises:
        DeviceError: The runner failed; its own words are in the details.
        VerificationError: The device takes signed releases only, and not this one.
    """
    path = shlex.quote(file)
    script = f"umask 022; mkdir -p {shlex.quote(file.rpartition('/')[0])} && {shlex.join(argv)} && cat {path}"
    began = time.monotonic()
    result = shell.run(script, timeout=limit_s, check=False, most=limit_bytes)
    took_s = time.monotonic() - began
    check_ended(shell.name, result)
    return result.stdout, took_s


def weight(manifest: Manifest) -> int | None:
    """Return the bytes of a release that say how long a run takes; None where an accelerator's model says more."""
    return None if manifest.modelled else sum(record.size for record in manifest.files.values())


def longest_s(plan: Plan, size: int | None = None) -> float:
    """Return the seconds after which a call is ended: a large network may need minutes for its first run.

    Args:
        plan: How often it runs.
        size: Bytes of the release; None if they are not known.
    """
    start = _LONGEST_START_S if size is None else min(_LONGEST_START_S, _START_S + size / _SLOWEST)
    runs = max(plan.samples, _RUNS_A_START) + plan.warmup_runs + (plan.min_runs if plan.max_runs else 0)
    return start / _RUNS_A_START * runs + plan.budget_s * 3


def most_said(plan: Plan) -> int:
    """Return the most bytes that a report may have."""
    return _SPARE + _PER_RUN * (plan.warmup_runs + plan.min_runs + plan.max_runs + plan.samples)


def check_times(runs: Sequence[Run], took_s: float, name: str) -> None:
    """See that runs did not take longer than the trip in which they were: of a device's clock that is all we know.

    Args:
        runs: What was reported.
        took_s: Seconds of the trip, by this machine's clock.
        name: The device.

    Raises:
        DeviceError: They did, by far.
    """
    told_s = sum(sum(run.samples_ns) + sum(run.warmup_ns) for run in runs) / 1e9
    if told_s > _CLOCKS_APART * took_s + _SLACK_S:
        raise DeviceError(
            f"{name} reports {told_s:.3g} s of runs, but the whole command took only {took_s:.3g} s",
            details="a run cannot take longer than its command",
            hint="check the device's clock; its times are not reliable",
        )


def check_ended(name: str, result: Result) -> None:
    """See that a runner ended well.

    Args:
        name: The device.
        result: How its script ended: with the runner's own code and words, if it did not end well.

    Raises:
        DeviceError: It did not.
        VerificationError: The device takes signed releases only, and not this one.
    """
    if result.returncode == UNTRUSTED:
        raise VerificationError(
            f"{name} does not accept this release",
            details=result.stderr.strip(),
            hint="sign the package with `toolchain sign`, and check the device's trusted keys (docs/security.md)",
        )
    if result.returncode != 0:
        raise DeviceError(
            f"the model does not run on {name}",
            details=result.stderr.strip() or f"the runner ended with code {result.returncode}",
            hint="the device keeps its previous release; check the model and the device's log, and deploy again",
        )


def read(text: str, outputs: Mapping[str, NDArray[Any]], name: str, plan: Plan) -> Run:
    """Read the report of a runner, or of what a device has in its place.

    Args:
        text: The report.
        outputs: Output tensors by name; none where nobody asked for them.
        name: The device.
        plan: What the runner was asked for.

    Raises:
        DeviceError: It is no report.
    """
    fewest, most = sorted((plan.min_runs, plan.max_runs))
    try:
        report = json.loads(text)
        times = {key: tuple(map(_time, report[key])) for key in ("samples_ns", "warmup_ns", "each_ns")}
        return Run(
            outputs=outputs,
            samples_ns=_check_count(times["samples_ns"], fewest, most if plan.max_runs else 0),
            warmup_ns=(times["each_ns"][0], *times["warmup_ns"]),
            load_ms=_duration(report["load_ms"]),
            threads=_time(report["threads"]),
            peak_rss_kib=_time(report["peak_rss_kib"]),
            each_ns=times["each_ns"],
            involuntary_switches=_time(report["involuntary_switches"]),
            processor=processor.read(report["processor"]),
            copies=copies.read(report.get("copies")),
        )
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as fault:
        raise DeviceError(
            f"the runner on {name} sent an invalid report",
            details=f"{type(fault).__name__}: {fault}\n{text[:_SHOWN]}",
            hint="deploy again; if that does not help, check the device and its storage",
        ) from fault


def timed(text: str) -> tuple[int, ...]:
    """Return the nanoseconds of each timed run that a report has, at least one.

    Raises:
        DeviceError: It is no report.
    """
    try:
        return _check_count(tuple(map(_time, json.loads(text)["samples_ns"])), 1)
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as fault:
        raise DeviceError("the runner sent an invalid report", details=f"{fault!s:.200}") from fault


def _check_count(samples: tuple[int, ...], fewest: int, most: int = 0) -> tuple[int, ...]:
    """Return samples that are as many as were asked for; `most` of 0 is any number."""
    if most and len(samples) > most:
        raise ValueError(f"it has {len(samples)} samples, more than {most}")
    if len(samples) < fewest:
        raise ValueError(f"it has {len(samples)} samples, fewer than {fewest}")
    return samples


def _duration(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
        raise ValueError(f"{value!r:.50} is not a valid time")
    return float(value)


def _time(value: object) -> int:
    """Return a number of a report, which JSON may have made anything."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
        raise ValueError(f"{value!r:.50} is not a valid time or size")
    return value
