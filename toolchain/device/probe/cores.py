"""The CPUs of a device in groups of equal cores, and their names and features in LLVM."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from toolchain.architecture import AARCH64
from toolchain.device.probe import hardware_tables
from toolchain.device.probe.answer import Answer, number
from toolchain.device.probe.hardware_tables import Part

ANY_CPU = "generic"  # LLVM's CPU without a name of its own
_MOST_KHZ = 10**8
_ID = re.compile(r"0x[0-9a-f]{1,4}")
_CACHE = re.compile(r"([1-4]) (Data|Instruction|Unified) ([0-9]{1,9})(K|M)?")


@dataclass(frozen=True)
class Cluster:
    """Equal cores."""

    numbers: tuple[int, ...]
    name: str  # LLVM's, or else that of /proc/cpuinfo
    part: tuple[str, str]  # "CPU implementer" and "CPU part" of /proc/cpuinfo; empty if they are missing
    max_mhz: int  # highest clock; 0 if unknown
    capacity: int  # relative to the biggest core's, which is 1024; 0 if unknown
    caches: tuple[tuple[str, int], ...]  # names such as `l1d`, and sizes in KiB
    flags: frozenset[str]  # that all of them have

    @property
    def count(self) -> int:
        return len(self.numbers)

    @property
    def size(self) -> tuple[int, int, int]:
        """A key that orders clusters: the bigger the cores, the greater it is."""
        core = hardware_tables.cpus().parts.get(self.part)
        return self.capacity, self.max_mhz, core.rank if core else 0


@dataclass(frozen=True)
class CpuTarget:
    """LLVM's name and features for a device's CPUs."""

    mcpu: str  # of the big cores; `generic` without a name
    mattr: tuple[str, ...]  # `+` features beyond those that the name implies, and implied ones that some core lacks
    cpu_features: tuple[str, ...] = ()  # flags of /proc/cpuinfo that programs for it need
    board: str = ""  # name for a board type, where it is a level
    has_name: bool = True  # whether LLVM has a name for the cores


def clusters(answer: Answer, machine: str) -> tuple[Cluster, ...]:
    """Group a device's CPUs by kind and size, the biggest first."""
    clocks = {cpu: number(values[0], _MOST_KHZ) // 1000 for cpu, values in answer.by_cpu("max_khz") if values}
    capacities = {cpu: number(values[0], 1 << 16) for cpu, values in answer.by_cpu("capacity") if values}
    caches = {cpu: _caches(values) for cpu, values in answer.by_cpu("cache")}
    last = answer.cpus[-1] if answer.cpus else {}
    numbers: dict[tuple[tuple[str, str], str, int, int], list[int]] = {}
    usual: dict[tuple[tuple[str, str], str], tuple[int, int]] = {}  # for cores without a known clock
    flags: dict[int, frozenset[str]] = {}
    for entry in answer.cpus:
        cpu = number(entry["processor"])  # not simply counted: a CPU that is offline is left out
        # Old kernels name the part once, below the last CPU.
        fields = entry if "CPU part" in entry or "flags" in entry else {**last, **entry}
        maker, part = fields.get("CPU implementer", "").lower(), fields.get("CPU part", "").lower()
        kind = (
            (maker, part) if _ID.fullmatch(maker) and _ID.fullmatch(part) else ("", ""),
            fields.get("model name", ""),
        )
        size = (clocks.get(cpu, 0), capacities.get(cpu, 0))
        numbers.setdefault((*kind, *(size if any(size) else usual.get(kind, size))), []).append(cpu)
        usual.setdefault(kind, size)
        flags[cpu] = frozenset((fields.get("Features") or fields.get("flags") or last.get("Features", "")).split())
    equal = [
        Cluster(
            numbers=tuple(cpus),
            name=row.mcpu if (row := part_of(part, machine)) else model or " ".join(filter(None, part)) or machine,
            part=part,
            max_mhz=clock,
            capacity=capacity,
            caches=tuple(caches.get(cpus[0], {}).items()),
            flags=frozenset.intersection(*(flags[cpu] for cpu in cpus)),
        )
        for (part, model, clock, capacity), cpus in numbers.items()
    ]
    return tuple(sorted(equal, key=lambda cluster: cluster.size, reverse=True))


def part_of(part: tuple[str, str], machine: str) -> Part | None:
    """Return a core's row of the table; None if it has none, or cannot run programs of this machine."""
    core = hardware_tables.cpus().parts.get(part)
    return None if core is None or (core.only64 and machine != AARCH64.machine) else core


def _caches(values: Sequence[str]) -> dict[str, int]:
    """Read caches such as `1 Data 32K`."""
    kinds = {"Data": "d", "Instruction": "i", "Unified": ""}
    caches = filter(None, map(_CACHE.fullmatch, values))
    return {f"l{cache[1]}{kinds[cache[2]]}": int(cache[3]) * (1024 if cache[4] == "M" else 1) for cache in caches}


def common_flags(groups: Sequence[Cluster]) -> frozenset[str]:
    return frozenset.intersection(*(cluster.flags for cluster in groups)) if groups else frozenset()


def has(feature: str, flags: Collection[str]) -> bool:
    """Whether cores with some flags have a feature of LLVM's; False for an unknown feature."""
    return not hardware_tables.cpus().features.get(feature, frozenset({feature})).isdisjoint(flags)


def choose(groups: Sequence[Cluster], machine: str) -> CpuTarget:
    """Return LLVM's name of the big cores, and the features that all cores have.

    Args:
        groups: The clusters, the biggest first.
        machine: The machine of the programs, as `user_machine` returns it.
    """
    flags = common_flags(groups)
    for level in hardware_tables.cpus().levels.get(machine, ()):
        if flags >= set(level.flags):
            return CpuTarget(level.mcpu, level.mattr, level.flags, level.board)
    plain = hardware_tables.cpus().plain.get(machine, ())
    core = part_of(groups[0].part, machine) if groups else None
    if core is None:
        mattr = tuple(f"+{name}" for name in plain if has(name, flags))
        # A feature may be visible by several flags; a board file requires one that this device has.
        table = hardware_tables.cpus().features
        required = tuple(dict.fromkeys(min(table[name[1:]] & flags) for name in mattr))
        return CpuTarget(ANY_CPU, mattr, required, has_name=False)
    usual = tuple(f"{'+' if has(name, flags) else '-'}{name}" for name in hardware_tables.cpus().named.get(machine, ()))
    lacking = tuple(f"-{name}" for name in core.uses if not has(name, flags))
    return CpuTarget(core.mcpu, (*usual, *lacking))
