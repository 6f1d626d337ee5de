"""Board types (boards/*.toml) and the devices of one lab (devices.toml), validated."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from toolchain import files
from toolchain.errors import InputError, did_you_mean

# Strict: a board file that says threads = "4" has a fault, and guessing hides it.
_CONFIG = ConfigDict(extra="forbid", strict=True)

NATIVE = "native"

_ROOT = r"^(~/|/)[^\s'\"\\$`]+$"
_Root = Annotated[str, Field(pattern=_ROOT)]
_Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]+$")]


@checked_dataclass(frozen=True, config=_CONFIG)
class Target:
    """The TVM code-generation target of a board.

    Attributes:
        kind: TVM target kind.
        device: TVM's name of the accelerator, for a kind that has several.
        mcpu: LLVM CPU name, or `native` on a board that is this machine.
        mattr: LLVM features to switch on or off, such as `+neon`.
        max_threads_per_block: Most work-items of a work-group; 0 means TVM's default, here and below.
        max_shared_memory_per_block: Bytes of local memory of a work-group.
        thread_warp_size: Work-items that run in step.
        float16: Whether layers compute in half precision; inputs and outputs keep their types.
    """

    kind: Annotated[_Word, Field(description="TVM target kind")] = "llvm"
    device: Annotated[str, Field(pattern=r"^[a-z0-9-]*$", description="TVM's name of the accelerator")] = ""
    mcpu: Annotated[_Word, Field(description="LLVM CPU name; `native` means this machine's")] = "generic"
    mattr: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[+-][A-Za-z0-9_.-]+$")], ...],
        Field(description="LLVM features, each with + or - before it"),
    ] = ()
    max_threads_per_block: Annotated[int, Field(ge=0, le=4096, description="most work-items of a work-group")] = 0
    max_shared_memory_per_block: Annotated[int, Field(ge=0, le=2**20, description="bytes of local memory")] = 0
    thread_warp_size: Annotated[int, Field(ge=0, le=128, description="work-items that run in step")] = 0
    float16: Annotated[bool, Field(description="layers compute in half precision")] = False


@checked_dataclass(frozen=True, config=_CONFIG)
class Board:
    """One board type, as its file in boards/ describes it.

    Attributes:
        name: The file's name without `.toml`.
        description: One line for lists.
        backend: Which compiler backend serves it.
        toolchain: Where its libraries are linked if the command line does not say: in a `container` or on this `host`.
        image: Name of the image in docker/ that carries its compiler; empty if there is none.
        compiler: The compiler driver, where it is not the triple's own, `<triple>-g++`.
        connection: `local` for this machine, `ssh` for any other.
        machine: What `uname -m` says on it; `native` on this machine.
        triple: GNU triple of its libraries; `native` on this machine.
        target: TVM code-generation target.
        cpu_features: CPU flags that /proc/cpuinfo must show before a library is run.
        cores: CPUs that kernels are scheduled for; 0 if unknown, or on this machine, where it means every CPU.
        threads: Threads a model runs on; 0 means every CPU of the device.
        root: Folder on the device for everything that is deployed; `~` is the login's home.
        keep: How many activations stay on the device for a roll-back.
        emulated: Whether timings taken on it are of an emulator, which every report then says.
    """

    name: Annotated[_Word, Field(description="the file's name without .toml; set by the loader")]
    description: Annotated[str, Field(min_length=1, description="one line for lists")]
    connection: Annotated[Literal["local", "ssh"], Field(description="how the device is reached")]
    machine: Annotated[_Word, Field(description="what `uname -m` says there; `native` on this machine")]
    triple: Annotated[_Word, Field(description="GNU triple of its libraries; `native` on this machine")]
    target: Annotated[Target, Field(description="TVM code-generation target")]
    backend: Annotated[_Word, Field(description="compiler backend")] = "cpu"
    toolchain: Annotated[
        Literal["container", "host"], Field(description="where its libraries are linked by default")
    ] = "host"
    image: Annotated[str, Field(pattern=r"^[a-z0-9-]*$", description="image in docker/ that has its compiler")] = ""
    compiler: Annotated[str, Field(description="compiler driver; <triple>-g++ by default")] = ""
    cpu_features: Annotated[tuple[_Word, ...], Field(description="flags that /proc/cpuinfo must show")] = ()
    cores: Annotated[int, Field(ge=0, le=1024, description="CPUs that kernels are scheduled for; 0 if unknown")] = 0
    threads: Annotated[int, Field(ge=0, le=1024, description="threads a model runs on; 0 means every CPU")] = 0
    root: Annotated[_Root, Field(description="folder on the device for what is deployed")] = (
        "~/.local/share/edge-toolchain"
    )
    keep: Annotated[int, Field(ge=1, le=100, description="activations kept for a roll-back")] = 3
    emulated: Annotated[bool, Field(description="timings are an emulator's")] = False

    def resolved(self) -> Board:
        """Return the board with this machine's values where its file says `native`."""
        machine = platform.machine() if self.machine == NATIVE else self.machine
        triple = f"{machine}-linux-gnu" if self.triple == NATIVE else self.triple
        cores = self.cores or (os.cpu_count() or 0 if self.connection == "local" else 0)
        return dataclasses.replace(self, machine=machine, triple=triple, cores=cores)

    def in_float16(self) -> Board:
        """Return the board with layers that compute in half precision."""
        return dataclasses.replace(self, target=dataclasses.replace(self.target, float16=True))


@checked_dataclass(frozen=True, config=_CONFIG)
class Device:
    """One device of a lab, from devices.toml: where it is, and which board type it is of.

    Attributes:
        board: Its board type.
        host: `user@address[:port]`, or an alias of the SSH configuration.
        root: Folder on it, instead of the board type's.
        ssh_config: SSH configuration of its own; in the file, relative to the file's folder.
        emulated: Whether it is an emulator, whose timings mean nothing.
    """

    board: _Word
    host: Annotated[str, Field(min_length=1, description="user@address[:port]")]
    root: _Root | None = None
    ssh_config: Path | None = None
    emulated: bool = False


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a file, and what to write instead."""

    key: str
    message: str
    suggestion: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" + (f" ({self.suggestion})" if self.suggestion else "")


def boards_folder() -> Path:
    """Return the folder of the board files: `$TOOLCHAIN_BOARDS`, the checkout's, or the installed package's."""
    named = os.environ.get("TOOLCHAIN_BOARDS")
    here = Path(__file__).parent
    candidates = [Path(named)] if named else [here.parent / "boards", here / "_boards"]
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise InputError(f"no folder of board files at {candidates[0]}", hint="unset TOOLCHAIN_BOARDS, or correct it")


def names() -> list[str]:
    """List the board types there are."""
    return sorted(path.stem for path in boards_folder().glob("*.toml"))


def load(name: str) -> Board:
    """Load a board by its name, or from a path that ends in `.toml`.

    Raises:
        InputError: There is no such board, or its file has faults; all of them are in the details.
    """
    path = Path(name) if name.endswith(".toml") else boards_folder() / f"{name}.toml"
    if not path.is_file():
        raise InputError(
            f"there is no board {name!r}",
            details="known boards: " + ", ".join(names()),
            hint=did_you_mean(name, names()) or "`toolchain boards` lists them; docs/adding-a-board.md adds one",
        )
    board, faults = check(path)
    if board is None:
        raise InputError(
            f"board file {path.name} has {len(faults)} fault(s)",
            details="\n".join(map(str, faults)),
            hint=f"correct them, then run `toolchain boards check {path}`",
        )
    return board


def check(path: Path) -> tuple[Board | None, list[Fault]]:
    """Read a board file and list every fault in it; the board is there when the list is empty."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise InputError(f"cannot read {path}: {fault.strerror or fault}") from fault
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        return None, [Fault(path.name, f"not TOML: {fault}", "strings need quotes, keys need '='")]
    if "name" in table:
        return None, [Fault("name", "is not set in the file", "remove it: the file's name is the board's name")]
    board, faults = _validated(Board, {"name": path.stem, **table})
    return (None, faults) if board is None else _checked_values(board)


def backends() -> dict[str, str]:
    """Return the compiler backends, each with the TVM target kind that it compiles for."""
    return tomllib.loads((Path(__file__).parent / "backends" / "backends.toml").read_text(encoding="utf-8"))


def _checked_values(board: Board) -> tuple[Board | None, list[Fault]]:
    faults = [*_faults_of_native(board), *_faults_of_backend(board)]
    return (None, faults) if faults else (board, [])


def _faults_of_backend(board: Board) -> list[Fault]:
    known = backends()
    if board.backend not in known:
        suggestion = did_you_mean(board.backend, known) or "known backends: " + ", ".join(known)
        return [Fault("backend", f"{board.backend!r} is no compiler backend", suggestion)]
    kind = board.target.kind
    if kind == known[board.backend]:
        return []
    others = [f" or backend = {name!r}" for name, one in known.items() if one == kind]
    message = f"{kind!r} is not what backend {board.backend} compiles for"
    return [Fault("target.kind", message, f"write {known[board.backend]!r}" + ",".join(others))]


def _faults_of_native(board: Board) -> list[Fault]:
    """A bundle for another machine cannot be built for whatever this machine happens to be."""
    values = {"machine": board.machine, "triple": board.triple, "target.mcpu": board.target.mcpu}
    return [
        Fault(key, "`native` stands for this machine, and the connection is ssh", "name the board's own value")
        for key, value in values.items()
        if value == NATIVE and board.connection == "ssh"
    ]


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a board file, made from the `Board` class."""
    document = TypeAdapter(Board).json_schema()
    document["properties"].pop("name")
    document["required"].remove("name")
    document["properties"]["backend"]["enum"] = list(backends())
    document["$defs"]["Target"]["properties"]["kind"]["enum"] = list(dict.fromkeys(backends().values()))
    document["title"] = "Board file"
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return document


def farm_devices() -> Path:
    """Return the devices file of the virtual boards, which `toolchain farm up` writes."""
    return files.cache_root() / "farm" / "devices.toml"


def load_devices(path: Path | None = None) -> dict[str, Device]:
    """Read the devices of this lab from `path`, `$TOOLCHAIN_DEVICES`, or `devices.toml` in this folder.

    Returns:
        The devices by name. Where no file was named, the virtual boards of the farm are among them.

    Raises:
        InputError: The named file is missing, or it has faults.
    """
    variable = os.environ.get("TOOLCHAIN_DEVICES")
    named = path or (Path(variable) if variable else None)
    if named:
        return _devices_in(named)
    found: dict[str, Device] = {}
    for source in (farm_devices(), Path("devices.toml")):  # the lab's own entry wins over the farm's
        found |= _devices_in(source) if source.is_file() else {}
    return found


def _devices_in(source: Path) -> dict[str, Device]:
    try:
        table = tomllib.loads(source.read_text(encoding="utf-8"))
    except OSError as fault:
        raise InputError(f"cannot read {source}: {fault.strerror or fault}") from fault
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise InputError(f"{source} is not TOML", details=str(fault)) from fault
    devices: dict[str, Device] | None
    devices, faults = _validated(dict[str, Device], table.get("devices", table))
    if devices is None:
        raise InputError(f"{source} has {len(faults)} fault(s)", details="\n".join(map(str, faults)))
    return {name: _beside(device, source.parent) for name, device in devices.items()}


def _beside(device: Device, folder: Path) -> Device:
    """Resolve a device's SSH configuration against the folder of the file that names it."""
    return dataclasses.replace(device, ssh_config=folder / device.ssh_config) if device.ssh_config else device


def find_device(board: Board, host: str | None, devices: Mapping[str, Device]) -> Device:
    """Decide which device of a board type is meant.

    Args:
        board: The board type.
        host: An address, a name from devices.toml, or None for the only device of this type.
        devices: The lab's devices.

    Raises:
        InputError: No device was named and none can be chosen, or a named one is of another type.
    """
    if board.connection == "local":
        if host:
            raise InputError(f"board {board.name} is this machine; it takes no host", hint="leave --host / HOST= out")
        return Device(board=board.name, host="local")
    if host:
        named = devices.get(host)
        return _of_type(board, host, named) if named else Device(board=board.name, host=host)
    fitting = [name for name, device in devices.items() if device.board == board.name]
    if len(fitting) == 1:
        return devices[fitting[0]]
    raise InputError(
        f"which {board.name} device?" + (f" There are {len(fitting)}: {', '.join(fitting)}" if fitting else ""),
        hint="give --host user@address[:port] (HOST= with make), or its name in devices.toml",
    )


def check_root(text: str) -> str:
    """Return a folder on a device that a command line names, if a board file could name it as well."""
    if not re.fullmatch(_ROOT, text):
        raise InputError(
            f"{text!r} is no folder for a device",
            hint="write an absolute path, or one from ~/, without spaces or quotes",
        )
    return text


def _of_type(board: Board, name: str, device: Device) -> Device:
    if device.board == board.name:
        return device
    raise InputError(
        f"device {name} is a {device.board}, not a {board.name}",
        hint=f"use --board {device.board}, or another device",
    )


def _validated(kind: Any, value: Any) -> tuple[Any, list[Fault]]:
    # Strict JSON mode takes tables for classes and arrays for tuples, but no text for a number.
    # TOML's dates and times, which JSON lacks, must not pass as text either.
    try:
        return TypeAdapter(kind).validate_json(json.dumps(value, default=lambda moment: {"time": str(moment)})), []
    except ValidationError as fault:
        return None, [_fault(kind, error) for error in fault.errors()]


def _fault(kind: Any, error: Any) -> Fault:
    """Say in the terms of a TOML file what the validator found."""
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        known = _known_keys(kind, error["loc"][:-1])
        suggestion = did_you_mean(str(error["loc"][-1]), known) or "known keys: " + ", ".join(known)
        return Fault(key, "unknown key", suggestion)
    if error["type"] in {"missing", "missing_argument"}:
        return Fault(key, "is missing", "every board file sets it" if kind is Board else "every device sets it")
    message = re.sub(r"^(Input|String) should", "should", error["msg"])
    value = error["input"]
    choices = re.findall(r"'([^']+)'", error["msg"]) if error["type"] == "literal_error" else []
    suggestion = did_you_mean(str(value), choices) if choices else ""
    return Fault(key, f"{value!r} {message}", suggestion)


def _known_keys(kind: Any, location: tuple[Any, ...]) -> list[str]:
    owner = Target if "target" in location else Board if kind is Board else Device
    return [field.name for field in dataclasses.fields(owner) if field.name != "name"]
