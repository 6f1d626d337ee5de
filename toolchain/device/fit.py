"""Checks whether a device can run a bundle or one of our programs, before anything is sent.

Whether it supports kernels in half precision is known to its driver alone, so its runner asks that, before anything is
built.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from toolchain.architecture import MUSL, of_machine
from toolchain.bundle import LIBRARY, Bundle
from toolchain.bundle.manifest import Manifest
from toolchain.device import runner
from toolchain.device.lock import Owner
from toolchain.device.probe.facts import DeviceFacts
from toolchain.device.shipment import Shipment, Tell, install, send
from toolchain.device.store import Store
from toolchain.errors import DeviceError, MismatchError, VerificationError
from toolchain.native import elf
from toolchain.native.programs import RUNNER, Program
from toolchain.shell import Shell
from toolchain.versions import abi

_ANSWER_S = 60.0  # a driver that is loaded for the first time looks for its devices


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
    if program.musl != facts.musl:
        libraries = ("glibc", "musl") if facts.musl else ("musl", "glibc")
        raise MismatchError(
            f"{program.path.name} is for {libraries[0]}, but the device has {libraries[1]}",
            hint="run the command again: the system on the device was replaced meanwhile",
        )
    _check_glibc(program.glibc, facts, program.path.name)


@dataclass(frozen=True)
class MuslFault:
    """Why our programs do not start on a device with musl; the message goes on from `the device has`."""

    message: str
    details: str
    hint: str


def musl_fault(machine: str, version: str, loaders: Collection[str]) -> MuslFault | None:
    """Return why our programs do not start on a device with musl; None if they do.

    Args:
        machine: The machine of its programs.
        version: The version of its musl; empty if unknown.
        loaders: The files there that start programs for musl.
    """
    needed = of_machine(machine).musl_loader
    if needed not in loaders:
        return MuslFault(
            f"musl, but no {needed}, which starts our programs",
            details=f"it has {', '.join(loaders)}" if loaders else "",
            hint="install a system whose musl has that loader: on 32-bit Arm, one for hard floats",
        )
    if version and elf.version_key(version) < elf.version_key(MUSL):
        return MuslFault(
            f"musl {version}, and musl {MUSL} or newer is needed",
            details="",
            hint="install a newer system on the device, such as Alpine 3.16 or OpenWrt 22.03",
        )
    return None


def check_library(bundle: Bundle, facts: DeviceFacts) -> None:
    """Refuse a model's library that does not load with the C library of a device.

    One library serves glibc and musl: musl ignores the versions of symbols, but must have them all.

    Raises:
        MismatchError: It needs something that musl lacks.
    """
    if facts.musl and (foreign := elf.foreign_to_musl(bundle.folder / LIBRARY)):
        raise MismatchError(
            f"the library of {bundle.manifest.name} does not load on the device: musl has no {', '.join(foreign)}",
            hint="build it with this toolchain's own image: --toolchain container",
        )


def _check_glibc(needed: str, facts: DeviceFacts, user: str) -> None:
    if facts.glibc and needed and elf.version_key(facts.glibc) < elf.version_key(needed):
        raise MismatchError(
            f"the device has glibc {facts.glibc}, but glibc {needed} or newer is needed",
            details=f"by {user}",
            hint="build on a system as old as the device, or update the device",
        )


@dataclass(frozen=True)
class Halves:
    """The driver's support of half precision.

    Attributes:
        name: Name of the accelerator.
        float16_lacks: The extension that kernels in half precision need and it lacks; empty if it has everything.
        half_sums_lacks: The same for kernels that also add in half precision.
    """

    name: str
    float16_lacks: str
    half_sums_lacks: str


@dataclass(frozen=True)
class RequiredPrecision:
    """The precision that a network needs.

    Attributes:
        float16: Whether kernels compute in half precision.
        half_sums: Whether they also add in it.
    """

    float16: bool
    half_sums: bool

    @classmethod
    def of(cls, manifest: Manifest) -> RequiredPrecision:
        """Return what a bundle needs."""
        arguments = manifest.command.split()
        sums = "--half-sums" in arguments
        in_half = manifest.half is not None and manifest.half.format == "float16"
        return cls(sums or in_half or "--float16" in arguments, sums)


def ask_half_precision(program: Program, shell: Shell, store: Store, kind: str, progress: Tell | None = None) -> Halves:
    """Ask a device for its support of half precision; installs the runner first.

    `kind` is the target kind of the code generator, such as `opencl`.

    Raises:
        MismatchError: The runner does not start there.
        DeviceError: The device is lost, busy or full, or has no usable accelerator of that kind.
    """
    facts = store.facts()
    check_runs(program, facts)
    shipment = Shipment(
        blobs={program.sha256: program.path},
        folders={"runners": (program.sha256, {RUNNER: program.sha256})},
        programs=(program.sha256,),
    )
    with store.lock(Owner.here("ask about half precision")):
        send(shipment, store, facts, progress)
        folder = install(shipment, store)["runners"]
        result = shell.run(shlex.join([f"{folder}/{RUNNER}", "--halves", kind]), timeout=_ANSWER_S, check=False)
    if result.returncode != 0:
        raise DeviceError(
            f"{shell.name} has no usable {kind} device",
            details=result.stderr.strip()[-1000:],
            hint="install its vendor's driver, or use the board type for its CPU",
        )
    return _read(result.stdout, shell.name)


def check_half_precision(support: Halves, required: RequiredPrecision, name: str) -> None:
    """Refuse a device without the half precision that a network needs.

    Raises:
        DeviceError: It lacks some of it.
    """
    in_board_file = "in [target] of the board file"
    if required.float16 and support.float16_lacks:
        raise DeviceError(
            f"{name} does not compute in half precision: {support.name} has no {support.float16_lacks}",
            hint=f"build without --float16 and --half-sums, or with `float16 = false` {in_board_file}",
        )
    if required.half_sums and support.half_sums_lacks:
        raise DeviceError(
            f"{name} does not sum up in half precision: {support.name} has no {support.half_sums_lacks}, "
            "so it takes numbers below 2^-14 for zero",
            hint=f"build with --float16 instead of --half-sums, or with `half_sums = false` {in_board_file}",
        )


def _read(text: str, name: str) -> Halves:
    try:
        answer = json.loads(text)
        texts = [runner.read_text(answer[key]) for key in ("name", "float16_lacks", "half_sums_lacks")]
    except (LookupError, RecursionError, TypeError, ValueError) as fault:
        raise DeviceError(
            f"the runner on {name} sent an invalid answer about half precision", details=f"{fault!s:.200}"
        ) from fault
    return Halves(*texts)
