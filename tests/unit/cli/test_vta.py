from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import int8_nets, paths
from tests.support.commands import toolchain
from tests.support.paths import ROOT
from toolchain import bundle
from toolchain.backends.vta.isa import Isa, Revision
from toolchain.backends.vta.isa.config import DEFAULT
from toolchain.backends.vta.isa.instructions import Alu, AluOp, Finish, Gemm, Load, Memory, Store, Tokens, Uop
from toolchain.backends.vta.isa.stream import UOPS, Buffer, Stream

DATA = paths.DATA / "vta"
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
CONFIG = ROOT / "toolchain" / "backends" / "vta" / "configs" / f"{DEFAULT.name}.json"


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


def done(*arguments: object) -> str:
    result = toolchain("vta", *arguments)
    assert result.code == 0, result.err
    return result.out


def failed(*arguments: object) -> str:
    result = toolchain("vta", *arguments)
    assert (result.code, result.out) == (2, "")
    return result.err


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
    listing = json.loads(done("disasm", kernel, "--json"))
    opcodes = [instruction["opcode"] for instruction in listing["instructions"]]
    assert opcodes == ["LOAD", "LOAD", "GEMM", "ALU", "STORE", "FINISH"]
    assert (listing["instructions"][4]["pops"], listing["instructions"][4]["buffer"]) == (["g2s"], "buffer 1 (OUT)")
    assert "uops" not in listing["instructions"][2]
    listing = json.loads(done("disasm", kernel, "--json", "--uops"))
    assert listing["instructions"][2]["uops"] == [{"index": 0, "uop": {"dst": 3, "src": 5, "wgt": 7}}]


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
    assert f"error: {path}: this is not a stream of VTA instructions" in err
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
    description = json.loads(done("isa", "--json"))
    assert list(description["instructions"]) == ["LOAD", "STORE", "GEMM", "FINISH", "ALU", "UOP"]
    fields = {field["name"]: field for field in description["instructions"]["ALU"]}
    assert fields["imm"] == {"name": "imm", "low": 112, "width": 16, "signed": True, "values": {}}
    assert fields["op"]["values"] == {"MIN": 0, "MAX": 1, "ADD": 2, "SHR": 3, "MUL": 4}


def test_an_unknown_revision():
    assert "2021-01" in failed("isa", "--revision", "2021-01")


# --- the kernels of a network ---


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("network") / "net.onnx"
    path.write_bytes(int8_nets.residual(16, 8).SerializeToString())
    return path


def test_kernels_of_a_network(network, tmp_path):
    report = json.loads(done("kernels", network, "-o", tmp_path / "streams", "--json"))
    kernels = report["kernels"]
    assert {kernel["name"] for kernel in kernels} >= {"conv3x3s1-2x2x16-16", "conv1x1s2-3x3x16-16"}
    for number, kernel in enumerate(kernels):
        path = tmp_path / "streams" / f"{number:02}-{kernel['name']}.vta"
        assert path.stat().st_size == kernel["bytes"]
        assert len(Stream.decode(path.read_bytes()).instructions) == kernel["instructions"]
        assert 0 < kernel["modelled"]["ideal"]["utilisation"] <= kernel["modelled"]["ideal"]["gops"] / 51.2 + 1e-3 <= 1
    calls = sum(kernel["calls"] * kernel["modelled"]["hls-pynq"]["cycles"] for kernel in kernels)
    assert report["modelled_ms"]["hls-pynq"] == pytest.approx(calls / 100e3)


def test_kernels_take_what_a_build_says(network, tmp_path):
    """Kernels that are tuned as one may take different times with the buffers of their network; both count those."""
    result = toolchain("build", network, "--board", "vta-sim", "-o", tmp_path / "bundle")
    assert result.code == 0, result.err
    modelled = bundle.load(tmp_path / "bundle").manifest.modelled
    milliseconds = json.loads(done("kernels", network, "--json"))["modelled_ms"]
    assert milliseconds[modelled.model] == pytest.approx(modelled.milliseconds)


def test_kernels_as_a_table_are_told_to_be_modelled(network, tmp_path):
    streams = tmp_path / "streams"
    text = done("kernels", network, "-o", streams)
    assert text.splitlines()[0].startswith("KERNEL")
    assert "(not tuned)" in text
    assert "cycles are modelled, not measured; a deploy reports those of the board's own profile\n" in text
    assert text.splitlines()[-1].startswith("pynq-z1: calibrated on published measurements of 2019: total ")
    assert "FINISH" in done("disasm", min(streams.iterdir()))


def test_kernels_of_a_record(network, tmp_path):
    records = tmp_path / "records.jsonl"
    tuned = toolchain("tune", network, "--board", "vta-sim", "--trials", "4", "--records", records, "--json")
    assert tuned.code == 0, tuned.err
    report = json.loads(done("kernels", network, "--records", records, "--json"))
    assert any(kernel["tuned"] for kernel in report["kernels"])


def test_kernels_for_a_board_without_vta(network):
    result = toolchain("vta", "kernels", network, "--board", "x86_64")
    assert (result.code, "board x86_64 has no VTA" in result.err) == (2, True)


def test_kernels_into_a_folder_that_cannot_be(network, tmp_path):
    (tmp_path / "file").write_text("")
    result = toolchain("vta", "kernels", network, "-o", tmp_path / "file" / "streams")
    assert (result.code, "cannot write" in result.err) == (2, True)


def test_only_the_streams_of_an_earlier_run_give_way(network, tmp_path):
    streams = tmp_path / "streams"
    streams.mkdir()
    (streams / "99-gone.vta").write_bytes(STREAM.encoded())
    done("kernels", network, "-o", streams)
    assert not (streams / "99-gone.vta").exists()
    before = {path.name: path.read_bytes() for path in streams.iterdir()}
    (streams / "00-mine.vta").write_text("notes")
    result = toolchain("vta", "kernels", network, "-o", streams)
    assert (result.code, "something other than the streams" in result.err) == (2, True)
    assert "00-mine.vta" in result.err
    assert "importing" not in result.err, "it is told first"
    (streams / "00-mine.vta").unlink()
    assert {path.name: path.read_bytes() for path in streams.iterdir()} == before
