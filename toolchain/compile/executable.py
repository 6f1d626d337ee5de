"""A finished module to machine code, with as many cores as there are: its kernels are compiled in several parts.

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

_MOST_PARTS = 8
_KERNELS_A_PART = 8
"""Both decide what is in the library, so they do not depend on the machine: a bundle is the same bytes everywhere."""


def compiled(module: tvm.IRModule, target: tvm.target.Target) -> VMExecutable:
    """Return the executable of a module, ready to be exported.

    Args:
        module: Relax functions and scheduled kernels.
        target: What code is generated for. One with a device beside the processor is compiled in one part.
    """
    if target.kind.name != "llvm":
        return tvm.compile(module, target=target)
    with target:
        lowered = relax.get_pipeline("default")(module)
    builder = relax.ExecBuilder()
    # Private upstream, but there is no other way in between its two steps.
    kernels = vm_build._filter_tir(vm_build._vmcodegen(builder, lowered, "bytecode"))  # noqa: SLF001
    first, *others = _libraries(kernels, target) or [None]
    return VMExecutable(vm_build._ffi_api.VMLink(builder, target, first, others, {}))  # noqa: SLF001


def _libraries(kernels: tvm.IRModule | None, target: tvm.target.Target) -> list[Any]:
    """Compile kernels; of all parts but the first, whose module knows the target, only the objects are kept."""
    if kernels is None:
        return []
    first, *others = _parts(kernels)
    with temporary.folder() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        # TVM's compiler leaves other threads alone while it works.
        kept = pool.submit(tvm.tirx.build, first, target, PIPELINE)
        objects = [
            pool.submit(_object, part, target, Path(folder) / f"{number}.o") for number, part in enumerate(others)
        ]
        return [kept.result(), *(one.result() for one in objects)]


def _object(part: tvm.IRModule, target: tvm.target.Target, path: Path) -> Any:
    names = [str(function.attrs.get("global_symbol", name.name_hint)) for name, function in part.functions_items()]
    tvm.tirx.build(part, target, PIPELINE).write_to_file(str(path))
    return tvm.runtime.load_static_library(str(path), names)


def _parts(kernels: tvm.IRModule) -> Iterator[tvm.IRModule]:
    """Deal the kernels out, by their names: neighbours in a network are of a size."""
    functions = sorted(kernels.functions_items(), key=lambda item: str(item[0].name_hint))
    count = min(_MOST_PARTS, -(-len(functions) // _KERNELS_A_PART))
    for number in range(count):
        yield tvm.IRModule(dict(functions[number::count]), attrs=kernels.attrs)
