"""From a scheduled module to machine code, on all cores: its kernels are compiled in several parts.

Weights become arguments: the library then has none, stays the same when they change, and they are stored once.

TVM compiles all kernels of a network as one module, on one core. The steps here are those of its `relax.build`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.relax import vm_build
from tvm.relax.vm_build import VMExecutable

from toolchain import temporary
from toolchain.backends.cpu.lowering import PIPELINE
from toolchain.compile import activations
from toolchain.compile.scratch import scratch_bytes
from toolchain.tensors import DTYPES

ENTRY = "main"
"""The function of a module that is the network."""

# Constants, and not the number of cores: they decide the library's bytes, which must be the same on every machine.
_MAX_PARTS = 8
_KERNELS_PER_PART = 8


@dataclass(frozen=True)
class Compiled:
    """A Relax module that takes its weights as arguments, and those weights in the order of the arguments."""

    module: tvm.IRModule
    params: dict[str, NDArray[Any]]


def lift_constants(module: tvm.IRModule) -> Compiled:
    """Turn the tensor constants of `main` into arguments that follow its inputs."""
    lifter = _ConstantLifter()
    main = module[ENTRY]
    body = lifter.visit_expr(main.body)
    lifted = relax.Function([*main.params, *lifter.variables], body, main.ret_ty, attrs=main.attrs)
    rewritten = tvm.IRModule({**dict(module.functions_items()), module.get_global_var(ENTRY): lifted})
    return Compiled(relax.transform.Normalize()(rewritten), lifter.params)


@relax.expr_functor.mutator
class _ConstantLifter(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces each tensor constant by a variable `p<n>` and remembers its value."""

    def __init__(self) -> None:
        super().__init__(None)
        self.variables: list[relax.Var] = []
        self.params: dict[str, NDArray[Any]] = {}

    def visit_generic_const_(self, op: tvm.ir.GenericConst) -> tvm.ir.Expr:
        value = op.value.numpy()
        # Scalars become immediates of the kernels that use them; an argument would only slow those down.
        if value.size <= 1 or str(value.dtype) not in DTYPES:
            return op
        name = f"p{len(self.variables)}"
        variable = relax.Var(name, relax.TensorType(value.shape, str(value.dtype)))
        self.variables.append(variable)
        self.params[name] = np.ascontiguousarray(value)  # as safetensors stores it
        return variable


@dataclass(frozen=True)
class MachineCode:
    """An executable, ready to be exported, and the bytes that its functions allocate for activations, if known.

    Those of the first function contain what kernels take for a moment.
    """

    executable: VMExecutable
    activations: dict[str, int | None]


def compile_module(
    module: tvm.IRModule, target: tvm.target.Target, entries: Sequence[str] = (ENTRY,), results: int = 0
) -> MachineCode:
    """Compile a module.

    Args:
        module: Relax functions and scheduled kernels.
        target: What code is generated for. With a device beside the processor, there is one part.
        entries: The functions that are networks.
        results: The most bytes of results, if their size is a parameter.
    """
    if target.kind.name != "llvm":
        return MachineCode(tvm.compile(module, target=target), dict.fromkeys(entries))
    with target:
        lowered = relax.get_pipeline("default")(module)
    relax_names = [str(name.name_hint) for name, each in lowered.functions_items() if isinstance(each, relax.Function)]
    for function in relax_names:
        lowered = activations.share_storages(lowered, function)
    builder = relax.ExecBuilder()  # collects the bytecode; the kernels are compiled below
    # Private upstream, but there is no other way in between its two steps.
    kernels = vm_build._filter_tir(vm_build._vmcodegen(builder, lowered, "bytecode"))  # noqa: SLF001
    first, *others = _libraries(kernels, target) or [None]
    linked = VMExecutable(vm_build._ffi_api.VMLink(builder, target, first, others, {}))  # noqa: SLF001
    planned = {entry: activations.planned_bytes(lowered[entry], results) for entry in entries}
    # What an entry calls allocates too; the scratch is what the kernels of all entries share.
    called = [activations.planned_bytes(lowered[function]) for function in relax_names if function not in entries]
    parts = [planned[entries[0]], *called, scratch_bytes(kernels, int(target.attrs.get("num-cores", 1)))]
    known = [part for part in parts if part is not None]
    planned[entries[0]] = sum(known) if len(known) == len(parts) else None
    return MachineCode(linked, planned)


def _libraries(kernels: tvm.IRModule | None, target: tvm.target.Target) -> list[Any]:
    """Compile kernels: a module of the first part, which knows the target, and objects of the others."""
    if kernels is None:
        return []
    first, *others = _split(kernels)
    with temporary.folder() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        # TVM's compiler leaves other threads alone while it works.
        main_module = pool.submit(tvm.tirx.build, first, target, PIPELINE)
        objects = [
            pool.submit(_compile_object, part, target, Path(folder) / f"{number}.o")
            for number, part in enumerate(others)
        ]
        return [main_module.result(), *(library.result() for library in objects)]


def _compile_object(kernels: tvm.IRModule, target: tvm.target.Target, path: Path) -> Any:
    names = [str(function.attrs.get("global_symbol", name.name_hint)) for name, function in kernels.functions_items()]
    tvm.tirx.build(kernels, target, PIPELINE).write_to_file(str(path))
    return tvm.runtime.load_static_library(str(path), names)


def _split(kernels: tvm.IRModule) -> Iterator[tvm.IRModule]:
    """Deal the kernels out in the order of their names: neighbours have similar sizes, so the parts have them too."""
    functions = sorted(kernels.functions_items(), key=lambda item: str(item[0].name_hint))
    count = min(_MAX_PARTS, -(-len(functions) // _KERNELS_PER_PART))
    for number in range(count):
        yield tvm.IRModule(dict(functions[number::count]), attrs=kernels.attrs)
