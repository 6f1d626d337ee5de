"""What is known of CPUs and of what computes beside them, from two files of the backends."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolchain import resources


@dataclass(frozen=True)
class Accelerator:
    """What computes beside the CPU, and where it is seen on a device."""

    name: str  # a word for it
    title: str  # what it is called in a summary
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
    """What is known of CPUs."""

    parts: Mapping[tuple[str, str], Part]  # kinds of Arm cores by implementer and part, as /proc/cpuinfo writes them
    # of each LLVM feature the flags of /proc/cpuinfo that stand for it; any one of them does
    features: Mapping[str, frozenset[str]]
    # LLVM features that a CPU without a name is given in each kind of machine, where it has them
    plain: Mapping[str, tuple[str, ...]]
    # LLVM features that are said of a CPU with a name, in each kind of machine: that it has them, or has not
    named: Mapping[str, tuple[str, ...]]
    levels: Mapping[str, tuple[Level, ...]]  # by machine, the levels of its CPUs, the highest first
    foreign: Mapping[str, tuple[str, ...]]  # of each machine the words that /proc/cpuinfo has on others
    # by machine, the LLVM features that our kernels make use of, each with its name and what it speeds up
    used: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.PACKAGE / "backends" / name).read_text(encoding="utf-8"))


@functools.cache
def accelerators() -> tuple[Accelerator, ...]:
    """Return what there may be beside a CPU."""
    found = _read("accelerators.toml").items()
    return tuple(
        Accelerator(
            name=name,
            title=one["title"],
            backend=one["backend"],
            libraries=tuple(one.get("libraries", ())),
            devices=tuple(one.get("devices", ())),
            kinds=tuple(one.get("kinds", ())),
            drivers=tuple(one.get("drivers", ())),
            loader=one.get("loader", ""),
            mark=one.get("mark", ""),
            variable=one.get("variable", ""),
            drivers_variable=one.get("drivers_variable", ""),
            choice=one.get("choice", ""),
            remedies=one["remedies"],
        )
        for name, one in found
    )


@functools.cache
def cpus() -> Cpus:
    """Return what is known of CPUs."""
    table = _read("cpus.toml")
    groups = {name: tuple(values) for name, values in table["groups"].items()}
    parts = {
        (maker, number): Part(
            one["mcpu"], one["rank"], one.get("only64", False), groups[one["group"]] if "group" in one else ()
        )
        for maker, found in table["parts"].items()
        for number, one in found.items()
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
            for level in found
        )
        for machine, found in table["levels"].items()
    }
    return Cpus(
        parts,
        {name: frozenset(flags) for name, flags in table["features"].items()},
        {machine: tuple(names) for machine, names in table["plain"].items()},
        {machine: tuple(names) for machine, names in table["named"].items()},
        levels,
        {machine: tuple(words) for machine, words in table["foreign"].items()},
        table["used"],
    )
