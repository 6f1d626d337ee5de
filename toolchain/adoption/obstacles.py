"""Checks for everything that prevents a device from running releases; each error names the next command."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from toolchain.architecture import ARMV7L, GLIBC, MACHINES
from toolchain.checks import Check, Checklist
from toolchain.device import fit
from toolchain.device.probe import DeviceProbe
from toolchain.errors import DeviceError, VerificationError
from toolchain.native import elf
from toolchain.progress import size_text

LEAST_FREE_KIB = 16 << 10  # for the device programs, the smallest network, and what a deploy needs beside them

LEAST_ANDROID = 24
ANOTHER_ROOT = "/FOLDER/edge-toolchain"  # stands for another folder in a suggested command
_PACKAGES = {"flock": "util-linux", "find": "findutils"}


def of(probed: DeviceProbe, another: str) -> tuple[Check[str], ...]:
    """Return the checks for everything that prevents a device from running releases.

    Args:
        probed: The device.
        another: The command that adds the device with another folder.
    """
    return (*_system_checks(probed), *_folder_checks(probed, another))


def check_system(probed: DeviceProbe, another: str) -> None:
    """Raise an error if no release would run on a device, in any folder; see `check`."""
    if not all(item.outcome().passed for item in _system_checks(probed)):
        check(probed, another)


def check(probed: DeviceProbe, another: str) -> None:
    """Raise an error if no release would run on a device; see `of`.

    Raises:
        ToolchainError: The first obstacle, with all of them in the details.
    """
    obstacles = Checklist()
    for item in of(probed, another):
        obstacles.find(item)
    obstacles.raise_faults(probed.name)


def check_use(probed: DeviceProbe, another: str) -> None:
    """Raise an error if no release would run in the probed folder, whatever space is free.

    Args:
        probed: The device.
        another: The option that names another folder.

    Raises:
        DeviceError: The first obstacle.
    """
    if not {"writes", "fills"} & {*probed.place.faults}:
        for item in _use_checks(probed, another):
            item.probe()


def _system_checks(probed: DeviceProbe) -> Iterator[Check[str]]:
    yield Check("system", partial(_check_machine, probed))
    if _has_programs(probed):
        yield Check("C library", partial(_check_c_library, probed))
        if probed.machine == ARMV7L.machine:
            yield Check("floats", partial(_check_floats, probed))
    yield Check("programs of the store", partial(_check_tools, probed))


def _folder_checks(probed: DeviceProbe, another: str) -> Iterator[Check[str]]:
    """Return the checks of the store's folder; what depends on a fault is not checked."""
    yield Check("writable folder", partial(_check_writable, probed, another))
    if "writes" in probed.place.faults:
        return
    yield Check("free space", partial(_check_free, probed, another))
    if not _is_full(probed):
        yield from _use_checks(probed, another)


def _use_checks(probed: DeviceProbe, another: str) -> Iterator[Check[str]]:
    yield Check("folder for programs", partial(_check_executable, probed, another))
    if "flock" not in probed.lacks:
        yield Check("file locks", partial(_check_locks, probed, another))
    if not {"ln", "mv", "readlink"} & {*probed.lacks}:
        yield Check("atomic links", partial(_check_links, probed, another))


def _has_programs(probed: DeviceProbe) -> bool:
    return probed.system == "Linux" and probed.machine in MACHINES


def _check_machine(probed: DeviceProbe) -> str:
    if not _has_programs(probed):
        mixed = ": its kernel has 64 bits, and its programs have 32" if probed.machine != probed.kernel_machine else ""
        system = probed.system or "no Linux"
        raise VerificationError(
            f"{probed.name} is {system} on {probed.machine}, and there are no device programs for that",
            details=f"device programs are available for Linux on {', '.join(MACHINES)}",
            hint="install a Linux for one of these on it" + mixed,
        )
    return f"{probed.system} on {probed.machine}"


def _check_c_library(probed: DeviceProbe) -> str:
    name, needed = probed.name, f"glibc {GLIBC}"
    fault = fit.musl_fault(probed.machine, probed.libc_version, probed.musl_loaders) if probed.libc == "musl" else None
    if fault:
        raise VerificationError(f"{name} has {fault.message}", details=fault.details, hint=fault.hint)
    if not probed.libc:
        raise VerificationError(
            f"{name} does not report its C library, and {needed} or newer is needed",
            details="getconf, ldd and libc.so.6 report no version",
            hint="log in and look for /lib/libc.so.6; `getconf GNU_LIBC_VERSION`, of the package libc-bin, prints it",
        )
    if probed.libc == "glibc" and elf.version_key(probed.libc_version) < elf.version_key(GLIBC):
        raise VerificationError(
            f"{name} has glibc {probed.libc_version}, and {needed} or newer is needed",
            hint="install a system with a newer glibc on the device, such as Debian 10 or later",
        )
    if probed.libc == "bionic" and (int(probed.libc_version) < LEAST_ANDROID or not MACHINES[probed.machine].android):
        raise VerificationError(
            f"{name} is Android of API level {probed.libc_version} on {probed.machine}",
            hint=f"device programs need 64-bit Android of API level {LEAST_ANDROID} (Android 7.0) or newer",
        )
    return f"{probed.libc} {probed.libc_version}"


def _check_floats(probed: DeviceProbe) -> str:
    if probed.loaders and not any(ARMV7L.debian in loader for loader in probed.loaders):
        raise VerificationError(
            f"{probed.name} passes floats in integer registers (armel), and device programs are for {ARMV7L.debian}",
            details=", ".join(probed.loaders),
            hint=f"install a system of architecture {ARMV7L.debian} on the device",
        )
    return f"in registers for floats ({ARMV7L.debian})"


def _check_tools(probed: DeviceProbe) -> str:
    if probed.lacks:
        packages = dict.fromkeys(_PACKAGES.get(tool, "coreutils") for tool in probed.lacks)
        raise DeviceError(
            f"{probed.name} lacks {', '.join(probed.lacks)}",
            details="the store of releases needs these programs",
            hint=f"on the device: apt-get install {' '.join(packages)}; or install a busybox that includes them",
        )
    return "all of them"


def _check_writable(probed: DeviceProbe, another: str) -> str:
    folder, fault = probed.place, probed.place.faults.get("writes")
    if fault is None:
        return folder.at
    if "ro" in folder.options or "ead-only" in fault:
        raise DeviceError(
            f"{_where(probed)} is mounted read-only",
            details=fault or folder.mount,
            hint=f"name a folder that can be written, {another}; or on the device: mount -o remount,rw ...",
        )
    if "space" in fault:
        raise _full(probed, another)
    hint = f"name a folder of the login's own: {another}"
    raise DeviceError(f"{_where(probed)} cannot be written by this login", details=fault, hint=hint)


def _is_full(probed: DeviceProbe) -> bool:
    return probed.place.free_kib < LEAST_FREE_KIB or "fills" in probed.place.faults


def _check_free(probed: DeviceProbe, another: str) -> str:
    if _is_full(probed):
        raise _full(probed, another)
    return size_text(probed.place.free_kib * 1024)


def _full(probed: DeviceProbe, another: str) -> DeviceError:
    folder = probed.place
    free = f"{folder.free_kib / 1024:.1f} MiB are free, and {LEAST_FREE_KIB >> 10} MiB are needed"
    return DeviceError(
        f"{_where(probed)} is full: {free}",
        details=folder.faults.get("fills", "") or folder.faults.get("writes", "") or folder.mount,
        hint=f"free some space there, or name a folder on another disk: {another}",
    )


def _check_executable(probed: DeviceProbe, another: str) -> str:
    folder = probed.place
    if "executes" in folder.faults:
        raise DeviceError(
            f"{_where(probed)} runs no programs" + (": it is mounted noexec" if "noexec" in folder.options else ""),
            details=folder.faults["executes"] or folder.mount,
            hint=f"name a folder where they run: {another}; or on the device: mount -o remount,exec ...",
        )
    return folder.at


def _check_locks(probed: DeviceProbe, another: str) -> str:
    folder = probed.place
    if "locks" in folder.faults:
        raise DeviceError(
            f"{_where(probed)} has no file locks, which two deploys at the same time need",
            details=folder.faults["locks"] or folder.mount,
            hint=f"name a folder on a disk of the device's own: {another}",
        )
    return folder.at


def _check_links(probed: DeviceProbe, another: str) -> str:
    folder = probed.place
    if "switches" in folder.faults:
        raise DeviceError(
            f"{_where(probed)} cannot replace a symbolic link atomically, as a switch of releases does",
            details=folder.faults["switches"] or folder.mount,
            hint=f"name a folder on a file system of Linux, such as ext4: {another}",
        )
    return folder.at


def _where(probed: DeviceProbe) -> str:
    return f"{probed.place.at} of {probed.name}"
