from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
import tvm
from tvm import te

from toolchain.backends.vta.codegen.kernels import buffers
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.codegen.lowering import lower
from toolchain.backends.vta.codegen.operators import schedule_kernel
from toolchain.backends.vta.codegen.tilings import Choice, Tiling
from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.instructions import Alu, AluOp, Gemm, Instruction, Load, Memory, Store
from toolchain.backends.vta.isa.stream import Stream
from toolchain.errors import BuildError

PLAIN = Conv2d(1, 8, 6, 64, 32, (3, 3), padding=(1, 1, 1, 1), shift=8, bias=False)
FULL = replace(PLAIN, bias=True, residual_shift=9, shift=20, low=0, high=100)
WHOLE = Choice(1, 8, 6, 4, 2)


def stream(layer: Conv2d, choice: Choice, config: VtaConfig = DEFAULT) -> Stream:
    module = schedule_kernel(layer, choice).mod
    return lower(module, buffers(layer), choice.slots(), config, Revision.V2020_12)


def loads(code: Stream, memory: Memory, buffer: int | None = None) -> list[Load]:
    relocations = dict(code.relocations)
    return [
        instruction
        for index, instruction in enumerate(code.instructions)
        if isinstance(instruction, Load)
        and instruction.memory is memory
        and instruction.x_size
        and buffer in {None, relocations[index]}
    ]


def kind(instruction: Instruction) -> str:
    if isinstance(instruction, Alu):
        return instruction.op.name
    if isinstance(instruction, Load):
        return f"LOAD {instruction.memory.name}"
    return "RESET" if isinstance(instruction, Gemm) and instruction.reset else type(instruction).__name__.upper()


def computed(code: Stream) -> list[str]:
    """Name what the machine does, but not its loads."""
    return [name for instruction in code.instructions if not (name := kind(instruction)).startswith("LOAD")]


def test_a_plain_tile():
    code = stream(PLAIN, WHOLE)
    assert computed(code) == ["RESET", "GEMM", "SHR", "MAX", "MIN", "STORE", "FINISH"]


def test_sums_start_from_the_residual():
    code = stream(FULL, WHOLE)
    *_, finish = names = computed(code)
    assert names == ["RESET", "GEMM", "SHR", "GEMM", "ADD", "SHR", "SHR", "MAX", "MIN", "STORE", finish]
    alus = [instruction for instruction in code.instructions if isinstance(instruction, Alu)]
    assert [alu.imm for alu in alus if alu.use_imm] == [-3, 15, 5, 0, 100]
    assert [alu.op for alu in alus if not alu.use_imm] == [AluOp.ADD]


def test_one_reset_for_all_parts_of_a_sum():
    assert computed(stream(PLAIN, Choice(1, 8, 6, 1, 2))).count("RESET") == 1
    assert computed(stream(PLAIN, Choice(1, 8, 6, 1, 2))).count("GEMM") == 4


@pytest.mark.parametrize(
    "choice",
    [
        WHOLE,
        Choice(1, 2, 6, 4, 2, 1, 2),
        Choice(1, 2, 6, 4, 1, 2, 2),
        Choice(1, 2, 3, 2, 1, 2, 2),
        Choice(1, 8, 6, 2, 1, 2, 2),
        Choice(1, 4, 3, 1, 2, 1, 1),
    ],
)
def test_as_many_loads_as_estimated(choice):
    code, tiling = stream(PLAIN, choice), Tiling(PLAIN, choice)
    windows, weights = tiling.loads()
    assert len(loads(code, Memory.INP)) == windows * choice.tile_ci
    assert len(loads(code, Memory.WGT)) == weights


def test_bias_is_loaded_once_for_each_channel_tile():
    code = stream(replace(PLAIN, bias=True), Choice(1, 2, 3, 4, 1, 1, 2))
    assert [load.dram_base for load in loads(code, Memory.ACC)] == [0, 1]


def test_the_identity_is_loaded_once():
    assert len(loads(stream(FULL, Choice(1, 2, 3, 4, 1)), Memory.WGT, 4)) == 1


@pytest.mark.parametrize("slots", [1, 2])
def test_slots_take_turns(slots):
    choice = Choice(1, 2, 6, 4, 2, 1, slots)
    code = stream(PLAIN, choice)
    window = Tiling(PLAIN, choice).window + 1
    first = [load.sram_base for load in loads(code, Memory.INP)][:: choice.tile_ci]
    assert first == [window * (tile % slots) for tile in range(4)]
    stored = [store.sram_base for store in code.instructions if isinstance(store, Store)]
    assert stored == [2 * 2 * 6 * (tile % slots) for tile in range(4)]


def test_one_sum_takes_the_room_of_four():
    stored = [store.sram_base for store in stream(PLAIN, Choice(h_threads=2)).instructions if isinstance(store, Store)]
    assert stored[:3] == [0, 4, 0]


def test_padding():
    code = loads(stream(PLAIN, Choice(1, 4, 6, 4, 2)), Memory.INP)
    pads = [(load.y_pad_0, load.y_pad_1, load.x_pad_0, load.x_pad_1, load.y_size, load.x_size) for load in code]
    assert pads == 4 * [(1, 0, 1, 1, 5, 6)] + 4 * [(0, 1, 1, 1, 5, 6)]


def test_rows_that_no_output_needs_are_not_loaded():
    layer = Conv2d(1, 8, 6, 16, 16, stride=(2, 2), shift=8)
    (load,) = loads(stream(layer, Choice(1, 4, 3, 1, 1)), Memory.INP)
    assert (load.y_size, load.x_size, load.x_stride) == (4, 5, 12)


def test_the_last_to_write_a_result_is_an_alu_operation():
    for choice in (WHOLE, Choice(), Choice(1, 2, 3, 2, 1, 2, 2)):
        names = computed(stream(PLAIN, choice))
        before = {names[index - 1] for index, name in enumerate(names) if name == "STORE"}
        assert before <= {"MIN", "STORE"}


def test_relocations():
    code = stream(FULL, Choice(1, 4, 6, 2, 2))
    moving = [
        index
        for index, instruction in enumerate(code.instructions)
        if isinstance(instruction, Load | Store) and instruction.x_size * instruction.y_size
    ]
    assert [index for index, _ in code.relocations] == moving
    stored = [buffer for index, buffer in code.relocations if isinstance(code.instructions[index], Store)]
    assert set(stored) == {5}


def test_steps_are_those_of_the_layer():
    code = stream(PLAIN, Choice(1, 2, 3, 2, 1, 2, 2))
    gemms = [gemm for gemm in code.instructions if isinstance(gemm, Gemm) and not gemm.reset]
    steps = sum((gemm.uop_end - gemm.uop_bgn) * gemm.iter_out * gemm.iter_in for gemm in gemms)
    assert steps * 256 == PLAIN.macs()


@pytest.mark.parametrize(
    ("field", "name"), [("log_inp_buff_size", "INP"), ("log_wgt_buff_size", "WGT"), ("log_acc_buff_size", "ACC")]
)
def test_tiles_that_do_not_fit(field, name):
    with pytest.raises(BuildError, match=f"fit in {name}") as caught:
        stream(PLAIN, WHOLE, VtaConfig(**{field: 9}))
    assert "are needed" in caught.value.details
    assert caught.value.hint


def test_a_block_that_no_instruction_computes():
    x = te.placeholder((4, 16), "int8", name="x")
    inside = te.compute((4, 16), x, name="inside")
    y = te.compute((4, 16), lambda *indices: inside(*indices) // tvm.tirx.const(3, "int8"), name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    schedule.set_scope("inside", 0, "local.inp_buffer")
    with pytest.raises(BuildError, match="VTA cannot"):
        lower(schedule.mod, (), Choice().slots(), DEFAULT, Revision.V2020_12)


def test_buffers_are_as_large_as_their_tensors():
    code = stream(FULL, WHOLE)
    sizes = [prod(shape) for shape, _ in FULL.arguments()]
    lanes = [256 if buffer.memory is Memory.WGT else 16 for buffer in code.buffers]
    assert [buffer.elements * lane for buffer, lane in zip(code.buffers, lanes, strict=True)] == sizes
    assert [buffer.written for buffer in code.buffers] == [False] * 5 + [True]
