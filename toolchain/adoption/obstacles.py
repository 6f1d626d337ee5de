"""Checks for everything that prevents a device from running releases; each error names the next command."""

from __future__ import annotations

from collections.abc import Iterator

from toolchain.device.probe import DeviceProbe
from toolchain.errors import DeviceError, ToolchainError, VerificationError
from toolchain.native import elf, programs

LEAST_FREE_KIB = 16 << 10  # for the device programs, the smallest network, and what a deploy needs beside them

_LEAST_ANDROID = 24
ANOTHER_ROOT = "/FOLDER/edge-toolchain"  # stands for another folder in a suggested command
_PACKAGES = {"flock": "util-linux", "find": "findutils"}
# By machine, the triple of the device programs that run on it.
TRIPLES = {"aarch64": "aarch64-linux-gnu", "armv7l": "arm-linux-gnueabihf", "x86_64": "x86_64-linux-gnu"}


def check_system(probed: DeviceProbe, another: str) -> None:
    """Raise an error if no release would run on a device, in any folder; see `check`."""
    if [*_system_faults(probed), *_tool_faults(probed)]:
        check(probed, another)


def check(probed: DeviceProbe, another: str) -> None:
    """Raise an error if no release would run on a device.

    Args:
        probed: The device.
        another: The command that adds the device with another folder.

    Raises:
        ToolchainError: The first obstacle, with all of them in the details.
    """
    faults = [*_system_faults(probed), *_tool_faults(probed), *_folder_faults(probed, another)]
    if len(faults) > 1:
        texts = [f"{fault.message}\n  {fault.details}\n  hint: {fault.hint}" for fault in faults]
        message = f"{len(faults)} obstacles on {probed.name}; first: {faults[0].message}"
        raise type(faults[0])(message, details="\n".join(texts), hint=faults[0].hint)
    if faults:
        raise faults[0]


def check_use(probed: DeviceProbe, another: str) -> None:
    """Raise an error if no release would run in the probed folder, whatever space is free.

    Args:
        probed: The device.
        another: The option that names another folder.

    Raises:
        DeviceError: The first obstacle.
    """
    if not {"writes", "fills"} & {*probed.place.faults}:
        for fault in _use_faults(probed, f"{probed.place.at} of {probed.name}", another):
            raise fault


def _system_faults(probed: DeviceProbe) -> Iterator[ToolchainError]:
    name = probed.name
    mixed = ": its kernel has 64 bits, and its programs have 32" if probed.machine != probed.kernel_machine else ""
    if probed.system != "Linux" or probed.machine not in TRIPLES:
        yield VerificationError(
            f"{name} is {probed.system or 'no Linux'} on {probed.machine}, and there are no device programs for that",
            details=f"device programs are available for Linux on {', '.join(TRIPLES)}",
            hint="install a Linux for one of these on it" + mixed,
        )
        return
    needed = f"glibc {programs.GLIBC}"
    newer = "install a system with a newer glibc on the device, such as Debian 10 or later"
    if probed.libc == "musl":
        yield VerificationError(
            f"{name} has musl, and glibc {programs.GLIBC} or newer is needed",
            details="the device programs are linked with glibc, which systems with musl (Alpine, OpenWrt) lack",
            hint="install a system with glibc on the device, such as Debian, or a Yocto or Buildroot image that is "
            "configured for glibc",
        )
    elif not probed.libc:
        yield VerificationError(
            f"{name} does not report its C library, and {needed} or newer is needed",
            details="getconf, ldd and libc.so.6 report no version",
            hint="log in and look for /lib/libc.so.6; `getconf GNU_LIBC_VERSION`, of the package libc-bin, prints it",
        )
    elif probed.libc == "glibc" and elf.version_key(probed.libc_version) < elf.version_key(programs.GLIBC):
        yield VerificationError(f"{name} has glibc {probed.libc_version}, and {needed} or newer is needed", hint=newer)
    elif probed.libc == "bionic" and (int(probed.libc_version) < _LEAST_ANDROID or probed.machine != "aarch64"):
        yield VerificationError(
            f"{name} is Android of API level {probed.libc_version} on {probed.machine}",
            hint=f"device programs need 64-bit Android of API level {_LEAST_ANDROID} (Android 7.0) or newer",
        )
    if probed.machine == "armv7l" and probed.loaders and not any("armhf" in loader for loader in probed.loaders):
        yield VerificationError(
            f"{name} passes floats in integer registers (armel), and device programs are for armhf",
            details=", ".join(probed.loaders),
            hint="install a system of architecture armhf on the device",
        )


def _tool_faults(probed: DeviceProbe) -> Iterator[ToolchainError]:
    if probed.lacks:
        packages = dict.fromkeys(_PACKAGES.get(tool, "coreutils") for tool in probed.lacks)
        yield DeviceError(
            f"{probed.name} lacks {', '.join(probed.lacks)}",
            details="the store of releases needs these programs",
            hint=f"on the device: apt-get install {' '.join(packages)}; or install a busybox that includes them",
        )


def _folder_faults(probed: DeviceProbe, another: str) -> Iterator[ToolchainError]:
    folder, name = probed.place, probed.name
    faults = folder.faults
    where = f"{folder.at} of {name}"
    if "writes" in faults:
        if "ro" in folder.options or "ead-only" in faults["writes"]:
            hint = f"name a folder that can be written, {another}; or on the device: mount -o remount,rw ..."
            yield DeviceError(f"{where} is mounted read-only", details=faults["writes"] or folder.mount, hint=hint)
        elif "space" in faults["writes"]:
            yield _full(probed, where, another)
        else:
            hint = f"name a folder of the login's own: {another}"
            yield DeviceError(f"{where} cannot be written by this login", details=faults["writes"], hint=hint)
        return
    if folder.free_kib < LEAST_FREE_KIB or "fills" in faults:
        yield _full(probed, where, another)
        return
    yield from _use_faults(probed, where, another)


def _use_faults(probed: DeviceProbe, where: str, another: str) -> Iterator[ToolchainError]:
    folder, faults = probed.place, probed.place.faults
    if "executes" in faults:
        yield DeviceError(
            f"{where} runs no programs" + (": it is mounted noexec" if "noexec" in folder.options else ""),
            details=faults["executes"] or folder.mount,
            hint=f"name a folder where they run: {another}; or on the device: mount -o remount,exec ...",
        )
    if "locks" in faults and "flock" not in probed.lacks:
        yield DeviceError(
            f"{where} has no file locks, which two deploys at the same time need",
            details=faults["locks"] or folder.mount,
            hint=f"name a folder on a disk of the device's own: {another}",
        )
    if "switches" in faults and not {"ln", "mv", "readlink"} & {*probed.lacks}:
        yield DeviceError(
            f"{where} cannot replace a symbolic link atomically, as a switch of releases does",
            details=faults["switches"] or folder.mount,
            hint=f"name a folder on a file system of Linux, such as ext4: {another}",
        )


def _full(probed: DeviceProbe, where: str, another: str) -> DeviceError:
    return DeviceError(
        f"{where} is full: {probed.place.free_kib / 1024:.1f} MiB are free, and {LEAST_FREE_KIB >> 10} MiB are needed",
        details=probed.place.faults.get("fills", "") or probed.place.faults.get("writes", "") or probed.place.mount,
        hint=f"free some space there, or name a folder on another disk: {another}",
    )
