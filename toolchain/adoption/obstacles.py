"""What keeps a device from running releases: each thing by its name, with the command that goes on."""

from __future__ import annotations

from collections.abc import Iterator

from toolchain.adoption.probe import Probed
from toolchain.errors import DeviceError, ToolchainError, VerificationError
from toolchain.native import elf, programs

LEAST_FREE_KIB = 16 << 10  # kiB that the device programs, the smallest network and what a deploy needs beside them take

_LEAST_ANDROID = 24
ANOTHER_ROOT = "/FOLDER/edge-toolchain"  # what stands for a folder in the command that goes on with another one
_PACKAGES = {"flock": "util-linux", "find": "findutils"}
# of each machine the triple of the device programs that run on it
TRIPLES = {"aarch64": "aarch64-linux-gnu", "armv7l": "arm-linux-gnueabihf", "x86_64": "x86_64-linux-gnu"}


def check_system(found: Probed, another: str) -> None:
    """Refuse a device that no release would run on, wherever it were put there; see `check`."""
    if [*_of_system(found), *_of_tools(found)]:
        check(found, another)


def check(found: Probed, another: str) -> None:
    """Refuse a device that no release would run on.

    Args:
        found: What it is.
        another: The command that adds it with another folder.

    Raises:
        ToolchainError: What is in the way; of several things the first, with all of them in the details.
    """
    faults = list(_all(found, another))
    if len(faults) > 1:
        told = [f"{one.message}\n  {one.details}\n  hint: {one.hint}" for one in faults]
        message = f"{len(faults)} things are in the way on {found.name}; first: {faults[0].message}"
        raise type(faults[0])(message, details="\n".join(told), hint=faults[0].hint)
    if faults:
        raise faults[0]


def check_use(found: Probed, another: str) -> None:
    """Refuse a folder in which no release would run, however much space there is.

    Args:
        found: What the device is.
        another: The option that names another folder.

    Raises:
        DeviceError: The first thing that is in the way.
    """
    if not {"writes", "fills"} & {*found.place.faults}:
        for fault in _of_use(found, f"{found.place.at} of {found.name}", another):
            raise fault


def _all(found: Probed, another: str) -> Iterator[ToolchainError]:
    yield from _of_system(found)
    yield from _of_tools(found)
    yield from _of_place(found, another)


def _of_system(found: Probed) -> Iterator[ToolchainError]:
    name = found.name
    if found.system != "Linux" or found.machine not in TRIPLES:
        yield VerificationError(
            f"{name} is {found.system or 'no Linux'} on {found.machine}, and there are no device programs for that",
            details=f"there are some for Linux on {', '.join(TRIPLES)}",
            hint="install a Linux of one of these on it" + _with_64_bits(found),
        )
        return
    needed = f"glibc {programs.GLIBC}"
    newer = "install a system with a newer glibc on the device, such as Debian 10 or later"
    if found.libc == "musl":
        yield VerificationError(
            f"{name} has musl, and glibc {programs.GLIBC} or newer is needed",
            details="the device programs are linked with glibc, which musl's systems (Alpine, OpenWrt) lack",
            hint="install a system with glibc on the device, such as Debian, or an image of Yocto's or Buildroot's "
            "that is configured for it",
        )
    elif not found.libc:
        yield VerificationError(
            f"{name} does not say which C library it has, and {needed} or newer is needed",
            details="neither getconf, ldd nor libc.so.6 tells",
            hint="log in and look for /lib/libc.so.6; `getconf`, of the package libc-bin, tells the version",
        )
    elif found.libc == "glibc" and elf.version_key(found.libc_version) < elf.version_key(programs.GLIBC):
        yield VerificationError(f"{name} has glibc {found.libc_version}, and {needed} or newer is needed", hint=newer)
    elif found.libc == "bionic" and (int(found.libc_version) < _LEAST_ANDROID or found.machine != "aarch64"):
        yield VerificationError(
            f"{name} is Android of API level {found.libc_version} on {found.machine}",
            hint=f"device programs run on 64-bit Android from API level {_LEAST_ANDROID} on, which is Android 7.0",
        )
    if found.machine == "armv7l" and found.loaders and not any("armhf" in one for one in found.loaders):
        yield VerificationError(
            f"{name} passes floats in integer registers (armel), and device programs are for armhf",
            details=", ".join(found.loaders),
            hint="install a system of architecture armhf on the device",
        )


def _with_64_bits(found: Probed) -> str:
    return ": its kernel has 64 bits, and its programs have 32" if found.machine != found.kernel_machine else ""


def _of_tools(found: Probed) -> Iterator[ToolchainError]:
    if found.lacks:
        packages = dict.fromkeys(_PACKAGES.get(one, "coreutils") for one in found.lacks)
        yield DeviceError(
            f"{found.name} lacks {', '.join(found.lacks)}",
            details="the store of releases is kept with these programs",
            hint=f"on the device: apt-get install {' '.join(packages)}; or a busybox that is built with them",
        )


def _of_place(found: Probed, another: str) -> Iterator[ToolchainError]:
    place, name = found.place, found.name
    words = place.faults
    where = f"{place.at} of {name}"
    if "writes" in words:
        if "ro" in place.options or "ead-only" in words["writes"]:
            hint = f"name a folder that can be written, {another}; or on the device: mount -o remount,rw ..."
            yield DeviceError(f"{where} is mounted read-only", details=words["writes"] or place.mount, hint=hint)
        elif "space" in words["writes"]:
            yield _full(found, where, another)
        else:
            hint = f"name a folder of the login's own: {another}"
            yield DeviceError(f"{where} cannot be written by this login", details=words["writes"], hint=hint)
        return
    if place.free_kib < LEAST_FREE_KIB or "fills" in words:
        yield _full(found, where, another)
        return
    yield from _of_use(found, where, another)


def _of_use(found: Probed, where: str, another: str) -> Iterator[ToolchainError]:
    place, words = found.place, found.place.faults
    if "executes" in words:
        yield DeviceError(
            f"{where} runs no programs" + (": it is mounted noexec" if "noexec" in place.options else ""),
            details=words["executes"] or place.mount,
            hint=f"name a folder where they run: {another}; or on the device: mount -o remount,exec ...",
        )
    if "locks" in words and "flock" not in found.lacks:
        yield DeviceError(
            f"{where} has no file locks, by which two deploys would keep out of each other's way",
            details=words["locks"] or place.mount,
            hint=f"name a folder on a disk of the device's own: {another}",
        )
    if "switches" in words and not {"ln", "mv", "readlink"} & {*found.lacks}:
        yield DeviceError(
            f"{where} cannot replace a symbolic link in one step, by which releases are switched",
            details=words["switches"] or place.mount,
            hint=f"name a folder on a file system of Linux, such as ext4: {another}",
        )


def _full(found: Probed, where: str, another: str) -> DeviceError:
    return DeviceError(
        f"{where} is full: {found.place.free_kib / 1024:.1f} MiB are free, and {LEAST_FREE_KIB >> 10} MiB are needed",
        details=found.place.faults.get("fills", "") or found.place.faults.get("writes", "") or found.place.mount,
        hint=f"free some space there, or name a folder on another disk: {another}",
    )
