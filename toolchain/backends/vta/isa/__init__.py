"""The bits of instructions and micro-ops, for any configuration and for both revisions of the encoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from operator import attrgetter, index
from typing import Any

from toolchain.backends.vta.isa.config import DEFAULT, UOP_BYTES, VtaConfig
from toolchain.backends.vta.isa.fields import OPCODE, TOKENS, Field, of_opcodes, of_uops
from toolchain.backends.vta.isa.instructions import Alu, Finish, Gemm, Instruction, Load, Opcode, Store, Tokens, Uop
from toolchain.errors import BuildError, InputError

INSTRUCTION_BYTES = 16


class Revision(Enum):
    """Which encoding a machine has; streams hold the value."""

    V2020_07 = 1
    """The published bitstreams: 2 bits for memories and ALU operations, ALU operands as wide as INP elements."""
    V2020_12 = 2
    """The hardware description since 2020-12-11."""

    @property
    def date(self) -> str:
        """The month of it, such as `2020-12`: its name on command lines."""
        return self.name.removeprefix("V").replace("_", "-")


@dataclass(frozen=True)
class Isa:
    """How one machine encodes its instructions.

    Attributes:
        config: The machine's sizes.
        revision: Its encoding.

    Raises:
        InputError: The fields of such a machine's instructions do not fit.
    """

    config: VtaConfig = DEFAULT
    revision: Revision = Revision.V2020_12

    def __post_init__(self) -> None:
        _layouts(self.config, self.revision)
        _uop_layout(self.config)

    def encode(self, instruction: Instruction) -> bytes:
        """Return the 16 bytes of an instruction.

        Raises:
            BuildError: A value does not fit its field.
        """
        return self.encode_all([instruction])

    def encode_all(self, instructions: Iterable[Instruction]) -> bytes:
        """Return 16 bytes for each of several instructions.

        Raises:
            BuildError: A value does not fit its field.
        """
        return _encode(_layouts(self.config, self.revision), instructions, INSTRUCTION_BYTES)

    def decode(self, data: bytes) -> Instruction:
        """Decode the 16 bytes of an instruction.

        Raises:
            InputError: They are not a valid instruction: a code is unknown, or unused bits are set.
        """
        _check_size(data, INSTRUCTION_BYTES, "instruction")
        return self.decode_all(data)[0]

    def decode_all(self, data: bytes) -> tuple[Instruction, ...]:
        """Decode several instructions of 16 bytes each.

        Raises:
            InputError: One of them is not valid, or the last is cut off.
        """
        layouts = {layout.code: layout for layout in _layouts(self.config, self.revision).values()}
        instructions = []
        for number, raw in _split(data, INSTRUCTION_BYTES, "instruction"):
            opcode = raw[0] & OPCODE.mask
            if opcode not in layouts:
                raise _decode_error(raw, f"instruction {number}", f"opcode {opcode} is unknown")
            instructions.append(layouts[opcode].decode(raw, f"instruction {number}"))
        return tuple(instructions)

    def encode_uop(self, uop: Uop) -> bytes:
        """Return the 4 bytes of a micro-op.

        Raises:
            BuildError: A value does not fit its field.
        """
        return self.encode_uops([uop])

    def encode_uops(self, uops: Iterable[Uop]) -> bytes:
        """Return 4 bytes for each of several micro-ops.

        Raises:
            BuildError: A value does not fit its field.
        """
        return _encode({Uop: _uop_layout(self.config)}, uops, UOP_BYTES)

    def decode_uop(self, data: bytes) -> Uop:
        """Decode the 4 bytes of a micro-op.

        Raises:
            InputError: They are not a valid micro-op: unused bits are set.
        """
        _check_size(data, UOP_BYTES, "micro-op")
        return self.decode_uops(data)[0]

    def decode_uops(self, data: bytes) -> tuple[Uop, ...]:
        """Decode several micro-ops of 4 bytes each.

        Raises:
            InputError: One of them is not valid, or the last is cut off.
        """
        layout = _uop_layout(self.config)
        return tuple(layout.decode(raw, f"micro-op {number}") for number, raw in _split(data, UOP_BYTES, "micro-op"))

    def fields(self) -> dict[str, tuple[Field, ...]]:
        """Return the fields of each opcode and of micro-ops, the lowest bits first."""
        layouts = _layouts(self.config, self.revision)
        tables = {kind.__name__.upper(): (OPCODE, *layout.fields) for kind, layout in layouts.items()}
        return tables | {"UOP": _uop_layout(self.config).fields}


class _Layout:
    """The packing of one class of values, with tables that make it fast."""

    def __init__(self, kind: type[Any], fields: Iterable[Field], opcode: Opcode | None = None) -> None:
        self.kind = kind
        self.code = int(opcode or 0)
        self._has_tokens = opcode is not None
        self.fields = tuple(fields)
        self._own_fields = tuple(field for field in self.fields if field not in TOKENS)
        self._values = attrgetter(*(f"tokens.{field.name}" if field in TOKENS else field.name for field in self.fields))
        # Looked up once for a layout, as kernels have thousands of instructions.
        self._packing = [(field.low, field.minimum, field.maximum, field.mask, field.codes()) for field in self.fields]
        used = self.fields if opcode is None else (OPCODE, *self.fields)
        self._used = sum(field.mask << field.low for field in used)

    def encode(self, instruction: Any) -> int:
        word = self.code
        # index() turns numpy's integers, which would overflow, into Python's.
        for value, (low, minimum, maximum, mask, codes) in zip(
            map(index, self._values(instruction)), self._packing, strict=True
        ):
            code = codes.get(value, -1) if codes else value
            if not minimum <= code <= maximum:
                pairs = zip(self.fields, self._values(instruction), strict=True)
                field, wrong = next((field, number) for field, number in pairs if not field.takes(number))
                title = f"{self.kind.__name__.upper()}: {field.name} is {getattr(wrong, 'name', int(wrong))}"
                raise BuildError(f"{title}, but its field takes {field.allowed}", details=str(instruction))
            word |= (code & mask) << low
        return word

    def decode(self, raw: bytes, where: str) -> Any:
        word = int.from_bytes(raw, "little")
        if unused := word & ~self._used:
            bit = unused.bit_length() - 1
            raise _decode_error(raw, where, f"{self.kind.__name__.upper()} does not use bit {bit}")
        try:
            values = {field.name: field.read(word) for field in self._own_fields}
        except ValueError as fault:
            raise _decode_error(raw, where, f"{self.kind.__name__.upper()}: {fault}") from fault
        if self._has_tokens:
            values["tokens"] = Tokens(*(field.read(word) for field in TOKENS))
        return self.kind(**values)


def _encode(layouts: Mapping[type[Any], _Layout], values: Iterable[Any], size: int) -> bytes:
    return b"".join([layouts[type(value)].encode(value).to_bytes(size, "little") for value in values])


def _decode_error(raw: bytes, where: str, why: str) -> InputError:
    return InputError(
        f"{where}, {raw.hex(' ')}, cannot be decoded: {why}",
        hint="check that --revision and --config are those of the program",
    )


def _split(data: bytes, size: int, title: str) -> Iterator[tuple[int, bytes]]:
    if excess := len(data) % size:
        raise InputError(f"{title} {len(data) // size} is cut off after {excess} of {size} bytes")
    return ((start // size, data[start : start + size]) for start in range(0, len(data), size))


def _check_size(data: bytes, size: int, title: str) -> None:
    if len(data) != size:
        raise InputError(f"one {title} has {size} bytes, not {len(data)}")


@lru_cache
def _layouts(config: VtaConfig, revision: Revision) -> Mapping[type[Any], _Layout]:
    kinds = {Opcode.LOAD: Load, Opcode.STORE: Store, Opcode.GEMM: Gemm, Opcode.FINISH: Finish, Opcode.ALU: Alu}
    fields = of_opcodes(config, old=revision is Revision.V2020_07)
    return {kind: _Layout(kind, [*TOKENS, *fields[opcode]], opcode) for opcode, kind in kinds.items()}


@lru_cache
def _uop_layout(config: VtaConfig) -> _Layout:
    return _Layout(Uop, of_uops(config))
