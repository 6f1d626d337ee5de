"""The configuration of a VTA machine: the sizes that its designer chose, as powers of two."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain import files
from toolchain.backends.vta.isa.instructions import Memory
from toolchain.errors import InputError, did_you_mean

UOP_BYTES = 4

_LOG_BYTE = 3  # of its bits
MOST_LOG = 24  # of an SRAM's bytes: 16 MiB


@dataclass(frozen=True)
class VtaConfig:
    """The log2 of each size; the defaults are those of the published bitstreams.

    Attributes:
        log_inp_width: Bits of an input value, and of a stored result.
        log_wgt_width: Bits of a weight.
        log_acc_width: Bits of a sum.
        log_batch: Rows of a tile of inputs.
        log_block: Columns of a tile of inputs; both sides of a tile of weights.
        log_uop_buff_size: Bytes of the SRAM of micro-ops.
        log_inp_buff_size: Bytes of the SRAM of inputs.
        log_wgt_buff_size: Bytes of the SRAM of weights.
        log_acc_buff_size: Bytes of the SRAM of sums.

    Raises:
        InputError: There is no such machine.
    """

    log_inp_width: int = 3
    log_wgt_width: int = 3
    log_acc_width: int = 5
    log_batch: int = 0
    log_block: int = 4
    log_uop_buff_size: int = 15
    log_inp_buff_size: int = 15
    log_wgt_buff_size: int = 18
    log_acc_buff_size: int = 17

    def __post_init__(self) -> None:
        self._check({"log_inp_width": (3, 3), "log_wgt_width": (3, 3), "log_acc_width": (5, 5)})
        self._check({"log_batch": (0, 6), "log_block": (1, 6)})
        memories = (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC)
        self._check({_size_of(memory): (self._log_element_bytes(memory) + 1, MOST_LOG) for memory in memories})

    def _check(self, limits: dict[str, tuple[int, int]]) -> None:
        for field, (low, high) in limits.items():
            value = getattr(self, field)
            if not low <= value <= high:
                allowed = f"{low} to {high}" if high > low else str(low)
                raise InputError(
                    f"{field.upper()} is {value}, which is not possible for a VTA",
                    hint=f"{field.upper()} may be {allowed} with the current other values",
                )

    @property
    def batch(self) -> int:
        return 1 << self.log_batch

    @property
    def block(self) -> int:
        return 1 << self.log_block

    @property
    def log_out_buff_size(self) -> int:
        """Log2 of the bytes of the SRAM of results, which has as many elements as that of sums."""
        return self.log_acc_buff_size + self.log_inp_width - self.log_acc_width

    @property
    def uop_depth(self) -> int:
        return self.depth(Memory.UOP)

    @property
    def inp_depth(self) -> int:
        return self.depth(Memory.INP)

    @property
    def wgt_depth(self) -> int:
        return self.depth(Memory.WGT)

    @property
    def acc_depth(self) -> int:
        return self.depth(Memory.ACC)

    @property
    def out_depth(self) -> int:
        return self.depth(Memory.OUT)

    @property
    def name(self) -> str:
        """Name of the configuration's bitstream, such as `1x16_i8w8a32_15_15_18_17`."""
        widths = f"i{1 << self.log_inp_width}w{1 << self.log_wgt_width}a{1 << self.log_acc_width}"
        sizes = (self.log_uop_buff_size, self.log_inp_buff_size, self.log_wgt_buff_size, self.log_acc_buff_size)
        return "_".join([f"{self.batch}x{self.block}", widths, *map(str, sizes)])

    def document(self) -> dict[str, int]:
        """Return it as a vta_config.json has it."""
        return {key: getattr(self, key.lower()) for key in KEYS}

    def log_depth(self, memory: Memory) -> int:
        """Return log2 of the elements of an SRAM."""
        size: int = getattr(self, _size_of(memory))
        return size - self._log_element_bytes(memory)

    def depth(self, memory: Memory) -> int:
        """Return the elements of an SRAM."""
        return 1 << self.log_depth(memory)

    def element_bytes(self, memory: Memory) -> int:
        """Return the bytes of one element of an SRAM: of a tile, or of a micro-op."""
        return 1 << self._log_element_bytes(memory)

    def _log_element_bytes(self, memory: Memory) -> int:
        if memory == Memory.UOP:
            return UOP_BYTES.bit_length() - 1
        # Weights are square tiles; inputs, sums and results have a row for each image.
        rows = self.log_block if memory == Memory.WGT else self.log_batch
        widths = {Memory.WGT: self.log_wgt_width, Memory.ACC: self.log_acc_width}
        return rows + self.log_block + widths.get(memory, self.log_inp_width) - _LOG_BYTE


def _size_of(memory: Memory) -> str:
    return f"log_{memory.name.lower()}_buff_size"


DEFAULT = VtaConfig()

KEYS = tuple(field.name.upper() for field in dataclasses.fields(VtaConfig))
"""The keys that a configuration file must have; FOLLOWS and TEXTS are optional."""

FOLLOWS = {
    "LOG_OUT_WIDTH": "log_inp_width",
    "LOG_BLOCK_IN": "log_block",
    "LOG_BLOCK_OUT": "log_block",
    "LOG_OUT_BUFF_SIZE": "log_out_buff_size",
}
"""Keys that a file may have as well, whose value follows from the others."""

TEXTS = ("TARGET", "HW_VER")


def load(path: Path) -> VtaConfig:
    """Read a vta_config.json.

    Raises:
        InputError: It cannot be read, or it describes no machine.
    """
    table = _read_table(path)
    _check_keys(table, path)
    try:
        config = VtaConfig(**{key.lower(): _integer(table, key) for key in KEYS})
        for key, field in FOLLOWS.items():
            _check_follows(table, key, getattr(config, field))
    except InputError as fault:
        raise InputError(f"{path}: {fault.message}", hint=fault.hint) from fault
    return config


def _read_table(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(files.read_limited(path))
    except OSError as fault:
        raise InputError(f"cannot read {path}: {fault.strerror or fault}") from fault
    except ValueError as fault:
        raise InputError(f"{path} is not JSON", details=str(fault)) from fault
    if not isinstance(table, dict):
        raise InputError(f"{path} is not a JSON object", hint=f"it needs the keys {', '.join(KEYS)}")
    return table


def _check_keys(table: dict[str, Any], path: Path) -> None:
    allowed = (*KEYS, *FOLLOWS, *TEXTS)
    unknown = [key for key in table if key not in allowed]
    if unknown:
        raise InputError(
            f"{path} has the unknown key {unknown[0]}",
            hint=did_you_mean(unknown[0], allowed) or f"known keys: {', '.join(allowed)}",
        )
    missing = [key for key in KEYS if key not in table]
    if missing:
        key = missing[0]
        raise InputError(
            f"{path} lacks {', '.join(missing)}",
            hint=f'in the default configuration: "{key}": {getattr(DEFAULT, key.lower())}',
        )


def _integer(table: dict[str, Any], key: str) -> int:
    value = table[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{key} is {json.dumps(value)}, not a whole number", hint="values are powers of two: 4 for 16")
    return value


def _check_follows(table: dict[str, Any], key: str, value: int) -> None:
    if key in table and _integer(table, key) != value:
        raise InputError(
            f"{key} is {table[key]}, but the other values make it {value}", hint=f"leave {key} out, or write {value}"
        )
