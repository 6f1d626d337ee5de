"""The CPUs of a device: which cores are equal, which ones are the big ones, and their names and features in LLVM."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from toolchain.adoption import hardware_tables
from toolchain.adoption.answer import Answer, number
from toolchain.adoption.hardware_tables import Part

ANY_CPU = "generic"  # LLVM's name of a CPU that has none
_MOST_KHZ = 10**8
_ID = re.compile(r"0x[0-9a-f]{1,4}")
_CACHE = re.compile(r"([1-4]) (Data|Instruction|Unified) ([0-9]{1,9})(K|M)?")


@dataclass(frozen=True)
class Cluster:
    """Equal cores."""

    numbers: tuple[int, ...]
    name: str  # what LLVM calls them, or else what /proc/cpuinfo does
    part: tuple[str, str]  # implementer and part; empty where the kernel names none
    max_mhz: int  # highest clock; 0 if unknown
    capacity: int  # their share of the biggest core's capacity, of 1024; 0 if unknown
    caches: tuple[tuple[str, int], ...]  # their caches in KiB, such as `l1d`
    flags: frozenset[str]  # flags that all of them have

    @property
    def count(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True)
class Chosen:
    """LLVM's name and features for a device's CPUs."""

    mcpu: str  # its name for the big cores; `generic` where it has none
    mattr: tuple[str, ...]  # features beside those that the name stands for, and those of them that some core lacks
    cpu_features: tuple[str, ...] = ()  # flags of /proc/cpuinfo that programs for it need
    board: str = ""  # what a board type of it is called, where it stands for a level
    known: bool = True  # whether the cores have a name


def clusters(answer: Answer, machine: str) -> tuple[Cluster, ...]:
    """Return the CPUs in groups of equal ones, the biggest first."""
    clocks = {cpu: number(values[0], _MOST_KHZ) // 1000 for cpu, values in answer.by_cpu("max_khz") if values}
    capacities = {cpu: number(values[0], 1 << 16) for cpu, values in answer.by_cpu("capacity") if values}
    caches = {cpu: _caches(values) for cpu, values in answer.by_cpu("cache")}
    last = answer.cpus[-1] if answer.cpus else {}
    numbers: dict[tuple[tuple[str, str], str, int, int], list[int]] = {}
    usual: dict[tuple[tuple[str, str], str], tuple[int, int]] = {}  # for cores without a known clock
    flags: dict[int, frozenset[str]] = {}
    for entry in answer.cpus:
        cpu = number(entry["processor"])  # no count: a CPU that is offline is left out
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
    return tuple(sorted(equal, key=_size, reverse=True))


def part_of(part: tuple[str, str], machine: str) -> Part | None:
    """Return a core's row of the table; None if it has none, or cannot run programs of this machine."""
    known_part = hardware_tables.cpus().parts.get(part)
    return None if known_part is None or (known_part.only64 and machine != "aarch64") else known_part


def _size(cluster: Cluster) -> tuple[int, int, int]:
    core = hardware_tables.cpus().parts.get(cluster.part)
    return cluster.capacity, cluster.max_mhz, core.rank if core else 0


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


def choose(groups: Sequence[Cluster], machine: str) -> Chosen:
    """Return LLVM's name of the big cores, and the features that all cores have.

    Args:
        groups: The clusters, the biggest first.
        machine: The machine of the programs, as `user_machine` returns it.
    """
    flags = common_flags(groups)
    for level in hardware_tables.cpus().levels.get(machine, ()):
        if flags >= set(level.flags):
            return Chosen(level.mcpu, level.mattr, level.flags, level.board)
    plain = hardware_tables.cpus().plain.get(machine, ())
    core = part_of(groups[0].part, machine) if groups else None
    if core is None:
        mattr = tuple(f"+{name}" for name in plain if has(name, flags))
        # The flags by which a device shows that it has these features; each has one that is there.
        table = hardware_tables.cpus().features
        shown_by = tuple(dict.fromkeys(min(table[name[1:]] & flags) for name in mattr))
        return Chosen(ANY_CPU, mattr, shown_by, known=False)
    usual = tuple(f"{'+' if has(name, flags) else '-'}{name}" for name in hardware_tables.cpus().named.get(machine, ()))
    lacking = tuple(f"-{name}" for name in core.uses if not has(name, flags))
    return Chosen(core.mcpu, (*usual, *lacking))
