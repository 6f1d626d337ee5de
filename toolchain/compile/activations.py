"""The memory of activations: where each of them lies, by their sizes and lifetimes in the whole network.

TVM walks through the kernels and takes the storage that fits best among those that are free. Here all tensors of a
function that are no results lie in one storage, where each has a place that none has which is needed at the same time,
or in the storage of a result until that is filled.
TVM's kernels need tensors that begin where their memory does, so a call of `vm.builtin.ensure_zero_offset` moves the
beginning of each. On a CPU it copies nothing where the offset is a multiple of 64 bytes. The one of this project, in
runtime/model/, takes less time than TVM's.
"""

from __future__ import annotations

import bisect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax.op.vm import alloc_storage, alloc_tensor

ALIGNMENT = 64
"""Tensors begin at multiples of so many bytes: kAllocAlignment of TVM."""

LEAST_SAVED = 64 << 10
"""Bytes that are worth the time to move the beginnings of tensors: less than a microsecond for each, in every run."""

_MOVE = "vm.builtin.ensure_zero_offset"
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


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: in the storage of a result, or in the one of all tensors (no result).

    Attributes:
        offset: Bytes from the beginning of that storage.
        result: The variable of the result.
    """

    offset: int
    result: Any = None


def share_storages(lowered: tvm.IRModule, entry: str) -> tvm.IRModule:
    """Return a lowered module whose function `entry` needs less memory for activations, or the same module."""
    function = lowered[entry]
    before = planned_bytes(function)
    if before is None or len(function.body.blocks) != 1:
        return lowered
    lifetimes = _lifetimes(function)
    storages = _storages(function)
    if not storages:
        return lowered
    results = {storages[var] for var, lifetime in lifetimes.items() if lifetime.is_result}
    if results & {storages[var] for var, lifetime in lifetimes.items() if not lifetime.is_result}:
        return lowered
    rewritten = _rewrite(function, *place(lifetimes))
    if before - (planned_bytes(rewritten) or before) < LEAST_SAVED:
        return lowered
    functions = {**dict(lowered.functions_items()), lowered.get_global_var(entry): rewritten}
    return tvm.IRModule(functions, attrs=lowered.attrs)


def place(lifetimes: Mapping[Any, Lifetime]) -> tuple[int, dict[Any, Place]]:
    """Return the size of a memory for the tensors that are no results, and their places.

    Of several orders, that which needs least is taken. In each, a tensor gets the smallest gap that it fits in, beside
    those which are needed at the same time. Then what lies at the end of the best plan comes first, some times.
    """
    inner = {var: lifetime for var, lifetime in lifetimes.items() if not lifetime.is_result}
    results = _Results(lifetimes)
    plans = [(*_place(inner, order, results), order) for order in (_sorted(inner, key) for key in _KEYS)]
    end, addresses, order = best = min(plans, key=operator.itemgetter(0))
    for _ in range(_TRIES):
        at_end = [var for var in order if addresses[var] + _aligned(inner[var].size) == end]
        order = [*at_end, *(var for var in order if var not in at_end)]
        end, addresses = _place(inner, order, results)
        best = min(best, (end, addresses, order), key=operator.itemgetter(0))
    return best[0] - results.end, {var: results.place_at(address) for var, address in best[1].items()}


_TRIES = 30
_KEYS: tuple[Callable[[Lifetime], tuple[int, int]], ...] = (
    lambda lifetime: (-lifetime.size, lifetime.first),
    lambda lifetime: (-lifetime.size * (lifetime.last - lifetime.first + 1), lifetime.first),
    lambda lifetime: (lifetime.first, -lifetime.size),
    lambda lifetime: (-lifetime.last, -lifetime.size),
)

_Block = tuple[int, int, Lifetime]  # the addresses where it begins and ends


class _Results:
    """The memories of results as the first addresses of a plan; between two of them is a wall, which nothing crosses.

    Attributes:
        blocks: The results and the walls, by their addresses.
        end: The first address of the common storage.
    """

    def __init__(self, lifetimes: Mapping[Any, Lifetime]) -> None:
        self.blocks: list[_Block] = []
        self.end = 0
        self._begins: list[tuple[int, Any]] = []
        always = Lifetime(ALIGNMENT, 0, max((lifetime.last for lifetime in lifetimes.values()), default=0))
        for var, lifetime in lifetimes.items():
            if not lifetime.is_result:
                continue
            self._begins.append((self.end, var))
            wall = self.end + lifetime.size // ALIGNMENT * ALIGNMENT
            self.blocks += [(self.end, wall, lifetime), (wall, wall + ALIGNMENT, always)]
            self.end = wall + ALIGNMENT

    def place_at(self, address: int) -> Place:
        if address >= self.end:
            return Place(address - self.end)
        begin, result = max((entry for entry in self._begins if entry[0] <= address), key=operator.itemgetter(0))
        return Place(address - begin, result)


def _sorted(lifetimes: Mapping[Any, Lifetime], key: Callable[[Lifetime], tuple[int, int]]) -> list[Any]:
    return sorted(lifetimes, key=lambda var: key(lifetimes[var]))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _place(lifetimes: Mapping[Any, Lifetime], order: Sequence[Any], results: _Results) -> tuple[int, dict[Any, int]]:
    """Return the last address that is used, and the addresses of the tensors."""
    last = results.end
    placed = list(results.blocks)
    addresses: dict[Any, int] = {}
    for var in order:
        lifetime, size = lifetimes[var], _aligned(lifetimes[var].size)
        end, gaps = 0, []
        for begin, following, other in placed:
            if lifetime.meets(other):
                if begin - end >= size:
                    gaps.append((begin - end, end))
                end = max(end, following)
        address = min(gaps)[1] if gaps else end
        addresses[var] = address
        bisect.insort(placed, (address, address + size, lifetime), key=operator.itemgetter(0))
        last = max(last, address + size)
    return last, addresses


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


def _storages(function: relax.Function) -> dict[relax.Var, relax.Var]:
    """Return the storage of each tensor."""
    return {binding.var: binding.value.args[0] for binding in _bindings(function) if _calls(binding.value, _TENSOR)}


def _rewrite(function: relax.Function, size: int, places: Mapping[relax.Var, Place]) -> relax.Function:
    """Return a function whose tensors have those places; its storages stay until it returns."""
    storages = _storages(function)
    common = relax.Var("activations", next(iter(storages.values())).ty)
    bindings = [relax.VarBinding(common, alloc_storage(relax.ShapeExpr([size]), 0, "uint8"))] if size else []
    shared = {storages[place.result] for place in places.values() if place.result is not None}
    bindings += [relax.VarBinding(each.var, each.value) for each in _bindings(function) if each.var in shared]
    left_out = shared | {storages[var] for var in places}
    for binding in _bindings(function):
        var, value = binding.var, binding.value
        if var in left_out or (_calls(value, _KILL) and value.args[0] in left_out):
            continue
        if not (_calls(value, _TENSOR) and var in places):
            bindings.append(relax.VarBinding(var, value))
            continue
        place = places[var]
        _, _, shape, dtype, *others = value.args
        storage = common if place.result is None else storages[place.result]
        tensor = alloc_tensor(storage, place.offset, shape, dtype, *others)
        if place.offset:
            at_offset = relax.Var(f"at_offset_{len(bindings)}", var.ty)
            bindings.append(relax.VarBinding(at_offset, tensor))
            tensor = relax.Call(relax.ExternFunc(_MOVE), [at_offset], ty_args=[var.ty])
        bindings.append(relax.VarBinding(var, tensor))
    body = relax.SeqExpr([relax.BindingBlock(bindings)], function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)
