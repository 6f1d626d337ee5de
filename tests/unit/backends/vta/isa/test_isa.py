from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolchain.backends.vta.isa import INSTRUCTION_BYTES, Isa, Revision
from toolchain.backends.vta.isa.config import VtaConfig
from toolchain.backends.vta.isa.fields import Field
from toolchain.backends.vta.isa.instructions import Alu, AluOp, Finish, Gemm, Load, Memory, Store, Tokens, Uop
from toolchain.errors import BuildError, InputError

OLD, NEW = Revision.V2020_07, Revision.V2020_12
CONFIGS = [
    VtaConfig(),
    VtaConfig(log_batch=1, log_block=5, log_uop_buff_size=14),
    VtaConfig(log_block=3, log_uop_buff_size=8, log_inp_buff_size=11, log_wgt_buff_size=16, log_acc_buff_size=14),
    VtaConfig(log_uop_buff_size=3, log_inp_buff_size=5, log_wgt_buff_size=9, log_acc_buff_size=7),
]
MACHINES = [Isa(config, revision) for config in CONFIGS for revision in Revision]
KINDS: dict[str, type[Any]] = {kind.__name__.upper(): kind for kind in (Load, Store, Gemm, Alu, Finish, Uop)}
TOKENS = {field.name for field in dataclasses.fields(Tokens)}

# Sums of value << bit, by the table of the hardware description.
GOLDEN = [
    (
        Load(Memory.INP, 0x123, 0x456789AB, 14, 56, 58, 1, 2, 3, 4, Tokens(pop_next=True, push_next=True)),
        "50470256 13cf8a00 0e003800 3a002143",
        "508d04ac 269e1501 0e003800 3a002143",
    ),
    (
        Store(Memory.OUT, 0x7FF, 0xFFFFFFFF, 1, 2, 3, Tokens(pop_prev=True, push_prev=True)),
        "29fe0ffe ffffff01 01000200 03000000",
        "29fe1ffc ffffff03 01000200 03000000",
    ),
    (
        Gemm(
            *(0x1ABC, 0x2000, 14, 0x3FFF, 0x7FF, 1, 0x400, 2, 0x3FF, 0x201),
            reset=True,
            tokens=Tokens(*4 * [True]),
        ),
        "fabc1a00 7400fe7f ff0f0000 05f07f80",
        "fabc1a00 7400fe7f ff0f0000 05f07f80",
    ),
    (
        Alu(AluOp.SHR, 5, 6, 1, 196, 0, 1, 2, 3, use_imm=True, imm=-8, tokens=Tokens(push_next=True)),
        "4405c000 08008801 00088000 0670fc7f",
        "4405c000 08008801 00088000 06b0f8ff",
    ),
    (
        Finish(Tokens(pop_prev=True)),
        "0b000000 00000000 00000000 00000000",
        "0b000000 00000000 00000000 00000000",
    ),
]


def isa_id(isa: Isa) -> str:
    return f"{isa.config.name}-{isa.revision.date}"


def least(kind: type[Any], **values: Any) -> Any:
    """Return the instruction of a kind that has only zeros but for some values."""
    field_values = {name: value for name, value in values.items() if name not in TOKENS}
    tokens = {name: value for name, value in values.items() if name in TOKENS}
    zeros: dict[str, Any] = {field.name: 0 for field in dataclasses.fields(kind)}
    zeros |= {"memory": Memory.OUT if kind is Store else Memory.INP} if kind in {Load, Store} else {}
    zeros |= {"op": AluOp.MIN} if kind is Alu else {}
    zeros |= {} if kind is Uop else {"tokens": Tokens(**tokens)}
    return kind(**zeros | field_values)


def encode(isa: Isa, value: Any) -> bytes:
    return isa.encode_uop(value) if isinstance(value, Uop) else isa.encode(value)


def decode(isa: Isa, kind: type[Any], data: bytes) -> Any:
    return isa.decode_uop(data) if kind is Uop else isa.decode(data)


def placed(isa: Isa) -> list[tuple[type[Any], Field]]:
    return [(KINDS[name], field) for name, fields in isa.fields().items() for field in fields if field.name != "opcode"]


def values(field: Field) -> st.SearchStrategy[Any]:
    if field.members:
        return st.sampled_from(field.members)
    return st.booleans() if field.kind is bool else st.integers(field.minimum, field.maximum)


@st.composite
def machines_and_instructions(draw: st.DrawFn) -> tuple[Isa, Any]:
    isa = draw(st.sampled_from(MACHINES))
    name = draw(st.sampled_from(sorted(KINDS)))
    fields = [field for field in isa.fields()[name] if field.name != "opcode"]
    return isa, least(KINDS[name], **{field.name: draw(values(field)) for field in fields})


# --- what is known of the encoding -----------------------------------------------------------------------------


@pytest.mark.parametrize(("instruction", "old", "new"), GOLDEN, ids=lambda instruction: type(instruction).__name__)
def test_golden_bytes(instruction, old, new):
    for revision, expected in ((OLD, old), (NEW, new)):
        data = bytes.fromhex(expected)
        assert Isa(revision=revision).encode(instruction) == data
        assert Isa(revision=revision).decode(data) == instruction


@pytest.mark.parametrize("revision", Revision)
def test_golden_uop(revision):
    data = bytes.fromhex("ff 0f 60 55")  # 0x7ff, 0x401 << 11, 0x155 << 22
    assert Isa(revision=revision).encode_uop(Uop(0x7FF, 0x401, 0x155)) == data
    assert Isa(revision=revision).decode_uop(data) == Uop(0x7FF, 0x401, 0x155)


def test_fields_follow_the_sizes_of_the_memories():
    fields = Isa(CONFIGS[1]).fields()
    positions = {name: {field.name: (field.low, field.width) for field in layout} for name, layout in fields.items()}
    assert list(positions["GEMM"].items())[5:] == [
        *[("reset", (7, 1)), ("uop_bgn", (8, 12)), ("uop_end", (20, 13)), ("iter_out", (33, 14))],
        *[("iter_in", (47, 14)), ("dst_factor_out", (64, 9)), ("dst_factor_in", (73, 9)), ("src_factor_out", (82, 9))],
        *[("src_factor_in", (91, 9)), ("wgt_factor_out", (100, 8)), ("wgt_factor_in", (108, 8))],
    ]
    assert {name: positions["ALU"][name] for name in ("op", "use_imm", "imm")} == {
        "op": (100, 3),
        "use_imm": (103, 1),
        "imm": (104, 16),
    }
    assert positions["UOP"] == {"dst": (0, 9), "src": (9, 9), "wgt": (18, 8)}
    assert positions["LOAD"]["dram_base"] == (26, 32)
    assert positions["LOAD"]["x_pad_1"] == (124, 4)


def test_alu_operands_were_counted_as_inputs():
    config = VtaConfig(log_inp_buff_size=13)
    widths = [{field.name: field.width for field in Isa(config, revision).fields()["ALU"]} for revision in (OLD, NEW)]
    assert [width["src_factor_in"] for width in widths] == [9, 11]


# --- there and back --------------------------------------------------------------------------------------------


@given(machines_and_instructions())
@settings(max_examples=400, deadline=None)
def test_a_round_trip(pair):
    isa, instruction = pair
    data = encode(isa, instruction)
    assert len(data) == (4 if isinstance(instruction, Uop) else INSTRUCTION_BYTES)
    assert decode(isa, type(instruction), data) == instruction


@given(st.sampled_from(MACHINES), st.binary(min_size=16, max_size=16))
@settings(deadline=None)
def test_what_can_be_decoded_is_encoded_as_it_was(isa, data):
    try:
        instruction = isa.decode(data)
    except InputError as fault:
        assert data.hex(" ") in fault.message  # noqa: PT017 - most bytes are no instruction
    else:
        assert isa.encode(instruction) == data


def test_several_are_encoded_one_after_another():
    isa = Isa()
    instructions = tuple(instruction for instruction, _old, _new in GOLDEN)
    data = isa.encode_all(instructions)
    assert data == b"".join(map(isa.encode, instructions))
    assert isa.decode_all(data) == instructions
    uops = (Uop(1, 2, 3), Uop(4, 5))
    assert isa.decode_uops(isa.encode_uops(uops)) == uops
    assert isa.encode_uops(uops) == b"".join(map(isa.encode_uop, uops))


def test_what_is_read_has_its_own_types():
    instruction = Isa().decode(Isa().encode(GOLDEN[3][0]))
    assert isinstance(instruction, Alu)
    assert (type(instruction.op), type(instruction.use_imm), type(instruction.imm)) == (AluOp, bool, int)
    assert type(instruction.tokens.push_next) is bool


def test_numbers_of_numpy():
    instruction = Load(Memory.INP, np.int32(1), np.int64(2**31), np.uint8(3), np.int16(4), np.int32(5))
    expected = Load(Memory.INP, 1, 2**31, 3, 4, 5)
    assert Isa().encode(instruction) == Isa().encode(expected)


def test_it_is_fast():
    isa = Isa()
    instructions = [instruction for instruction, _old, _new in GOLDEN[:4]] * 1000
    times = []
    for _ in range(5):
        begin = time.process_time()  # which other work on this machine does not add to
        isa.encode_all(instructions)
        times.append(time.process_time() - begin)
    assert min(times) < 0.12


# --- limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", MACHINES, ids=isa_id)
def test_fields_hold_their_limits(isa):
    for kind, field in placed(isa):
        if field.members:
            continue
        for value in (field.minimum, field.maximum):
            instruction = least(kind, **{field.name: field.kind(value)})
            assert decode(isa, kind, encode(isa, instruction)) == instruction


@pytest.mark.parametrize("isa", MACHINES, ids=isa_id)
def test_one_beyond_a_limit(isa):
    for kind, field in placed(isa):
        for value in () if field.members else (field.minimum - 1, field.maximum + 1):
            with pytest.raises(BuildError) as caught:
                encode(isa, least(kind, **{field.name: value}))
            expected = f"{kind.__name__.upper()}: {field.name} is {value}, but its field takes {field.minimum} to"
            assert caught.value.message == f"{expected} {field.maximum}"


@pytest.mark.parametrize(
    ("revision", "instruction", "message"),
    [
        (OLD, least(Alu, op=AluOp.MUL), "ALU: op is MUL, but its field takes MIN, MAX, ADD, SHR"),
        (OLD, least(Load, memory=Memory.OUT), "LOAD: memory is OUT, but its field takes UOP, WGT, INP, ACC"),
        (OLD, least(Store, memory=Memory.UOP), "STORE: memory is UOP, but its field takes WGT, INP, ACC, OUT"),
        (NEW, least(Load, memory=Memory.OUT), "LOAD: memory is OUT, but its field takes UOP, WGT, INP, ACC"),
        (NEW, least(Load, memory=5), "LOAD: memory is 5, but its field takes UOP, WGT, INP, ACC"),
    ],
)
def test_what_has_no_code(revision, instruction, message):
    with pytest.raises(BuildError) as caught:
        Isa(revision=revision).encode(instruction)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("config", "memory", "bits"),
    [
        (VtaConfig(log_uop_buff_size=16), "GEMM", 1),
        (VtaConfig(log_wgt_buff_size=19), "GEMM", 2),
        (VtaConfig(log_inp_buff_size=14, log_acc_buff_size=18), "ALU", 4),
        (VtaConfig(log_inp_buff_size=16, log_acc_buff_size=16, log_wgt_buff_size=19), "GEMM", 2),
    ],
)
def test_memories_too_large_for_their_fields(config, memory, bits):
    with pytest.raises(InputError, match=f"fields of {memory} need {bits} bit"):
        Isa(config)


# --- what is no instruction ------------------------------------------------------------------------------------


def refused(revision: Revision, bits: int) -> str:
    with pytest.raises(InputError) as caught:
        Isa(revision=revision).decode(bits.to_bytes(16, "little"))
    return caught.value.message


@pytest.mark.parametrize("revision", Revision)
@pytest.mark.parametrize("opcode", [5, 6, 7])
def test_an_unknown_opcode(revision, opcode):
    text = opcode.to_bytes(16, "little").hex(" ")
    assert refused(revision, opcode) == f"instruction 0, {text}, cannot be decoded: opcode {opcode} is unknown"


@pytest.mark.parametrize(("opcode", "memory"), [(0, 4), (0, 5), (0, 7), (1, 5), (1, 6), (1, 7)])
def test_an_unknown_memory(opcode, memory):
    assert f"{'STORE' if opcode else 'LOAD'}: memory {memory} is unknown" in refused(NEW, opcode | memory << 7)


@pytest.mark.parametrize("op", [5, 6, 7])
def test_an_unknown_alu_operation(op):
    assert f"ALU: op {op} is unknown" in refused(NEW, 4 | op << 108)


@pytest.mark.parametrize(
    ("revision", "opcode", "bits"),
    [
        (NEW, 0, range(58, 64)),
        (OLD, 0, range(57, 64)),
        (NEW, 1, [*range(58, 64), *range(112, 128)]),
        (OLD, 1, [*range(57, 64), *range(112, 128)]),
        (NEW, 2, [63]),
        (NEW, 3, range(7, 128)),
        (NEW, 4, [7, 63]),
        (OLD, 4, [7, 63, 127]),
    ],
)
def test_bits_that_mean_nothing(revision, opcode, bits):
    for bit in bits:
        assert f"does not use bit {bit}" in refused(revision, opcode | 1 << bit)


def test_uops_have_bits_that_mean_nothing_where_memories_are_small():
    with pytest.raises(InputError, match=r"micro-op 1, .*: UOP does not use bit 26"):
        Isa(CONFIGS[1]).decode_uops(bytes(4) + (1 << 26).to_bytes(4, "little"))


def test_the_place_of_a_fault_is_told():
    data = Isa().encode_all([Finish(), Finish()]) + b"\x07" + bytes(15)
    with pytest.raises(InputError, match=r"instruction 2, 07 00 .*opcode 7") as caught:
        Isa().decode_all(data)
    assert "--revision" in caught.value.hint


@pytest.mark.parametrize("size", [0, 1, 15, 17, 32])
def test_one_instruction_has_16_bytes(size):
    with pytest.raises(InputError, match=f"one instruction has 16 bytes, not {size}"):
        Isa().decode(bytes(size))


def test_one_uop_has_4_bytes():
    with pytest.raises(InputError, match="one micro-op has 4 bytes, not 3"):
        Isa().decode_uop(bytes(3))


def test_a_program_that_is_cut_off():
    with pytest.raises(InputError, match="instruction 2 is cut off after 3 of 16 bytes"):
        Isa().decode_all(bytes(35))
    with pytest.raises(InputError, match="micro-op 1 is cut off after 2 of 4 bytes"):
        Isa().decode_uops(bytes(6))
