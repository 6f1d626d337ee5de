"""Rounds on a device: one script runs several releases one after the other, with the conditions around each run.

The script itself reads clock, heat and stolen time right before and after each run: that costs no extra command, and
the values belong to that run.
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.device import runner
from toolchain.device.installed import Installed
from toolchain.device.rate_report import COOLING
from toolchain.device.runner import Plan, Run
from toolchain.errors import DeviceError

SYSFS = "/sys"
_MARK = re.compile(r"@(?P<token>[0-9a-f]{16}) (?P<name>before|report|after)")
_NUMBER = re.compile(r"[0-9]{1,18}")
_TICKS = re.compile(r"cpu +[0-9]{1,18}( [0-9]{1,18}){3,19} ?")  # no ambiguity, so no backtracking on hostile text
_FLAGS = re.compile(r"throttled=0x([0-9a-fA-F]{1,8})")
_STEAL = 7  # index in the first line of /proc/stat: user nice system idle iowait irq softirq steal guest guest_nice
_COUNTED = 8  # guest time is in user time already
_STATE_BYTES = 1 << 16
_MOST_KINDS = 16  # of cooling devices that are named; a device may report any number

_FLAG_NAMES = ("under-voltage", "clock capped", "throttled", "soft temperature limit")  # `vcgencmd get_throttled`
_FLAGS_NOW, _FLAGS_SINCE = 0xF, 16

# Starts no process that could disturb the run, but for `vcgencmd` on a Raspberry Pi.
_LOOK = """
look() {
  { read -r line </proc/stat && echo "ticks=$line"; } 2>/dev/null
  for file in "$sysfs"/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq; do
    { read -r value <"$file"; } 2>/dev/null && echo "khz=$value"
  done
  for file in "$sysfs"/devices/system/cpu/cpu[0-9]*/thermal_throttle/*_throttle_count; do
    { read -r value <"$file"; } 2>/dev/null && echo "count=$value"
  done
  for folder in "$sysfs"/class/thermal/cooling_device[0-9]*; do
    { read -r value <"$folder/cur_state" && read -r kind <"$folder/type"; } 2>/dev/null && echo "cooling=$value $kind"
  done
  ! command -v vcgencmd >/dev/null 2>&1 || vcgencmd get_throttled 2>/dev/null
  true
}
"""


@dataclass(frozen=True)
class State:
    """The state of a device's CPUs at one moment.

    Attributes:
        mhz: Mean clock of its CPUs; None if the device does not report it.
        steal: Ticks since its start in which a hypervisor ran other machines.
        ticks: All ticks since its start, over all CPUs.
        throttles: Number of times that its CPUs throttled since its start; None if it does not count them.
        cooling: Kinds of the cooling devices that are active.
        flags: The flags of a Raspberry Pi's firmware for voltage and heat; None on other boards.
    """

    mhz: float | None = None
    steal: int = 0
    ticks: int = 0
    throttles: int | None = None
    cooling: tuple[str, ...] = ()
    flags: int | None = None


@dataclass(frozen=True)
class Turn:
    """One run of one release, and the state of the device right before and right after it."""

    run: Run
    before: State
    after: State

    @property
    def steal(self) -> float:
        """Share of the CPUs' time that a hypervisor gave to others, from 0 to 1."""
        ticks = self.after.ticks - self.before.ticks
        return min(max(self.after.steal - self.before.steal, 0) / ticks, 1.0) if ticks > 0 else 0.0

    @property
    def throttled(self) -> tuple[str, ...]:
        """Signs that heat or low voltage slowed down the device during the run; empty without any."""
        counts = self.before.throttles, self.after.throttles
        more = 0 if None in counts else (counts[1] or 0) - (counts[0] or 0)
        counted = [f"{more} time(s) by the CPUs' own count"] if more > 0 else []
        cooling = sorted({*self.before.cooling, *self.after.cooling})
        before, after = (state.flags or 0 for state in (self.before, self.after))
        # The upper bits say what has happened since the start: what is new there happened during the run, and may have
        # ended before both states were read.
        flags = (before | after | ((after & ~before) >> _FLAGS_SINCE)) & _FLAGS_NOW
        return (*counted, *cooling, *(name for bit, name in enumerate(_FLAG_NAMES) if flags >> bit & 1))


def run(releases: Sequence[Installed], folder: str, plan: Plan, sysfs: str = SYSFS) -> list[Turn]:
    """Run releases of one device once each, in this order, by one script.

    Args:
        releases: The releases.
        folder: A folder of `Installed.scratch`.
        plan: How often to run each; the outputs stay on the device.
        sysfs: Folder of the kernel's clocks and cooling devices on the device.

    Raises:
        DeviceError: A release does not run, the device is lost, or its report is not valid.
        VerificationError: The device does not accept a release.
    """
    shell, token = releases[0].shell, secrets.token_hex(8)
    script = f"umask 022; sysfs={shlex.quote(sysfs)}; mkdir -p {shlex.quote(folder)}\n{_LOOK}\n"
    script += "".join(_run_script(release.command(folder, plan), token, folder) for release in releases)
    plans = [release.complete(plan) for release in releases]
    limit = sum(map(runner.longest_s, plans))
    limit_bytes = sum(runner.most_said(complete) + 2 * _STATE_BYTES for complete in plans)
    began = time.monotonic()
    result = shell.run(script, timeout=limit, check=False, max_bytes=limit_bytes)
    took_s = time.monotonic() - began
    runner.check_ended(shell.name, result)
    sections = _sections(result.stdout, token)
    if [name for name, _text in sections] != ["before", "report", "after"] * len(releases):
        raise DeviceError(
            f"{shell.name} did not return a valid report of {len(releases)} run(s)",
            details=result.stdout[:200],
            hint="log in and check the device's shell and tools",
        )
    texts = [text for _name, text in sections]
    turns = [
        Turn(runner.read(report, {}, shell.name, plan), _state(before), _state(after))
        for before, report, after in zip(texts[::3], texts[1::3], texts[2::3], strict=True)
    ]
    runner.check_times([turn.run for turn in turns], took_s, shell.name)
    return turns


def _run_script(command: Sequence[str], token: str, folder: str) -> str:
    """Return the script of one run; it reads both states before it prints anything, which costs time."""
    return (
        f"echo '@{token} before'; look\n{shlex.join(command)} >/dev/null || exit $?\nafter=$(look)\n"
        f"echo '@{token} report'; cat {shlex.quote(f'{folder}/report')} || exit\n"
        f"echo; echo '@{token} after'; printf '%s\\n' \"$after\"\n"
    )


def _sections(text: str, token: str) -> list[tuple[str, str]]:
    sections: list[tuple[str, list[str]]] = []
    for line in text.split("\n"):
        mark = _MARK.fullmatch(line)
        if mark and mark["token"] == token:
            sections.append((mark["name"], []))
        elif sections:
            sections[-1][1].append(line)
    return [(name, "\n".join(lines)) for name, lines in sections]


def _state(text: str) -> State:
    """Parse the output of `look`; anything that is not a number of the kernel is ignored."""
    lines = text[:_STATE_BYTES].split("\n")
    pairs = [line.split("=", 1) for line in lines if "=" in line]
    clocks = [int(value) / 1000 for key, value in pairs if key == "khz" and _NUMBER.fullmatch(value)]
    counts = [int(value) for key, value in pairs if key == "count" and _NUMBER.fullmatch(value)]
    cooling = [value.split(" ", 1) for key, value in pairs if key == "cooling" and " " in value]
    flags = next((match for line in lines if (match := _FLAGS.fullmatch(line))), None)
    ticks = next((value for key, value in pairs if key == "ticks" and _TICKS.fullmatch(value)), "")
    spent = [int(count) for count in ticks.split()[1:]]
    active = {
        kind[:64]
        for state, kind in cooling
        if _NUMBER.fullmatch(state) and int(state) and kind.isprintable() and COOLING.fullmatch(kind)
    }
    return State(
        mhz=round(sum(clocks) / len(clocks), 1) if clocks else None,
        steal=spent[_STEAL] if len(spent) > _STEAL else 0,
        ticks=sum(spent[:_COUNTED]),
        throttles=sum(counts) if counts else None,
        cooling=tuple(sorted(active)[:_MOST_KINDS]),
        flags=int(flags[1], 16) if flags else None,
    )
