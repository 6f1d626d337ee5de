"""The tables of CPUs and accelerators, `backends/cpus.toml` and `backends/accelerators.toml`."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolchain import resources


@dataclass(frozen=True)
class Accelerator:
    """A processor beside the CPU, and how it is recognized on a device."""

    name: str
    title: str  # its name in a summary
    backend: str  # the backend that compiles for it
    libraries: tuple[str, ...] = ()  # patterns of library files
    devices: tuple[str, ...] = ()  # patterns of device files
    kinds: tuple[str, ...] = ()  # patterns of files that exist only for the kind that the backend supports
    drivers: tuple[str, ...] = ()  # patterns of the files by which a loader library finds drivers
    loader: str = ""  # text that marks a library as only a loader of drivers
    mark: str = ""  # text that every library of this accelerator contains
    # Environment variables on the device, each empty if there is none:
    variable: str = ""  # names another library
    drivers_variable: str = ""  # names another folder of drivers, or the file of one
    choice: str = ""  # selects devices by their names
    # How to install a missing `library` or `device`, or either where it is `emulated`; `android_` is a prefix.
    remedies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One kind of Arm core."""

    mcpu: str  # LLVM's name of it
    rank: int  # orders cores by size, for kernels that do not report capacity or clock
    only64: bool = False  # whether it runs no 32-bit programs
    uses: tuple[str, ...] = ()  # LLVM features that the name implies, beyond those of every core


@dataclass(frozen=True)
class Level:
    """A set of CPU features that compilers have a name for, such as x86-64-v3."""

    mcpu: str  # LLVM's name of it
    board: str  # name for a board type of this level
    flags: tuple[str, ...]  # flags of /proc/cpuinfo that it needs
    mattr: tuple[str, ...] = ()  # LLVM features beyond those that the name implies
    has: str = ""  # its features, for messages
    speed: Mapping[str, float] = field(default_factory=dict)  # of float32 and int8 networks; 1 on the lowest level


@dataclass(frozen=True)
class Cpus:
    """The table of CPUs."""

    parts: Mapping[tuple[str, str], Part]  # Arm cores by "CPU implementer" and "CPU part" of /proc/cpuinfo
    features: Mapping[str, frozenset[str]]  # by LLVM feature, the flags of /proc/cpuinfo; any one of them shows it
    # By machine:
    plain: Mapping[str, tuple[str, ...]]  # LLVM features for a CPU without a name, if it has them
    named: Mapping[str, tuple[str, ...]]  # LLVM features to pass for a CPU with a name, with + or -
    levels: Mapping[str, tuple[Level, ...]]  # the highest first
    foreign: Mapping[str, tuple[str, ...]]  # texts of /proc/cpuinfo that prove another machine
    used: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # titles of LLVM features that our kernels use


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
