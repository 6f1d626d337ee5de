"""Checks whether a device can run a bundle or one of our programs, before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping

from toolchain.bundle.manifest import Manifest
from toolchain.device.store import DeviceFacts
from toolchain.errors import DeviceError, MismatchError, VerificationError
from toolchain.native import elf
from toolchain.native.programs import Program
from toolchain.versions import abi


def check_fits(manifest: Manifest, program: Program, facts: DeviceFacts) -> None:
    """Refuse a device that cannot run the bundle, before anything is sent.

    Raises:
        VerificationError: The machine, the C library or the CPU does not fit, or the bundle was compiled with another
            TVM than the runner has.
        DeviceError: The device lacks programs that the store needs.
    """
    check_suits(manifest, program.versions, facts)
    check_runs(program, facts)


def check_suits(manifest: Manifest, versions: Mapping[str, str], facts: DeviceFacts) -> None:
    """Refuse a device that cannot run the bundle; unlike `check_fits`, before the runner is built.

    Args:
        manifest: The manifest of the bundle.
        versions: The versions that our programs are built with.
        facts: The facts of the device.

    Raises:
        VerificationError: As `check_fits`.
        DeviceError: As `check_fits`.
    """
    if facts.machine != manifest.machine:
        raise MismatchError(
            f"the bundle is for {manifest.machine}, but the device is {facts.machine}",
            hint="build for the board type of this device: `toolchain board list` lists the types",
        )
    check_versions(manifest, versions)
    check_tools(facts)
    missing = [flag for flag in manifest.cpu_features if flag not in facts.cpu_features]
    if missing:
        raise MismatchError(
            f"the device's CPU does not support {', '.join(missing)}",
            details=f"the bundle was built for {manifest.target.get('mcpu')}; the device is a {facts.cpu}",
            hint="build for a board type with a more basic target.mcpu",
        )
    _check_glibc(manifest.glibc, facts, "the library")


def check_tools(facts: DeviceFacts) -> None:
    """Refuse a device without the programs that the store needs.

    Raises:
        DeviceError: Some are missing.
    """
    if facts.lacks:
        raise DeviceError(
            f"the device lacks {', '.join(facts.lacks)}", hint="install coreutils, findutils and util-linux, or busybox"
        )


def check_versions(manifest: Manifest, versions: Mapping[str, str]) -> None:
    """Check that our programs have the TVM that the bundle was compiled with.

    Raises:
        VerificationError: They have another one.
    """
    for name, theirs, ours in (
        ("TVM", manifest.versions.get("tvm", ""), versions["tvm"]),
        ("TVM-FFI", abi(manifest.versions.get("tvm_ffi", "")), abi(versions["tvm_ffi"])),
    ):
        if theirs != ours:
            raise VerificationError(
                f"the bundle was compiled with {name} {theirs or '(unknown)'}, but the runner has {name} {ours}",
                hint="build it again with this toolchain",
            )


def check_runs(program: Program, facts: DeviceFacts) -> None:
    """Refuse a device on which our program does not start.

    Raises:
        MismatchError: The machine or the C library does not fit.
    """
    if facts.machine != program.machine:
        raise MismatchError(
            f"{program.path.name} is for {program.machine}, but the device is {facts.machine}",
            hint="pass the board type of this device with --board: `toolchain board list` lists the types",
        )
    _check_glibc(program.glibc, facts, program.path.name)


def _check_glibc(needed: str, facts: DeviceFacts, user: str) -> None:
    if facts.glibc and needed and elf.version_key(facts.glibc) < elf.version_key(needed):
        raise MismatchError(
            f"the device has glibc {facts.glibc}, but glibc {needed} or newer is needed",
            details=f"by {user}",
            hint="build on a system as old as the device, or update the device",
        )
