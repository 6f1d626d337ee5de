"""Board types (boards/*.toml) and the devices of one lab (devices.toml), validated."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from toolchain import resources, state
from toolchain.errors import InputError, did_you_mean
from toolchain.validation import CONFIG, DeviceFolder, Fault, Word, parsed, validated

NATIVE = "native"

# Processor, perhaps a vendor, system, C library: what gcc calls its targets, and Yocto's without the last.
_TRIPLE = r"\w+(-\w+)?-linux(-gnu(eabi|eabihf)?|-android(eabi)?\d*)?"
_X86_32 = {"i386", "i486", "i586", "i686"}


@checked_dataclass(frozen=True, config=CONFIG)
class Target:
    """The TVM code-generation target of a board."""

    kind: Annotated[Word, Field(description="TVM target kind")] = "llvm"  # TVM target kind
    # TVM's name of the accelerator, for a kind that has several
    device: Annotated[str, Field(pattern=r"^[a-z0-9-]*$", description="TVM's name of the accelerator")] = ""
    # LLVM CPU name, or `native` on a board that is this machine
    mcpu: Annotated[Word, Field(description="LLVM CPU name; `native` means this machine's")] = "generic"
    # LLVM features to switch on or off, such as `+neon`
    mattr: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[+-][A-Za-z0-9_.-]+$")], ...],
        Field(description="LLVM features, each with + or - before it"),
    ] = ()
    # most work-items of a work-group; 0 means TVM's default, here and below
    max_threads_per_block: Annotated[int, Field(ge=0, le=4096, description="most work-items of a work-group")] = 0
    # bytes of local memory of a work-group
    max_shared_memory_per_block: Annotated[int, Field(ge=0, le=2**20, description="bytes of local memory")] = 0
    # work-items that run in step
    thread_warp_size: Annotated[int, Field(ge=0, le=128, description="work-items that run in step")] = 0
    # whether layers compute in half precision; inputs and outputs keep their types
    float16: Annotated[bool, Field(description="layers compute in half precision")] = False
    # whether such layers also sum up in it, as far as they may
    half_sums: Annotated[bool, Field(description="with float16: layers sum up in half precision, too")] = False


def short_gpu(name: str) -> str:
    """Return a GPU's short name, in small letters, also of one that is written in full."""
    written = name.lower()
    return next((short for short, table in gpus().items() if table["title"].lower() == written), written)


@checked_dataclass(frozen=True, config=CONFIG)
class Gpu:
    """The GPU of a board, for models of what kernels take there."""

    # its short name, such as `g610`
    name: Annotated[Word, AfterValidator(short_gpu), Field(description="short name of the GPU, such as `g610`")]
    cores: Annotated[int, Field(ge=1, le=256, description="shader cores")]  # its shader cores
    clock_mhz: Annotated[int, Field(ge=1, le=10_000, description="their highest clock")]  # their highest clock


@checked_dataclass(frozen=True, config=CONFIG)
class Board:
    """One board type, as its file in boards/ describes it."""

    # the file's name without `.toml`
    name: Annotated[Word, Field(description="the file's name without .toml; set by the loader")]
    description: Annotated[str, Field(min_length=1, description="one line for lists")]  # one line for lists
    # `local` for this machine, `ssh` for any other
    connection: Annotated[Literal["local", "ssh"], Field(description="how to connect to the device")]
    # what `uname -m` says on it; `native` on this machine
    machine: Annotated[Word, Field(description="what `uname -m` prints there; `native` for this machine")]
    # GNU triple of its libraries; `native` for this machine
    triple: Annotated[Word, Field(description="GNU triple of its libraries; `native` for this machine")]
    target: Annotated[Target, Field(description="TVM code-generation target")]  # TVM code-generation target
    backend: Annotated[Word, Field(description="compiler backend")] = "cpu"  # which compiler backend serves it
    # where its libraries are linked if the command line does not say: in a `container` or on this `host`
    toolchain: Annotated[
        Literal["container", "host"], Field(description="where its libraries are linked by default")
    ] = "host"
    # name of the image in docker/ that carries its compiler; empty if there is none
    image: Annotated[str, Field(pattern=r"^[a-z0-9-]*$", description="image in docker/ that has its compiler")] = ""
    # the compiler driver, where it is not the triple's own, `<triple>-g++`
    compiler: Annotated[str, Field(description="compiler driver; <triple>-g++ by default")] = ""
    # CPU flags that /proc/cpuinfo must show before a library is run
    cpu_features: Annotated[tuple[Word, ...], Field(description="flags that /proc/cpuinfo must show")] = ()
    # CPUs that kernels are scheduled for; 0 if unknown, or on this machine, where it means every CPU
    cores: Annotated[int, Field(ge=0, le=1024, description="CPUs that kernels are scheduled for; 0 if unknown")] = 0
    # threads a model runs on; 0 means every CPU of the device
    threads: Annotated[int, Field(ge=0, le=1024, description="threads that a model runs on; 0 means every CPU")] = 0
    # folder on the device for everything that is deployed; `~` is the login's home
    root: Annotated[DeviceFolder, Field(description="folder on the device for releases")] = (
        "~/.local/share/edge-toolchain"
    )
    # how many activations stay on the device for a roll-back
    keep: Annotated[int, Field(ge=1, le=100, description="number of activations to keep for a roll-back")] = 3
    # whether timings taken on it are of an emulator, which every report then says
    emulated: Annotated[bool, Field(description="timings come from an emulator")] = False
    # its GPU, for models of what kernels take there; None if it has none that there is a model of
    gpu: Annotated[Gpu | None, Field(description="the GPU, for cost models of kernels")] = None

    def resolved(self) -> Board:
        """Return the board with this machine's values where its file says `native`."""
        machine = platform.machine() if self.machine == NATIVE else self.machine
        triple = f"{machine}-linux-gnu" if self.triple == NATIVE else self.triple
        cores = self.cores or (os.cpu_count() or 0 if self.connection == "local" else 0)
        return dataclasses.replace(self, machine=machine, triple=triple, cores=cores)

    def in_float16(self, *, half_sums: bool = False) -> Board:
        """Return the board with layers that compute in half precision, and maybe sum up in it."""
        own = dataclasses.replace(self.target, float16=True, half_sums=half_sums)
        return dataclasses.replace(self, target=own)


def boards_folder() -> Path:
    """Return the folder of the board files: `$TOOLCHAIN_BOARDS`, or the toolchain's own."""
    named = os.environ.get("TOOLCHAIN_BOARDS")
    folder = Path(named) if named else resources.ROOT / "boards"
    if not folder.is_dir():
        raise InputError(f"no folder of board files at {folder}", hint="unset or correct TOOLCHAIN_BOARDS")
    return folder


def users_folder() -> Path:
    """Return where board files of the user's own are, or would be: `$TOOLCHAIN_BOARDS`, or beside their devices."""
    named = os.environ.get("TOOLCHAIN_BOARDS")
    return Path(named) if named else state.config_folder() / "boards"


def names() -> list[str]:
    """List the board types there are, the toolchain's and the user's own."""
    return sorted({path.stem for folder in (boards_folder(), users_folder()) for path in folder.glob("*.toml")})


def _file(name: str) -> Path:
    """Return the file of a board type: the toolchain's own, or else the user's."""
    found = boards_folder() / f"{name}.toml"
    return found if found.is_file() else users_folder() / f"{name}.toml"


def load(name: str) -> Board:
    """Load a board by its name, or from a path that ends in `.toml`.

    Raises:
        InputError: There is no such board, or its file has faults; all of them are in the details.
    """
    path = Path(name) if name.endswith(".toml") else _file(name)
    if not path.is_file():
        raise InputError(
            f"there is no board {name!r}",
            details="known boards: " + ", ".join(names()),
            hint=did_you_mean(name, names())
            or "`toolchain boards` lists them; `toolchain board add USER@HOST` writes the one of a device",
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
        table = parsed(path)
    except OSError as fault:
        raise InputError(f"cannot read {path}: {fault.strerror or fault}") from fault
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        return None, [Fault(path.name, f"not TOML: {fault}", "strings need quotes, keys need '='")]
    if "name" in table:
        return None, [Fault("name", "is not set in the file", "remove it: the file's name is the board's name")]
    board, faults = validated(Board, {"name": path.stem, **table}, "board file")
    return (None, faults) if board is None else _checked_values(board)


def backends() -> dict[str, str]:
    """Return the compiler backends, each with the TVM target kind that it compiles for."""
    return tomllib.loads((Path(__file__).parent / "backends" / "backends.toml").read_text(encoding="utf-8"))


@functools.cache
def gpus() -> dict[str, dict[str, Any]]:
    """Return the GPUs that there is a model of, each with what the model has to know of it."""
    return tomllib.loads((Path(__file__).parent / "backends" / "gpus.toml").read_text(encoding="utf-8"))


def _checked_values(board: Board) -> tuple[Board | None, list[Fault]]:
    rules = (_faults_of_native, _faults_of_triple, _faults_of_backend, _faults_of_half, _faults_of_gpu)
    faults = [one for rule in rules for one in rule(board)]
    return (None, faults) if faults else (board, [])


def _faults_of_backend(board: Board) -> list[Fault]:
    known = backends()
    if board.backend not in known:
        suggestion = did_you_mean(board.backend, known) or "known backends: " + ", ".join(known)
        return [Fault("backend", f"{board.backend!r} is not a compiler backend", suggestion)]
    kind = board.target.kind
    if kind == known[board.backend]:
        return []
    others = [f" or backend = {name!r}" for name, one in known.items() if one == kind]
    message = f"{kind!r} is not a target of backend {board.backend}"
    return [Fault("target.kind", message, f"write {known[board.backend]!r}" + ",".join(others))]


def _faults_of_half(board: Board) -> list[Fault]:
    """What alone does nothing would be taken for what was asked for."""
    if board.target.half_sums and not board.target.float16:
        return [Fault("target.half_sums", "has no effect without float16", "add float16 = true")]
    return []


def _faults_of_gpu(board: Board) -> list[Fault]:
    """What kernels take on a GPU that nobody knows would be left out of every report without a word."""
    known = gpus()
    if board.gpu is None or board.gpu.name in known:
        return []
    others = "known GPUs: " + ", ".join(known) + "; without [gpu] nothing is estimated"
    suggestion = did_you_mean(board.gpu.name, known) or others
    return [Fault("gpu.name", f"there is no cost model of the GPU {board.gpu.name!r}", suggestion)]


def _faults_of_native(board: Board) -> list[Fault]:
    """A bundle for another machine cannot be built for whatever this machine happens to be."""
    values = {"machine": board.machine, "triple": board.triple, "target.mcpu": board.target.mcpu}
    return [
        Fault(key, "`native` means this machine, but the connection is ssh", "write the board's value")
        for key, value in values.items()
        if value == NATIVE and board.connection == "ssh"
    ]


def _faults_of_triple(board: Board) -> list[Fault]:
    """A triple of another processor, system or C library would be found out by the linker, minutes later."""
    machine, triple = board.machine, board.triple
    if NATIVE in {machine, triple}:
        return []
    arm = bool(re.match(r"armv\d", machine))
    usual = "arm-linux-gnueabihf" if arm else f"{machine}-linux-gnu"
    suggestion = f"write {usual}"
    processor = triple.partition("-")[0]
    if "musl" in triple:
        return [Fault("triple", f"{triple!r} uses musl, but boards need glibc or Android's C library", suggestion)]
    if not re.fullmatch(_TRIPLE, triple):
        return [
            Fault("triple", f"{triple!r} is not a GNU triple of Linux", did_you_mean(triple, [usual]) or suggestion)
        ]
    same = processor.startswith("arm") if arm else processor == machine or {processor, machine} <= _X86_32
    return [] if same else [Fault("triple", f"{triple!r} does not match the machine {machine!r}", suggestion)]


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a board file, made from the `Board` class."""
    document = TypeAdapter(Board).json_schema()
    document["properties"].pop("name")
    document["required"].remove("name")
    document["properties"]["backend"]["enum"] = list(backends())
    document["$defs"]["Target"]["properties"]["kind"]["enum"] = list(dict.fromkeys(backends().values()))
    named = [form for name, table in gpus().items() for form in (name, table["title"])]
    document["$defs"]["Gpu"]["properties"]["name"]["enum"] = named
    document["title"] = "Board file"
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return document
