"""Kernels that no template covers: whatever else a network consists of, written anew to use vectors and all cores.

TVM's legalisation leaves serial loops over scalars. Those are read as a list of stages, one for each buffer, put
into each other where that saves time, and written as loops again. Where a function is of another kind, its blocks are
scheduled one by one; and where that fails too, it stays as it is.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import tvm
from tvm import s_tir, tirx
from tvm.relax.analysis import has_reshape_pattern

from toolchain.backends._attributes import LAYER
from toolchain.backends.cpu._fallback.blocks import by_blocks
from toolchain.backends.cpu._fallback.expr import UnsupportedError, constant
from toolchain.backends.cpu._fallback.fill import filled
from toolchain.backends.cpu._fallback.flat import flattened
from toolchain.backends.cpu._fallback.fuse import Group, grouped, with_epilogues
from toolchain.backends.cpu._fallback.inline import inlined
from toolchain.backends.cpu._fallback.loops import Stmt, Tile, sequence, tiled
from toolchain.backends.cpu._fallback.reduce import reduction
from toolchain.backends.cpu._fallback.split import split_for_cores
from toolchain.backends.cpu._fallback.stages import Buffer, Stage, stages_of
from toolchain.backends.cpu._machine import Machine, machine

_DONE = "tirx.is_scheduled"
_ONE_INPUT = 2  # buffers of a function with one input


def schedule(module: tvm.IRModule, target: tvm.target.Target, lanes: int) -> tvm.IRModule:
    """Schedule the kernels of a lowered Relax module that are not scheduled yet.

    Args:
        module: Relax module whose operators are calls of PrimFuncs.
        target: LLVM target.
        lanes: 32-bit floats in one vector register.
    """
    processor = replace(machine(target), lanes=lanes)
    changed: tvm.IRModule = module.clone()
    for name, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and _is_open(function):
            changed.update_func(name, scheduled(function, processor))
    return changed


def _is_open(function: tirx.PrimFunc) -> bool:
    attributes = function.attrs or {}
    if LAYER in attributes or attributes.get(_DONE) or not isinstance(function.body, s_tir.SBlockRealize):
        return False
    return not _reshapes(function)


def _reshapes(function: tirx.PrimFunc) -> bool:
    """Whether TVM makes a view of a function's result, as long as it recognises the function."""
    if len(function.params) != _ONE_INPUT or not all(tirx.is_buffer_var(buffer) for buffer in function.params):
        return False
    sizes = {_size(buffer) for buffer in function.params}
    return (len(sizes) == 1 or None in sizes) and bool(has_reshape_pattern(function))


def _size(buffer: Buffer) -> int | None:
    extents = [constant(extent) for extent in buffer.shape]
    return None if None in extents else prod(extent or 0 for extent in extents)


def scheduled(function: tirx.PrimFunc, processor: Machine) -> tirx.PrimFunc:
    """Schedule one kernel.

    Args:
        function: Kernel of SBlocks.
        processor: What it is scheduled for.
    """
    try:
        done = _written(function, processor)
    except (UnsupportedError, RuntimeError, TypeError, ValueError):
        # TVM's own classes raise all of these: whatever a kernel is, it must not keep a network from being built.
        done = by_blocks(function, processor)
    return function if done is None else done.with_attr(_DONE, True)  # noqa: FBT003 - its signature


def _written(function: tirx.PrimFunc, processor: Machine) -> tirx.PrimFunc:
    params = set(function.params)
    stages = inlined(stages_of(function), params)
    buffers = dict.fromkeys([*function.params, *(buffer for one in stages for buffer in one.outputs)])
    flat = {buffer: _flat(buffer, view=buffer in params) for buffer in buffers}
    results = {flat[buffer] for buffer in params}
    done = with_epilogues([flattened(stage, flat) for stage in stages], results)
    groups = grouped(split_for_cores(done, processor), results, processor)
    steps = [step for group in groups for step in _statements(group, processor)]
    views = [tirx.DeclBuffer(flat[buffer], data=buffer.data) for buffer in function.params]
    own = results.union(*(group.local for group in groups))
    # In the order in which they are filled: the same network has to give the same bytes each time.
    between = dict.fromkeys(buffer for group in groups for stage in group.stages for buffer in stage.outputs)
    rooms = [tirx.AllocBuffer(buffer) for buffer in between if buffer not in own]
    body = sequence([*views, *rooms, *steps])
    # TVM looks whether a function reshapes, and fails where there is no root block.
    root = s_tir.SBlock([], [], [], "root", body)
    return function.with_body(s_tir.SBlockRealize([], True, root))  # noqa: FBT003 - its signature


def _flat(buffer: Buffer, *, view: bool) -> Buffer:
    size = _size(buffer)
    if not size:
        raise UnsupportedError("a buffer without elements, or of open size")
    data = buffer.data if view else None
    return tirx.decl_buffer((size,), str(buffer.dtype), f"{buffer.name}_flat", data=data)


def _statements(group: Group, processor: Machine) -> list[Stmt]:
    if not group.rows:
        return _stage(group.stages[0], processor, shared=True)
    shared = len(group.rows) if group.shared else 0

    def row(tile: Tile) -> list[Stmt]:
        place = {var: start for var, (start, _) in tile.items()}
        steps = [step for stage in group.stages for step in _stage(stage.at(place), processor, shared=False)]
        return [*(tirx.AllocBuffer(buffer) for buffer in group.local), *steps]

    return tiled([(axis, 1) for axis in group.rows], shared, row)


def _stage(stage: Stage, processor: Machine, *, shared: bool) -> list[Stmt]:
    write = reduction if stage.accumulators else filled
    return write(stage, processor, shared=shared)
