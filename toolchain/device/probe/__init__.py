"""The properties of a device, from one run of the probe script."""

from __future__ import annotations

import collections
import math
import re
import secrets
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from toolchain import architecture
from toolchain.device.probe import cores, hardware_tables, script
from toolchain.device.probe.answer import MAX_OUTPUT, Answer, number
from toolchain.device.probe.cores import Cluster
from toolchain.device.probe.facts import MOST_KIB, Libc, c_library, free_kib, kernel_machine, musl_loaders
from toolchain.errors import DeviceError
from toolchain.shell import Shell

_PROBE_S = 60.0  # the script starts some hundred programs, which is slow on an emulated device
_QEMU = re.compile(r"\bqemu[a-z0-9_-]*|-binfmt\b", re.IGNORECASE)
_VIRTUAL_MODELS = ("linux,dummy-virt", "qemu")
_NO_MAKER = "0x00"  # of QEMU's own CPU, `max`, which only its emulator has
_SHOWN = 300
_UPLOADED = 1 << 20
_SHORTEST_S = 1e-4


@dataclass(frozen=True)
class AcceleratorProbe:
    """The files of one accelerator on a device."""

    name: str  # key in backends/accelerators.toml
    title: str
    backend: str  # the backend that compiles for it
    libraries: tuple[str, ...]
    devices: tuple[tuple[str, str, str], ...]  # device files: path, access (`rw`, `r`, `w` or empty) and group
    suits: bool  # whether it has all that the backend's board types need: library, device, and the right kind
    drivers: tuple[str, ...] = ()  # files by which a loader library finds drivers
    loaders: tuple[str, ...] = ()  # the libraries that are only loaders of drivers
    own: tuple[str, ...] = ()  # files that prove that it is of the backend's kind; device files may be among them
    # Values of environment variables on the device:
    named: str = ""  # the only library to use
    drivers_named: str = ""  # the only folder of drivers to use
    choice: str = ""  # a filter of its devices

    @property
    def missing_groups(self) -> tuple[str, ...]:
        """The groups that the login would have to join to use its devices; never root's."""
        shut = [group for _path, rights, group in self.devices if "w" not in rights]
        return tuple(dict.fromkeys(group for group in shut if group not in {"", "root"}))


@dataclass(frozen=True)
class StoreFolder:
    """The future folder of the store, and the operations that were tried there."""

    root: str  # the folder, which may not exist yet
    at: str  # the nearest existing folder
    mount: str  # file system type and mount options
    free_kib: int
    faults: Mapping[str, str]  # messages of failed operations: `writes`, `fills`, `executes`, `locks`, `switches`
    links: bool  # whether it has hard links

    @property
    def options(self) -> frozenset[str]:
        return frozenset(self.mount.partition(" ")[2].split(","))


@dataclass(frozen=True)
class Sensors:
    thermal: tuple[tuple[str, float | None], ...] = ()  # zones and their temperatures in degrees Celsius
    cooling: tuple[str, ...] = ()
    power: tuple[str, ...] = ()  # channels of power, current and voltage that the login may read
    unreadable: tuple[str, ...] = ()  # those that it may not
    throttled: str = ""  # the firmware's report about throttling; empty if unknown


@dataclass(frozen=True)
class DeviceProbe:
    """The properties of a device."""

    name: str  # of its shell
    machine: str  # of its programs, in the form of `uname -m`; see `architecture.user_machine`
    kernel_machine: str  # `uname -m`
    kernel: str  # its release
    system: str  # `uname -s`
    model: str  # empty if unknown
    libc: Libc
    libc_version: str  # version of it; of bionic, Android's API level
    loaders: tuple[str, ...]
    clusters: tuple[Cluster, ...]  # its CPUs, the biggest first
    cpus: int  # CPUs that a program may use
    allowed: str  # their numbers, such as `0-3`
    cpu_limit: float | None  # CPUs' worth of time that its control group allows; None without a limit
    memory_kib: int
    swap_kib: int
    memory_limit_kib: int | None  # the limit of its control group
    place: StoreFolder  # the folder of the store
    lacks: tuple[str, ...]  # programs that the store needs and the device does not have
    login: str
    groups: tuple[str, ...]
    accelerators: tuple[AcceleratorProbe, ...]
    governors: Mapping[str, int]  # number of CPUs by clock governor
    governor_writable: bool  # whether the login may change them
    sensors: Sensors
    emulation: tuple[str, ...]  # signs that its times mean nothing
    unsure: bool  # whether a virtual machine on the real CPU would show these signs, too
    virtual: bool  # whether it is a virtual machine on the real CPU, whose times are real
    shell: str  # path of its sh
    sftp: bool  # whether it has a separate SFTP server program
    server: str = ""  # the banner of its SSH server
    seconds: float = 0.0  # duration of the probe
    round_trip_ms: float | None = None  # of an empty command
    upload_mib_s: float | None = None
    flags: frozenset[str] = field(default=frozenset(), repr=False)
    decoders: tuple[str, ...] = ()  # libraries that decode files of pictures
    compatible: tuple[str, ...] = ()  # names of the board and of its chip in the device tree; none without one
    musl_loaders: tuple[str, ...] = ()  # the files that start programs for musl

    @property
    def usable_cpus(self) -> int:
        """CPUs that a model can use, within the limit of the control group."""
        return max(1, min(self.cpus, math.ceil(self.cpu_limit) if self.cpu_limit else self.cpus))


def ask(shell: Shell, root: str, another: str = "") -> DeviceProbe:
    """Probe a device, in one round trip that changes nothing there.

    Args:
        shell: The device.
        root: The future folder of the store.
        another: The command that adds the device with another login.

    Raises:
        DeviceError: The login runs no scripts, or the answer breaks off, is too long or too late.
    """
    token = secrets.token_hex(8)
    start = time.monotonic()
    result = shell.run(
        script.text(token, root, hardware_tables.accelerators()), timeout=_PROBE_S, check=False, max_bytes=MAX_OUTPUT
    )
    if f"begin={token}" not in result.stdout.split("\n"):
        another = another or f"toolchain board add OTHER@{shell.name.rpartition('@')[2]}"
        raise _no_shell(shell.name, f"{result.stdout}\n{result.stderr}", result.returncode, another)
    return read(Answer(result.stdout, token, shell.name), shell.name, seconds=time.monotonic() - start)


def _no_shell(name: str, output: str, code: int, another: str) -> DeviceError:
    """Return the error for a login that runs no script, from its output."""
    user = name.rpartition("@")[0]
    text = output.strip()[-_SHOWN:]
    hint = f"on the device: sudo usermod -s /bin/sh {user or 'USER'}; or add it with another login: {another}"
    if "sftp" in text.lower():
        return DeviceError(
            f"{name} lets this login transfer files (SFTP) and run no commands",
            details=text,
            hint="remove ForceCommand or command= for it (sshd_config, authorized_keys), or add the device with "
            f"another login: {another}",
        )
    if not text or "not available" in text or "nologin" in text:
        return DeviceError(f"{name} gives this login no shell", details=text or f"exit code {code}", hint=hint)
    return DeviceError(f"{name} has no POSIX shell for this login", details=text, hint=hint)


def read(answer: Answer, name: str, *, seconds: float = 0.0) -> DeviceProbe:
    """Parse the answer of a device.

    Raises:
        DeviceError: It does not name its machine.
    """
    kernel = kernel_machine(answer, name)
    machine = architecture.user_machine(kernel, answer.text("bits"))
    libc, version = c_library(answer)
    cpu_limit, memory_limit_kib = _group_limits(answer)
    clusters = cores.clusters(answer, machine)
    last = answer.cpus[-1] if answer.cpus else {}  # where old kernels name the board
    virtual = _is_virtual(answer)
    proofs = _emulation_proofs(answer, kernel)
    # QEMU's names on a device: it emulates, or it serves a hypervisor that runs a virtual machine on the real CPU.
    hints = () if virtual else _qemu_names(answer)
    return DeviceProbe(
        name=name,
        machine=machine,
        kernel_machine=kernel,
        kernel=answer.text("kernel"),
        system=answer.text("system"),
        model=next(filter(None, [answer.text("model"), *(last.get(key, "") for key in ("Model", "Hardware"))]), ""),
        libc=libc,
        libc_version=version,
        loaders=answer.texts("loader"),
        musl_loaders=musl_loaders(answer),
        clusters=clusters,
        cpus=answer.number("cpus", 1 << 16) or sum(cluster.count for cluster in clusters) or 1,
        allowed=answer.text("allowed"),
        cpu_limit=cpu_limit,
        memory_kib=answer.number("memory", MOST_KIB),
        swap_kib=answer.number("swap", MOST_KIB),
        memory_limit_kib=memory_limit_kib,
        place=_store_folder(answer),
        lacks=answer.texts("lacks"),
        login=answer.text("login"),
        groups=tuple(answer.text("groups").split()),
        accelerators=_accelerators(answer),
        # A plain dict: `asdict` cannot copy a Counter.
        governors=dict(collections.Counter(name for _cpu, names in answer.by_cpu("governor") for name in names[:1])),
        governor_writable=answer.has("governor_writable"),
        sensors=_sensors(answer),
        decoders=tuple(dict.fromkeys(answer.texts("decoder"))),
        emulation=(*proofs, *hints),
        unsure=bool(hints) and not proofs,
        virtual=virtual,
        shell=answer.text("sh"),
        sftp=answer.has("sftp"),
        seconds=seconds,
        flags=cores.common_flags(clusters),
        compatible=tuple(answer.text("compatible").split()),
    )


def _group_limits(answer: Answer) -> tuple[float | None, int | None]:
    """Return the CPUs and the KiB of memory that control groups allow; None without a limit."""
    cpus = []
    # "QUOTA PERIOD" in microseconds, such as `200000 100000` for two CPUs; `max` and -1 mean no limit.
    for text in answer.texts("group_cpus"):
        quota, _, period = text.partition(" ")
        if number(quota, 10**12) and number(period, 10**9):
            cpus.append(int(quota) / int(period))
    # Version 1 writes "no limit" as an impossibly large number of bytes.
    memory = [number(text, 1 << 50) // 1024 for text in answer.texts("group_memory")]
    return min(cpus, default=None), min(filter(None, memory), default=None)


def _store_folder(answer: Answer) -> StoreFolder:
    attempts = ("writes", "fills", "executes", "locks", "switches")
    faults = {
        name: answer.text(f"{name}_not")
        for name in (attempts if answer.has("writes") else attempts[:1])
        if not answer.has(name) or answer.has(f"{name}_not")
    }
    return StoreFolder(
        root=answer.text("root"),
        at=answer.text("at"),
        mount=answer.text("mount"),
        free_kib=free_kib(answer),
        faults=faults,
        links=answer.has("links"),
    )


def _accelerators(answer: Answer) -> tuple[AcceleratorProbe, ...]:
    probes = []
    for accelerator in hardware_tables.accelerators():
        name = accelerator.name
        libraries = answer.texts(f"library.{name}")
        devices = [_device_file(text) for text in answer.texts(f"device.{name}")]
        library_variable = answer.text(f"named.{name}")
        if libraries or devices or library_variable:
            kinds = answer.texts(f"kind.{name}")
            probes.append(
                AcceleratorProbe(
                    name,
                    accelerator.title,
                    accelerator.backend,
                    libraries,
                    tuple(devices),
                    suits=bool(devices and kinds) and bool(libraries or not accelerator.libraries),
                    drivers=answer.texts(f"driver.{name}"),
                    loaders=answer.texts(f"loads.{name}"),
                    own=kinds,
                    named=library_variable,
                    drivers_named=answer.text(f"drivers_named.{name}"),
                    choice=answer.text(f"choice.{name}"),
                )
            )
    return tuple(probes)


def _device_file(text: str) -> tuple[str, str, str]:
    """Parse `rw video /dev/x`, of which the first two may be missing, into path, rights and group."""
    *before, path = text.split(" ")
    rights = before[0] if before and before[0] in {"r", "w", "rw"} else ""
    return path, rights, before[-1] if len(before) > bool(rights) else ""


def _sensors(answer: Answer) -> Sensors:
    power: list[str] = []
    unreadable: list[str] = []
    for text in answer.texts("hwmon") + answer.texts("powercap"):
        rights, _, channel = text.partition(" ")
        readable = rights in {"r", "rw"}
        (power if readable else unreadable).append(channel.strip() if readable else text)
    thermal: list[tuple[str, float | None]] = []
    for text in answer.texts("thermal"):  # the name of a zone and its thousandths of a degree
        name, _, value = text.rpartition(" ")
        is_valid = name and re.fullmatch(r"-?[0-9]{1,6}", value)
        thermal.append((name, int(value) / 1000) if is_valid else (text, None))
    return Sensors(
        thermal=tuple(thermal),
        cooling=tuple(dict.fromkeys(answer.texts("cooling"))),
        power=tuple(power),
        unreadable=tuple(unreadable),
        throttled=answer.text("throttled"),
    )


def _emulation_proofs(answer: Answer, machine: str) -> tuple[str, ...]:
    """Return the signs that prove that programs are emulated."""
    signs = []
    arch = answer.text("kernel_arch")
    if arch and not architecture.share_kernel(arch, machine):
        signs.append(f"the kernel is of {arch}, but programs see {machine}")
    if emulator := _QEMU.search(answer.text("init")):
        signs.append(f"its first process runs in {emulator[0]}")
    cpu_text = " ".join(text for cpu in answer.cpus for key, text in cpu.items() if key not in {"Features", "flags"})
    signs += [
        f"/proc/cpuinfo has {text}" for text in hardware_tables.cpus().foreign.get(machine, ()) if text in cpu_text
    ][:1]
    if any(cpu.get("CPU implementer", "").lower() == _NO_MAKER for cpu in answer.cpus):
        signs.append("its CPU is one that only QEMU has")
    if any("TCG" in cpu.get("model name", "") for cpu in answer.cpus):
        signs.append("its CPU is named after TCG, QEMU's emulator")
    return tuple(signs)


def _qemu_names(answer: Answer) -> tuple[str, ...]:
    signs = []
    model = answer.text("model")
    if any(text in model.lower() for text in _VIRTUAL_MODELS):
        signs.append(f"it is called {model}")
    if any("qemu" in text.lower() for text in answer.texts("dmi")):
        signs.append("its firmware says QEMU")
    return tuple(signs)


def _is_virtual(answer: Answer) -> bool:
    """Whether KVM runs the device as a virtual machine on the real CPU, so that its times are real."""
    # On x86-64 KVM gives a virtual machine a clock. On aarch64 a virtual machine has the CPU's own clock; there QEMU's
    # firmware names KVM as the product, and KVM offers its time as a PTP clock.
    return (
        "kvm-clock" in answer.text("clocks").split()
        or "KVM Virtual Machine" in answer.texts("dmi")
        or any(text.startswith("KVM ") for text in answer.texts("ptp"))
    )


def measure_link(shell: Shell, probed: DeviceProbe) -> DeviceProbe:
    """Add the times of an empty command, and of an upload of 1 MiB that the device discards."""
    start = time.monotonic()
    shell.run("true", timeout=_PROBE_S)
    round_trip = time.monotonic() - start
    with tempfile.NamedTemporaryFile(prefix="toolchain-") as payload:
        payload.write(secrets.token_bytes(_UPLOADED))
        payload.flush()
        start = time.monotonic()
        shell.push(Path(payload.name), "/dev/null")
    seconds = max(time.monotonic() - start, _SHORTEST_S)
    return replace(probed, round_trip_ms=round_trip * 1000, upload_mib_s=_UPLOADED / seconds / (1 << 20))
