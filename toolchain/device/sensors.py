"""The power sensors of Linux on a device: find them, read their values, and choose those that add up to the total."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from toolchain.shell import Shell

SYSFS = "/sys"
MOST_RAILS = 32
_LONGEST_WORD = 60
_LARGEST = 10**15
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_TO_WATTS = {"uW": 1e-6, "uJ": 1e-6, "mVmA": 1e-6, "uVuA": 1e-12}
_POWERCAP, _SUPPLY = "powercap", "power_supply"
_WHOLE_INPUT = re.compile(
    r"(?i)(power_)?(vdd_in|vin|pom_5v_in|dc_?in|psys|input|sys|system|total|supply|battery)(_power)?"
)
# Rails that contain other rails of the same chip: a socket its cores, the input of a converter its outputs.
_CONTAINS = (
    (re.compile(r"(?i)e?(socket|package|pkg)[-_]?[0-9]*"), re.compile(r"(?i)e?core[-_]?[0-9]*")),
    (re.compile(r"(?i)pin[0-9]*"), re.compile(r"(?i)pout[0-9]*")),
)

# One line for each rail: unit, chip, label, range, and one or two files. The kernel may show the counter of a processor
# twice, of which one is used. Of power supplies only those count that feed the device: not a battery that is charged.
_FIND = r"""
sys=@SYS@
sleep 0.01 2>/dev/null && echo fractions
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
    [ -e "$file" ] && [ "$power" != 1 ] && power=2 && rail uJ "$name" "$(word "${file%_*}_label")" 0 "$file"
  done
  for file in "$chip"/in[0-9]*_input; do
    number=${file##*/in}; number=${number%_input}
    current=$chip/curr${number}_input
    [ -e "$current" ] && [ -z "$power" ] && rail mVmA "$name" "$(word "$chip/in${number}_label")" 0 "$file" "$current"
  done
done
for zone in "$sys"/class/powercap/*; do
  case ${zone##*/} in
  *:*:*) continue ;;
  intel-rapl-*) [ -e "$sys/class/powercap/intel-rapl:0/energy_uj" ] && continue ;;
  esac
  range=$(word "$zone/max_energy_range_uj")
  [ -e "$zone/energy_uj" ] && rail uJ powercap "$(word "$zone/name")" "$range" "$zone/energy_uj"
done
batteries=$(cat "$sys"/class/power_supply/*/type 2>/dev/null | grep -c '^Battery')
for supply in "$sys"/class/power_supply/*; do
  case $(word "$supply/type")/$(word "$supply/status")/$(word "$supply/online")/$batteries in
  Battery/Discharging/*) ;;
  Mains/*/1/0 | USB/*/1/0) ;;
  *) continue ;;
  esac
  if [ -e "$supply/power_now" ]; then rail uW power_supply "${supply##*/}" 0 "$supply/power_now"
  elif [ -e "$supply/current_now" ] && [ -e "$supply/voltage_now" ]; then
    rail uVuA power_supply "${supply##*/}" 0 "$supply/voltage_now" "$supply/current_now"
  fi
done
true
"""


class NoFigureError(Exception):
    """The readings of a sensor do not give a power, or are too few."""


@dataclass(frozen=True)
class Sensor:
    """The sensor of one rail.

    Attributes:
        unit: Unit of its files: `uW`, `uJ` for a counter, or `mVmA` and `uVuA` for two files whose product is a power.
        chip: Name of its chip, or of the kernel's class if it has none.
        label: Name of its rail; empty if it has none.
        wraps: Range of its counter, in its unit; 0 if unknown.
        files: Its files on the device.
    """

    unit: str
    chip: str
    label: str
    wraps: int
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        """Chip and label, for people."""
        return f"{self.chip} {self.label}".strip()

    @property
    def is_whole(self) -> bool:
        """Whether the label says that the rail is the input of the whole device; names of chips do not tell that."""
        return bool(_WHOLE_INPUT.fullmatch(self.label))


@dataclass(frozen=True)
class DeviceSensors:
    """The sensors of a device.

    Attributes:
        sensors: The sensors.
        fractions: Whether its `sleep` supports fractions of a second.
    """

    sensors: tuple[Sensor, ...]
    fractions: bool


@dataclass(frozen=True)
class Series:
    """Readings of one rail: the moments on the device's clock, and watts, or joules of a counter."""

    name: str
    seconds: NDArray[np.float64]
    values: NDArray[np.float64]
    counts: bool = False

    def mean(self, begin: float, end: float) -> float:
        """Return the mean power between two moments; NaN if there are too few readings."""
        inside = (self.seconds >= begin) & (self.seconds < end)
        values, seconds = self.values[inside], self.seconds[inside]
        if not self.counts:
            return float(values.mean()) if values.size else math.nan
        spent = seconds[-1] - seconds[0] if seconds.size > 1 else 0.0
        return float((values[-1] - values[0]) / spent) if spent > 0 else math.nan

    def samples(self, begin: float, end: float) -> int:
        """Return the number of readings between two moments."""
        return int(((self.seconds >= begin) & (self.seconds < end)).sum())


def find(shell: Shell, sysfs: str = SYSFS) -> DeviceSensors:
    """Return the sensors of a device.

    `sysfs` is the folder of the kernel's sensors on the device.

    Raises:
        DeviceError: The device is lost.
    """
    lines = shell.run(_FIND.replace("@SYS@", shlex.quote(sysfs))).stdout.splitlines()
    rows = [line.split()[1:] for line in lines if line.startswith("rail ")]
    fields = [
        Sensor(unit, chip, "" if label == "-" else label, _number(wraps) or 0, tuple(paths))
        for unit, chip, label, wraps, *paths in (row for row in rows if len(row) > 4)  # noqa: PLR2004
        if unit in _TO_WATTS and len(chip) + len(label) <= 2 * _LONGEST_WORD
    ]
    return DeviceSensors(tuple(fields[:MOST_RAILS]), "fractions" in lines)


def _number(text: str) -> int | None:
    """Return the value of a sensor's file, or None if it is not a plausible number."""
    number = int(text) if _NUMBER.fullmatch(text) else None
    return number if number is not None and abs(number) <= _LARGEST else None


# --- readings ----------------------------------------------------------------------------------------------------


def read(sensors: Sequence[Sensor], rows: Sequence[Sequence[str]]) -> list[Series | str]:
    """Return the readings of each sensor, or its problem.

    Args:
        sensors: The sensors, at least one.
        rows: For each reading its time and the contents of all files of all sensors, in order.
    """
    width = 1 + sum(len(sensor.files) for sensor in sensors)
    complete = [row for row in rows if len(row) == width]
    seconds = np.array([float(row[0]) for row in complete], dtype=np.float64)
    results: list[Series | str] = []
    column = 1
    for sensor in sensors:
        columns = [[row[column + step] for row in complete] for step in range(len(sensor.files))]
        try:
            results.append(_series(sensor, seconds, columns))
        except NoFigureError as fault:
            results.append(str(fault))
        column += len(sensor.files)
    return results


def _series(sensor: Sensor, seconds: NDArray[np.float64], columns: Sequence[Sequence[str]]) -> Series:
    if sensor.unit == "mVmA" and not sensor.label:
        first = PurePosixPath(sensor.files[0]).name
        raise NoFigureError(f"{sensor.name}, {first}: it has no label, so its rail is unknown")
    values = np.ones(len(seconds))
    for texts, path in zip(columns, sensor.files, strict=True):
        wrong = next((text for text in texts if _number(text) is None), None)
        if wrong is not None:
            why = "it could not be read" if wrong == "x" else f"its value {wrong!r:.40} is not a number"
            raise NoFigureError(f"{sensor.name}, {PurePosixPath(path).name}: {why}")
        values = values * np.array([float(text) for text in texts])
    if not values.any() or (sensor.unit == "uJ" and values.size and float(np.ptp(values)) <= 0):
        raise NoFigureError(f"{sensor.name}: it {f'stays at {values[0]:g}' if values.size else 'has no values'}")
    if sensor.unit == "uJ":
        # A counter starts from 0 again after an overflow.
        fallen = np.diff(values) < 0
        if fallen.any() and sensor.wraps <= 0:
            raise NoFigureError(f"{sensor.name}: its counter decreased, and its range is unknown")
        times: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(fallen)])[: values.size]
        return Series(sensor.name, seconds, (values + times * sensor.wraps) * _TO_WATTS["uJ"], counts=True)
    return Series(sensor.name, seconds, _positive_power(sensor, values) * _TO_WATTS[sensor.unit])


def _positive_power(sensor: Sensor, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the power drawn by the device as positive numbers: drivers of batteries disagree on the sign."""
    if sensor.chip == _SUPPLY and (values <= 0).all():
        return -values
    if (values.min() < 0 and sensor.chip == _SUPPLY) or values.mean() < 0:
        raise NoFigureError(f"{sensor.name}: its power is negative ({values.min():g})")
    return values


# --- the total ---------------------------------------------------------------------------------------------------


def choose_counted(sensors: Sequence[Sensor]) -> tuple[int, ...]:
    """Return the indices of the sensors whose powers add up to the total, of which none contains another.

    In this order: the rail of the whole input; the supplies that feed the device; the processor's own counters, which
    are never added to rails of chips, since these may contain them; all rails of chips that no other rail of the same
    chip contains.

    Raises:
        NoFigureError: Several rails claim to be the whole input.
    """
    indices = range(len(sensors))
    chips = [index for index in indices if sensors[index].chip not in {_POWERCAP, _SUPPLY}]
    inputs = [index for index in chips if sensors[index].is_whole]
    if len(inputs) > 1:
        names = ", ".join(sensors[index].name for index in inputs)
        raise NoFigureError(f"{names}: the label of each says that it is the whole input, but only one can be")
    supplies = [index for index in indices if sensors[index].chip == _SUPPLY]
    processors = [index for index in indices if sensors[index].chip == _POWERCAP]
    platform = [index for index in processors if sensors[index].is_whole][:1]
    outermost = [index for index in chips if not _is_contained(sensors[index], sensors)]
    return tuple(inputs or supplies or platform or processors or outermost)


def _is_contained(sensor: Sensor, sensors: Sequence[Sensor]) -> bool:
    siblings = [other for other in sensors if _folder(other) == _folder(sensor)]
    return any(
        contained.fullmatch(sensor.label) and any(holder.fullmatch(other.label) for other in siblings)
        for holder, contained in _CONTAINS
    )


def _folder(sensor: Sensor) -> PurePosixPath:
    return PurePosixPath(sensor.files[0]).parent
