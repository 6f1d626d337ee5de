"""The memory of activations: which of them share a storage, by their sizes and lifetimes in the whole network.

TVM walks through the kernels and takes the storage that fits best among those that are free. Here tensors get their
storages by size, the largest first: so a storage has the size of its first tensor, and later ones fill the time that it
is free. Offsets into a storage are not possible: TVM's kernels want tensors that begin where their memory does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax.op.vm import alloc_storage

_STORAGE, _TENSOR, _KILL = "relax.vm.alloc_storage", "relax.vm.alloc_tensor", "relax.vm.kill_object"


@dataclass(frozen=True)
class Lifetime:
    """A tensor: its bytes, and the first and last binding that uses it.

    Attributes:
        size: Bytes.
        first: Number of the binding that fills it.
        last: Number of the last one that reads it, or of none if it is a result.
        is_result: Whether the function returns it, so that it outlives a run.
    """

    size: int
    first: int
    last: int
    is_result: bool = False

    def meets(self, other: Lifetime) -> bool:
        """Whether both are needed at the same time."""
        return self.first <= other.last and other.first <= self.last


def planned_bytes(function: relax.Function, results: int = 0) -> int | None:
    """Return the bytes of all storage that a lowered function allocates; None if a size depends on the data.

    Args:
        function: The function.
        results: The most bytes of results, if their size is a parameter: all storage of unknown size is theirs.
    """
    sizes = [_storage_size(binding.value) for binding in _bindings(function) if _calls(binding.value, _STORAGE)]
    known = [size for size in sizes if size is not None]
    return sum(known) + results if len(known) == len(sizes) or results else None


def lower_bound(function: relax.Function) -> int:
    """Return the largest sum of bytes that are alive at one binding of a lowered function.

    Only a plan that writes results in the place of operands can need less.
    """
    change: dict[int, int] = {}
    for lifetime in _lifetimes(function).values():
        change[lifetime.first] = change.get(lifetime.first, 0) + lifetime.size
        change[lifetime.last + 1] = change.get(lifetime.last + 1, 0) - lifetime.size
    total = most = 0
    for number in sorted(change):
        total += change[number]
        most = max(most, total)
    return most


def share_storages(lowered: tvm.IRModule, entry: str) -> tvm.IRModule:
    """Return a lowered module whose function `entry` needs less memory for activations, or the same module."""
    function = lowered[entry]
    before = planned_bytes(function)
    if before is None or len(function.body.blocks) != 1:
        return lowered
    lifetimes = _lifetimes(function)
    inner = {var: lifetime for var, lifetime in lifetimes.items() if not lifetime.is_result}
    sizes, storages = _assign(inner)
    owners = {binding.var: binding.value.args[0] for binding in _bindings(function) if _calls(binding.value, _TENSOR)}
    kept, shared = ({owners[var] for var in group} for group in (lifetimes.keys() - inner.keys(), inner))
    if kept & shared:
        return lowered
    rewritten = _rewrite(function, storages, sizes, shared)
    if (planned_bytes(rewritten) or before) >= before:
        return lowered
    functions = {**dict(lowered.functions_items()), lowered.get_global_var(entry): rewritten}
    return tvm.IRModule(functions, attrs=lowered.attrs)


def _assign(lifetimes: Mapping[relax.Var, Lifetime]) -> tuple[list[int], dict[relax.Var, int]]:
    """Return the sizes of storages, and for each tensor the number of its own."""
    sizes: list[int] = []
    tenants: list[list[Lifetime]] = []
    storages: dict[relax.Var, int] = {}
    for var, lifetime in sorted(lifetimes.items(), key=lambda item: (-item[1].size, item[1].first)):
        free = [number for number, others in enumerate(tenants) if not any(lifetime.meets(other) for other in others)]
        # The one that loses the least time between its tensors keeps the others free.
        number = min(free, key=lambda number: _distance(lifetime, tenants[number]), default=len(sizes))
        if number == len(sizes):
            sizes.append(lifetime.size)
            tenants.append([])
        tenants[number].append(lifetime)
        storages[var] = number
    return sizes, storages


def _distance(lifetime: Lifetime, others: Iterable[Lifetime]) -> int:
    """Return the bindings between a tensor and the next one that uses the same storage."""
    return min(max(lifetime.first - other.last, other.first - lifetime.last) for other in others)


def _bindings(function: relax.Function) -> Sequence[relax.Binding]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def _calls(value: Any, name: str) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") == name


def _storage_size(value: relax.Call) -> int | None:
    shape = value.args[0].values if isinstance(value.args[0], relax.ShapeExpr) else []
    is_known = len(shape) > 0 and all(isinstance(size, tvm.tirx.IntImm) for size in shape)
    return math.prod(int(size) for size in shape) if is_known else None


def _tensor_size(value: relax.Call) -> int:
    shape, dtype = value.args[2].values, tvm.DataType(str(value.args[3].value))
    return math.prod(int(extent) for extent in shape) * -(-int(dtype.bits * dtype.lanes) // 8)


def _lifetimes(function: relax.Function) -> dict[relax.Var, Lifetime]:
    """Return the lifetimes of all tensors; a view of a tensor, such as a reshaped one, is a use of it."""
    owners: dict[relax.Var, frozenset[relax.Var]] = {}
    sizes: dict[relax.Var, int] = {}
    uses: dict[relax.Var, list[int]] = {}
    bindings = _bindings(function)
    for number, binding in enumerate(bindings):
        if _calls(binding.value, _TENSOR):
            sizes[binding.var] = _tensor_size(binding.value)
            owners[binding.var] = frozenset({binding.var})
            continue
        if _calls(binding.value, _KILL):
            continue
        used = frozenset().union(*(owners.get(var, ()) for var in relax.analysis.free_vars(binding.value)))
        for var in used:
            uses.setdefault(var, []).append(number)
        owners[binding.var] = used
    results = frozenset().union(*(owners.get(var, ()) for var in relax.analysis.free_vars(function.body.body)))
    return {
        var: Lifetime(size, uses[var][0], len(bindings) if var in results else uses[var][-1], var in results)
        for var, size in sizes.items()
        if var in uses
    }


def _rewrite(
    function: relax.Function, storages: Mapping[relax.Var, int], sizes: Sequence[int], dropped: Iterable[relax.Var]
) -> relax.Function:
    """Return a function whose tensors have other storages, which stay until it returns."""
    made: dict[int, relax.Var] = {}
    bindings: list[relax.Binding] = []
    left_out = set(dropped)
    for binding in _bindings(function):
        var, value = binding.var, binding.value
        if var in left_out or (_calls(value, _KILL) and value.args[0] in left_out):
            continue
        if _calls(value, _TENSOR) and var in storages:
            number = storages[var]
            if number not in made:
                made[number] = relax.Var(f"storage_{number}", value.args[0].ty)
                size = relax.ShapeExpr([sizes[number]])
                bindings.append(relax.VarBinding(made[number], alloc_storage(size, 0, "uint8")))
            value = relax.Call(value.op, [made[number], *value.args[1:]], value.attrs, value.ty_args)
        bindings.append(relax.VarBinding(var, value))
    body = relax.SeqExpr([relax.BindingBlock(bindings)], function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)
