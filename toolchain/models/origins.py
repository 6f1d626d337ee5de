"""The node of a model's file that each value of an imported module comes from: the span of its variable.

A span costs nothing: it is in no name, hash or compiled library. TVM's passes keep the variable of a value that they
compute in another way; our passes that replace a variable pass its span on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import SourceName, Span

_ENTRY = "main"
_RESULT, _STEP = 0, 1  # columns


@dataclass(frozen=True, order=True)
class Origin:
    """A node of a model's file: its index in the imported graph; the name of its first output if it has none."""

    index: int
    operator: str
    name: str


def of(variable: Any) -> Origin | None:
    """Return the node that a variable's value comes from; None if unknown."""
    if variable.span is None:
        return None
    operator, _, name = str(variable.span.source_name.name).partition(" ")
    return Origin(int(variable.span.line), operator, name)


def returns(variable: Any) -> Origin | None:
    """Return the node whose result a variable has; None if it has none, or an intermediate result."""
    return None if variable.span is None or variable.span.column == _STEP else of(variable)


def step(span: Span | None) -> Span | None:
    """Return the span of an intermediate result of the node of a span."""
    return Span(span.source_name, span.line, span.end_line, _STEP, _STEP) if span is not None else None


def bindings(module: tvm.IRModule) -> Iterator[Any]:
    for block in module[_ENTRY].body.blocks:
        yield from block.bindings


# What a converter computes on the way to its node's result is read by that node only, so it belongs to its reader.
def mark_origins(module: tvm.IRModule, nodes: Sequence[onnx.NodeProto], values: Mapping[str, Any]) -> tvm.IRModule:
    """Return an imported module whose variables name the node that they come from.

    `nodes` are those of the imported graph, `values` the importer's expressions of its values, by name.
    """
    spans: dict[Any, Span] = {}
    results: dict[int, Span] = {}
    for index, node in enumerate(nodes):
        for output in node.output:
            if output in values:
                span = Span(SourceName(f"{node.op_type} {node.name}"), index, index, _RESULT, _RESULT)
                results.setdefault(_identity(values[output]), span)
    for binding in reversed(list(bindings(module))):
        span = results.get(_identity(binding.value)) or results.get(_identity(binding.var)) or spans.get(binding.var)
        if span is not None:
            spans[binding.var] = span
            for variable in relax.analysis.free_vars(binding.value):
                spans.setdefault(variable, step(span))
    return with_spans(module, {binding.var: spans.get(binding.var) for binding in bindings(module)})


def with_spans(module: tvm.IRModule, spans: Mapping[Any, Span | None]) -> tvm.IRModule:
    """Return a module whose function `main` has other spans on some variables."""
    new_variables = {variable: type(variable)(variable.name, variable.ty, span) for variable, span in spans.items()}

    def replace(variable: Any) -> Any:
        return new_variables.get(variable, variable)

    main = module[_ENTRY]
    body = tvm_ffi.structural_map(main.body, (relax.Var, replace), (relax.DataflowVar, replace))
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    functions = {**dict(module.functions_items()), module.get_global_var(_ENTRY): function}
    return tvm.IRModule(functions, module.attrs, module.global_infos)


def _identity(expression: Any) -> int:
    # Each access of TVM's objects makes a new Python object, so `id` and `is` do not identify them.
    return int(expression.__chandle__())
