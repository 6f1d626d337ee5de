"""The description of a probed device, as a table and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from toolchain.device.probe import AcceleratorProbe, DeviceProbe, decoders
from toolchain.progress import size_text
from toolchain.report import Table
from toolchain.shell import is_adb

_SHOWN = 6
_UNSURE = ": an emulator, or a virtual machine with real times; pass --no-emulated for the latter"


def rows(probed: DeviceProbe) -> list[tuple[str, str]]:
    sections = (_system_rows(probed), _cpu_rows(probed), _use_rows(probed), _connection_rows(probed))
    return [(name, text) for section in sections for name, text in section if text]


def table(probed: DeviceProbe, more: Sequence[tuple[str, str]]) -> Table:
    return Table([*rows(probed), *((name, text) for name, text in more if text)])


def _system_rows(probed: DeviceProbe) -> list[tuple[str, str]]:
    bits = (
        f" (its kernel is {probed.kernel_machine}: 32-bit programs)" if probed.machine != probed.kernel_machine else ""
    )
    libc = f"{probed.libc} {probed.libc_version}".strip()
    return [
        ("device", f"{probed.name}{f', {probed.model}' if probed.model else ''}"),
        ("system", f"{probed.system} {probed.kernel}, {probed.machine}{bits}, {libc}"),
        ("emulated", "; ".join(probed.emulation) + (_UNSURE if probed.unsure else "")),
        (
            "virtual",
            "virtual machine (hardware-assisted, not emulated)" if probed.virtual and not probed.emulation else "",
        ),
    ]


def _cpu_rows(probed: DeviceProbe) -> list[tuple[str, str]]:
    clusters: list[tuple[str, str]] = []
    for cluster in probed.clusters[:_SHOWN]:
        caches = ", ".join(f"{name} {size} KiB" for name, size in cluster.caches)
        clock = f"up to {cluster.max_mhz} MHz" if cluster.max_mhz else ""
        text = ", ".join(filter(None, (f"{cluster.count} x {cluster.name}", clock, caches)))
        clusters.append(("" if clusters else "CPUs", text))
    limits = []
    if probed.cpu_limit is not None:
        limits.append(f"time of {probed.cpu_limit:g} CPUs")
    if probed.memory_limit_kib is not None and probed.memory_limit_kib < (
        probed.memory_kib or probed.memory_limit_kib + 1
    ):
        limits.append(f"{size_text(probed.memory_limit_kib * 1024)} of memory")
    swap = f", {size_text(probed.swap_kib * 1024)} of swap" if probed.swap_kib else ""
    allowed = f" ({probed.allowed})" if probed.allowed else ""
    return [
        *clusters,
        ("usable", f"{probed.cpus} CPUs{allowed}"),
        ("memory", f"{size_text(probed.memory_kib * 1024)}{swap}" if probed.memory_kib else ""),
        ("limits", " and ".join(limits) + " by its control group" if limits else ""),
    ]


def _use_rows(probed: DeviceProbe) -> list[tuple[str, str]]:
    sensors = probed.sensors
    governors = ", ".join(f"{name} on {count}" for name, count in sorted(probed.governors.items()))
    if governors:
        governors += ", which the login may change" if probed.governor_writable else ", which the login may not change"
    warm = [f"{name} {value:.0f} °C" if value is not None else name for name, value in sensors.thermal[:_SHOWN]]
    return [
        *((accelerator.title, _accelerator(accelerator)) for accelerator in probed.accelerators),
        ("pictures", decoders.describe(probed.decoders, has_packages=probed.libc != "bionic")),
        ("governors", governors),
        ("thermal", ", ".join(warm)),
        ("cooling", ", ".join(sensors.cooling[:_SHOWN])),
        ("power", ", ".join(sensors.power[:_SHOWN])),
        ("unreadable", ", ".join(sensors.unreadable[:_SHOWN])),
        ("throttled", sensors.throttled),
    ]


def _accelerator(accelerator: AcceleratorProbe) -> str:
    files = [path if "w" in rights else f"{path} (not for this login)" for path, rights, _group in accelerator.devices]
    text = ", ".join([*accelerator.libraries[:2], *files[:_SHOWN]])
    if not accelerator.devices:
        text += ", and no device"
    if accelerator.missing_groups:
        text += f"; on the device: sudo usermod -aG {','.join(accelerator.missing_groups)} LOGIN"
    return text


def _connection_rows(probed: DeviceProbe) -> list[tuple[str, str]]:
    folder = probed.place
    link = []
    if probed.round_trip_ms is not None:
        link.append(f"{probed.round_trip_ms:.0f} ms for a command")
    if probed.upload_mib_s is not None:
        link.append(f"{probed.upload_mib_s:.1f} MiB/s up")
    links = "" if folder.links else ", no hard links: releases are copied"
    return [
        (
            "store",
            f"{folder.root}, {size_text(folder.free_kib * 1024)} free on {folder.mount.partition(' ')[0]}{links}",
        ),
        ("login", f"{probed.login} ({', '.join(probed.groups)}), {probed.shell}"),
        (
            "adb" if is_adb(probed.name) else "SSH",
            ", ".join([probed.server, *(["SFTP"] if probed.sftp else []), *link]),
        ),
    ]


def document(probed: DeviceProbe) -> dict[str, Any]:
    values = dataclasses.asdict(probed)
    values["flags"] = sorted(probed.flags)
    for entry, cluster in zip(values["clusters"], probed.clusters, strict=True):
        entry["flags"], entry["caches"] = sorted(cluster.flags), dict(cluster.caches)
    return values
