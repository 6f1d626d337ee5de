"""The difference of a network in half precision from its reference, as this machine computes it before a deploy."""

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
from toolchain.models.importer import ImportedModel
from toolchain.progress import stage
from toolchain.tensors import Tensors


def compare_in_half(
    module: tvm.IRModule, imported: ImportedModel, request: BuildRequest, reference: Reference | None
) -> InHalf | None:
    """Compute a network as the board will round it, and compare that with the reference.

    Args:
        module: Its scheduled kernels, with their weights as constants.
        imported: The model.
        request: The board; the result is reported.
        reference: The inputs and the expected outputs.

    Returns:
        The differences; None where the board computes in single precision, or without a reference.
    """
    if reference is None or not request.board.target.float16:
        return None
    request.progress(stage("computing in half precision on this machine"))
    input_source = request.model.given
    path = input_source.image or input_source.npz
    input_text = path.name if path else f"random numbers of seed {input_source.seed}"
    try:
        outputs = _run(request.backend.on_cpu(module), imported, reference.inputs)
    except InputError as fault:
        result = InHalf(reference.runtime, input_text, (), fault.message)  # only the device can show it
    else:
        differences = []
        for name, expected in reference.outputs.items():
            difference = tensors.compare({name: outputs[name]}, {name: expected}, reference.tolerance)
            # Two digits, because the CPU that computed it decides the others.
            max_rel = float(f"{difference.max_rel:.1e}") if difference.max_rel < float("inf") else None
            differences.append(HalfOutput(name, max_rel, difference.tolerance, difference.ok))
        result = InHalf(reference.runtime, input_text, tuple(differences))
    for line in result.lines():
        request.progress(line)
    return result


def _run(module: tvm.IRModule, imported: ImportedModel, inputs: Tensors) -> Tensors:
    # For this machine's own CPU, whose vector instructions make the emulation bearable.
    target = tvm.target.Target({"kind": "llvm", "mcpu": str(codegen.llvm_get_system_cpu())})
    machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
    result: Any = machine[ENTRY](*(tvm.runtime.tensor(inputs[spec.name]) for spec in imported.source.inputs))
    # A network with one output returns a tensor, any other a tuple.
    values = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    outputs = {spec.name: value.numpy() for spec, value in zip(imported.outputs, values, strict=True)}
    return tensors.cut(outputs, imported.outputs)
