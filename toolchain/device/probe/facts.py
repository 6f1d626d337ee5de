"""The facts that the store and the checks of releases need, from the few questions that they cost."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from toolchain.architecture import program_triple, user_machine
from toolchain.device.probe.answer import Answer, number
from toolchain.errors import DeviceError

MOST_KIB = 1 << 44
_MOST_CPUS = 1 << 16
_GLIBC = re.compile(r"(?i)\b(?:glibc|gnu libc\)) +([0-9]{1,3}(?:\.[0-9]{1,3}){1,2})(?![0-9.])")
# The line of `ldd`, or ours about a loader.
_MUSL = re.compile(
    r"musl libc(?:, (?P<loader>/lib/ld-musl-[\w.-]+))?(?:, (?P<version>[0-9]{1,3}(?:\.[0-9]{1,3}){1,2}))?"
)
_RELEASE = re.compile(r"(?:^ldd .*|stable release version )([0-9]{1,3}\.[0-9]{1,3})\.?$")

Libc = Literal["glibc", "musl", "bionic", ""]


@dataclass(frozen=True)
class DeviceFacts:
    """The facts that a device reports about itself.

    Attributes:
        machine: The machine of its programs; see `architecture.user_machine`.
        kernel: Kernel name and release.
        glibc: Version of its glibc; empty if it has another C library.
        cpu: Model name from /proc/cpuinfo, which many Arm boards leave empty.
        cpu_features: Its CPU flags.
        cpus: Number of CPUs that processes may use.
        memory_kib: Main memory.
        free_kib: Free space in the file system of the store.
        musl: Whether its C library is musl.
        musl_version: Version of it; empty if unknown.
        musl_loaders: The files that start programs for musl.
        signed_only: Whether it accepts signed releases only; see `trust`.
        lacks: Programs that the store needs and the device lacks.
    """

    machine: str
    kernel: str
    glibc: str
    cpu: str
    cpu_features: tuple[str, ...]
    cpus: int
    memory_kib: int
    free_kib: int
    lacks: tuple[str, ...]
    musl: bool = False
    signed_only: bool = False
    musl_version: str = ""
    musl_loaders: tuple[str, ...] = ()

    def program_triple(self, triple: str) -> str:
        """Return the triple of our programs for the device, whose board type has a triple."""
        return program_triple(triple, musl=self.musl)


def read_facts(answer: Answer, name: str) -> DeviceFacts:
    """Parse the answer to `script.FACTS` of the device with that name.

    Raises:
        DeviceError: It does not name its machine.
    """
    first, last = (answer.cpus[0], answer.cpus[-1]) if answer.cpus else ({}, {})
    libc, version = c_library(answer)
    cpu = first.get("model name") or last.get("Hardware") or last.get("Model") or ""
    features = first.get("flags") or first.get("Features") or last.get("Features") or ""
    return DeviceFacts(
        machine=user_machine(kernel_machine(answer, name), answer.text("bits")),
        kernel=f"{answer.text('system')} {answer.text('kernel')}".strip(),
        glibc=version if libc == "glibc" else "",
        cpu=cpu,
        cpu_features=tuple(features.split()),
        cpus=answer.number("cpus", _MOST_CPUS) or 1,
        memory_kib=answer.number("memory", MOST_KIB),
        free_kib=free_kib(answer),
        lacks=answer.texts("lacks"),
        musl=libc == "musl",
        signed_only=answer.has("signed_only"),
        musl_version=version if libc == "musl" else "",
        musl_loaders=musl_loaders(answer),
    )


def kernel_machine(answer: Answer, name: str) -> str:
    """Return the output of `uname -m`.

    Raises:
        DeviceError: It is not the name of a machine.
    """
    machine = answer.text("machine")
    if not re.fullmatch(r"[a-z0-9_]{2,20}", machine):
        raise DeviceError(
            f"{name} does not report its machine",
            details=f"uname -m: {machine}",
            hint="log in and run `uname -m`",
        )
    return machine


def c_library(answer: Answer) -> tuple[Libc, str]:
    """Return the C library and its version (of bionic, Android's API level), from the output of several tools."""
    if level := answer.number("android", 1000):
        return "bionic", str(level)
    for text in answer.texts("libc"):
        if version := _GLIBC.search(text) or _RELEASE.search(text):
            return "glibc", version[1]
        if "musl" in text:
            versions = [match["version"] for match in _musl(answer) if match["version"]]
            return "musl", next(iter(versions), "")
    return "", ""


def musl_loaders(answer: Answer) -> tuple[str, ...]:
    """Return the files that start programs for musl."""
    return tuple(match["loader"] for match in _musl(answer) if match["loader"])


def _musl(answer: Answer) -> list[re.Match[str]]:
    return [match for text in answer.texts("libc") if (match := _MUSL.match(text))]


def free_kib(answer: Answer) -> int:
    """Return the fourth column of `df -Pk`: file system, size, used, available."""
    columns = answer.exact("df").split()
    return number(columns[3], MOST_KIB) if len(columns) > 3 else 0  # noqa: PLR2004
