"""The CPUs of a device: which cores are alike, which ones are the big ones, and what LLVM is told of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from toolchain.adoption import known
from toolchain.adoption.answer import Answer, number
from toolchain.adoption.known import Part

ANY_CPU = "generic"  # LLVM's name of a CPU that has none
_MOST_KHZ = 10**8
_CACHE = re.compile(r"([1-4]) (Data|Instruction|Unified) ([0-9]{1,9})(K|M)?")


@dataclass(frozen=True)
class Cluster:
    """Cores that are alike."""

    numbers: tuple[int, ...]  # their CPU numbers
    name: str  # what LLVM calls them, or else what /proc/cpuinfo does
    part: tuple[str, str]  # implementer and part; empty where the kernel names none
    max_mhz: int  # highest clock; 0 if unknown
    capacity: int  # their share of the biggest core's capacity, of 1024; 0 if unknown
    caches: tuple[tuple[str, int], ...]  # their caches in KiB, such as `l1d`
    flags: frozenset[str]  # flags that all of them have

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.numbers)


@dataclass(frozen=True)
class Chosen:
    """What LLVM is told of a device's CPUs."""

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
    groups: dict[tuple[tuple[str, str], str, int, int], list[int]] = {}
    usual: dict[tuple[tuple[str, str], str], tuple[int, int]] = {}  # of a core whose clock nobody tells
    flags: dict[int, frozenset[str]] = {}
    for one in answer.cpus:
        cpu = number(one["processor"])  # no count: a CPU that is offline is left out
        said = one if _names(one) else {**last, **one}  # old kernels name the part once, below the last CPU
        kind = (_part(said), said.get("model name", ""))
        size = (clocks.get(cpu, 0), capacities.get(cpu, 0))
        groups.setdefault((*kind, *(size if any(size) else usual.get(kind, size))), []).append(cpu)
        usual.setdefault(kind, size)
        flags[cpu] = frozenset((said.get("Features") or said.get("flags") or last.get("Features", "")).split())
    found = [
        Cluster(
            numbers=tuple(cpus),
            name=_name(part, model, machine),
            part=part,
            max_mhz=clock,
            capacity=capacity,
            caches=tuple(caches.get(cpus[0], {}).items()),
            flags=frozenset.intersection(*(flags[cpu] for cpu in cpus)),
        )
        for (part, model, clock, capacity), cpus in groups.items()
    ]
    return tuple(sorted(found, key=_size, reverse=True))


def _names(one: dict[str, str]) -> bool:
    return "CPU part" in one or "flags" in one


def _part(one: dict[str, str]) -> tuple[str, str]:
    maker, part = one.get("CPU implementer", "").lower(), one.get("CPU part", "").lower()
    return (
        (maker, part)
        if re.fullmatch(r"0x[0-9a-f]{1,4}", maker) and re.fullmatch(r"0x[0-9a-f]{1,4}", part)
        else ("", "")
    )


def _name(part: tuple[str, str], model: str, machine: str) -> str:
    found = named(part, machine)
    return found.mcpu if found else model or " ".join(filter(None, part)) or machine


def named(part: tuple[str, str], machine: str) -> Part | None:
    """Return what is known of a kind of core that runs programs of a machine; None if nothing is."""
    found = known.cpus().parts.get(part)
    return None if found is None or (found.only64 and machine != "aarch64") else found


def _size(one: Cluster) -> tuple[int, int, int]:
    part = known.cpus().parts.get(one.part)
    return one.capacity, one.max_mhz, part.rank if part else 0


def _caches(values: Sequence[str]) -> dict[str, int]:
    """Read caches such as `1 Data 32K`."""
    kinds = {"Data": "d", "Instruction": "i", "Unified": ""}
    found = filter(None, map(_CACHE.fullmatch, values))
    return {f"l{one[1]}{kinds[one[2]]}": int(one[3]) * (1024 if one[4] == "M" else 1) for one in found}


def common_flags(found: Sequence[Cluster]) -> frozenset[str]:
    """Return the flags that every core has."""
    return frozenset.intersection(*(one.flags for one in found)) if found else frozenset()


def has(feature: str, flags: Collection[str]) -> bool:
    """Whether cores with some flags have a feature of LLVM's; of one that nobody knows, no."""
    return not known.cpus().features.get(feature, frozenset({feature})).isdisjoint(flags)


def choose(found: Sequence[Cluster], machine: str) -> Chosen:
    """Return what LLVM is told: the name of the big cores, and the features that all cores have.

    Args:
        found: The clusters, the biggest first.
        machine: What their programs are made for.
    """
    flags = common_flags(found)
    for level in known.cpus().levels.get(machine, ()):
        if flags >= set(level.flags):
            return Chosen(level.mcpu, level.mattr, level.flags, level.board)
    plain = known.cpus().plain.get(machine, ())
    part = named(found[0].part, machine) if found else None
    if part is None:
        mattr = tuple(f"+{name}" for name in plain if has(name, flags))
        return Chosen(ANY_CPU, mattr, _flags_of(mattr, flags), known=False)
    usual = tuple(f"{'+' if has(name, flags) else '-'}{name}" for name in known.cpus().named.get(machine, ()))
    lacking = tuple(f"-{name}" for name in part.uses if not has(name, flags))
    return Chosen(part.mcpu, (*usual, *lacking))


def _flags_of(mattr: Sequence[str], flags: frozenset[str]) -> tuple[str, ...]:
    """Return the flags by which a device shows that it has some features; each has one that is there."""
    table = known.cpus().features
    return tuple(dict.fromkeys(min(table[name[1:]] & flags) for name in mattr))
