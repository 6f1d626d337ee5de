"""What the passes over TVM's modules share: looking into kernels, replacing functions, and writing kernels by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

MAIN = "main"
"""The function that is the network."""


def contains(root: Any, kind: Any, matches: Callable[[Any], bool]) -> bool:
    """Whether a syntax tree has a node of a class that matches."""
    nodes: list[Any] = []

    def visit(node: Any) -> None:
        if matches(node):
            nodes.append(node)

    tvm_ffi.structural_walk(root, (kind, visit))
    return bool(nodes)


def variables_of(expression: Any) -> set[Any]:
    """Return the variables that an expression depends on."""
    variables: set[Any] = set()

    def visit(variable: Any) -> None:
        variables.add(variable)

    tvm_ffi.structural_walk(expression, (tirx.Var, visit))
    return variables


def substitute(root: Any, values: Any, kind: Any = tirx.Var) -> Any:
    """Return a syntax tree with values in place of the variables that a mapping has."""
    return tvm_ffi.structural_map(root, (kind, lambda variable: values.get(variable, variable)))


def call_function(name: str, call: ir.Call) -> ir.Call:
    """Return a call of a function of OpenCL C in place of another call, with its arguments and type."""
    return ir.Call(ir.Op.get("tirx.call_pure_extern"), [name, *call.args], None, None, None, call.ty)


def map_kernels(module: tvm.IRModule, change: Callable[[str, tirx.PrimFunc], tirx.PrimFunc]) -> tvm.IRModule:
    """Return a module whose kernels were changed, each by its name; functions of Relax stay."""
    functions = {
        variable: change(str(variable.name_hint), function) if isinstance(function, tirx.PrimFunc) else function
        for variable, function in module.functions_items()
    }
    return tvm.IRModule(functions, module.attrs, module.global_infos)


def with_blocks(module: tvm.IRModule, blocks: Sequence[Any], result: Any = None) -> tvm.IRModule:
    """Return a Relax module whose main function has other blocks, and another tuple as its result if one is given."""
    main, functions = module[MAIN], dict(module.functions_items())
    body = relax.SeqExpr(list(blocks), main.body.body if result is None else result)
    kind = main.ret_ty if result is None else relax.TupleType([field.ty for field in result.fields])
    functions[module.get_global_var(MAIN)] = relax.Function(main.params, body, kind, main.is_pure, main.attrs)
    return tvm.IRModule(functions, module.attrs, module.global_infos)


def mutate(module: tvm.IRModule, mutator: Any) -> tvm.IRModule:
    """Return a Relax module whose functions a mutator of that module has visited."""
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            mutator.builder_.update_func(name, mutator.visit_expr(function))
    result: tvm.IRModule = mutator.builder_.get()
    return result


# --- kernels written by hand -----------------------------------------------------------------------------------------

# Kernels that are written as they are to run, with TVM's script builder: there is nothing to schedule or to search.

_OPAQUE = 8  # TVM's kind of operation that no other is fused with


def write_kernel(name: str, shapes: Mapping[str, Sequence[int]], body: Callable[..., None]) -> tirx.PrimFunc:
    """Write a kernel.

    Args:
        name: Of what it does.
        shapes: Of its arguments by name, the result last; all are in single precision.
        body: Called with a buffer for each argument; writes the statements.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": _OPAQUE})
        body(*[T.arg(argument, T.buffer(tuple(shape), "float32")) for argument, shape in shapes.items()])
    function: tirx.PrimFunc = builder.get()
    statement = function.body
    for block in (name, "root"):  # passes over a whole module expect blocks
        statement = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], block, statement))  # noqa: FBT003 - no name for it
    return function.with_body(statement).without_attr("global_symbol")


@contextlib.contextmanager
def launch(**extents: int) -> Iterator[list[Any]]:
    """Open loops over work-groups (`group_x`, ...) and work-items (`item_x`, ...), in the order that is given."""
    kinds = {"group": "blockIdx", "item": "threadIdx"}
    with contextlib.ExitStack() as loops:
        variables = []
        for name, extent in extents.items():
            kind, axis = name.split("_")
            variables.append(loops.enter_context(T.launch_thread(f"{kinds[kind]}.{axis}", extent)))
        yield variables


def largest_divisor(extent: int, limit: int) -> int:
    """Return the largest divisor of a number that is not above another."""
    return max(size for size in range(1, limit + 1) if extent % size == 0)
