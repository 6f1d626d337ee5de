"""Run a release on a device with the C++ runner there, and fetch its outputs and times."""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from toolchain import temporary, tensors
from toolchain.bundle import Manifest
from toolchain.device.rate import Rate
from toolchain.device.rate_report import Periodic, read_periodic
from toolchain.errors import DeviceError, VerificationError
from toolchain.native.programs import RUNNER
from toolchain.process import Result
from toolchain.shell import Shell
from toolchain.tensors import TensorSpec

INPUTS = "inputs.safetensors"
UNTRUSTED = 7
"""Exit code of the runner if the device does not accept the release: kExitUntrusted of runtime/model/fault.h."""
_NO_RIGHTS = 9  # kExitRights of runtime/model/fault.h
_SPARE = 1 << 20  # bytes of headers of the outputs, and of other fields of a report
_PER_RUN = 24
_SHOWN = 200
_LARGEST = 1 << 62
_CLOCKS_APART, _SLACK_S = 10.0, 10.0  # generous: clocks of devices run wrong
_START_S, _LONGEST_START_S = 120.0, 600.0  # for loading and the first run
_SLOWEST = 64 << 10  # bytes of a network per second, to load it and run it once, on an emulated board
_COMPILED_HERE = "llvm"  # target kind of kernels that are machine code when they reach the device
_RUNS_A_START = 10  # the start, with loading and the first run, takes as long as so many later runs

WEIGHTS = ("", "file", "copy", "fs-verity", "sealed", "shared")
"""The values of `edge_release.weights`."""

_LONGEST = 200
_MOST_UNITS = 1 << 20
_MOST_BYTES = 1 << 50
_MEGABYTE = 1e6


@dataclass(frozen=True)
class Run:
    """The result of one call of the runner.

    Attributes:
        outputs: Output tensors by name; for a plan with samples, (samples, ...).
        samples_ns: Duration of every timed run in nanoseconds, in order; empty for a smoke run.
        warmup_ns: Durations of the warm-up runs, at least one.
        load_ms: Time to load library and params.
        threads: Threads the model ran on.
        peak_rss_kib: Largest memory use of the process.
        weights: Where the weights were in memory, one of `WEIGHTS`; empty for runners of earlier versions.
        each_ns: Durations of the runs that computed the outputs, in nanoseconds, one for each sample.
        involuntary_switches: Number of times that one of its threads lost its CPU during the timed runs.
        processor: The accelerator of the kernels; None for the CPU.
        copies: The copies to and from an accelerator's own memory; None without such an accelerator.
        periodic: The runs at a rate after the timed ones; None without a rate.
        objects: The tensors of what pictures or sounds gave; None if the inputs were tensors.
    """

    outputs: Mapping[str, NDArray[Any]]
    samples_ns: tuple[int, ...]
    warmup_ns: tuple[int, ...]
    load_ms: float
    threads: int
    peak_rss_kib: int
    weights: str = ""
    each_ns: tuple[int, ...] = ()
    involuntary_switches: int = 0
    processor: Processor | None = None
    copies: Copies | None = None
    periodic: Periodic | None = None
    objects: Mapping[str, NDArray[Any]] | None = None


@dataclass(frozen=True)
class Neighbour:
    """Another model, which runs again and again while one is timed, in a process of its own with as many threads.

    Attributes:
        release: Folder of the release on the device.
        inputs: Folder of its inputs on the device.
        steps: Steps of these inputs; 0 for a model without a state.
        variant: Its set of shapes; empty if there is one.
    """

    release: str
    inputs: str
    steps: int = 0
    variant: str = ""

    @property
    def arguments(self) -> list[str]:
        """The runner's options."""
        steps = ["--beside-steps", str(self.steps)] if self.steps else []
        variant = ["--beside-variant", self.variant] if self.variant else []
        return ["--beside", self.release, "--beside-inputs", f"{self.inputs}/{INPUTS}", *steps, *variant]


@dataclass(frozen=True)
class Second:
    """Another model, which runs on that part of a picture which a box of the first one has, for each box.

    Attributes:
        release: Folder of the release on the device.
        runs: How many boxes a picture may have.
    """

    release: str
    runs: int


@dataclass(frozen=True)
class Plan:
    """How often to run: at least `min_runs` and at most `max_runs` times, until `budget_s` seconds are used up.

    The first run computes the outputs and is not timed; `warmup_runs` adds more such runs. Each thread is `pinned` to
    one CPU, or else the system moves them between these CPUs. With `samples`, the inputs are (samples, ...), and the
    model runs once for each; 0 means a single input without that axis. They are the steps of a `sequence` if a model
    keeps its state between them; the first step gets it from a file of the device, `state_in`, or else it is zeros, and
    the last one leaves it in `state_out`. With a `rate`, the model then runs at that rate.
    Another model runs `beside` the timed runs, or as the `second` one in a row.
    With `objects`, the inputs are raw pictures or sounds, and what these give has at most so many bytes; with
    `keep_input`, the input that was made of the last one is fetched, too. `variant` is one of a
    release that has several.
    """

    budget_s: float = 10.0
    warmup_runs: int = 0
    min_runs: int = 3
    max_runs: int = 10_000
    pinned: bool = True
    samples: int = 0
    rate: Rate | None = None
    sequence: bool = False
    state_in: str = ""
    state_out: str = ""
    objects: int = 0
    keep_input: bool = False
    variant: str = ""
    beside: Neighbour | None = None
    second: Second | None = None


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
        threads: Threads; 0 for every CPU.
        plan: How often to run.
        outputs: Signature of the outputs, for a limit of their size.
        size: Bytes of the release, for the time limit; None if they say nothing about it.
        environment: Environment variables of the runner.

    Raises:
        DeviceError: The runner failed, with its message in the details, or its report is not valid.
        VerificationError: The outputs are not tensors, or the device does not accept this release.
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
            shell.pull(f"{folder}/outputs", local, max_bytes=limit_bytes)
            run = read(report, tensors.load(local), shell.name, plan)
            if plan.objects:
                local = Path(work) / "objects.safetensors"
                shell.pull(f"{folder}/objects", local, max_bytes=plan.objects)
                run = replace(run, objects=tensors.load(local))
    check_times([run], took_s, shell.name)
    return run


@contextlib.contextmanager
def scratch(shell: Shell, root: str) -> Iterator[str]:
    """Yield the path of a folder on the device for the files of runs, and remove it after the block.

    The first run creates it. If this command is killed, the next change of the store removes it.
    """
    folder = f"{root}/run/{secrets.token_hex(8)}"
    try:
        yield folder
    finally:
        shell.run(f"rm -rf {shlex.quote(folder)}", check=False)


def command(folders: Mapping[str, str], release: str, folder: str, plan: Plan, threads: int = 0) -> list[str]:
    """Return the runner's command line.

    `folder` is for its `outputs` and its `report`; the other arguments are those of `call`.
    """
    argv = [f"{folders['runners']}/{RUNNER}", "--release", release, "--inputs", f"{folders['inputs']}/{INPUTS}"]
    argv += ["--outputs", f"{folder}/outputs", "--report", f"{folder}/report"]
    argv += ["--warmup-runs", str(plan.warmup_runs), "--min-runs", str(plan.min_runs)]
    argv += ["--max-runs", str(plan.max_runs), "--budget-ms", str(round(plan.budget_s * 1000))]
    argv += ["--samples", str(plan.samples)] if plan.samples else []
    argv += ["--sequence"] if plan.sequence else []
    valued = (("--state-in", plan.state_in), ("--state-out", plan.state_out), ("--variant", plan.variant))
    for option, value in valued:
        argv += [option, value] if value else []
    argv += ["--objects", f"{folder}/objects"] if plan.objects else []
    argv += ["--keep-input"] if plan.keep_input else []
    argv += ["--crops", plan.second.release] if plan.second else []
    argv += [] if plan.pinned else ["--no-pin"]
    argv += plan.rate.arguments if plan.rate else []
    argv += plan.beside.arguments if plan.beside else []
    return [*argv, "--threads", str(threads)] if threads else argv


def run_for_file(
    shell: Shell, argv: Sequence[str], file: str, *, limit_s: float, limit_bytes: int
) -> tuple[str, float]:
    """Run the runner on a device; return the file that it wrote, and the seconds of the whole command.

    Args:
        shell: The device.
        argv: The runner's command line.
        file: Path of the file, in a folder of `scratch`.
        limit_s: Time limit in seconds.
        limit_bytes: Largest size of the file.

    Raises:
        DeviceError: The runner failed, with its message in the details.
        VerificationError: The device does not accept this release.
    """
    path = shlex.quote(file)
    script = f"umask 022; mkdir -p {shlex.quote(file.rpartition('/')[0])} && {shlex.join(argv)} && cat {path}"
    began = time.monotonic()
    result = shell.run(script, timeout=limit_s, check=False, max_bytes=limit_bytes)
    took_s = time.monotonic() - began
    check_ended(shell.name, result)
    return result.stdout, took_s


def weight(manifest: Manifest) -> int | None:
    """Return the bytes of a release as a measure of the duration of a run; None if they say nothing about it.

    That is so where cycles are modelled, and where a driver on the device compiles the kernels before the first run.
    """
    if manifest.modelled or manifest.target.get("kind") != _COMPILED_HERE:
        return None
    return sum(record.size for record in manifest.files.values())


def longest_s(plan: Plan, size: int | None = None) -> float:
    """Return the time limit of a call in seconds: a large network may need minutes for its first run.

    `size` is that of the release; None if unknown.
    """
    start = _LONGEST_START_S if size is None else min(_LONGEST_START_S, _START_S + size / _SLOWEST)
    runs = max(plan.samples, _RUNS_A_START) + plan.warmup_runs + (plan.min_runs if plan.max_runs else 0)
    models = 2 if plan.beside else 1 + plan.second.runs if plan.second else 1
    return models * start / _RUNS_A_START * runs + plan.budget_s * 3


def most_said(plan: Plan) -> int:
    """Return the largest size of a report in bytes."""
    return _SPARE + _PER_RUN * (plan.warmup_runs + plan.min_runs + plan.max_runs + plan.samples)


def check_times(runs: Sequence[Run], took_s: float, name: str) -> None:
    """Check the reported times against this machine's clock: runs cannot take longer than their command.

    `took_s` is the duration of the command by this machine's clock.

    Raises:
        DeviceError: They took longer, by far.
    """
    told_s = sum(sum(run.samples_ns) + sum(run.warmup_ns) for run in runs) / 1e9
    if told_s > _CLOCKS_APART * took_s + _SLACK_S:
        raise DeviceError(
            f"{name} reports {told_s:.3g} s of runs, but the whole command took only {took_s:.3g} s",
            details="a run cannot take longer than its command",
            hint="check the device's clock; its times are not reliable",
        )


def check_ended(name: str, result: Result) -> None:
    """Check the exit code of a runner.

    The script exits with the code and the message of a runner.

    Raises:
        DeviceError: The runner failed.
        VerificationError: The device does not accept this release.
    """
    if result.returncode == UNTRUSTED:
        raise VerificationError(
            f"{name} does not accept this release",
            details=result.stderr.strip(),
            hint="sign the package with `toolchain trust sign`, and check the device's trusted keys (docs/security.md)",
        )
    if result.returncode == _NO_RIGHTS:
        raise DeviceError(
            f"{name} does not allow --fifo or --mlock",
            details=result.stderr.strip(),
            hint="log in as root, or raise the login's `rtprio` or `memlock` in /etc/security/limits.conf",
        )
    if result.returncode != 0:
        raise DeviceError(
            f"the model does not run on {name}",
            details=result.stderr.strip() or f"the runner ended with code {result.returncode}",
            hint="the device keeps its previous release; check the model and the device's log, and deploy again",
        )


def read(text: str, outputs: Mapping[str, NDArray[Any]], name: str, plan: Plan) -> Run:
    """Read the report of a runner; a device may return anything, so each value is checked.

    Args:
        text: The report.
        outputs: Output tensors by name; empty if they were not fetched.
        name: The device.
        plan: The plan of the call.

    Raises:
        DeviceError: The report is not valid.
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
            weights=WEIGHTS[WEIGHTS.index(report.get("weights", ""))],
            each_ns=times["each_ns"],
            involuntary_switches=_time(report["involuntary_switches"]),
            processor=read_processor(report["processor"]),
            copies=read_copies(report.get("copies")),
            periodic=read_periodic(report["periodic"], plan.rate) if plan.rate else None,
        )
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as fault:
        raise DeviceError(
            f"the runner on {name} sent an invalid report",
            details=f"{type(fault).__name__}: {fault}\n{text[:_SHOWN]}",
            hint="deploy again; if that does not help, check the device and its storage",
        ) from fault


def timed(text: str) -> tuple[int, ...]:
    """Return the nanoseconds of each timed run of a report, at least one.

    Raises:
        DeviceError: The report is not valid.
    """
    try:
        return _check_count(tuple(map(_time, json.loads(text)["samples_ns"])), 1)
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as fault:
        raise DeviceError("the runner sent an invalid report", details=f"{fault!s:.200}") from fault


def _check_count(samples: tuple[int, ...], fewest: int, most: int = 0) -> tuple[int, ...]:
    """Return the samples, checked for their number; `most` of 0 means no limit."""
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
    """Return a whole number of a report, checked."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
        raise ValueError(f"{value!r:.50} is not a valid time or size")
    return value


@dataclass(frozen=True)
class Processor:
    """An accelerator; a text is empty and a number 0 if its driver does not report it.

    Attributes:
        name: Its name.
        driver: Version of its driver.
        version: Its interface, such as OpenCL, with the version.
        units: Number of its compute units.
    """

    name: str
    driver: str
    version: str
    units: int

    @property
    def text(self) -> str:
        """One line for people."""
        units = f"{self.units} compute unit(s)" if self.units else ""
        driver = f"driver {self.driver}" if self.driver else ""
        return ", ".join(item for item in (self.name, units, self.version, driver) if item)


def read_processor(value: object) -> Processor | None:
    """Read the processor in a runner's report; None if the kernels ran on the CPU.

    Raises:
        LookupError, TypeError, ValueError: It is not valid: a driver may report anything.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.50} is not a valid processor")
    units = value["units"]
    if isinstance(units, bool) or not isinstance(units, int) or not 0 <= units <= _MOST_UNITS:
        raise ValueError(f"{units!r:.50} is not a valid number of compute units")
    return Processor(read_text(value["name"]), read_text(value["driver"]), read_text(value["version"]), units)


def read_text(value: object) -> str:
    """Return a text of the device, checked: it is short and has printable ASCII letters only."""
    if not isinstance(value, str) or len(value) > _LONGEST or not (value.isascii() and value.isprintable()):
        raise ValueError(f"{value!r:.50} is not a valid name or version")
    return value


@dataclass(frozen=True)
class Copies:
    """Bytes that an accelerator with its own memory copies, as its runtime counted them.

    Attributes:
        to_device: Copied to the accelerator's memory in one run.
        from_device: Copied back in one run.
        resident: Bytes that stay there between runs: weights, and the accelerator's programs.
    """

    to_device: int
    from_device: int
    resident: int

    @property
    def text(self) -> str:
        """One line for people."""
        sizes = (self.to_device, self.from_device, self.resident)
        upload, download, resident = (f"{size / _MEGABYTE:.2f} MB" for size in sizes)
        return f"each run copies {upload} to the accelerator's memory and {download} back; {resident} stay there"


def read_copies(value: object) -> Copies | None:
    """Read the copies in a runner's report; None if no accelerator with its own memory ran.

    Raises:
        LookupError, TypeError, ValueError: They are not valid.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.50} is not a valid account of copies")
    counts = [value[name] for name in ("to_device", "from_device", "resident")]
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < _MOST_BYTES:
            raise ValueError(f"{count!r:.50} is not a valid number of bytes")
    return Copies(*counts)
