"""Energy of an inference, by the sensors of a device or by a meter of the lab; or the reason why there is no figure.

Latency is measured separately: reading a sensor over I2C keeps a core busy for about a millisecond.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from toolchain import process, temporary
from toolchain.device import runner, sensors
from toolchain.device.installed import Installed
from toolchain.device.runner import Plan
from toolchain.device.sensors import MOST_RAILS, DeviceSensors, NoFigureError, Sensor, Series
from toolchain.errors import DeviceError
from toolchain.shell import Shell

IDLE_S, RUN_S, LEAST_INFERENCES, LEAST_SAMPLES = 10.0, 10.0, 100, 20
EVERY_S = 0.05
_SETTLED_S, _EDGE_S, _WINDOW_S = 1.0, 0.3, 1.0  # loading is not inference, and the two clocks are not in step
_RESAMPLES = 2000
_MOST_SAID = 16 << 20
_MOST_OF_METER = 8 << 20
_LARGEST_WATTS = 1e5
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,3})?")
_SLOW_EVERY_S, _SLOW_S = 1.0, 30.0  # if `sleep` has whole seconds only: each phase still gets enough readings
_LONGEST_S = 1800.0  # for the inferences that a figure needs
_FREE_S = 120.0

_SAMPLE = r"""
umask 022; mkdir -p @PLACE@ || exit 1
sample() {
  while :; do
    read -r now rest </proc/uptime; line="at $now"
    for file in @FILES@; do
      value=; { read -r value <"$file"; } 2>/dev/null || value=x
      line="$line ${value:-x}"
    done
    echo "$line"
    sleep @EVERY@ 2>/dev/null || sleep 1
  done
}
mark() { read -r now rest </proc/uptime; echo "$1 $now"; }
mark start
sample >@PLACE@/power & sampler=$!
trap 'kill $sampler 2>/dev/null' EXIT
sleep @IDLE@
mark begin
@ARGV@ || exit $?
mark end
kill $sampler; wait $sampler 2>/dev/null
cat @PLACE@/power
echo report
cat @PLACE@/report
"""


@dataclass(frozen=True)
class Rail:
    """The mean power of one sensor.

    Attributes:
        name: Its chip and label.
        idle_w: Watts while the device was idle.
        run_w: Watts while the model ran.
        counted: Whether it is part of the total; other rails are contained in one that is.
    """

    name: str
    idle_w: float
    run_w: float
    counted: bool


@dataclass(frozen=True)
class Joules:
    """Energy of an inference.

    Attributes:
        rails: The rails.
        idle_w: Watts of the counted rails while the device was idle.
        run_w: Watts of the counted rails while the model ran.
        gross_j: Joules of an inference.
        gross_ci95: 95 % interval, by bootstrap over windows of a second.
        net_j: Joules of an inference without the idle power.
        net_ci95: 95 % interval.
        hz: Readings a second.
        samples: Readings while the model ran.
        idle_samples: Readings while the device was idle.
        inferences: Number of inferences.
        method: A line about the method.
        warnings: Problems of sensors that are not counted.
    """

    rails: tuple[Rail, ...]
    idle_w: float
    run_w: float
    gross_j: float
    gross_ci95: tuple[float, float]
    net_j: float
    net_ci95: tuple[float, float]
    hz: float
    samples: int
    idle_samples: int
    inferences: int
    method: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Energy:
    """The energy of a model, or why it is unknown.

    Attributes:
        joules: The figures; None if there are none.
        reason: Why there are none.
    """

    joules: Joules | None
    reason: str = ""


@dataclass(frozen=True)
class Method:
    """How to measure; times shorter than the defaults are for tests.

    Attributes:
        sysfs: Folder of the kernel's sensors on the device.
        meter: Command on this machine that prints a time stamp (seconds since 1970) and watts per line; or empty.
        idle_s: Seconds of the idle phase.
        run_s: Least seconds of inferences.
        every_s: Seconds between two readings.
    """

    sysfs: str = sensors.SYSFS
    meter: str = ""
    idle_s: float = IDLE_S
    run_s: float = RUN_S
    every_s: float = EVERY_S


def measure(installed: Installed, method: Method, inference_s: float = 0.0, *, pinned: bool = True) -> Energy:
    """Measure the power of a device, first idle and then running a model; the caller holds the lock.

    Args:
        installed: The model.
        method: How to measure.
        inference_s: Seconds of an inference, for the time limit.
        pinned: Whether each thread is pinned to one CPU.

    Returns:
        The energy, or why it is unknown: a sensor that fails does not fail the command.

    Raises:
        DeviceError: The device is lost, or the model does not run on it.
    """
    if (needed := LEAST_INFERENCES * inference_s) > _LONGEST_S:
        return Energy(None, f"{LEAST_INFERENCES} inferences would take {needed / 60:.0f} minutes, and"
                            f" the limit is {_LONGEST_S / 60:.0f}")  # fmt: skip
    shell = installed.shell
    device_sensors = DeviceSensors((), fractions=True) if method.meter else sensors.find(shell, method.sysfs)
    if not device_sensors.sensors and not method.meter:
        return Energy(None, "Linux shows no power sensor on the device, and devices.toml has no meter for it")
    method = method if device_sensors.fractions else slower(method)
    plan = Plan(method.run_s + _SETTLED_S, min_runs=LEAST_INFERENCES, max_runs=1_000_000, pinned=pinned)
    limit = longest_s(method, inference_s)
    try:
        with installed.scratch() as folder, _run_meter(method.meter) as metered:
            argv = installed.command(folder, plan)
            began = time.time()
            output = _run(shell, folder, argv, device_sensors.sensors, method, limit)
            readings = metered()
        return Energy(_joules(output, device_sensors.sensors, readings, began, method))
    except NoFigureError as fault:
        return Energy(None, str(fault))


def slower(method: Method) -> Method:
    """Return a method with a reading per second, and phases long enough for the readings that a figure needs."""
    return dataclasses.replace(
        method,
        idle_s=max(method.idle_s, _SLOW_S),
        run_s=max(method.run_s, _SLOW_S),
        every_s=max(method.every_s, _SLOW_EVERY_S),
    )


def longest_s(method: Method, inference_s: float) -> float:
    """Return the time limit: ten times the expected time of the inferences, and some spare seconds."""
    return _FREE_S + method.idle_s + 10 * max(method.run_s + _SETTLED_S, LEAST_INFERENCES * inference_s)


def _run(
    shell: Shell, folder: str, argv: Sequence[str], sensor_list: Sequence[Sensor], method: Method, limit: float
) -> str:
    values = {
        "PLACE": shlex.quote(folder),
        "FILES": shlex.join([path for sensor in sensor_list for path in sensor.files]) or "/dev/null",
        "EVERY": f"{method.every_s:g}",
        "IDLE": f"{method.idle_s:g}",
        "ARGV": shlex.join(argv),
    }
    script = _SAMPLE
    for name, value in values.items():
        script = script.replace(f"@{name}@", value)
    began = time.monotonic()
    try:
        result = shell.run(script, timeout=limit, check=False, max_bytes=_MOST_SAID)
    except DeviceError as fault:
        if time.monotonic() - began < limit:
            raise
        raise NoFigureError(f"the measurement did not end within {limit:.0f} s") from fault
    runner.check_ended(shell.name, result)
    return result.stdout


@contextlib.contextmanager
def _run_meter(command: str) -> Iterator[Callable[[], list[str]]]:
    """Run the lab's meter for the time of a block; yield a function that returns the lines it printed so far."""
    if not command:
        yield list
        return
    with temporary.folder() as folder:
        log = Path(folder) / "meter"
        meter = process.spawn_background(["sh", "-c", command], log, attached=False)

        def lines() -> list[str]:
            with log.open("rb") as stream:
                return stream.read(_MOST_OF_METER).decode(errors="replace").splitlines()

        try:
            yield lines
        finally:
            process.kill_group(meter)


# --- from readings to joules -------------------------------------------------------------------------------------


def _joules(output: str, sensor_list: Sequence[Sensor], metered: Sequence[str], began: float, method: Method) -> Joules:
    head, _, report = output.partition("\nreport\n")
    marks, rows = _read(head)
    start, begin, end = (marks[name] for name in ("start", "begin", "end"))
    readings = _meter_series(metered, start - began) if method.meter else sensors.read(sensor_list, rows)
    counted_indices = (0,) if method.meter else sensors.choose_counted(sensor_list)
    counted: list[Series] = []
    for index in counted_indices:
        series = readings[index]
        if isinstance(series, str):  # without this sensor the sum would be that of other rails
            raise NoFigureError(series)
        counted.append(series)
    idle, run = (start + _EDGE_S, begin - _EDGE_S), (begin + _SETTLED_S, end - _EDGE_S)
    _check_enough(counted, idle, run)
    times = runner.timed(report)
    period = sum(times) / len(times) / 1e9
    rails = tuple(
        Rail(series.name, series.mean(*idle), series.mean(*run), index in counted_indices)
        for index, series in enumerate(readings)
        if isinstance(series, Series) and min(series.samples(*idle), series.samples(*run)) >= LEAST_SAMPLES
    )
    idle_w, run_w = (sum(getattr(rail, name) for rail in rails if rail.counted) for name in ("idle_w", "run_w"))
    gross, net = _intervals(counted, idle, run)
    samples = min(series.samples(*run) for series in counted)
    rate = samples / (run[1] - run[0])
    names = " + ".join(series.name for series in counted)
    return Joules(
        rails=rails,
        idle_w=idle_w,
        run_w=run_w,
        gross_j=run_w * period,
        gross_ci95=(gross[0] * period, gross[1] * period),
        net_j=(run_w - idle_w) * period,
        net_ci95=(net[0] * period, net[1] * period),
        hz=round(rate, 2),
        samples=samples,
        idle_samples=min(series.samples(*idle) for series in counted),
        inferences=len(times),
        method=f"{names}, {rate:.0f} readings a second; idle for {method.idle_s:g} s, "
        f"then {len(times)} inferences, in addition to those of the latency",
        warnings=tuple(series for series in readings if isinstance(series, str)),
    )


def _read(head: str) -> tuple[dict[str, float], list[list[str]]]:
    """Separate the output of the script into the times of its marks and its readings."""
    marks: dict[str, float] = {}
    rows = []
    for line in head.splitlines():
        tag, *values = line.split()[: 2 * MOST_RAILS + 2] or [""]
        if tag in {"start", "begin", "end", "at"} and values and _SECONDS.fullmatch(values[0]):
            if tag == "at":
                rows.append(values)
            else:
                marks[tag] = float(values[0])
    if marks.keys() != {"start", "begin", "end"}:
        raise NoFigureError("the device did not report when the model ran")
    return marks, rows


def _meter_series(lines: Sequence[str], offset: float) -> list[Series | str]:
    pairs = [line.split() for line in lines]
    wrong = next((line for line, pair in zip(lines, pairs, strict=True) if not _is_reading(pair)), None)
    if wrong is not None:
        raise NoFigureError(f"the meter printed {wrong!r:.60} instead of a time stamp and watts")
    seconds = np.array([float(pair[0]) + offset for pair in pairs], dtype=np.float64)
    watts = np.array([float(pair[1]) for pair in pairs], dtype=np.float64)
    if not watts.any():
        raise NoFigureError(f"the meter printed {'only zeros' if watts.size else 'nothing'}")
    return [Series("meter", seconds, watts)]


def _is_reading(pair: Sequence[str]) -> bool:
    try:
        moment, watts = map(float, pair)
    except ValueError:
        return False
    return math.isfinite(moment) and math.isfinite(watts) and 0 <= watts < _LARGEST_WATTS


def _check_enough(series: Sequence[Series], idle: tuple[float, float], run: tuple[float, float]) -> None:
    for rail, (phase, window) in itertools.product(series, (("idle", idle), ("running", run))):
        if (count := rail.samples(*window)) < LEAST_SAMPLES:
            raise NoFigureError(f"{rail.name}: {count} readings while {phase}; at least {LEAST_SAMPLES} are needed")


def _intervals(
    series: Sequence[Series], idle: tuple[float, float], run: tuple[float, float]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return 95 % intervals of the power while running, with and without the idle power.

    Neighbouring readings are correlated, so the bootstrap resamples windows of a second.
    """
    stream = np.random.default_rng(0)
    resampled = []
    for begin, end in (idle, run):
        count = max(1, int((end - begin) / _WINDOW_S))
        edges = [begin + number * _WINDOW_S for number in range(count)]
        sums = [sum(rail.mean(edge, edge + _WINDOW_S) for rail in series) for edge in edges]
        windows = np.array([watts for watts in sums if math.isfinite(watts)] or [math.nan])
        resampled.append(stream.choice(windows, (_RESAMPLES, windows.size)).mean(axis=1))
    gross, net = (np.percentile(values, [2.5, 97.5]) for values in (resampled[1], resampled[1] - resampled[0]))
    return (float(gross[0]), float(gross[1])), (float(net[0]), float(net[1]))
