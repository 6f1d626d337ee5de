"""Recurrences on a GPU: one block for each direction and sequence, whose threads share the units of each time step."""

from __future__ import annotations

import tvm
from tvm import tirx

from toolchain.errors import InputError
from toolchain.models.converters.sequence.recurrence import RECURRENCE, from_json
from toolchain.models.converters.sequence.recurrence_kernel import generic_kernel

_BYTES = {"float32": 4, "float64": 8}
_USUAL_THREADS, _USUAL_BYTES = 256, 32768


def use_gpu_kernels(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return a module in which the kernels of recurrences are those for GPUs.

    Args:
        module: A lowered Relax module.
        target: The GPU.

    Raises:
        InputError: The state of a sequence does not fit into the memory that the threads of a block share.
    """
    threads = int(target.attrs.get("max_threads_per_block", _USUAL_THREADS))
    shared = int(target.attrs.get("max_shared_memory_per_block", _USUAL_BYTES))
    changed = module.clone()
    for variable, function in module.functions_items():
        if not isinstance(function, tirx.PrimFunc) or RECURRENCE not in (function.attrs or {}):
            continue
        about = from_json(str(function.attrs[RECURRENCE]))
        if (len(about.kept) + 2) * about.held * _BYTES[about.dtype] > shared:
            raise InputError(
                f"a recurrence of {about.units} units is too large for this GPU",
                details=f"its state does not fit into the {shared} bytes that the threads of a block share",
                hint="deploy it on the CPU: a board of the same machine with the `cpu` backend",
            )
        changed.update_func(variable, generic_kernel(about, threads))
    return changed
