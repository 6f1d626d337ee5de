"""What a shared library or a program asks of the machine that loads it, read from its ELF headers."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from toolchain.errors import BuildError

# What a file begins with: magic, word size, byte order, version; type and machine stand after the system's.
_HEADER = struct.Struct("<4sBBB9xHH")
_RELOCATABLE = 1
_MACHINES = {"x86_64": (2, 62), "aarch64": (2, 183), "arm": (1, 40)}
_GLIBC = re.compile(r"^GLIBC_(\d+(?:\.\d+)+)$")


def minimum_glibc(path: Path) -> str:
    """Return the newest glibc version that a file's symbols name, such as `2.27`; empty if it names none.

    Raises:
        BuildError: The file is missing, damaged or not an ELF file.
    """
    try:
        with path.open("rb") as stream:
            versions = [version for name in _needed_versions(ELFFile(stream)) if (version := _GLIBC.match(name))]
    except (ELFError, OSError, ValueError) as fault:  # the last two from offsets that point nowhere
        raise BuildError(f"{path} is not a readable ELF file", details=str(fault)) from fault
    return max((match[1] for match in versions), key=version_key, default="")


def is_object(data: bytes, triple: str) -> bool:
    """Tell by its header whether something is a relocatable object file, such as a compiler makes, for a triple."""
    if len(data) < _HEADER.size:
        return False
    word_size, machine = _MACHINES.get(triple.partition("-")[0], (0, 0))
    return _HEADER.unpack_from(data) == (b"\x7fELF", word_size, 1, 1, _RELOCATABLE, machine)


def version_key(version: str) -> tuple[int, ...]:
    """Return a key that orders dotted versions by number."""
    return tuple(int(part) for part in version.split("."))


def _needed_versions(file: ELFFile) -> list[str]:
    sections = [section for section in file.iter_sections() if isinstance(section, GNUVerNeedSection)]
    return [auxiliary.name for section in sections for _, entries in section.iter_versions() for auxiliary in entries]
