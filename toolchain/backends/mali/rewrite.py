"""What the passes over TVM's modules share: looking into kernels, and putting functions in place of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

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
