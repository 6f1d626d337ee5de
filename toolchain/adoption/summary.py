"""What a person is shown of a device, and what a program gets of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from toolchain.adoption.cores import Cluster
from toolchain.adoption.probe import Probed, Seen
from toolchain.progress import size_text
from toolchain.shell import is_adb
from toolchain.tables import Table

_SHOWN = 6
_UNSURE = ": an emulator, or a virtual machine with real times, which --no-emulated says it is"


def rows(found: Probed) -> list[tuple[str, str]]:
    """Return what a device is, line by line."""
    return [row for row in [*_of_system(found), *_of_cpus(found), *_of_use(found), *_of_reach(found)] if row[1]]


def table(found: Probed, more: Sequence[tuple[str, str]]) -> Table:
    """Return what a device is as a table, with more lines below."""
    return Table([*rows(found), *(row for row in more if row[1])])


def _of_system(found: Probed) -> list[tuple[str, str]]:
    bits = f" (its kernel is {found.kernel_machine}: 32-bit programs)" if found.machine != found.kernel_machine else ""
    libc = f"{found.libc} {found.libc_version}".strip()
    return [
        ("device", f"{found.name}{f', {found.model}' if found.model else ''}"),
        ("system", f"{found.system} {found.kernel}, {found.machine}{bits}, {libc}"),
        ("emulated", "; ".join(found.emulation) + (_UNSURE if found.unsure else "")),
        (
            "virtual",
            "virtual machine (hardware-assisted, not emulated)" if found.virtual and not found.emulation else "",
        ),
    ]


def _of_cpus(found: Probed) -> list[tuple[str, str]]:
    limits = []
    if found.cpu_limit is not None:
        limits.append(f"time of {found.cpu_limit:g} CPUs")
    if found.memory_limit_kib is not None and found.memory_limit_kib < (found.memory_kib or found.memory_limit_kib + 1):
        limits.append(f"{size_text(found.memory_limit_kib * 1024)} of memory")
    swap = f", {size_text(found.swap_kib * 1024)} of swap" if found.swap_kib else ""
    allowed = f" ({found.allowed})" if found.allowed else ""
    return [
        *((("CPUs" if not place else ""), _cluster(one)) for place, one in enumerate(found.clusters[:_SHOWN])),
        ("usable", f"{found.cpus} CPUs{allowed}"),
        ("memory", f"{size_text(found.memory_kib * 1024)}{swap}" if found.memory_kib else ""),
        ("limits", " and ".join(limits) + " by its control group" if limits else ""),
    ]


def _cluster(one: Cluster) -> str:
    caches = ", ".join(f"{name} {size} KiB" for name, size in one.caches)
    clock = f"up to {one.max_mhz} MHz" if one.max_mhz else ""
    return ", ".join(filter(None, (f"{one.count} x {one.name}", clock, caches)))


def _of_use(found: Probed) -> list[tuple[str, str]]:
    watched = found.sensors
    governors = ", ".join(f"{name} on {count}" for name, count in sorted(found.governors.items()))
    if governors:
        governors += ", which the login may change" if found.governor_writable else ", which the login may not change"
    warm = [f"{name} {value:.0f} °C" if value is not None else name for name, value in watched.thermal[:_SHOWN]]
    return [
        *((one.title, _accelerator(one)) for one in found.accelerators),
        ("governors", governors),
        ("thermal", ", ".join(warm)),
        ("cooling", ", ".join(watched.cooling[:_SHOWN])),
        ("power", ", ".join(watched.power[:_SHOWN])),
        ("unreadable", ", ".join(watched.unreadable[:_SHOWN])),
        ("throttled", watched.throttled),
    ]


def _accelerator(one: Seen) -> str:
    files = [path if "w" in rights else f"{path} (not for this login)" for path, rights, _group in one.devices]
    text = ", ".join([*one.libraries[:2], *files[:_SHOWN]])
    if not one.devices:
        text += ", and no device"
    if one.missing_groups:
        text += f"; on the device: sudo usermod -aG {','.join(one.missing_groups)} LOGIN"
    return text


def _of_reach(found: Probed) -> list[tuple[str, str]]:
    place = found.place
    link = []
    if found.round_trip_ms is not None:
        link.append(f"{found.round_trip_ms:.0f} ms for a command")
    if found.upload_mib_s is not None:
        link.append(f"{found.upload_mib_s:.1f} MiB/s up")
    links = "" if place.links else ", no hard links: releases are copied"
    return [
        ("store", f"{place.root}, {size_text(place.free_kib * 1024)} free on {place.mount.partition(' ')[0]}{links}"),
        ("login", f"{found.login} ({', '.join(found.groups)}), {found.shell}"),
        ("adb" if is_adb(found.name) else "SSH", ", ".join([found.server, *(["SFTP"] if found.sftp else []), *link])),
    ]


def document(found: Probed) -> dict[str, Any]:
    """Return it as JSON's types."""
    kept = dataclasses.asdict(found)
    kept["flags"] = sorted(found.flags)
    for cluster, one in zip(kept["clusters"], found.clusters, strict=True):
        cluster["flags"], cluster["caches"] = sorted(one.flags), dict(one.caches)
    return kept
