"""One relocatable object file whose inner symbols nobody else sees, so that it may be linked with any C++ library.

What `ld -r` makes of a library and of the C++ library that it is linked with still has all their global symbols: an
application with a C++ library of its own would take some from one and some from the other. They become local here, as
`objcopy --keep-global-symbol` makes them where there is one for the machine.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from toolchain.errors import BuildError

_IS_64, _LITTLE_ENDIAN, _RELOCATABLE = 2, b"\1", b"\1\0"
_NULL, _SYMTAB, _RELA, _REL, _GROUP, _SYMTAB_INDICES = 0, 2, 4, 9, 17, 18
_ADDRESS_SIGNIFICANCE = 0x6FFF4C03  # a hint of LLVM's, which counts symbols
_IN_GROUP = 0x200
_LOCAL, _UNDEFINED = 0, 0


@dataclass(frozen=True)
class _Layout:
    """How the structures of one word size are laid out.

    Attributes:
        shape: Where the header says its section headers' offset, and their number.
        section: Format of a section header.
        symbol: Format of a symbol, and the places of its info, other and section index.
        index_shift: How far the symbol's index is shifted in a relocation's info.
        word: Format of a relocation's offset and info.
    """

    shape: tuple[str, int, int]
    section: str
    symbol: str
    fields: tuple[int, int, int]
    index_shift: int
    word: str


_LAYOUTS = {
    True: _Layout(("<Q", 40, 60), "<IIQQQQIIQQ", "<IBBHQQ", (1, 2, 3), 32, "<QQ"),
    False: _Layout(("<I", 32, 48), "<IIIIIIIIII", "<IIIBBH", (3, 4, 5), 8, "<II"),
}


@dataclass(frozen=True)
class _Section:
    """A section header; the names are ELF's."""

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


def localized(data: bytes, exported: Callable[[str], bool]) -> bytes:
    """Make the symbols local that an object file defines.

    Args:
        data: A little-endian ELF object file, of 32 or 64 bits.
        exported: Says of a name whether it stays global.

    Returns:
        The object file; it has no groups of sections any more, of which a linker keeps one by its name.

    Raises:
        BuildError: It is no such file.
    """
    if data[:4] != b"\x7fELF" or (data[5:6], data[16:18]) != (_LITTLE_ENDIAN, _RELOCATABLE):
        raise BuildError("the linked file is not a relocatable object file")
    return _File(bytearray(data), _LAYOUTS[data[4] == _IS_64]).localized(exported)


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

    def localized(self, exported: Callable[[str], bool]) -> bytes:
        tables = [number for number, one in enumerate(self.sections) if one.type == _SYMTAB]
        if len(tables) != 1 or any(one.type == _SYMTAB_INDICES for one in self.sections):
            raise BuildError("the linked file has too many sections or no symbols")
        moved = self._sort_symbols(tables[0], exported)
        for number, one in enumerate(self.sections):
            if one.type in {_RELA, _REL} and one.link == tables[0]:
                self._renumber(one, moved)
            elif one.type in {_GROUP, _ADDRESS_SIGNIFICANCE}:
                self._change(number, type=_NULL)
            elif one.flags & _IN_GROUP:
                self._change(number, flags=one.flags & ~_IN_GROUP)
        return bytes(self.data)

    def _change(self, number: int, **fields: int) -> None:
        self.sections[number] = replace(self.sections[number], **fields)
        place = self.start + number * struct.calcsize(self.layout.section)
        struct.pack_into(self.layout.section, self.data, place, *vars(self.sections[number]).values())

    def _sort_symbols(self, table: int, exported: Callable[[str], bool]) -> list[int]:
        """Put local symbols first, as ELF wants it; return where each one went."""
        info, other, index = self.layout.fields
        section, names = self.sections[table], self.sections[self.sections[table].link]
        symbols = [list(one) for one in struct.iter_unpack(self.layout.symbol, self._bytes(section))]
        for symbol in symbols:
            if symbol[info] >> 4 == _LOCAL or symbol[index] == _UNDEFINED:
                continue
            start = names.offset + symbol[0]
            name = self.data[start : self.data.index(0, start)].decode()
            if not exported(name):
                symbol[info], symbol[other] = symbol[info] & 15, 0
        order = sorted(range(len(symbols)), key=lambda number: symbols[number][info] >> 4 != _LOCAL)
        packed = b"".join(struct.pack(self.layout.symbol, *symbols[number]) for number in order)
        self.data[section.offset : section.offset + section.size] = packed
        self._change(table, info=sum(symbol[info] >> 4 == _LOCAL for symbol in symbols))
        moved = [0] * len(order)
        for place, number in enumerate(order):
            moved[number] = place
        return moved

    def _renumber(self, section: _Section, moved: list[int]) -> None:
        shift, word = self.layout.index_shift, self.layout.word
        for place in range(section.offset, section.offset + section.size, section.entsize):
            offset, info = struct.unpack_from(word, self.data, place)
            kind = info & ((1 << shift) - 1)
            struct.pack_into(word, self.data, place, offset, moved[info >> shift] << shift | kind)

    def _bytes(self, section: _Section) -> bytes:
        return bytes(self.data[section.offset : section.offset + section.size])
