"""Measure a release on its device: raw samples, their statistics, and the conditions they were taken under."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from toolchain import bundle, temporary
from toolchain import bundle as bundles
from toolchain.bundle.manifest import Manifest
from toolchain.device import periodic
from toolchain.device.connected import ConnectedDevice
from toolchain.device.installed import DeviceRelease
from toolchain.device.runner import Plan, Run
from toolchain.device.shipment import Tell, Transfer
from toolchain.device.store import Generation, Store
from toolchain.errors import DeviceError
from toolchain.native.programs import Program
from toolchain.shell import Shell
from toolchain.tensors import Tensors

_CONDITIONS = """
echo "load=$(cut -d ' ' -f 1 /proc/loadavg)"
echo "ticks=$(head -n 1 /proc/stat)"
sleep 0.2
echo "ticks=$(head -n 1 /proc/stat)"
for file in /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor; do
  [ ! -r "$file" ] || echo "governor=$(cat "$file")"
done
for file in /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq; do
  [ ! -r "$file" ] || echo "khz=$(cat "$file")"
done
sed -n 's/^cpu MHz[^:]*: */mhz=/p' /proc/cpuinfo
for file in /sys/class/thermal/thermal_zone*/temp; do
  [ ! -r "$file" ] || echo "millidegrees=$(cat "$file" 2>/dev/null)"
done
true
"""

_TICKS = re.compile(r"cpu( +[0-9]{1,18}){4,20}")
_P90_SAMPLES, _P99_SAMPLES = 10, 100  # fewer samples have no value at that rank
_RESAMPLES = 2000
_FEW = 10
_SPREAD = 0.10  # the standard deviation over the mean beyond which pyperf calls a result unstable
_OUTLIER = 1.5
_DRIFT = 0.05
_SLOWER_CLOCK = 0.95
_HOT_C = 80.0
_BUSY = 0.1


@dataclass(frozen=True)
class Conditions:
    """What a device's CPU was doing at one moment; None for what the device does not report.

    Attributes:
        load: Load average of the last minute, which still contains a build before it.
        busy: Share of CPU time in use during the last 0.2 s, from 0 to 1.
        governors: Frequency governors in use.
        mhz: Mean clock of its CPUs.
        celsius: Highest temperature of its thermal zones.
    """

    load: float
    busy: float
    governors: tuple[str, ...]
    mhz: float | None
    celsius: float | None


@dataclass(frozen=True)
class Latency:
    """Statistics over raw samples, in milliseconds.

    Attributes:
        mean: Arithmetic mean.
        median: Median.
        min: Fastest run.
        max: Slowest run.
        std: Standard deviation of the samples (n - 1).
        p90: 90th percentile; None for fewer than 10 samples.
        p99: 99th percentile; None for fewer than 100 samples.
        median_ci95: 95 % confidence interval of the median, by bootstrap.
        samples: Every timed run in order.
    """

    mean: float
    median: float
    min: float
    max: float
    std: float
    p90: float | None
    p99: float | None
    median_ci95: tuple[float, float]
    samples: tuple[float, ...]


@dataclass(frozen=True)
class Current:
    """The current release of a device, and its manifest."""

    generation: Generation
    manifest: Manifest

    def release(self, program: Program, device: ConnectedDevice, threads: int = 0) -> DeviceRelease:
        """Return it with its runner; `threads` of 0 are the board file's.

        Raises:
            MismatchError, VerificationError: The runner does not fit the device, or the release.
        """
        return DeviceRelease.of_device(self.manifest, self.generation.digest, program, device, threads)


@dataclass(frozen=True)
class Measurement:
    """A finished benchmark: its statistics, raw run, conditions before and after, and the bytes sent."""

    latency: Latency
    run: Run
    before: Conditions
    after: Conditions
    warnings: tuple[str, ...]
    transfer: Transfer


def current(store: Store, name: str) -> Current:
    """Read the current release of a device.

    Raises:
        DeviceError: Nothing was deployed there.
    """
    generation = store.releases.current()
    if generation is None:
        place = f"slot {store.slot} of {name}" if store.slot else name
        deploy = "toolchain deploy MODEL" + (f" --slot {store.slot}" if store.slot else "")
        raise DeviceError(f"no release is deployed on {place}", hint=f"deploy a model first: `{deploy}`")
    data = store.read(f"releases/{generation.digest}/{bundles.MANIFEST}")
    return Current(generation, bundle.read_manifest(data, f"the release on {name}"))


def check_current(store: Store, digest: str, name: str) -> None:
    """Check that the release to measure is still current.

    Raises:
        DeviceError: The device runs another release.
    """
    generation = store.releases.current()
    if generation is None or generation.digest != digest:
        raise DeviceError(
            f"another deployment replaced the release on {name} before it was measured",
            details=f"expected {digest[:16]}, found {generation.digest[:16] if generation else 'none'}",
            hint="run the command again",
        )


def measure(release: DeviceRelease, inputs: Tensors, plan: Plan, progress: Tell = lambda _line: None) -> Measurement:
    """Time the current release of a device; the caller holds the lock of its store.

    Args:
        release: The release.
        inputs: Arrays by name; pushed if the device lacks them, as is the runner.
        plan: How often to run.
        progress: Called during runs at a rate.

    Raises:
        DeviceError: The device runs another release now, is busy or lost, or the model does not run on it.
    """
    device = release.device
    with temporary.folder() as work:
        check_current(device.store, release.digest, device.name)
        installed = release.install(inputs, Path(work))
        before = conditions(device.shell)
        run = periodic.run(installed, plan, plan.rate, progress) if plan.rate else installed.run(plan)
        after = conditions(device.shell)
    latency = statistics([value / 1e6 for value in run.samples_ns])
    cpus = release.facts.cpus
    warnings = doubts(latency, before, after, threads=run.threads, cpus=cpus, emulated=device.emulated)
    return Measurement(latency, run, before, after, warnings, Transfer.of(installed.sent, device.shell))


def conditions(shell: Shell) -> Conditions:
    """Read the load, clock and temperature of a device's CPU; takes 0.2 s."""
    pairs = [line.split("=", 1) for line in shell.run(_CONDITIONS).stdout.splitlines() if "=" in line]
    clocks = [value / 1000 for value in _numbers(pairs, "khz")] or _numbers(pairs, "mhz")
    degrees = [value / 1000 for value in _numbers(pairs, "millidegrees")]
    return Conditions(
        load=next(iter(_numbers(pairs, "load")), 0.0),
        busy=_busy([value for key, value in pairs if key == "ticks"]),
        governors=tuple(sorted({value for key, value in pairs if key == "governor" and value})),
        mhz=round(sum(clocks) / len(clocks), 1) if clocks else None,
        celsius=max(degrees, default=None),
    )


def _numbers(pairs: Sequence[Sequence[str]], name: str) -> list[float]:
    """Return the values of a key that are numbers; a sensor or clock that is asleep may report `<unknown>`."""
    texts = [value for key, value in pairs if key == name]
    return [float(text) for text in texts if re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", text)]


def _busy(readings: Sequence[str]) -> float:
    """Compare two readings of the first line of /proc/stat: `cpu user nice system idle iowait ...`, in ticks."""
    if len(readings) != 2 or not all(map(_TICKS.fullmatch, readings)):  # noqa: PLR2004 - before and after
        return 0.0
    first, second = ([int(ticks) for ticks in line.split()[1:]] for line in readings)
    spent = [later - earlier for earlier, later in zip(first, second, strict=False)]
    return round(min(max(1 - sum(spent[3:5]) / sum(spent), 0.0), 1.0), 3) if sum(spent) > 0 else 0.0


def statistics(samples: Sequence[float]) -> Latency:
    """Summarize samples. `samples` are durations in milliseconds, at least one."""
    values = np.asarray(samples, dtype=np.float64)
    return Latency(
        mean=float(values.mean()),
        median=float(np.median(values)),
        min=float(values.min()),
        max=float(values.max()),
        std=float(values.std(ddof=1)) if values.size > 1 else 0.0,
        p90=float(np.percentile(values, 90)) if values.size >= _P90_SAMPLES else None,
        p99=float(np.percentile(values, 99)) if values.size >= _P99_SAMPLES else None,
        median_ci95=_median_interval(values),
        samples=tuple(float(value) for value in values),
    )


def _median_interval(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    """Percentile bootstrap (Efron, 1979), seeded so that the same samples give the same interval."""
    stream = np.random.default_rng(0)
    medians = np.concatenate(
        [np.median(stream.choice(values, (count, values.size)), axis=1) for count in _batches(values.size)]
    )
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)


def _batches(size: int) -> list[int]:
    """Divide the resampling into batches of about 8 MB, since a fast model has thousands of samples."""
    count = max(1, math.ceil(_RESAMPLES * size / 1_000_000))
    return [len(batch) for batch in np.array_split(np.arange(_RESAMPLES), count)]


def doubts(
    latency: Latency, before: Conditions, after: Conditions, *, threads: int, cpus: int, emulated: bool
) -> tuple[str, ...]:
    """Return warnings about conditions that make the times unreliable."""
    outlier, drift = _ratio(latency.max, latency.median), _drift(latency.samples)
    spread = f"{_ratio(latency.std, latency.mean):.0%}"
    changed = f"{abs(drift):.0%} {'slower' if drift > 0 else 'faster'}"
    checks = [
        (emulated, "emulated: these times say nothing about the real board"),
        (len(latency.samples) < _FEW, f"only {len(latency.samples)} runs: use a longer --budget for a reliable median"),
        (latency.std > _SPREAD * latency.mean, f"unstable: the standard deviation is {spread} of the mean"),
        (outlier > _OUTLIER, f"outlier: the longest run took {outlier:.1f} times the median"),
        (
            abs(drift) > _DRIFT,
            f"drift: the second half of the runs was {changed} than the first half (warm-up, heat or other load)",
        ),
        (before.busy > _BUSY, f"busy: other work used {before.busy:.0%} of the CPUs just before the first run"),
        (threads > cpus, f"{threads} threads share {cpus} CPUs"),
        (
            bool(set(before.governors) - {"performance"}),
            f"CPU governor {', '.join(before.governors)}: the clock rate varies",
        ),
        (_slower(before.mhz, after.mhz), f"throttled: {before.mhz} MHz before, {after.mhz} MHz after"),
        ((after.celsius or 0) >= _HOT_C, f"hot: {after.celsius} degrees C"),
    ]
    return tuple(text for doubtful, text in checks if doubtful)


def disturbances(before: Conditions, after: Conditions) -> tuple[str, ...]:
    """Return warnings about other work and heat on a device around runs that were measured in turns."""
    busy = (
        f"busy: other work used {before.busy:.0%} of the CPUs just before the rounds, and {after.busy:.0%} just after"
    )
    checks = [
        (max(before.busy, after.busy) > _BUSY, busy),
        (_slower(before.mhz, after.mhz), f"throttled: {before.mhz} MHz before, {after.mhz} MHz after"),
        (max(before.celsius or 0, after.celsius or 0) >= _HOT_C, f"hot: {after.celsius or before.celsius} degrees C"),
    ]
    return tuple(text for doubtful, text in checks if doubtful)


def _ratio(value: float, base: float) -> float:
    """Divide; 1 if the base is 0, as for a model that is faster than one tick of a coarse clock."""
    return value / base if base else 1.0


def _drift(samples: Sequence[float]) -> float:
    half = len(samples) // 2
    if half < _FEW:
        return 0.0
    first, second = float(np.median(samples[:half])), float(np.median(samples[-half:]))
    return _ratio(second, first) - 1


def _slower(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after < _SLOWER_CLOCK * before
