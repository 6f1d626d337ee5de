"""How many instructions networks take on Arm, counted under QEMU: our build against what TVM makes without schedules.

The program is the runner that goes to a board. It runs a network once, and in a second process twice; the difference
is what one inference executes, without loading and starting.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import _qemu
import tvm
from tvm import relax

from tests.support import bundles
from toolchain import bundle, tensors
from toolchain.backends import backend_of
from toolchain.board import Board
from toolchain.bundle import Bundle
from toolchain.compile.executable import lift_constants
from toolchain.compile.request import BuildRequest
from toolchain.models import importer, inputs, source
from toolchain.models.request import Model
from toolchain.native import cross
from toolchain.pipeline.source import BundleSource


@dataclass(frozen=True)
class Emulator:
    """QEMU's user mode for one kind of machine.

    Attributes:
        program: Name of the program.
        multiply_add: Mask and value of the encodings of multiply-adds on vectors of four floats.
        multiply: Those of products alone.
    """

    program: str
    multiply_add: tuple[tuple[int, int], ...]
    multiply: tuple[tuple[int, int], ...]


# Arm Architecture Reference Manual: A-profile (DDI 0487) C7.2, FMLA and FMUL, and F6.1, VMLA, VFMA and VMUL; vector by
# vector, and by element.
EMULATORS = {
    "aarch64": Emulator(
        "qemu-aarch64",
        multiply_add=((0xFFE0FC00, 0x4E20CC00), (0xFFC0F400, 0x4F801000)),
        multiply=((0xFFE0FC00, 0x6E20DC00), (0xFFC0F400, 0x4F809000)),
    ),
    "armv7l": Emulator(
        "qemu-arm",
        multiply_add=((0xFFB00F50, 0xF2000D50), (0xFFB00F50, 0xF2000C50), (0xFFB00F50, 0xF3A00140)),
        multiply=((0xFFB00F50, 0xF3000D50), (0xFFB00F50, 0xF3A00940)),
    ),
}
"""By what `uname -m` says."""


@dataclass(frozen=True)
class Count:
    """What one inference executes.

    Attributes:
        board: Board type.
        network: What was run.
        build: `ours`, or `TVM` for the same network without any schedule.
        instructions: All instructions.
        multiply_adds: Those that add a product to a sum, on vectors of four floats.
        multiplies: Products of vectors of four floats that another instruction has to add.
        difference: Largest difference from ONNX Runtime's outputs, over the largest of these.
    """

    board: str
    network: str
    build: str
    instructions: int
    multiply_adds: int
    multiplies: int
    difference: float

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"method": "emulated", **asdict(self)}


def find(machine: str, folder: Path | None) -> Path:
    """Return the emulator of a machine."""
    return _qemu.find(EMULATORS[machine].program, folder)


def counts(kind: Board, name: str, emulator: Path) -> Iterator[Count]:
    """Build a network in both ways and count what an inference executes."""
    with tempfile.TemporaryDirectory(prefix="toolchain-") as scratch:
        work = Path(scratch)
        tool = _qemu.Emulator(emulator, _qemu.plugin(work))
        request = BuildRequest(Model(name, {}, inputs.Source()), kind, toolchain="host", tuned=False)
        ours = BundleSource(request).build(work / "ours")
        for build, made in (("ours", ours), ("TVM", _unscheduled(kind, name, ours, work / "plain"))):
            (first, _), (both, difference) = (_run(made, kind, tool, timed) for timed in (0, 1))
            found = {key: both[key] - first[key] for key in first}
            yield Count(kind.name, name, build, found["all"], found["multiply_add"], found["multiply"], difference)


def _unscheduled(kind: Board, name: str, ours: Bundle, folder: Path) -> Bundle:
    """Build a network as TVM does by itself, but with weights as arguments, as in our bundle."""
    transform, target = relax.transform, backend_of(kind).target
    steps = [transform.DecomposeOpsForInference(), transform.CanonicalizeBindings(), transform.FoldConstant()]
    with target:
        module = tvm.transform.Sequential([*steps, relax.get_pipeline("zero")])(
            importer.import_model(source.load(name)).module
        )
    compiled = lift_constants(module)
    linker = cross.choose(kind, "host")

    def link(output: str, objects: Sequence[str], **_: Any) -> None:
        linker.link(Path(output), [Path(item) for item in objects])

    library = folder.with_suffix(".so")
    tvm.compile(compiled.module, target=target).export_library(str(library), fcompile=link)
    contents = {bundle.LIBRARY: library.read_bytes(), bundle.PARAMS: tensors.encode_aligned(compiled.params)}
    return bundles.variant(ours, folder, contents, params_order=tuple(compiled.params))


def _run(made: Bundle, kind: Board, tool: _qemu.Emulator, timed: int) -> tuple[dict[str, int], float]:
    """Run a network once and `timed` times more; return the counts, and how far its outputs are off."""
    own = EMULATORS[kind.machine]
    ran = tool.run(made, kind, [_option(word, getattr(own, word)) for word in ("multiply_add", "multiply")], timed)
    found = {word: int(number) for word, number in re.findall(r"^(\w+) (\d+)$", ran.counted, re.MULTILINE)}
    return found, ran.difference


def _option(word: str, patterns: Sequence[tuple[int, int]]) -> str:
    return f"{word}=" + "+".join(f"{mask:x}:{value:x}" for mask, value in patterns)


def table(found: Sequence[Count]) -> list[tuple[str, ...]]:
    """Return the figures as rows of words, with heads."""
    lines = [("board", "network", "build", "million", "FMA share", "TVM's/ours", "difference")]
    base = {(one.board, one.network): one.instructions for one in found if one.build == "ours"}
    for one in found:
        share, ratio = one.multiply_adds / one.instructions, one.instructions / base[one.board, one.network]
        millions = f"{one.instructions / 1e6:.1f}"
        words = (f"{share:.0%}", f"{ratio:.1f}x" if one.build != "ours" else "", f"{one.difference:.1e}")
        lines.append((one.board, one.network, one.build, millions, *words))
    return lines
