"""How far a network in half precision is from its reference, before there is a device: this machine computes it."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.target import codegen

from toolchain import tensors
from toolchain.bundle import Reference
from toolchain.bundle.manifest import HalfOutput, InHalf
from toolchain.compile.constants import ENTRY
from toolchain.compile.request import BuildRequest
from toolchain.errors import InputError
from toolchain.models import inputs
from toolchain.models.importer import ImportedModel
from toolchain.progress import stage
from toolchain.tensors import Tensors


def in_half(
    finished: tvm.IRModule, imported: ImportedModel, request: BuildRequest, reference: Reference | None
) -> InHalf | None:
    """Compute a network as the board will round it, and compare that with the reference.

    Args:
        finished: Its scheduled kernels, with their weights as constants.
        imported: The model.
        request: For which board; it is told what was found.
        reference: What to compare with, and for which inputs.

    Returns:
        What was found; None where the board computes in single precision, or where there is no reference.
    """
    if reference is None or not request.board.target.float16:
        return None
    request.tell(stage("computing in half precision on this machine"))
    given = _given(request.model.given)
    try:
        outputs = _outputs(request.backend.on_cpu(finished), imported, reference.inputs)
    except InputError as fault:
        found = InHalf(reference.runtime, given, (), fault.message)
    else:
        each = [_compared(name, outputs[name], wanted, reference) for name, wanted in reference.outputs.items()]
        found = InHalf(reference.runtime, given, tuple(each))
    for line in found.lines():
        request.tell(line)
    return found


def _given(given: inputs.Source) -> str:
    """Say what a network is run with."""
    named = given.image or given.npz
    return named.name if named else f"random numbers of seed {given.seed}"


def _outputs(module: tvm.IRModule, imported: ImportedModel, fed: Tensors) -> Tensors:
    target = tvm.target.Target({"kind": "llvm", "mcpu": str(codegen.llvm_get_system_cpu())})
    machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
    given = [tvm.runtime.tensor(fed[one.name]) for one in imported.source.inputs]
    made: Any = machine[ENTRY](*given)
    values = [made] if isinstance(made, tvm.runtime.Tensor) else list(made)
    named = {spec.name: one.numpy() for spec, one in zip(imported.outputs, values, strict=True)}
    return tensors.cut(named, imported.outputs)


def _compared(name: str, got: Any, wanted: Any, reference: Reference) -> HalfOutput:
    """Compare one output; the figure has two digits, as the CPU it was computed on decides the others."""
    difference = tensors.compare({name: got}, {name: wanted}, reference.tolerance)
    known = difference.max_rel < float("inf")
    figure = float(f"{difference.max_rel:.1e}") if known else None
    return HalfOutput(name, figure, difference.tolerance, difference.ok)
