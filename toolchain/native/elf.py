"""The requirements of a shared library or program, read from its ELF headers."""

from __future__ import annotations

import functools
import re
import struct
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.enums import ENUM_E_MACHINE
from elftools.elf.gnuversions import GNUVerNeedSection

from toolchain import architecture, resources
from toolchain.errors import BuildError

# A file's first bytes: magic, word size, byte order, version; type and machine follow the padding.
_HEADER = struct.Struct("<4sBBB9xHH")
_RELOCATABLE = 1
_WORD_SIZES = {32: 1, 64: 2}
# Symbols that belong to no version of a library, and those that are not exported.
_UNVERSIONED = {"VER_NDX_LOCAL", "VER_NDX_GLOBAL"}
# How names of libraries begin that musl's loader takes for musl itself: it has all of them.
_IN_MUSL = re.compile(r"lib(c|pthread|rt|m|dl|util|xnet)\..*")
_SYMBOL = re.compile(r"^(?:\.weak|\.globl|WEAK\w+) (\w+)", re.MULTILINE)
_GLIBC = re.compile(r"^GLIBC_(\d+(?:\.\d+)+)$")


def minimum_glibc(path: Path) -> str:
    """Return the newest glibc version that a file's symbols need, such as `2.27`; empty without any.

    Raises:
        BuildError: The file is missing, damaged or not an ELF file.
    """
    try:
        with path.open("rb") as stream:
            sections = [each for each in ELFFile(stream).iter_sections() if isinstance(each, GNUVerNeedSection)]
            symbols = [symbol for section in sections for _, entries in section.iter_versions() for symbol in entries]
            versions = [version for symbol in symbols if (version := _GLIBC.match(symbol.name))]
    except (ELFError, OSError, ValueError) as fault:  # OSError and ValueError also from bad offsets
        raise BuildError(f"{path} is not a readable ELF file", details=str(fault)) from fault
    return max((match[1] for match in versions), key=version_key, default="")


def foreign_to_musl(path: Path) -> list[str]:
    """Return what a library that was linked with glibc needs and musl lacks: names of libraries and of functions.

    musl takes `libc.so.6`, `libm.so.6` and the like for itself, and ignores the versions of symbols.

    Raises:
        BuildError: The file is missing, damaged or not an ELF file.
    """
    try:
        with path.open("rb") as stream:
            file = ELFFile(stream)
            tags = [tag for each in file.iter_sections("SHT_DYNAMIC") for tag in each.iter_tags("DT_NEEDED")]
            libraries = {tag.needed for tag in tags}
            functions = {
                symbol.name
                for versions in file.iter_sections("SHT_GNU_versym")
                for symbol, version in zip(
                    file.get_section(versions["sh_link"]).iter_symbols(), versions.iter_symbols(), strict=True
                )
                if symbol["st_shndx"] == "SHN_UNDEF" and version["ndx"] not in _UNVERSIONED
            }
    except (ELFError, OSError, ValueError) as fault:
        raise BuildError(f"{path} is not a readable ELF file", details=str(fault)) from fault
    foreign = {name for name in libraries if not _IN_MUSL.fullmatch(name)}
    return sorted(foreign) + sorted(functions - _musl_symbols())


@functools.cache
def _musl_symbols() -> frozenset[str]:
    """Return the names that musl has, from zig's description of it."""
    text = (resources.package_folder("ziglang") / "lib" / "libc" / "musl" / "libc.S").read_text(encoding="utf-8")
    return frozenset(_SYMBOL.findall(text))


def is_object(data: bytes, triple: str) -> bool:
    """Whether data begins like a relocatable object file for a triple."""
    if len(data) < _HEADER.size:
        return False
    expected = architecture.of_triple(triple)
    word_size, machine = _WORD_SIZES[expected.bits], ENUM_E_MACHINE[expected.elf_machine]
    return _HEADER.unpack_from(data) == (b"\x7fELF", word_size, 1, 1, _RELOCATABLE, machine)


def version_key(version: str) -> tuple[int, ...]:
    """Return a key that orders dotted versions by number."""
    return tuple(int(number) for number in version.split("."))
