"""Makes symbols of a relocatable object file local, so that it can be linked with any C++ library.

The output of `ld -r` for a library and its C++ library keeps all their global symbols: an application with another C++
library would mix the two. `objcopy --keep-global-symbol` does the same, but is rarely installed for a board's machine.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from toolchain.errors import BuildError

_IS_64, _LITTLE_ENDIAN, _RELOCATABLE = 2, b"\1", b"\1\0"
_NULL, _SYMTAB, _RELA, _REL, _GROUP, _SYMTAB_INDICES = 0, 2, 4, 9, 17, 18
_ADDRESS_SIGNIFICANCE = 0x6FFF4C03  # LLVM's hint for its linker, which refers to symbols by index
_IN_GROUP = 0x200
_LOCAL, _UNDEFINED = 0, 0


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
