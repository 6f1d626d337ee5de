"""What is known of CPUs and accelerators, from two tables of the backends."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolchain import resources


@dataclass(frozen=True)
class Accelerator:
    """What computes beside the CPU, and how it is recognized on a device."""

    name: str
    title: str  # its name in a summary
    backend: str  # the backend that compiles for it
    libraries: tuple[str, ...] = ()  # patterns of the files of its library
    devices: tuple[str, ...] = ()  # patterns of its device files
    # patterns of files that are there only where it is of the kind that the backend's board types have
    kinds: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()  # patterns of the files by which a library that is only a loader finds drivers
    loader: str = ""  # text in a library that is only a loader of drivers
    mark: str = ""  # text in each library that is one
    variable: str = ""  # the variable of the device's environment that names another library; empty if there is none
    drivers_variable: str = ""  # the one that names another folder of drivers, or the file of one
    choice: str = ""  # the one that chooses among devices by their names
    # what brings a missing `library` or `device`, and either where its work is `emulated`; with `android_` in front,
    # what does on Android
    remedies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One kind of Arm core."""

    mcpu: str  # LLVM's name of it
    rank: int  # the greater, the bigger a core it is, where a kernel does not say which ones are
    only64: bool = False  # whether it runs no 32-bit programs
    uses: tuple[str, ...] = ()  # LLVM features that the name stands for, beside those that every core has


@dataclass(frozen=True)
class Level:
    """A set of flags that compilers have a name for."""

    mcpu: str  # LLVM's name of it
    board: str  # what a board type of it is called
    flags: tuple[str, ...]  # flags of /proc/cpuinfo that it needs
    mattr: tuple[str, ...] = ()  # LLVM features beside those that the name stands for
    has: str = ""  # what a CPU of it has, in words
    # how many times as fast networks run as on the machine's lowest level, by their type: float32, int8
    speed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cpus:
    """The table of CPUs."""

    parts: Mapping[tuple[str, str], Part]  # kinds of Arm cores by implementer and part, as /proc/cpuinfo writes them
    # of each LLVM feature the flags of /proc/cpuinfo that stand for it; any one of them does
    features: Mapping[str, frozenset[str]]
    # LLVM features that a CPU without a name is given in each kind of machine, where it has them
    plain: Mapping[str, tuple[str, ...]]
    # by machine, the LLVM features that are passed for a CPU with a name, with + or -
    named: Mapping[str, tuple[str, ...]]
    levels: Mapping[str, tuple[Level, ...]]  # by machine, the levels of its CPUs, the highest first
    foreign: Mapping[str, tuple[str, ...]]  # of each machine the words that /proc/cpuinfo has on others
    # by machine, the LLVM features that our kernels use, each with its title
    used: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.PACKAGE / "backends" / name).read_text(encoding="utf-8"))


@functools.cache
def accelerators() -> tuple[Accelerator, ...]:
    return tuple(
        Accelerator(
            name=name,
            title=entry["title"],
            backend=entry["backend"],
            libraries=tuple(entry.get("libraries", ())),
            devices=tuple(entry.get("devices", ())),
            kinds=tuple(entry.get("kinds", ())),
            drivers=tuple(entry.get("drivers", ())),
            loader=entry.get("loader", ""),
            mark=entry.get("mark", ""),
            variable=entry.get("variable", ""),
            drivers_variable=entry.get("drivers_variable", ""),
            choice=entry.get("choice", ""),
            remedies=entry["remedies"],
        )
        for name, entry in _read("accelerators.toml").items()
    )


@functools.cache
def cpus() -> Cpus:
    table = _read("cpus.toml")
    groups = {name: tuple(values) for name, values in table["groups"].items()}
    parts = {
        (maker, number): Part(
            core["mcpu"], core["rank"], core.get("only64", False), groups[core["group"]] if "group" in core else ()
        )
        for maker, numbers in table["parts"].items()
        for number, core in numbers.items()
    }
    levels = {
        machine: tuple(
            Level(
                mcpu=level["mcpu"],
                board=level["board"],
                flags=tuple(level["flags"]),
                mattr=tuple(level.get("mattr", ())),
                has=level["has"],
                speed=level["speed"],
            )
            for level in entries
        )
        for machine, entries in table["levels"].items()
    }
    return Cpus(
        parts,
        {name: frozenset(flags) for name, flags in table["features"].items()},
        {machine: tuple(names) for machine, names in table["plain"].items()},
        {machine: tuple(names) for machine, names in table["named"].items()},
        levels,
        {machine: tuple(texts) for machine, texts in table["foreign"].items()},
        table["used"],
    )
