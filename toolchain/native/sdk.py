"""The SDK for applications that run releases in their own process: the library `edge_model` and its files.

```
include/edge_model.h                C99, and C++
lib/libedge_model.so.1, .so, .a     for the board's machine
lib/pkgconfig, lib/cmake            for pkg-config, and for CMake's find_package(EdgeModel)
python/edge_model.py                the same by ctypes, with numpy
example/                            an application in C, a service in C++, its unit of systemd
licences/                           of all linked code
sdk.json                            its versions, and the digest of each file
```
"""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from toolchain import files, outputs, process, resources, temporary
from toolchain.architecture import program_triple
from toolchain.board import Board
from toolchain.errors import InputError
from toolchain.native import programs, relocatable
from toolchain.native.programs import Program, Tell

ABI = 1  # EDGE_ABI in edge_model.h
RECORD = "sdk.json"

# Prefixes of the library's exported names: its own, and those that the library of a model needs.
EXPORTED = ("edge_", "TVMFFI", "TVMBackend")

_TITLE = "an SDK"
_OBJECT = "edge_model.o"
_SOURCES = resources.RUNTIME / "sdk"
_HEADER = resources.RUNTIME / "library" / "edge_model.h"
_UNIT = resources.PACKAGE / "device" / "application" / "edge-application.service"
_FEW_NAMES = 5


@dataclass(frozen=True)
class Sdk:
    folder: Path
    board: str  # board type
    triple: str  # of the library
    glibc: str  # oldest version that the library runs with; empty if it needs none
    abi: int
    versions: Mapping[str, str]  # of `device` (this toolchain's), `tvm` and `tvm_ffi`: a release must have the same
    files: Mapping[str, str]  # SHA-256 of each file, by its name in the folder


def check_target(folder: Path) -> None:
    """Raise an InputError if an SDK cannot be written to a folder, or the folder holds something else."""
    outputs.check_folder(folder, _TITLE, _foreign)


def write(board: Board, folder: Path, tell: Tell | None = None, *, musl: bool = False) -> Sdk:
    """Write the SDK for a board; it replaces an older one in the folder.

    `tell` is called before the library is built, which takes a minute, and with its steps. With `musl`, the library is
    for devices with musl.

    Raises:
        BuildError: There is no library for this board's triple.
        InputError: The folder cannot be written, or holds something else.
    """
    check_target(folder)
    triple = program_triple(board.triple, musl=musl)
    library = programs.build(programs.LIBRARY, triple, board.machine, tell)
    with outputs.replacing(folder, _TITLE, _foreign) as staging:
        _fill(staging, library)
        digests = {str(path.relative_to(staging)): files.sha256_file(path) for path in _files(staging)}
        sdk = Sdk(staging, board.name, triple, library.glibc, ABI, library.versions, digests)
        document = {name: value for name, value in asdict(sdk).items() if name != "folder"}
        (staging / RECORD).write_bytes(files.canonical_json(document))
    return Sdk(folder, *list(vars(sdk).values())[1:])


def _fill(staging: Path, library: Program) -> None:
    replacements = {"@ABI@": str(ABI), "@VERSION@": library.versions["device"], "@LIBRARY@": library.path.name}
    for source, target in _texts():
        path = staging / target
        path.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        for placeholder, value in replacements.items():
            text = text.replace(placeholder, value)
        path.write_text(text, encoding="utf-8")
    shutil.copyfile(library.path, staging / "lib" / library.path.name)
    # In the static library, only the exported symbols are global.
    with temporary.folder() as work:
        linked = Path(work) / _OBJECT
        data = library.path.with_name(_OBJECT).read_bytes()
        linked.write_bytes(relocatable.localize(data, lambda name: name.startswith(EXPORTED)))
        zig = resources.package_folder("ziglang") / "zig"
        process.run([zig, "ar", "rcsD", staging / "lib" / "libedge_model.a", linked], timeout=60.0)
    link = staging / "lib" / "libedge_model.so"
    if link.name != library.path.name:
        link.symlink_to(library.path.name)


def _texts() -> Iterator[tuple[Path, str]]:
    """Yield each text file with its name in the SDK."""
    yield _HEADER, "include/edge_model.h"
    yield _SOURCES / "README.md", "README.md"
    yield _SOURCES / "edge_model.py", "python/edge_model.py"
    yield _SOURCES / "pkgconfig/edge_model.pc", "lib/pkgconfig/edge_model.pc"
    for path in sorted((_SOURCES / "cmake").iterdir()):
        yield path, f"lib/cmake/EdgeModel/{path.name}"
    for path in sorted((_SOURCES / "example").iterdir()):
        yield path, f"example/{path.name}"
    yield _UNIT, f"example/{_UNIT.name}"
    for name, path in _licences().items():
        yield path, f"licences/{name}"


def _licences() -> dict[str, Path]:
    """Return the licences of all linked code, by their names in the SDK."""
    zig = resources.package_folder("ziglang") / "lib"
    tvm = resources.package_folder("tvm")
    return {
        "edge-toolchain.txt": resources.ROOT / "LICENSE",
        "tvm.txt": tvm / "LICENSE",
        "tvm-NOTICE.txt": tvm / "NOTICE",
        "tvm-builtin_fp16.txt": tvm / "licenses" / "LICENSE.builtin_fp16.txt",
        "tvm-ffi.txt": _of_distribution("apache-tvm-ffi", "LICENSE"),
        "tvm-ffi-NOTICE.txt": _of_distribution("apache-tvm-ffi", "NOTICE"),
        **{f"{name}.txt": zig / name / "LICENSE.TXT" for name in ("libcxx", "libcxxabi", "libunwind")},
    }


def _of_distribution(package: str, name: str) -> Path:
    """Find a licence in a wheel's metadata."""
    listed = importlib.metadata.files(package) or []
    return Path(next(file for file in listed if file.parts[-2:] == ("licenses", name)).locate())


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _foreign(folder: Path) -> str:
    """Return why a folder is not just an earlier SDK; empty if a newer one may replace it."""
    try:
        record = files.read_json(folder / RECORD)
        expected = {RECORD, *record["files"]}
    except (InputError, KeyError, TypeError):
        return f"it does not contain the {RECORD} of an SDK"
    names = [str(path.relative_to(folder)) for path in _files(folder)]
    foreign = [name for name in names if name not in expected]
    return f"it contains {', '.join(foreign[:_FEW_NAMES])}" if foreign else ""
