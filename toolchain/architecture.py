"""The supported processor architectures, and how each tool names them.

This is the only table of machines and triples: other modules look an architecture up here and use its fields. A lookup
of anything else raises an error, so that no code treats an unknown machine as one of these.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from toolchain.errors import InputError, did_you_mean

GLIBC = "2.28"  # oldest supported version on a device
MUSL = "1.2.3"  # the same, where the device has musl
INTRINSICS = ("llvm.x86.", "llvm.aarch64.", "llvm.arm.", "llvm.riscv.")
"""How LLVM's names of the instructions of one family begin; code with such a name runs on no other."""

_TRIPLE = re.compile(r"(?P<processor>\w+)(-\w+)?-linux(-gnu(eabi|eabihf)?|-android(eabi)?(?P<api>\d*))?")
_ANDROID = "-linux-android"
_MUSL = "-linux-musl"


class Isa(enum.Enum):
    """A family of instruction sets. Code for one of them matches on it, with `assert_never` for all others."""

    ARM = "Arm"
    RISCV = "RISC-V"
    X86 = "x86"


# The names that kernels have for machines of a family, also for unsupported ones.
_FAMILIES = {
    Isa.ARM: re.compile(r"(arm|aarch).*"),
    Isa.RISCV: re.compile(r"riscv(32|64)"),
    Isa.X86: re.compile(r"x86_64|i[3-6]86|amd64"),
}


@dataclass(frozen=True)
class Qemu:
    """QEMU's emulation of an architecture.

    Attributes:
        user_cpus: CPUs that single programs may have.
        system: Program that emulates whole machines.
        package: Debian's package with `system`.
        board: Its kind of machine for virtual boards, with options.
        system_cpus: CPUs that this kind of machine supports, which are fewer; the first is the default.
    """

    user_cpus: frozenset[str]
    system: str
    package: str
    board: str
    system_cpus: tuple[str, ...]


@dataclass(frozen=True)
class Architecture:
    """One architecture.

    Attributes:
        machine: What `uname -m` prints.
        other_machines: What it prints on a kernel with 64 bits that runs these programs, if that is no other row.
        machine_32: What it would print for the 32-bit programs that the same kernel runs; empty if it runs none.
        isa: Family of instruction sets.
        bits: Size of an address.
        lanes: 32-bit floats in a vector register that every such CPU has; without vectors, floats that code computes
            together.
        triple: GNU triple, also the name of Debian's folder for its libraries.
        musl: Triple of device programs for systems with musl, also zig's name of that target.
        processors: First words of all triples for it.
        abi: LLVM's name of the calling convention, where its default is another one.
        android: Triple for Android, without the API level; empty if Android is not supported.
        elf_machine: Name in <elf.h>.
        debian: Debian's name of the architecture.
        docker: Docker's name, and the variant.
        zig_cpu: The CPU features that a program may use, in zig's terms.
        zig_mode: More of these for sources in Zig; C and C++ have compiler options instead.
        label: Name in board types.
        qemu_user: QEMU's program that runs single programs, and the name of the kernel's rule for it.
        qemu: Emulation of its virtual boards; None if there are none.
        runner_bytes: What the runner takes in memory for any network; docs/memory.md has measured peaks.
    """

    machine: str
    isa: Isa
    bits: int
    lanes: int
    triple: str
    musl: str
    processors: frozenset[str]
    elf_machine: str
    debian: str
    docker: tuple[str, str]
    zig_cpu: str
    label: str
    qemu_user: str
    other_machines: tuple[str, ...] = ()
    machine_32: str = ""
    abi: str = ""
    android: str = ""
    zig_mode: str = ""
    qemu: Qemu | None = None
    runner_bytes: int = 20 << 18

    @property
    def musl_loader(self) -> str:
        """The file that starts programs for musl."""
        return f"/lib/ld-musl-{self.debian if self.musl.endswith('hf') else self.machine}.so.1"

    @property
    def zig_target(self) -> str:
        """Zig's name of the target: the triple and the oldest glibc."""
        return f"{self.triple}.{GLIBC}"


AARCH64 = Architecture(
    machine="aarch64",
    machine_32="armv7l",
    isa=Isa.ARM,
    bits=64,
    lanes=4,
    triple="aarch64-linux-gnu",
    musl="aarch64-linux-musl",
    processors=frozenset({"aarch64"}),
    android="aarch64-linux-android",
    elf_machine="EM_AARCH64",
    debian="arm64",
    docker=("arm64", ""),
    zig_cpu="generic",
    label="aarch64",
    qemu_user="qemu-aarch64",
    qemu=Qemu(
        user_cpus=frozenset({"cortex-a35", "cortex-a53", "cortex-a57", "cortex-a72", "cortex-a76", "neoverse-n1"}),
        system="qemu-system-aarch64",
        package="qemu-system-arm",
        board="virt,gic-version=3",
        system_cpus=("cortex-a53", "cortex-a35", "cortex-a57", "cortex-a72", "cortex-a76", "neoverse-n1"),
    ),
    runner_bytes=17 << 18,
)
ARMV7L = Architecture(
    machine="armv7l",
    other_machines=("armv8l",),
    isa=Isa.ARM,
    bits=32,
    lanes=4,
    triple="arm-linux-gnueabihf",
    musl="arm-linux-musleabihf",
    processors=frozenset({"arm", "armv7", "armv7a", "armv7hl", "armv7l", "armv8l"}),
    elf_machine="EM_ARM",
    debian="armhf",
    docker=("arm", "v7"),
    zig_cpu="generic+v7a",
    zig_mode="+thumb_mode",
    label="armv7",
    qemu_user="qemu-arm",
    qemu=Qemu(
        user_cpus=frozenset({"cortex-a7", "cortex-a8", "cortex-a9", "cortex-a15"}),
        system="qemu-system-arm",
        package="qemu-system-arm",
        board="virt,highmem=off",
        system_cpus=("cortex-a15", "cortex-a7"),
    ),
    runner_bytes=14 << 18,
)
RISCV64 = Architecture(
    machine="riscv64",
    isa=Isa.RISCV,
    bits=64,
    lanes=4,
    triple="riscv64-linux-gnu",
    musl="riscv64-linux-musl",
    processors=frozenset({"riscv64"}),
    abi="lp64d",
    elf_machine="EM_RISCV",
    debian="riscv64",
    docker=("riscv64", ""),
    zig_cpu="baseline_rv64",
    label="riscv64",
    qemu_user="qemu-riscv64",
)
X86_64 = Architecture(
    machine="x86_64",
    machine_32="i686",
    isa=Isa.X86,
    bits=64,
    lanes=4,
    triple="x86_64-linux-gnu",
    musl="x86_64-linux-musl",
    processors=frozenset({"x86_64"}),
    elf_machine="EM_X86_64",
    debian="amd64",
    docker=("amd64", ""),
    zig_cpu="baseline",
    label="x86_64",
    qemu_user="qemu-x86_64",
)

ARCHITECTURES = (AARCH64, ARMV7L, RISCV64, X86_64)
MACHINES = {row.machine: row for row in ARCHITECTURES}
TRIPLES = {row.triple: row for row in ARCHITECTURES}
"""By their GNU triples, as this table has them; `of_triple` also finds the triples of other vendors and of Android."""
PROGRAM_TRIPLES = {**TRIPLES, **{row.musl: row for row in ARCHITECTURES}}
"""By the triples that zig compiles device programs for: with glibc, and with musl."""


def of_machine(machine: str) -> Architecture:
    """Return the architecture with this `uname -m`, or raise an InputError."""
    if machine in MACHINES:
        return MACHINES[machine]
    raise _unsupported("machine", machine, MACHINES)


def of_debian(name: str) -> Architecture:
    """Return the architecture with this name in Debian, or raise an InputError."""
    names = {row.debian: row for row in ARCHITECTURES}
    if name in names:
        return names[name]
    raise _unsupported("Debian architecture", name, names)


def of_triple(triple: str) -> Architecture:
    """Return the architecture of a triple for Linux: a GNU one, with a vendor or without, or Android's.

    Raises:
        InputError: It is not such a triple, or is for an unsupported processor.
    """
    if match := _TRIPLE.fullmatch(triple):
        for row in ARCHITECTURES:
            if match["processor"] in row.processors:
                return row
    raise _unsupported("triple", triple, TRIPLES)


def _unsupported(kind: str, name: str, names: dict[str, Architecture]) -> InputError:
    supported = f"supported: {', '.join(names)}"
    suggestion = did_you_mean(name, names)
    return InputError(
        f"the {kind} {name!r} is not supported", hint=f"{suggestion} {supported}" if suggestion else supported
    )


def of_programs(triple: str) -> Architecture:
    """Return the architecture of a triple of device programs: as `of_triple`, or one for musl."""
    return PROGRAM_TRIPLES.get(triple) or of_triple(triple)


def is_linux_triple(triple: str) -> bool:
    """Whether a text has the form of a triple for Linux, of any processor."""
    return _TRIPLE.fullmatch(triple) is not None


def is_android(triple: str) -> bool:
    return _ANDROID in triple


def is_musl(triple: str) -> bool:
    return _MUSL in triple


def program_triple(triple: str, *, musl: bool) -> str:
    """Return the triple of the programs for a device: its board type's, or musl's where the device has musl."""
    return of_triple(triple).musl if musl and not is_android(triple) else triple


def android_api(triple: str) -> int | None:
    """Return the API level in a triple for Android; None if it has none."""
    match = _TRIPLE.fullmatch(triple)
    return int(match["api"]) if match and match["api"] else None


def user_machine(machine: str, bits: str) -> str:
    """Return the machine that a device's programs are built for, as a name of `uname -m`.

    A 64-bit kernel may run a 32-bit system, as on Raspberry Pi OS for years: `uname -m` then names the machine of the
    kernel, whose programs do not start.

    Args:
        machine: The output of `uname -m`.
        bits: Address size of the device's shell: 32, 64, or empty if unknown.
    """
    if bits != "32":
        return machine
    if machine in MACHINES:
        return MACHINES[machine].machine_32 or machine
    return next((row.machine for row in ARCHITECTURES if machine in row.other_machines), machine)


def share_kernel(first: str, second: str) -> bool:
    """Whether one kernel runs the programs of both machines without emulation; they may be unsupported ones."""
    return first == second or any(names.fullmatch(first) and names.fullmatch(second) for names in _FAMILIES.values())
