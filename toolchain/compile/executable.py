"""From a scheduled module to machine code, on all cores: its kernels are compiled in several parts.

TVM compiles all kernels of a network as one module, on one core. The steps here are those of its `relax.build`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.relax import vm_build
from tvm.relax.vm_build import VMExecutable

from toolchain import temporary
from toolchain.backends.cpu.lowering import PIPELINE

# Constants, and not the number of cores: they decide the library's bytes, which must be the same on every machine.
_MAX_PARTS = 8
_KERNELS_PER_PART = 8


def compile_module(module: tvm.IRModule, target: tvm.target.Target) -> VMExecutable:
    """Return the executable of a module, ready to be exported.

    Args:
        module: Relax functions and scheduled kernels.
        target: What code is generated for. With a device beside the processor, there is one part.
    """
    if target.kind.name != "llvm":
        return tvm.compile(module, target=target)
    with target:
        lowered = relax.get_pipeline("default")(module)
    builder = relax.ExecBuilder()  # collects the bytecode; the kernels are compiled below
    # Private upstream, but there is no other way in between its two steps.
    kernels = vm_build._filter_tir(vm_build._vmcodegen(builder, lowered, "bytecode"))  # noqa: SLF001
    first, *others = _libraries(kernels, target) or [None]
    return VMExecutable(vm_build._ffi_api.VMLink(builder, target, first, others, {}))  # noqa: SLF001


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
