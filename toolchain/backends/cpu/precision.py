"""What of a network is computed in bfloat16 or float16, and how this machine computes it without the instructions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.target import codegen

from toolchain.architecture import INTRINSICS
from toolchain.backends.cpu.graph.rewriting import ENTRY
from toolchain.backends.cpu.kernels.emit import has_assembly, portable
from toolchain.backends.cpu.layers import PACKED
from toolchain.backends.cpu.machine import Machine, this_machine
from toolchain.backends.graph.values import name_of
from toolchain.errors import InputError

_PRODUCTS = re.compile(r"(?!int8_).*(conv|dense|matmul|attention|_kernel)")
_CALLS = {"relax.call_tir", "relax.call_tir_inplace"}


def summary(module: tvm.IRModule, reduced: str) -> str:
    """Say how many kernels with products are in a reduced precision, and name the others.

    Args:
        module: A Relax module of scheduled kernels.
        reduced: `bfloat16` or `float16`.
    """
    return _summary(_products(module), f"{reduced}_", f"are in {reduced}")


def summary_of_weights(module: tvm.IRModule, *, is_requested: bool) -> list[str]:
    """Return a line about the kernels whose weights are of few bits; none if there are no such kernels.

    Args:
        module: A Relax module of scheduled kernels.
        is_requested: Whether the user asked for them: then there is a line even if there are none, and it names the
            kernels in float32.
    """
    products = _products(module)
    if not is_requested and not any(name.startswith(PACKED) for name in products):
        return []
    line = _summary(products, PACKED, "have weights of 4 or 8 bits")
    # Others may be in another reduced precision, which has a line of its own.
    return [line if is_requested else line.partition(";")[0]]


def _products(module: tvm.IRModule) -> dict[str, int]:
    """Count the calls of kernels with products by name."""
    calls: Counter[str] = Counter()

    def count(node: Any) -> None:
        if isinstance(node, relax.Call) and getattr(node.op, "name", "") in _CALLS:
            name = str(node.args[0].name_hint)
            calls[name.rstrip("0123456789")] += 1

    relax.analysis.post_order_visit(module[ENTRY], count)
    return {name: number for name, number in calls.items() if _PRODUCTS.match(name)}


def _summary(products: Mapping[str, int], prefix: str, state: str) -> str:
    rounded = sum(number for name, number in products.items() if name.startswith(prefix))
    others = [
        f"{name} ({number})" if number > 1 else name
        for name, number in sorted(products.items())
        if not name.startswith(prefix)
    ]
    line = f"{rounded} of {sum(products.values())} kernels with products {state}"
    return f"{line}; in float32: {', '.join(others)}" if others else line


def is_quantized(module: tvm.IRModule) -> bool:
    """Whether an imported module rounds numbers to bytes."""
    names: set[str] = set()
    relax.analysis.post_order_visit(module[ENTRY], lambda node: names.add(name_of(node)))
    return bool(names & {"quantize", "dequantize"})


def without_target(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module of scheduled kernels in float16 for this machine: LLVM has code for all that they do."""
    functions = {
        variable: function.without_attr("target") if isinstance(function, tirx.PrimFunc) else function
        for variable, function in module.functions_items()
    }
    return tvm.IRModule(functions, module.attrs, module.global_infos)


def on_any_processor(module: tvm.IRModule, machine: Machine, target: tvm.target.Target) -> tvm.IRModule:
    """Return a module of scheduled kernels whose weights are of few bits for this machine.

    Args:
        module: The module.
        machine: The processor that the kernels were written for.
        target: The same as a target.

    Raises:
        InputError: A kernel has instructions of that processor, which this machine lacks.
    """
    if machine.vmla:
        raise InputError(f"kernels have instructions of {target.attrs['mcpu']}, which this machine lacks")
    return on_any_x86(module, target)


def on_any_x86(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return a module of scheduled kernels with portable code for bfloat16 and for tiles.

    Args:
        module: The module.
        target: The processor that the kernels were written for.

    Raises:
        InputError: A kernel has other instructions, and this machine is not a processor of that kind.
    """
    features = _vector_features(target)  # none of a processor that is not x86
    is_here = bool(features) and features <= _vector_features(this_machine())
    functions: dict[Any, Any] = {}
    for variable, function in module.functions_items():
        functions[variable] = function
        if not isinstance(function, tirx.PrimFunc):
            continue
        changed = portable(function)
        if not is_here and (_has_intrinsics(function) or has_assembly(changed)):
            name = variable.name_hint
            raise InputError(f"{name} has instructions of {target.attrs['mcpu']}, which this machine lacks")
        functions[variable] = changed.without_attr("target")
    return tvm.IRModule(functions, module.attrs, module.global_infos)


def _vector_features(target: tvm.target.Target) -> set[str]:
    """Return the vector instructions of a processor; LLVM's other features are hints about its speed, for example."""
    return {str(name) for name in codegen.llvm_get_cpu_features(target) if str(name).startswith(("sse", "avx"))}


def _has_intrinsics(function: tirx.PrimFunc) -> bool:
    """Whether a kernel calls an instruction by its name in LLVM."""
    names: list[str] = []

    def note(call: Any) -> None:
        if str(getattr(call.op, "name", "")) in {"tirx.call_llvm_pure_intrin", "tirx.call_llvm_intrin"}:
            names.append(str(codegen.llvm_get_intrinsic_name(int(call.args[0].value))))

    tvm_ffi.structural_walk(function.body, (tvm.ir.Call, note))
    return any(name.startswith(INTRINSICS) for name in names)
