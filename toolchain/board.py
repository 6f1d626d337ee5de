"""Board types (boards/*.toml) and the devices of one lab (devices.toml), validated."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, Unpack

from pydantic import AfterValidator, Field, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from toolchain import architecture, resources, state
from toolchain.errors import InputError, did_you_mean
from toolchain.validation import CONFIG, DeviceFolder, Fault, Word, parse_toml, validate

NATIVE = "native"
# The docstrings and descriptions below are shown by `toolchain board schema`.


@checked_dataclass(frozen=True, config=CONFIG)
class Target:
    """The TVM code-generation target of a board."""

    kind: Annotated[Word, Field(description="TVM target kind")] = "llvm"
    # for a kind that has several accelerators
    device: Annotated[str, Field(pattern=r"^[a-z0-9-]*$", description="TVM's name of the accelerator")] = ""
    mcpu: Annotated[Word, Field(description="LLVM CPU name; `native` means this machine's")] = "generic"
    mattr: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[+-][A-Za-z0-9_.-]+$")], ...],
        Field(description="LLVM features, each with + or - before it"),
    ] = ()
    # 0 means TVM's default, here and below
    max_threads_per_block: Annotated[int, Field(ge=0, le=4096, description="most work-items of a work-group")] = 0
    max_shared_memory_per_block: Annotated[int, Field(ge=0, le=2**20, description="bytes of local memory")] = 0
    thread_warp_size: Annotated[int, Field(ge=0, le=128, description="work-items that run in step")] = 0
    float16: Annotated[bool, Field(description="layers compute in half precision")] = False
    half_sums: Annotated[bool, Field(description="with float16: layers sum up in half precision, too")] = False
    bfloat16: Annotated[bool, Field(description="layers multiply in bfloat16, and sum up in float32")] = False
    weights: Annotated[
        Literal["", "int8", "int4"], Field(description="what weights of large fully connected layers are rounded to")
    ] = ""

    @property
    def reduced_precision(self) -> Literal["float16", "bfloat16", "int8", "int4", ""]:
        """The element type that layers, or their weights alone, are rounded to; empty for that of the model."""
        if self.float16:
            return "float16"
        return "bfloat16" if self.bfloat16 else self.weights


class Precision(TypedDict, total=False):
    """A reduced precision; see the fields of `Target`."""

    float16: bool
    half_sums: bool
    bfloat16: bool
    weights: Literal["", "int8", "int4"]


def short_gpu(name: str) -> str:
    """Return a GPU's short name in lower case, also for its full name."""
    lowered = name.lower()
    return next((short for short, table in gpus().items() if table["title"].lower() == lowered), lowered)


@checked_dataclass(frozen=True, config=CONFIG)
class Gpu:
    """The GPU of a board, for cost models of kernels."""

    name: Annotated[Word, AfterValidator(short_gpu), Field(description="short name of the GPU, such as `g610`")]
    cores: Annotated[int, Field(ge=1, le=256, description="shader cores")]
    clock_mhz: Annotated[int, Field(ge=1, le=10_000, description="their highest clock")]


@checked_dataclass(frozen=True, config=CONFIG)
class CoreKind:
    """The equal cores of a board whose cores differ."""

    name: Annotated[Word, Field(description="LLVM's name of the core")]
    cores: Annotated[int, Field(ge=1, le=1024, description="how many of them the board has")]


@checked_dataclass(frozen=True, config=CONFIG)
class Board:
    """One board type, as its file in boards/ describes it."""

    name: Annotated[Word, Field(description="the file's name without .toml; set by the loader")]
    description: Annotated[str, Field(min_length=1, description="one line for lists")]
    # `local` for this machine, `ssh` for any other
    connection: Annotated[Literal["local", "ssh"], Field(description="how to connect to the device")]
    machine: Annotated[Word, Field(description="what `uname -m` prints there; `native` for this machine")]
    triple: Annotated[Word, Field(description="GNU triple of its libraries; `native` for this machine")]
    target: Annotated[Target, Field(description="TVM code-generation target")]
    backend: Annotated[Word, Field(description="compiler backend")] = "cpu"
    toolchain: Annotated[
        Literal["container", "host"], Field(description="where its libraries are linked by default")
    ] = "host"
    image: Annotated[str, Field(pattern=r"^[a-z0-9-]*$", description="image in docker/ that has its compiler")] = ""
    compiler: Annotated[str, Field(description="compiler driver; <triple>-g++ by default")] = ""
    cpu_features: Annotated[tuple[Word, ...], Field(description="flags that /proc/cpuinfo must show")] = ()
    cores: Annotated[int, Field(ge=0, le=1024, description="CPUs that kernels are scheduled for; 0 if unknown")] = 0
    threads: Annotated[int, Field(ge=0, le=1024, description="threads that a model runs on; 0 means every CPU")] = 0
    core_kinds: Annotated[
        tuple[CoreKind, ...], Field(description="where its cores differ: each kind, the fastest first")
    ] = ()
    compatible: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9,._+-]+$")], ...],
        Field(description="names in the device tree's `compatible`; `board add` chooses the file by them"),
    ] = ()
    cpu_names: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...],
        Field(description="how the CPU's name in /proc/cpuinfo begins; `board add` chooses the file by it"),
    ] = ()
    root: Annotated[DeviceFolder, Field(description="folder on the device for releases")] = (
        "~/.local/share/edge-toolchain"
    )
    keep: Annotated[int, Field(ge=1, le=100, description="number of activations to keep for a roll-back")] = 3
    emulated: Annotated[bool, Field(description="timings come from an emulator")] = False
    gpu: Annotated[Gpu | None, Field(description="the GPU, for cost models of kernels")] = None

    def resolved(self) -> Board:
        """Return the board with this machine's values where its file says `native`.

        Raises:
            InputError: This machine is of an architecture that is not supported.
        """
        machine = platform.machine() if self.machine == NATIVE else self.machine
        triple = architecture.of_machine(machine).triple if self.triple == NATIVE else self.triple
        cores = self.cores or (os.cpu_count() or 0 if self.connection == "local" else 0)
        return dataclasses.replace(self, machine=machine, triple=triple, cores=cores)

    @property
    def cpus(self) -> int:
        """CPUs that a device of this type has; 0 if unknown."""
        return sum(kind.cores for kind in self.core_kinds) or self.cores

    def warning_of_threads(self, requested: int) -> str:
        """Warn of more threads than the fast cores that a board with several kinds of them uses; else empty."""
        if not self.core_kinds or not self.threads or requested <= self.threads:
            return ""
        names = [f"{kind.cores} {kind.name}" for kind in self.core_kinds]
        return (
            f"{requested} threads: board {self.name} uses {self.threads}, on its {names[0]}; "
            f"the others run on its {' and '.join(names[1:]) or 'other cores'}, which are slower"
        )

    def with_precision(self, **precision: Unpack[Precision]) -> Board:
        """Return the board with layers in a reduced precision; without one, in that of its file."""
        if not any(precision.values()):
            return self
        target = dataclasses.replace(
            self.target,
            float16=precision.get("float16", False),
            half_sums=precision.get("half_sums", False),
            bfloat16=precision.get("bfloat16", False),
            weights=precision.get("weights", ""),
        )
        return dataclasses.replace(self, target=target)


def boards_folder() -> Path:
    """Return the folder of the board files: `$TOOLCHAIN_BOARDS`, or the toolchain's own."""
    variable = os.environ.get("TOOLCHAIN_BOARDS")
    folder = Path(variable) if variable else resources.ROOT / "boards"
    if not folder.is_dir():
        raise InputError(f"no folder of board files at {folder}", hint="unset or correct TOOLCHAIN_BOARDS")
    return folder


def users_folder() -> Path:
    """Return the folder for the user's own board files: `$TOOLCHAIN_BOARDS`, or beside their device list."""
    variable = os.environ.get("TOOLCHAIN_BOARDS")
    return Path(variable) if variable else state.config_folder() / "boards"


def names() -> list[str]:
    """List the board types there are, the toolchain's and the user's own."""
    return sorted({path.stem for folder in (boards_folder(), users_folder()) for path in folder.glob("*.toml")})


def load(name: str) -> Board:
    """Load a board by its name, or from a path that ends in `.toml`.

    Raises:
        InputError: There is no such board, or its file has faults; all of them are in the details.
    """
    path = Path(name) if name.endswith(".toml") else boards_folder() / f"{name}.toml"
    if not name.endswith(".toml") and not path.is_file():
        path = users_folder() / f"{name}.toml"
    if not path.is_file():
        raise InputError(
            f"there is no board {name!r}",
            details="known boards: " + ", ".join(names()),
            hint=did_you_mean(name, names())
            or "`toolchain board list` lists them; `toolchain board add USER@HOST` writes the one of a device",
        )
    board, faults = check(path)
    if board is None:
        raise InputError(
            f"board file {path.name} has {len(faults)} fault(s)",
            details="\n".join(map(str, faults)),
            hint=f"correct them, then run `toolchain board check {path}`",
        )
    return board


def check(path: Path) -> tuple[Board | None, list[Fault]]:
    """Read a board file and return all its faults; the board is None if there are any."""
    try:
        table = parse_toml(path)
    except OSError as fault:
        raise InputError(f"cannot read {path}: {fault.strerror or fault}") from fault
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        return None, [Fault(path.name, f"not TOML: {fault}", "strings need quotes, keys need '='")]
    if "name" in table:
        return None, [Fault("name", "is not set in the file", "remove it: the file's name is the board's name")]
    board, faults = validate(Board, {"name": path.stem, **table}, "board file")
    if board is not None:
        faults = _faults_of_native(board) + _faults_of_machine(board) + _faults_of_triple(board)
        faults += _faults_of_backend(board)
        if board.target.half_sums and not board.target.float16:
            faults.append(Fault("target.half_sums", "has no effect without float16", "add float16 = true"))
        if board.target.bfloat16 and board.target.float16:
            faults.append(Fault("target.bfloat16", "cannot be combined with float16", "remove one of them"))
        if board.target.weights and (board.target.float16 or board.target.bfloat16):
            faults.append(Fault("target.weights", "cannot be combined with float16 and bfloat16", "remove one of them"))
        faults += _faults_of_gpu(board) + _faults_of_cores(board)
    return (None, faults) if faults else (board, [])


def backends() -> dict[str, str]:
    """Return the compiler backends, each with its TVM target kind."""
    return tomllib.loads((Path(__file__).parent / "backends" / "backends.toml").read_text(encoding="utf-8"))


@functools.cache
def gpus() -> dict[str, dict[str, Any]]:
    """Return the GPUs that have a cost model, each with its parameters."""
    return tomllib.loads((Path(__file__).parent / "backends" / "gpus.toml").read_text(encoding="utf-8"))


def _faults_of_backend(board: Board) -> list[Fault]:
    kinds = backends()
    if board.backend not in kinds:
        suggestion = did_you_mean(board.backend, kinds) or "known backends: " + ", ".join(kinds)
        return [Fault("backend", f"{board.backend!r} is not a compiler backend", suggestion)]
    kind = board.target.kind
    if kind == kinds[board.backend]:
        return []
    others = [f" or backend = {name!r}" for name, other in kinds.items() if other == kind]
    message = f"{kind!r} is not a target of backend {board.backend}"
    return [Fault("target.kind", message, f"write {kinds[board.backend]!r}" + ",".join(others))]


# Reports would silently leave out the estimates for a GPU without a model.
def _faults_of_gpu(board: Board) -> list[Fault]:
    models = gpus()
    if board.gpu is None or board.gpu.name in models:
        return []
    others = "known GPUs: " + ", ".join(models) + "; without [gpu] nothing is estimated"
    suggestion = did_you_mean(board.gpu.name, models) or others
    return [Fault("gpu.name", f"there is no cost model of the GPU {board.gpu.name!r}", suggestion)]


def _faults_of_cores(board: Board) -> list[Fault]:
    if not board.core_kinds:
        return []
    values = {"cores": board.cores, "threads": board.threads}
    return [
        Fault(key, f"{value} is more than the {board.cpus} of core_kinds", "correct one of them")
        for key, value in values.items()
        if value > board.cpus
    ]


# A bundle for another machine must not depend on what this machine happens to be.
def _faults_of_native(board: Board) -> list[Fault]:
    values = {"machine": board.machine, "triple": board.triple, "target.mcpu": board.target.mcpu}
    return [
        Fault(key, "`native` means this machine, but the connection is ssh", "write the board's value")
        for key, value in values.items()
        if value == NATIVE and board.connection == "ssh"
    ]


def _faults_of_machine(board: Board) -> list[Fault]:
    if board.machine == NATIVE:
        return []
    try:
        architecture.of_machine(board.machine)
    except InputError as fault:
        return [Fault("machine", fault.message, fault.hint)]
    return []


# The linker would find a wrong triple, too, but minutes later.
def _faults_of_triple(board: Board) -> list[Fault]:
    triple = board.triple
    if triple == NATIVE:
        return []
    expected = architecture.MACHINES.get(board.machine)
    usual = [expected.triple] if expected else list(architecture.TRIPLES)
    suggestion = f"write {' or '.join(usual)}"
    if "musl" in triple:
        message = f"{triple!r} uses musl, and one board type serves devices with glibc and those with musl"
        return [Fault("triple", message, suggestion)]
    if not architecture.is_linux_triple(triple):
        return [Fault("triple", f"{triple!r} is not a GNU triple of Linux", did_you_mean(triple, usual) or suggestion)]
    try:
        actual = architecture.of_triple(triple)
    except InputError as fault:
        return [Fault("triple", fault.message, suggestion)]
    if expected in {None, actual}:
        return []
    return [Fault("triple", f"{triple!r} does not match the machine {board.machine!r}", suggestion)]


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a board file, made from the `Board` class."""
    document = TypeAdapter(Board).json_schema()
    document["properties"].pop("name")
    document["required"].remove("name")
    document["properties"]["machine"]["enum"] = [*architecture.MACHINES, NATIVE]
    document["properties"]["backend"]["enum"] = list(backends())
    document["$defs"]["Target"]["properties"]["kind"]["enum"] = list(dict.fromkeys(backends().values()))
    gpu_names = [form for name, table in gpus().items() for form in (name, table["title"])]
    document["$defs"]["Gpu"]["properties"]["name"]["enum"] = gpu_names
    document["title"] = "Board file"
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return document
