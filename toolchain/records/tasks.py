"""Tasks of tuning: the kernels of a model, each once, with the number of times that the model calls it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi

from toolchain import files
from toolchain.backends.base import EXACT, LAYER, Backend, Templates
from toolchain.errors import InputError, did_you_mean
from toolchain.records.metaschedule import meta_schedule
from toolchain.records.results import TensorArg

_ENTRY = "main"
_FLOAT_BYTES = 4
_CALLS = {"relax.call_tir", "relax.call_tir_inplace"}
_DIGITS = re.compile(r"\d+")
_NO_OPERATOR = re.compile(r"lv\d|T_")


@dataclass(frozen=True)
class Task:
    """One kernel of a model.

    Attributes:
        id: Its place in the order in which the model calls its kernels.
        name: Name of the first function that calls it.
        operator: Its main operator, such as `conv2d_nchw`.
        args: Its arguments in order, the result last.
        weight: How many times one run of the model calls it.
        gflop: Billions of floating-point operations of one call.
        workload: Structural hash of its module or hash of its layer, in hexadecimal; the same in every process.
        module: TIR module with the function `main`.
        layer: What a template of the backend computes, as JSON; empty for a kernel that MetaSchedule schedules.
    """

    id: int
    name: str
    operator: str
    args: tuple[TensorArg, ...]
    weight: int
    gflop: float
    workload: str
    module: tvm.IRModule
    layer: str = ""

    @property
    def shape(self) -> str:
        """The arguments' shapes, such as `1x3x224x224, 32x3x3x3 -> 1x32x112x112`."""
        *inputs, result = ["x".join(map(str, arg.shape)) or "scalar" for arg in self.args]
        return f"{', '.join(inputs)} -> {result}"

    @property
    def gbytes(self) -> float | None:
        """Billions of bytes of its arguments and its result; None unless all are float32, as a measured peak is."""
        if any(arg.dtype != "float32" for arg in self.args):
            return None
        return sum(math.prod(arg.shape) for arg in self.args) * _FLOAT_BYTES / 1e9


def extract(module: tvm.IRModule, backend: Backend) -> tuple[Task, ...]:
    """List the kernels of a module that `backend` has lowered, in the order in which it calls them."""
    extracted = meta_schedule().relax_integration.extract_tasks(module, backend.target)
    # Kernels with a fixed schedule, such as loops over time, have nothing to search for.
    fused = {workload_hash(item.dispatched[0]): item for item in extracted if not _is_scheduled(item.dispatched[0])}
    # Functions with different names may be the same kernel, which is tuned once.
    calls: dict[str, list[tuple[str, Any]]] = {}
    for name, function in called(module):
        calls.setdefault(_key(function), []).append((name, function))
    tasks: list[Task] = []
    for key, same in calls.items():
        name, function = same[0]
        if layer_of(function):
            tasks.append(_layer_task(len(tasks), name, function, len(same), backend.templates))
        elif key in fused:
            item, kernel = fused[key], fused[key].dispatched[0]
            operator = _operator(kernel, str(item.task_name))
            gflop = float(tvm.s_tir.analysis.estimate_tir_flops(kernel)) / 1e9
            args, weight = args_of(kernel), int(item.weight)
            tasks.append(Task(len(tasks), str(item.task_name), operator, args, weight, gflop, key, kernel))
    return tuple(tasks)


def _is_scheduled(module: tvm.IRModule) -> bool:
    return any("tirx.is_scheduled" in (function.attrs or {}) for function in module.functions.values())


def layer_of(function: Any) -> str:
    """Return the layer that a template computes by a kernel, as JSON; empty if there is no template for it."""
    return str((function.attrs or {}).get(LAYER, ""))


def _key(function: Any) -> str:
    layer = layer_of(function)
    if layer:
        return layer_hash(layer)
    return workload_hash(meta_schedule().tune_context._normalize_mod(function))  # noqa: SLF001


def layer_hash(layer: str) -> str:
    return files.sha256_bytes(layer.encode())[:16]


def _layer_task(number: int, name: str, function: Any, weight: int, templates: Templates) -> Task:
    layer = layer_of(function)
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main").without_attr(EXACT)})
    operator, gflop = templates.operator(layer), templates.gflop(layer)
    return Task(number, name, operator, args_of(module), weight, gflop, layer_hash(layer), module, layer)


def workload_hash(module: tvm.IRModule) -> str:
    """Return the structural hash of a module as 16 hexadecimal digits; names of variables do not count."""
    return f"{tvm_ffi.structural_hash(module) & (2**64 - 1):016x}"


def called(module: tvm.IRModule) -> Iterator[tuple[str, Any]]:
    """Yield name and function of each call of a kernel of a lowered Relax module."""
    for block in module[_ENTRY].body.blocks:
        for binding in block.bindings:
            if name := kernel_of(binding.value):
                yield name, module[binding.value.args[0]]


def kernel_of(value: Any) -> str:
    """Return the name of the kernel that an expression calls; empty if it calls none."""
    is_call = getattr(getattr(value, "op", None), "name", "") in _CALLS
    return str(value.args[0].name_hint) if is_call else ""


def _operator(module: tvm.IRModule, name: str) -> str:
    anchor = tvm.s_tir.analysis.find_anchor_sblock(module)
    block = str(anchor.name_hint) if anchor is not None else ""
    # Blocks of reductions have the names of variables or of an intermediate step; the function's name says more then.
    return block if block and not _NO_OPERATOR.match(block) else _DIGITS.sub("", name.removeprefix("fused_"))


def args_of(module: tvm.IRModule, *, packed: bool = False) -> tuple[TensorArg, ...]:
    """Return the arguments of a kernel in order.

    Args:
        module: TIR module with the function `main`.
        packed: Whether weights have the layout that a schedule chose for them, as a candidate's arguments do.
    """
    infos = meta_schedule().arg_info.ArgInfo.from_entry_func(module, packed)
    rows = [info.as_json() for info in infos]
    return tuple(TensorArg(str(dtype), tuple(int(size) for size in shape)) for _kind, dtype, shape in rows)


def select(tasks: Sequence[Task], names: Sequence[str]) -> tuple[Task, ...]:
    """Return the tasks that `--op` selects by operator, by a part of the name, or by ID; all if `names` is empty.

    Raises:
        InputError: A name matches no task.
    """
    for name in names:
        if not any(_is_named(task, name) for task in tasks):
            operators = sorted({task.operator for task in tasks})
            raise InputError(
                f"no task is named {name!r}",
                details="operators: " + ", ".join(operators),
                hint=did_you_mean(name, operators) or "list the tasks: `toolchain tasks MODEL`",
            )
    return tuple(task for task in tasks if not names or any(_is_named(task, name) for name in names))


def _is_named(task: Task, name: str) -> bool:
    return name == str(task.id) if _DIGITS.fullmatch(name) else name == task.operator or name in task.name
