"""What devices say of themselves, as the script of `board add` would print it, without the devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from toolchain.device import probe
from toolchain.device.probe import DeviceProbe
from toolchain.device.probe.answer import Answer

TOKEN = "0123456789abcdef"  # noqa: S105 - it keeps nothing secret
A53, A72, A76, A55 = ("0x41", "0xd03"), ("0x41", "0xd08"), ("0x41", "0xd0b"), ("0x41", "0xd05")
ARMV8 = "fp asimd evtstrm crc32 cpuid"
ARMV82 = f"{ARMV8} atomics fphp asimdhp asimddp"
FINE = {
    "root": "/home/me/.local/share/edge-toolchain",
    "at": "/home/me",
    "df": "/dev/root 30000000 1000000 29000000 4% /",
    "mount": "ext4 rw,relatime",
    "writes": "yes",
    "executes": "yes",
    "fills": "yes",
    "links": "yes",
    "switches": "yes",
    "locks": "yes",
}


def cores(*processors: tuple[tuple[str, str], str]) -> list[str]:
    """Return the lines of /proc/cpuinfo of an Arm board, for each core its part and its flags."""
    lines = []
    for number, ((maker, part_number), flags) in enumerate(processors):
        lines += [f"cpu processor={number}", f"cpu Features={flags}"]
        lines += [f"cpu CPU implementer={maker}", f"cpu CPU part={part_number}"]
    return lines


def said(values: Mapping[str, str | None] | None = None, lines: Iterable[str] = ()) -> str:
    """Return a whole answer: that of a Raspberry Pi 4, but for what is given; a value of None leaves a line out."""
    usual = {
        "system": "Linux",
        "machine": "aarch64",
        "kernel": "6.1.0-rpi7",
        "bits": "64",
        "libc": "glibc 2.36",
        "model": "Raspberry Pi 4 Model B Rev 1.4",
        "cpus": "4",
        "memory": "3884344",
        "login": "me",
        "groups": "me video",
        "sh": "/usr/bin/dash",
        **FINE,
    }
    merged = usual | dict(values or {})
    report_lines: Sequence[str] = [f"{key}={value}" for key, value in merged.items() if value is not None]
    blocks = list(lines) or cores(*[(A72, ARMV8)] * 4)
    return "\n".join([f"begin={TOKEN}", *report_lines, *blocks, f"end={TOKEN}", ""])


def probed(values: Mapping[str, str | None] | None = None, lines: Iterable[str] = ()) -> DeviceProbe:
    """Return what such an answer means."""
    return probe.read(Answer(said(values, lines), TOKEN, "me@board:22"), "me@board:22")
