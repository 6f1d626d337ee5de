"""Joules of an inference, by the sensors of a device or by a meter of its lab: where they say something, else why not.

Latency is measured apart from this: reading a sensor over I2C keeps a core busy for about a millisecond.
"""

from __future__ import annotations

import contextlib
import math
import re
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toolchain import process
from toolchain.device import runner
from toolchain.device.runner import Plan
from toolchain.shell import Shell

SYSFS = "/sys"
IDLE_S, RUN_S, LEAST_INFERENCES, LEAST_SAMPLES = 10.0, 10.0, 100, 20
EVERY_S = 0.05
_SETTLED_S, _EDGE_S, _WINDOW_S = 1.0, 0.3, 1.0  # loading is no inference; both clocks have edges
_RESAMPLES = 2000
_MOST_RAILS, _LONGEST_WORD = 32, 60
_MOST_SAID = 16 << 20
_MOST_OF_METER = 8 << 20
_LARGEST = 10**15
_LARGEST_WATTS = 1e5
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_WHOLE_INPUT = re.compile(r"(?i)vdd_in|vin|pom_5v_in|sys|total|psys|input|supply|battery|meter")
_TO_WATTS = {"uW": 1e-6, "uJ": 1e-6, "mVmA": 1e-6, "uVuA": 1e-12}

# One line for each rail: kind, chip, label, range, and one or two files.
_FIND = r"""
sys=@SYS@
word() { { read -r found <"$1"; } 2>/dev/null && printf %s "$found" | tr -c 'A-Za-z0-9_.+-' _ | cut -c 1-60; }
rail() { echo "rail $1 ${2:--} ${3:--} ${4:-0} $5 ${6:-}"; }
for chip in "$sys"/class/hwmon/hwmon*; do
  [ -d "$chip" ] || continue
  name=$(word "$chip/name")
  power=
  for file in "$chip"/power[0-9]*_input "$chip"/power[0-9]*_average; do
    [ -e "$file" ] && power=1 && rail uW "$name" "$(word "${file%_*}_label")" 0 "$file"
  done
  for file in "$chip"/energy[0-9]*_input; do
    [ -e "$file" ] && [ -z "$power" ] && power=1 && rail uJ "$name" "$(word "${file%_*}_label")" 0 "$file"
  done
  for file in "$chip"/in[0-9]*_input; do
    number=${file##*/in}; number=${number%_input}
    current=$chip/curr${number}_input
    [ -e "$current" ] && [ -z "$power" ] && rail mVmA "$name" "$(word "$chip/in${number}_label")" 0 "$file" "$current"
  done
done
for zone in "$sys"/class/powercap/*; do
  case ${zone##*/} in *:*:*) continue ;; esac
  range=$(word "$zone/max_energy_range_uj")
  [ -e "$zone/energy_uj" ] && rail uJ powercap "$(word "$zone/name")" "$range" "$zone/energy_uj"
done
for supply in "$sys"/class/power_supply/*; do
  if [ -e "$supply/power_now" ]; then rail uW power_supply "${supply##*/}" 0 "$supply/power_now"
  elif [ -e "$supply/current_now" ] && [ -e "$supply/voltage_now" ]; then
    rail uVuA power_supply "${supply##*/}" 0 "$supply/voltage_now" "$supply/current_now"
  fi
done
true
"""

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
    """A rail, or whatever else one sensor measures.

    Attributes:
        name: Its chip and label.
        idle_w: Watts while the device had nothing to do.
        run_w: Watts while the model ran.
        counted: Whether it counts for the joules; others are parts of one that does.
    """

    name: str
    idle_w: float
    run_w: float
    counted: bool


@dataclass(frozen=True)
class Joules:
    """Energy of an inference.

    Attributes:
        rails: What was measured.
        idle_w: Watts of the rails that count while the device had nothing to do.
        run_w: Watts of them while the model ran.
        gross_j: Joules of an inference, all that flowed.
        gross_ci95: 95 % interval, by bootstrap over windows of a second.
        net_j: Joules beyond those that flow anyway.
        net_ci95: Their interval.
        hz: Readings a second.
        samples: Readings while the model ran.
        idle_samples: Readings before.
        inferences: How many there were.
        method: How that was found, in a line.
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


@dataclass(frozen=True)
class Energy:
    """What is known of a model's energy.

    Attributes:
        joules: The figures; None where there are none.
        reason: Why there are none.
    """

    joules: Joules | None
    reason: str = ""


class _NoFigureError(Exception):
    """A sensor says what is no power, or says too little."""


@dataclass(frozen=True)
class _Sensor:
    """What measures one rail: the unit of what its files hold, its names, where its counter wraps, and its files."""

    unit: str
    chip: str
    label: str
    wraps: int
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.chip} {self.label}".strip()


@dataclass(frozen=True)
class _Series:
    """Readings of one rail: the moments on the device's clock, and watts, or joules of a counter."""

    name: str
    seconds: NDArray[np.float64]
    values: NDArray[np.float64]
    counts: bool = False

    def mean(self, begin: float, end: float) -> float:
        """Return the mean power between two moments; NaN where too little was read."""
        inside = (self.seconds >= begin) & (self.seconds < end)
        values, seconds = self.values[inside], self.seconds[inside]
        if not self.counts:
            return float(values.mean()) if values.size else math.nan
        spent = seconds[-1] - seconds[0] if seconds.size > 1 else 0.0
        return float((values[-1] - values[0]) / spent) if spent > 0 else math.nan

    def samples(self, begin: float, end: float) -> int:
        """Return how many readings lie between two moments."""
        return int(((self.seconds >= begin) & (self.seconds < end)).sum())


@dataclass(frozen=True)
class Method:
    """How long is measured, and where sensors are; shorter times are for tests.

    Attributes:
        sysfs: Folder on the device where the kernel shows sensors.
        meter: Command on this machine that says time stamp (seconds since 1970) and watts, a line each; empty without.
        idle_s: Seconds of idleness.
        run_s: Seconds of inferences, at least.
        every_s: Seconds between two readings.
    """

    sysfs: str = SYSFS
    meter: str = ""
    idle_s: float = IDLE_S
    run_s: float = RUN_S
    every_s: float = EVERY_S


def measure(  # noqa: PLR0913 - one call has these independent parts
    shell: Shell,
    root: str,
    places: Mapping[str, str],
    *,
    release: str,
    threads: int,
    method: Method,
    pinned: bool = True,
) -> Energy:
    """Measure idleness and then inferences on a device whose lock the caller holds.

    Args:
        shell: The device.
        root: The store's root on it.
        places: Folders on the device that hold the runner (`runners`) and the inputs (`inputs`).
        release: Folder of the release on the device.
        threads: Threads; 0 means every CPU.
        method: How.
        pinned: Whether each thread has a CPU of its own.

    Returns:
        The joules, or why there are none: a sensor that fails is no failure of the command.

    Raises:
        DeviceError: The device is lost, or the model does not run on it.
    """
    sensors = () if method.meter else _sensors(shell, method.sysfs)
    if not sensors and not method.meter:
        return Energy(None, "the device has no power sensor that Linux shows, and devices.toml names no meter")
    scratch = f"{root}/run/{secrets.token_hex(8)}"
    plan = Plan(method.run_s + _SETTLED_S, min_runs=LEAST_INFERENCES, max_runs=1_000_000, pinned=pinned)
    argv = runner.command(places, release, scratch, plan) + (["--threads", str(threads)] if threads else [])
    try:
        with _metered(method.meter) as metered:
            began = time.time()
            said = _run(shell, scratch, argv, sensors, method)
            readings = metered()
    finally:
        shell.run(f"rm -rf {shlex.quote(scratch)}", check=False)
    try:
        return Energy(_joules(said, sensors, readings, began, method))
    except _NoFigureError as fault:
        return Energy(None, str(fault))


def _sensors(shell: Shell, sysfs: str) -> tuple[_Sensor, ...]:
    lines = shell.run(_FIND.replace("@SYS@", shlex.quote(sysfs))).stdout.splitlines()
    rows = [line.split()[1:] for line in lines if line.startswith("rail ")]
    found = [
        _Sensor(unit, chip, "" if label == "-" else label, int(wraps) if wraps.isdecimal() else 0, tuple(paths))
        for unit, chip, label, wraps, *paths in (row for row in rows if len(row) > 4)  # noqa: PLR2004
        if unit in _TO_WATTS and len(chip) + len(label) <= 2 * _LONGEST_WORD
    ]
    return tuple(found[:_MOST_RAILS])


def _run(shell: Shell, scratch: str, argv: Sequence[str], sensors: Sequence[_Sensor], method: Method) -> str:
    words = {
        "PLACE": shlex.quote(scratch),
        "FILES": shlex.join([path for sensor in sensors for path in sensor.files]) or "/dev/null",
        "EVERY": f"{method.every_s:g}",
        "IDLE": f"{method.idle_s:g}",
        "ARGV": shlex.join(argv),
    }
    script = _SAMPLE
    for name, word in words.items():
        script = script.replace(f"@{name}@", word)
    limit = 120.0 + method.idle_s + 10 * method.run_s
    result = shell.run(script, timeout=limit, check=False, most=_MOST_SAID)
    runner.check_ended(shell.name, result)
    return result.stdout


@contextlib.contextmanager
def _metered(command: str) -> Iterator[Callable[[], list[str]]]:
    """Have the lab's meter run for the time of a block; what is yielded returns the lines that it said by then."""
    if not command:
        yield list
        return
    with tempfile.TemporaryDirectory(prefix="toolchain-") as folder:
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


def _joules(said: str, sensors: Sequence[_Sensor], metered: Sequence[str], began: float, method: Method) -> Joules:
    head, _, report = said.partition("\nreport\n")
    marks, rows = _read(head)
    start, begin, end = (marks[name] for name in ("start", "begin", "end"))
    series = _of_meter(metered, start - began) if method.meter else _of_sensors(sensors, rows)
    idle, run = (start + _EDGE_S, begin - _EDGE_S), (begin + _SETTLED_S, end - _EDGE_S)
    counted = _counted([one.name for one in series])
    _check_enough(series, idle, run)
    times = runner.timed(report)
    period = sum(times) / len(times) / 1e9
    rails = tuple(Rail(one.name, one.mean(*idle), one.mean(*run), one.name in counted) for one in series)
    kept = [one for one in series if one.name in counted]
    idle_w, run_w = (sum(getattr(rail, name) for rail in rails if rail.counted) for name in ("idle_w", "run_w"))
    gross, net = _intervals(kept, idle, run)
    samples = min(one.samples(*run) for one in kept)
    rate = samples / (run[1] - run[0])
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
        idle_samples=min(one.samples(*idle) for one in kept),
        inferences=len(times),
        method=f"{' + '.join(one.name for one in kept)}, {rate:.0f} readings a second; idle for {method.idle_s:g} s, "
        f"then {len(times)} inferences, apart from those that latency was measured of",
    )


def _read(head: str) -> tuple[dict[str, float], list[list[str]]]:
    """Take the marks of a script and its lines of readings apart."""
    marks: dict[str, float] = {}
    rows = []
    for line in head.splitlines():
        word, *values = line.split()[: 2 * _MOST_RAILS + 2] or [""]
        if (
            word in {"start", "begin", "end", "at"}
            and values
            and re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,3})?", values[0])
        ):
            if word == "at":
                rows.append(values)
            else:
                marks[word] = float(values[0])
    if marks.keys() != {"start", "begin", "end"}:
        raise _NoFigureError("the device did not say when the model ran")
    return marks, rows


def _of_sensors(sensors: Sequence[_Sensor], rows: Sequence[Sequence[str]]) -> list[_Series]:
    width = 1 + sum(len(sensor.files) for sensor in sensors)
    whole = [row for row in rows if len(row) == width]
    seconds = np.array([float(row[0]) for row in whole], dtype=np.float64)
    found, column = [], 1
    for sensor in sensors:
        if sensor.unit == "mVmA" and not sensor.label:
            raise _NoFigureError(
                f"{sensor.name}, {Path(sensor.files[0]).name}: it has no label that says which rail it is"
            )
        parts = [[row[column + step] for row in whole] for step in range(len(sensor.files))]
        found.append(_series(sensor, seconds, parts))
        column += len(sensor.files)
    return found


def _series(sensor: _Sensor, seconds: NDArray[np.float64], parts: Sequence[Sequence[str]]) -> _Series:
    values = np.ones(len(seconds))
    for texts, path in zip(parts, sensor.files, strict=True):
        wrong = next((text for text in texts if not _NUMBER.fullmatch(text) or abs(int(text)) > _LARGEST), None)
        if wrong is not None:
            why = "it could not be read" if wrong == "x" else f"it says {wrong!r:.40}, which is no number"
            raise _NoFigureError(f"{sensor.name}, {Path(path).name}: {why}")
        values = values * np.array([float(text) for text in texts])
    if not values.any() or (sensor.unit == "uJ" and values.size and float(np.ptp(values)) <= 0):
        raise _NoFigureError(f"{sensor.name}: it says {f'{values[0]:g}' if values.size else 'nothing'} all the time")
    if sensor.unit == "uJ":
        return _Series(sensor.name, seconds, _unwrapped(sensor, values) * _TO_WATTS["uJ"], counts=True)
    return _Series(sensor.name, seconds, np.abs(values) * _TO_WATTS[sensor.unit])


def _unwrapped(sensor: _Sensor, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add the range of a counter wherever it began anew."""
    fallen = np.diff(values) < 0
    if fallen.any() and sensor.wraps <= 0:
        raise _NoFigureError(f"{sensor.name}: its counter fell, and it does not say where it wraps")
    times: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(fallen)])[: values.size]
    return values + times * sensor.wraps


def _of_meter(lines: Sequence[str], offset: float) -> list[_Series]:
    pairs = [line.split() for line in lines]
    wrong = next((line for line, pair in zip(lines, pairs, strict=True) if not _is_reading(pair)), None)
    if wrong is not None:
        raise _NoFigureError(f"the meter says {wrong!r:.60}, and not a time stamp and watts")
    seconds = np.array([float(pair[0]) + offset for pair in pairs], dtype=np.float64)
    watts = np.array([float(pair[1]) for pair in pairs], dtype=np.float64)
    if not watts.any():
        raise _NoFigureError(f"the meter says {'0 all the time' if watts.size else 'nothing'}")
    return [_Series("meter", seconds, watts)]


def _is_reading(pair: Sequence[str]) -> bool:
    try:
        moment, watts = map(float, pair)
    except ValueError:
        return False
    return math.isfinite(moment) and math.isfinite(watts) and 0 <= watts < _LARGEST_WATTS


def _counted(names: Sequence[str]) -> set[str]:
    """Return the rails that count: one that is the whole supply alone, or else all of them."""
    whole = [name for name in names if _WHOLE_INPUT.search(name)]
    return set(whole[:1] or names)


def _check_enough(series: Sequence[_Series], idle: tuple[float, float], run: tuple[float, float]) -> None:
    for one in series:
        for what, window in (("idle", idle), ("running", run)):
            if (count := one.samples(*window)) < LEAST_SAMPLES:
                raise _NoFigureError(f"{one.name}: {count} readings while {what}, and {LEAST_SAMPLES} are the least")


def _intervals(
    series: Sequence[_Series], idle: tuple[float, float], run: tuple[float, float]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return 95 % intervals of the power while running, and of that beyond idleness, by windows of a second."""
    stream = np.random.default_rng(0)
    drawn = []
    for begin, end in (idle, run):
        count = max(1, int((end - begin) / _WINDOW_S))
        edges = [begin + number * _WINDOW_S for number in range(count)]
        sums = [sum(one.mean(edge, edge + _WINDOW_S) for one in series) for edge in edges]
        windows = np.array([watts for watts in sums if math.isfinite(watts)] or [math.nan])
        drawn.append(stream.choice(windows, (_RESAMPLES, windows.size)).mean(axis=1))
    gross, net = (np.percentile(values, [2.5, 97.5]) for values in (drawn[1], drawn[1] - drawn[0]))
    return (float(gross[0]), float(gross[1])), (float(net[0]), float(net[1]))
