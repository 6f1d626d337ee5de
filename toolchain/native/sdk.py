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
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from toolchain import files, outputs, process, resources, temporary
from toolchain.board import Board
from toolchain.errors import BuildError, InputError
from toolchain.native import programs
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

_IS_64, _LITTLE_ENDIAN, _RELOCATABLE = 2, b"\1", b"\1\0"
_NULL, _SYMTAB, _RELA, _REL, _GROUP, _SYMTAB_INDICES = 0, 2, 4, 9, 17, 18
_ADDRESS_SIGNIFICANCE = 0x6FFF4C03  # LLVM's hint for its linker, which refers to symbols by index
_IN_GROUP = 0x200
_LOCAL, _UNDEFINED = 0, 0


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


def write(board: Board, folder: Path, tell: Tell | None = None) -> Sdk:
    """Write the SDK for a board; it replaces an older one in the folder.

    `tell` is called before the library is built, which takes a minute, and with its steps.

    Raises:
        BuildError: There is no library for this board's triple.
        InputError: The folder cannot be written, or holds something else.
    """
    check_target(folder)
    library = programs.build(programs.LIBRARY, board.triple, board.machine, tell)
    with outputs.replacing(folder, _TITLE, _foreign) as staging:
        _fill(staging, library)
        digests = {str(path.relative_to(staging)): files.sha256_file(path) for path in _files(staging)}
        sdk = Sdk(staging, board.name, board.triple, library.glibc, ABI, library.versions, digests)
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
        linked.write_bytes(localize(data, lambda name: name.startswith(EXPORTED)))
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


# The output of `ld -r` for a library and its C++ library keeps all their global symbols: an application with
# another C++ library would mix the two. So they become local. `objcopy --keep-global-symbol` does the same, but is
# rarely installed for a board's machine.
@dataclass(frozen=True)
class _Layout:
    """The layout of ELF's structures for one word size."""

    shape: tuple[str, int, int]  # format and position of the section headers' offset, and position of their count
    section: str  # format of a section header
    symbol: str  # format of a symbol
    fields: tuple[int, int, int]  # indices of a symbol's info, other and section index
    index_shift: int  # how far the symbol's index is shifted in a relocation's info
    relocation: str  # format of a relocation's offset and info


_LAYOUTS = {
    True: _Layout(("<Q", 40, 60), "<IIQQQQIIQQ", "<IBBHQQ", (1, 2, 3), 32, "<QQ"),
    False: _Layout(("<I", 32, 48), "<IIIIIIIIII", "<IIIBBH", (3, 4, 5), 8, "<II"),
}


@dataclass(frozen=True)
class _Section:
    """A section header, with ELF's field names."""

    name: int
    type: int
    flags: int
    addr: int
    offset: int
    size: int
    link: int
    info: int
    addralign: int
    entsize: int


def localize(data: bytes, exported: Callable[[str], bool]) -> bytes:
    """Make the symbols local that a little-endian ELF object file defines, except those for which `exported` is true.

    The result has no section groups: a linker would drop a group if another file has one of the same name.

    Raises:
        BuildError: It is not such a file.
    """
    if data[:4] != b"\x7fELF" or (data[5:6], data[16:18]) != (_LITTLE_ENDIAN, _RELOCATABLE):
        raise BuildError("the linked file is not a relocatable object file")
    return _File(bytearray(data), _LAYOUTS[data[4] == _IS_64]).localize(exported)


class _File:
    def __init__(self, data: bytearray, layout: _Layout) -> None:
        self.data, self.layout = data, layout
        form, where, count_at = layout.shape
        (self.start,) = struct.unpack_from(form, data, where)
        (count,) = struct.unpack_from("<H", data, count_at)
        size = struct.calcsize(layout.section)
        self.sections = [
            _Section(*struct.unpack_from(layout.section, data, self.start + number * size)) for number in range(count)
        ]

    def localize(self, exported: Callable[[str], bool]) -> bytes:
        tables = [number for number, section in enumerate(self.sections) if section.type == _SYMTAB]
        if len(tables) != 1 or any(section.type == _SYMTAB_INDICES for section in self.sections):
            raise BuildError("the linked file has too many sections or no symbols")
        new_index = self._sort_symbols(tables[0], exported)
        for number, section in enumerate(self.sections):
            if section.type in {_RELA, _REL} and section.link == tables[0]:
                shift, relocation = self.layout.index_shift, self.layout.relocation
                for position in range(section.offset, section.offset + section.size, section.entsize):
                    offset, info = struct.unpack_from(relocation, self.data, position)
                    kind = info & ((1 << shift) - 1)
                    struct.pack_into(relocation, self.data, position, offset, new_index[info >> shift] << shift | kind)
            elif section.type in {_GROUP, _ADDRESS_SIGNIFICANCE}:
                self._change(number, type=_NULL)
            elif section.flags & _IN_GROUP:
                self._change(number, flags=section.flags & ~_IN_GROUP)
        return bytes(self.data)

    def _change(self, number: int, **fields: int) -> None:
        self.sections[number] = replace(self.sections[number], **fields)
        offset = self.start + number * struct.calcsize(self.layout.section)
        struct.pack_into(self.layout.section, self.data, offset, *vars(self.sections[number]).values())

    def _sort_symbols(self, table: int, exported: Callable[[str], bool]) -> list[int]:
        """Sort local symbols first, as ELF requires; return the new index of each symbol."""
        info, other, index = self.layout.fields
        section, names = self.sections[table], self.sections[self.sections[table].link]
        packed = self.data[section.offset : section.offset + section.size]
        symbols = [list(symbol) for symbol in struct.iter_unpack(self.layout.symbol, packed)]
        for symbol in symbols:
            if symbol[info] >> 4 == _LOCAL or symbol[index] == _UNDEFINED:
                continue
            start = names.offset + symbol[0]
            name = self.data[start : self.data.index(0, start)].decode()
            if not exported(name):
                symbol[info], symbol[other] = symbol[info] & 15, 0
        order = sorted(range(len(symbols)), key=lambda number: symbols[number][info] >> 4 != _LOCAL)
        sorted_table = b"".join(struct.pack(self.layout.symbol, *symbols[number]) for number in order)
        self.data[section.offset : section.offset + section.size] = sorted_table
        self._change(table, info=sum(symbol[info] >> 4 == _LOCAL for symbol in symbols))
        new_index = [0] * len(order)
        for position, number in enumerate(order):
            new_index[number] = position
        return new_index
