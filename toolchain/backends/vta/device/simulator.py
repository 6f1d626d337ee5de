"""Run kernels on a simulated VTA, with the FPGA's results and errors, and a model of its cycles."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from toolchain.backends.vta.device import native
from toolchain.backends.vta.device.devices import Profile
from toolchain.backends.vta.isa import INSTRUCTION_BYTES, Isa, Revision
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.instructions import Load, Memory, Opcode, Store
from toolchain.backends.vta.isa.stream import UOPS, Stream
from toolchain.errors import InputError, VerificationError

Array = npt.NDArray[np.generic]

_ERROR_BYTES = 2048
_INSTRUCTIONS = 1 << 60  # a physical address that no instruction reaches
_FIRST_BUFFER = 1 << 28
_PAGE = 1 << 12


class Policy(IntEnum):
    """Which of the stages that could go on does so next: a program that lacks a token goes wrong under one of them."""

    TIMED = 0
    LOAD_FIRST = 1
    STORE_FIRST = 2
    RANDOM = 3


@dataclass(frozen=True)
class Statistics:
    """The counters of a run. Cycles and stalls are modelled, not measured, and 0 under every policy but TIMED.

    Attributes:
        cycles: Until the last stage ended.
        instructions: All of them.
        gemm_cycles: Cycles in which the compute stage executed GEMM.
        alu_cycles: The same for ALU.
        macs: Multiply-adds of GEMM, those that only reset left out.
        load_bytes: Bytes read from DRAM, the instructions themselves left out.
        store_bytes: Bytes written to DRAM.
        load_stalls: Cycles that the load stage waited for tokens.
        compute_stalls: The same for the compute stage.
        store_stalls: The same for the store stage.
        bus_stalls: Cycles that all stages together waited for the DMA bus.
        bus_cycles: Cycles that the bus was busy.
        loads: LOAD instructions.
        stores: STORE instructions.
        gemms: GEMM instructions.
        alus: ALU instructions.
        macs_per_cycle: Multiply-adds of a cycle at best.
    """

    cycles: int
    instructions: int
    gemm_cycles: int
    alu_cycles: int
    macs: int
    load_bytes: int
    store_bytes: int
    load_stalls: int
    compute_stalls: int
    store_stalls: int
    bus_stalls: int
    bus_cycles: int
    loads: int
    stores: int
    gemms: int
    alus: int
    macs_per_cycle: int

    @property
    def utilisation(self) -> float:
        """Share of the multipliers' work that was of use, 0 to 1; 0 where no cycles were counted."""
        return self.macs / (self.cycles * self.macs_per_cycle) if self.cycles else 0.0


_COUNTERS = fields(Statistics)[:-1]


class _Config(ctypes.Structure):
    _fields_ = [(size.name, ctypes.c_uint8) for size in fields(VtaConfig)]


class _Options(ctypes.Structure):
    _fields_ = [
        ("policy", ctypes.c_uint32),
        ("profile", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("compute", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("most_cycles", ctypes.c_uint64),
    ]


class _Statistics(ctypes.Structure):
    _fields_ = [(counter.name, ctypes.c_uint64) for counter in _COUNTERS]


class Simulator:
    """One machine. Its SRAM keeps the contents of earlier programs, as on the FPGA, until the next `run` or `reset`.

    Args:
        config: Its sizes.
        revision: The encoding of its instructions.
        most_steps: Steps of GEMM and ALU plus elements moved after which a run is ended; 0 for 2^30.

    Raises:
        BuildError: The library cannot be built.
        InputError: There is no such machine.
    """

    def __init__(
        self, config: VtaConfig = DEFAULT, revision: Revision = Revision.V2020_12, most_steps: int = 0
    ) -> None:
        self.config = config
        self.revision = revision
        self._most_steps = most_steps
        self._library = _functions()
        self._isa = Isa(config, revision)
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        self._handle = self._library.vta_simulator_create(
            _Config(*astuple(config)), revision.value, error, _ERROR_BYTES
        )
        if not self._handle:
            raise InputError(f"this VTA cannot be simulated: {error.value.decode()}")
        # The machine lives in the library: it is destroyed with this object.
        weakref.finalize(self, self._library.vta_simulator_destroy, self._handle)

    def reset(self) -> None:
        """Fill all SRAM with a pattern, so that what was never written does not look like zero."""
        self._library.vta_simulator_reset(self._handle)

    def run(
        self,
        stream: Stream,
        arrays: Sequence[Array],
        policy: Policy = Policy.TIMED,
        profile: Profile = Profile.HLS_PYNQ,
        seed: int = 0,
    ) -> Statistics:
        """Run a kernel, with SRAM that nothing was written to.

        Args:
            stream: The kernel, for this machine.
            arrays: Its arguments: C-contiguous, in the order of its buffers; those that it writes are changed.
            policy: The order of what may be in any order.
            profile: The model of cycles.
            seed: Of the policy RANDOM.

        Raises:
            InputError: The arrays are not those of the stream, or it is for another machine.
            VerificationError: The program does what the FPGA cannot, waits for ever, or takes too long.
        """
        self._check(stream)
        _check_arrays(stream, arrays)
        # Micro-ops are one more buffer in DRAM.
        uops = np.frombuffer(self._isa.encode_uops(stream.uops), np.uint8)
        addresses = _addresses([array.nbytes for array in (uops, *arrays)], self.config)
        physical = dict(zip((UOPS, *range(len(arrays))), addresses, strict=True))
        writable = [False, *(buffer.written for buffer in stream.buffers)]
        memory = list(zip(addresses, (uops, *arrays), writable, strict=True))
        # SRAM is filled with a pattern first, so a read of what was never written shows.
        self.reset()
        return self._run(self._relocate(stream, physical), memory, _Options(policy, profile, seed, 1))

    def run_raw(
        self,
        instructions: bytes,
        memory: Mapping[int, Array],
        policy: Policy = Policy.TIMED,
        profile: Profile = Profile.HLS_PYNQ,
        seed: int = 0,
    ) -> Statistics:
        """Run encoded instructions that hold physical addresses; SRAM keeps what it held.

        Args:
            instructions: 16 bytes each.
            memory: C-contiguous arrays by their physical address; those that may be written are changed.
            policy: The order of what may be in any order.
            profile: The model of cycles.
            seed: Of the policy RANDOM.

        Raises:
            InputError: An array is empty, overlaps another or is not C-contiguous.
            VerificationError: As in `run`.
        """
        arrays = [(physical, array, array.flags.writeable) for physical, array in memory.items()]
        return self._run(instructions, arrays, _Options(policy, profile, seed, 1))

    def cycles(self, stream: Stream, profile: Profile = Profile.HLS_PYNQ) -> Statistics:
        """Tell how long a kernel takes, without computing: neither its micro-ops nor its addresses are looked at.

        Raises:
            InputError: It is for another machine.
            VerificationError: As in `run`, for what does not depend on micro-ops and addresses.
        """
        self._check(stream)
        return self._run(self._isa.encode_all(stream.instructions), [], _Options(Policy.TIMED, profile, 0, 0))

    def _check(self, stream: Stream) -> None:
        if (stream.config, stream.revision) != (self.config, self.revision):
            machine, target = (f"{side.config.name} {side.revision.date}" for side in (self, stream))
            raise InputError(f"the kernel is for a VTA {target}, not for {machine}", hint="build it for this machine")

    def _relocate(self, stream: Stream, physical: Mapping[int, int]) -> bytes:
        """Encode the instructions with the buffers' addresses."""
        instructions = list(stream.instructions)
        encoded = bytearray(self._isa.encode_all(instructions))
        first = next(field.low for field in self._isa.fields()[Opcode.LOAD.name] if field.name == "dram_base")
        for index, buffer in stream.relocations:
            transfer = instructions[index]
            if not isinstance(transfer, Load | Store):
                raise InputError(f"instruction {index} has a relocation, but no address")
            base = physical[buffer] // self.config.element_bytes(transfer.memory)
            if transfer.dram_base + base >= 1 << 32:
                raise InputError(f"instruction {index}: element {transfer.dram_base} is outside of every buffer")
            # The address lies in the first half of an instruction, behind its lowest fields.
            half = slice(index * INSTRUCTION_BYTES, index * INSTRUCTION_BYTES + INSTRUCTION_BYTES // 2)
            encoded[half] = (int.from_bytes(encoded[half], "little") + (base << first)).to_bytes(8, "little")
        return bytes(encoded)

    def _run(self, instructions: bytes, memory: Sequence[tuple[int, Array, bool]], options: _Options) -> Statistics:
        options.most_cycles = self._most_steps
        profile = Profile(options.profile)
        if not profile.holds_for(self.config):
            raise InputError(
                f"the model {profile.label} was calibrated on arrays of 1 by 16, and this is {self.config.name}",
                hint=f"{Profile.HLS_PYNQ.label} follows from the design and works for any array",
            )
        program = np.frombuffer(instructions, np.uint8)
        try:
            for physical, array, writable in [(_INSTRUCTIONS, program, False), *memory]:
                if not array.flags.c_contiguous:
                    raise InputError(f"the array at {physical:#x} is not C-contiguous")
                if array.nbytes and self._library.vta_simulator_map(
                    self._handle, physical, array.ctypes.data, array.nbytes, writable
                ):
                    raise InputError(f"the array at {physical:#x} overlaps another or ends above 2^64")
            raw = _Statistics()
            error = ctypes.create_string_buffer(_ERROR_BYTES)
            if self._library.vta_simulator_run(
                self._handle,
                _INSTRUCTIONS,
                (len(instructions) // INSTRUCTION_BYTES),
                options,
                ctypes.byref(raw),
                error,
                _ERROR_BYTES,
            ):
                raise VerificationError(f"the simulated VTA stopped: {error.value.decode(errors='replace')}")
            counted = {counter.name: getattr(raw, counter.name) for counter in _COUNTERS}
            return Statistics(**counted, macs_per_cycle=self.config.batch * self.config.block**2)
        finally:
            self._library.vta_simulator_unmap_all(self._handle)


def instruction_text(config: VtaConfig, revision: Revision, data: bytes) -> tuple[str, bytes]:
    """Describe one encoded instruction as the simulator's messages do, and encode it again.

    Raises:
        InputError: The simulator refuses it.
    """
    text, error = (ctypes.create_string_buffer(_ERROR_BYTES) for _ in range(2))
    again = (ctypes.c_uint8 * INSTRUCTION_BYTES)()
    raw = (ctypes.c_uint8 * INSTRUCTION_BYTES).from_buffer_copy(data)
    if _functions().vta_instruction_text(
        _Config(*astuple(config)), revision.value, raw, text, _ERROR_BYTES, again, error, _ERROR_BYTES
    ):
        raise InputError(error.value.decode())
    return text.value.decode(), bytes(again)


def _check_arrays(stream: Stream, arrays: Sequence[Array]) -> None:
    if len(arrays) != len(stream.buffers):
        raise InputError(f"the kernel takes {len(stream.buffers)} arrays, not {len(arrays)}")
    for number, (array, buffer) in enumerate(zip(arrays, stream.buffers, strict=True)):
        size = buffer.elements * stream.config.element_bytes(Memory(buffer.memory))
        if array.nbytes != size:
            raise InputError(f"array {number} has {array.nbytes} bytes; its buffer has {size}")
        if buffer.written and not array.flags.writeable:
            raise InputError(f"the kernel writes array {number}, which is read-only")


def _addresses(sizes: Sequence[int], config: VtaConfig) -> list[int]:
    """Return physical addresses for buffers, with a page between two of them, so that no access runs into the next.

    They are multiples of each element's bytes, in which instructions count.
    """
    page = max(_PAGE, *(config.element_bytes(memory) for memory in Memory))
    addresses, free = [], _FIRST_BUFFER
    for size in sizes:
        addresses.append(free)
        free += (size + 2 * page - 1) // page * page
    return addresses


@lru_cache(maxsize=1)
def _functions() -> ctypes.CDLL:
    """Return the library with the types of its functions set."""
    library = native.loaded()
    handle, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    u32, u64, data = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
    config = ctypes.POINTER(_Config)
    library.vta_simulator_create.restype = handle
    library.vta_simulator_create.argtypes = [config, u32, text, size]
    library.vta_simulator_map.argtypes = [handle, u64, data, u64, ctypes.c_int]
    library.vta_simulator_run.argtypes = [
        handle, u64, u32, ctypes.POINTER(_Options), ctypes.POINTER(_Statistics), text, size
    ]  # fmt: skip
    for name in ("unmap_all", "reset", "destroy"):
        function = getattr(library, f"vta_simulator_{name}")
        function.restype, function.argtypes = None, [handle]
    library.vta_instruction_text.argtypes = [config, u32, data, text, size, data, text, size]
    return library
