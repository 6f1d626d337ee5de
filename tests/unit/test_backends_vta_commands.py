from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import toolchain
from toolchain.backends.vta import commands
from toolchain.backends.vta.config import DEFAULT
from toolchain.backends.vta.instructions import Alu, AluOp, Finish, Gemm, Load, Memory, Store, Tokens, Uop
from toolchain.backends.vta.isa import Isa, Revision
from toolchain.backends.vta.stream import UOPS, Buffer, Stream

DATA = Path(__file__).parents[1] / "data" / "vta"
PROGRAM = (
    Load(Memory.UOP, 0, 0, 1, 1, 1),
    Load(Memory.INP, 0, 2, 1, 4, 4, tokens=Tokens(push_next=True)),
    Gemm(0, 1, 1, 4, 0, 1, 0, 1, 0, 0, tokens=Tokens(pop_prev=True)),
    Alu(AluOp.SHR, 0, 1, 1, 4, 0, 1, 0, 1, use_imm=True, imm=8, tokens=Tokens(push_next=True)),
    Store(Memory.OUT, 0, 0, 1, 4, 4, tokens=Tokens(pop_prev=True)),
    Finish(),
)
BUFFERS = (Buffer(Memory.INP, written=False, elements=6), Buffer(Memory.OUT, written=True, elements=4))
STREAM = Stream(
    DEFAULT, Revision.V2020_12, BUFFERS, PROGRAM, uops=(Uop(3, 5, 7),), relocations=((0, UOPS), (1, 0), (4, 1))
)
CONFIG = Path(commands.__file__).parent / "configs" / f"{DEFAULT.name}.json"


@pytest.fixture
def kernel(tmp_path) -> Path:
    path = tmp_path / "kernel.stream"
    path.write_bytes(STREAM.encoded())
    return path


@pytest.fixture
def old(tmp_path) -> Path:
    path = tmp_path / "old.bin"
    path.write_bytes(Isa(revision=Revision.V2020_07).encode_all(PROGRAM))
    return path


def done(*words: object) -> str:
    seen = toolchain("vta", *words)
    assert seen.code == 0, seen.err
    return seen.out


def failed(*words: object) -> str:
    seen = toolchain("vta", *words)
    assert (seen.code, seen.out) == (2, "")
    return seen.err


# --- disasm ----------------------------------------------------------------------------------------------------


def test_a_stream_is_listed(kernel):
    out = done("disasm", kernel)
    assert out.splitlines()[0] == f"{DEFAULT.name}, revision 2020-12: 6 instructions, 1 micro-ops"
    assert "load     >l2g             LOAD INP   sram=0 from buffer 0 (INP) at 2, 1 x 4\n" in out
    assert "acc=3" not in out


def test_micro_ops_are_listed(kernel):
    out = done("disasm", kernel, "--uops")
    assert "uop 0: acc=3 inp=5 wgt=7" in out
    assert "uop 0: acc=3 operand=5 wgt=7" in out


def test_a_stream_as_json(kernel):
    found = json.loads(done("disasm", kernel, "--json"))
    assert [one["opcode"] for one in found["instructions"]] == ["LOAD", "LOAD", "GEMM", "ALU", "STORE", "FINISH"]
    assert (found["instructions"][4]["pops"], found["instructions"][4]["buffer"]) == (["g2s"], "buffer 1 (OUT)")
    assert "uops" not in found["instructions"][2]
    found = json.loads(done("disasm", kernel, "--json", "--uops"))
    assert found["instructions"][2]["uops"] == [{"index": 0, "uop": {"dst": 3, "src": 5, "wgt": 7}}]


def test_bare_instructions_are_listed(old):
    out = done("disasm", old, "--raw", "--revision", "2020-07")
    assert "STORE OUT  sram=0 to DRAM at 0, 1 x 4" in out
    assert out.startswith(f"{DEFAULT.name}, revision 2020-07: 6 instructions, 0 micro-ops")


def test_bare_instructions_of_another_machine(old):
    err = failed("disasm", old, "--raw")
    assert f"error: {old}: instruction 3, " in err
    assert "hint: check that --revision" in err


def test_a_truncated_stream():
    path = DATA / "truncated.stream"
    err = failed("disasm", path)
    assert f"error: {path}: this is no stream" in err
    assert "--raw" in err


def test_bare_instructions_that_are_cut_off(tmp_path):
    path = tmp_path / "cut.bin"
    path.write_bytes(Isa().encode_all(PROGRAM)[:-3])
    assert f"{path}: instruction 5 is cut off after 13 of 16 bytes" in failed("disasm", path, "--raw")


def test_a_missing_file(tmp_path):
    assert "cannot read" in failed("disasm", tmp_path / "kernel.stream")


def test_a_stream_names_its_machine_itself(kernel):
    assert done("disasm", kernel, "--config", CONFIG, "--revision", "2020-12") == done("disasm", kernel)
    expected = f"{kernel} is for {DEFAULT.name}, revision 2020-12"
    assert expected in failed("disasm", kernel, "--revision", "2020-07")


def test_a_faulty_configuration(kernel):
    err = failed("disasm", kernel, "--config", DATA / "configs" / "unknown-key.json")
    assert "did you mean LOG_UOP_BUFF_SIZE?" in err


# --- isa -------------------------------------------------------------------------------------------------------


def test_fields_are_shown():
    out = done("isa")
    assert out.startswith(f"{DEFAULT.name}, revision 2020-12\n")
    assert "  imm             112..127   16  -32768 to 32767\n" in out
    assert "  reset           7           1  0 to 1\n" in out
    assert "  memory          7..9        3  UOP 0, WGT 1, INP 2, ACC 3, OUT 4\n" in out


def test_fields_of_another_machine(tmp_path):
    path = tmp_path / "vta_config.json"
    path.write_text(CONFIG.read_text().replace('"LOG_BLOCK": 4', '"LOG_BLOCK": 5'))
    out = done("isa", "--config", path, "--revision", "2020-07")
    assert out.startswith("1x32_i8w8a32_15_15_18_17, revision 2020-07\n")
    assert "  memory          7..8        2  OUT 0, WGT 1, INP 2, ACC 3\n" in out
    assert "  wgt             20..27      8  0 to 255\n" in out


def test_fields_as_json():
    found = json.loads(done("isa", "--json"))
    assert list(found["instructions"]) == ["LOAD", "STORE", "GEMM", "FINISH", "ALU", "UOP"]
    fields = {one["name"]: one for one in found["instructions"]["ALU"]}
    assert fields["imm"] == {"name": "imm", "low": 112, "width": 16, "signed": True, "values": {}}
    assert fields["op"]["values"] == {"MIN": 0, "MAX": 1, "ADD": 2, "SHR": 3, "MUL": 4}


def test_an_unknown_revision():
    assert "2021-01" in failed("isa", "--revision", "2021-01")
