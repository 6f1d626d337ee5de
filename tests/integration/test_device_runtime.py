"""The device programs of every triple: what each file asks of a device, and that it runs a model."""

from __future__ import annotations

import dataclasses
import json
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from safetensors.numpy import load_file

from tests.support import bundles
from tests.support.parts import require
from toolchain import board, tensors
from toolchain.architecture import TRIPLES
from toolchain.device import verification
from toolchain.native import elf
from toolchain.native import programs as device_runtime

SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
MOST_BYTES = 6_000_000


@dataclasses.dataclass(frozen=True)
class Kind:
    """A triple, the board file that stands for it, and how its programs run on another machine."""

    board: str
    machine: str
    elf_machine: str
    bits: int
    emulator: str = ""


KINDS = {
    "x86_64-linux-gnu": Kind("x86_64", "x86_64", "EM_X86_64", 64),
    "aarch64-linux-gnu": Kind("rpi4", "aarch64", "EM_AARCH64", 64, "qemu-aarch64-static"),
    "arm-linux-gnueabihf": Kind("pynq", "armv7l", "EM_ARM", 32, "qemu-arm-static"),
}


def test_every_triple_is_tested():
    assert {*KINDS, "riscv64-linux-gnu"} == set(TRIPLES), "test_riscv.py has the programs for RISC-V"


@pytest.fixture(scope="module", params=KINDS)
def made(request):
    """The programs of one triple; they come from the user's cache if they were built before."""
    machine = KINDS[request.param].machine
    return request.param, {name: device_runtime.build(name, request.param, machine) for name in device_runtime.PROGRAMS}


def launcher(triple: str) -> list[str]:
    """Say what a program of a triple is started with here."""
    kind = KINDS[triple]
    if kind.machine == platform.machine():
        return []
    require(kind.emulator, "qemu-user-static", shutil.which(kind.emulator) is not None)
    require(f"{triple}-g++", f"g++-{triple}", shutil.which(f"{triple}-g++") is not None)
    return [kind.emulator, "-L", f"/usr/{triple}"]


def needed_libraries(path: Path) -> set[str]:
    with path.open("rb") as stream:
        return {tag.needed for tag in ELFFile(stream).get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}


@pytest.mark.parametrize("name", ["runner", "board_server"])
def test_asks_for_an_old_c_library_and_nothing_else(made, name):
    triple, programs = made
    kind, path = KINDS[triple], programs[name].path
    with path.open("rb") as stream:
        file = ELFFile(stream)
        assert (file["e_machine"], file.elfclass, file["e_type"]) == (kind.elf_machine, kind.bits, "ET_DYN")
        names = {section.name for section in file.iter_sections()}
        tags = {tag.entry.d_tag for tag in file.get_section_by_name(".dynamic").iter_tags()}
    assert not names & {".symtab", ".debug_info", ".note.gnu.build-id"}
    assert not tags & {"DT_RPATH", "DT_RUNPATH"}
    assert elf.version_key(elf.minimum_glibc(path)) <= (2, 28)
    assert {library for library in needed_libraries(path) if not library.startswith("ld-linux")} <= SYSTEM
    assert path.stat().st_size <= MOST_BYTES
    assert str(Path.home()).encode() + b"/" not in path.read_bytes()
    assert b"site-packages" not in path.read_bytes()


@pytest.mark.parametrize("name", ["runner", "board_server"])
def test_says_what_its_record_says(made, name):
    triple, programs = made
    program = programs[name]
    completed = subprocess.run(
        [*launcher(triple), program.path, "--version"], capture_output=True, check=True, timeout=60
    )
    report = json.loads(completed.stdout)
    assert {key: report[key] for key in program.versions} == program.versions
    assert report["machine"] == program.machine


def test_runs_a_model(made, tmp_path):
    triple, programs = made
    start = launcher(triple)
    kind = board.load(KINDS[triple].board).resolved()
    bundle = bundles.build(tmp_path, rows=8, columns=4, kind=kind)
    samples = verification.samples_of(bundle)
    tensors.save(tmp_path / "inputs", samples.inputs)
    argv = [*start, programs["runner"].path, "--release", bundle.folder, "--inputs", tmp_path / "inputs"]
    argv += ["--outputs", tmp_path / "outputs", "--report", tmp_path / "report", "--max-runs", "5", "--threads", "2"]
    completed = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120)
    assert (completed.returncode, completed.stderr) == (0, "")
    np.testing.assert_allclose(load_file(tmp_path / "outputs")["y"], samples.expected["y"], rtol=1e-5)
