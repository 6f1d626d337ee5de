"""Which node of a model's file each value of an imported module comes from, as the span of its variable says.

A span costs nothing: it is in no name, no hash and no compiled library. TVM's passes keep the variable of a value that
they compute in another way; a pass of ours that makes another variable for it passes the span on.
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
    """A node of a model's file.

    Attributes:
        index: Its position in the graph as it was imported.
        operator: Name of its operator.
        name: Its name; that of its first output where the file gives it none.
    """

    index: int
    operator: str
    name: str


def of(variable: Any) -> Origin | None:
    """Return the node that a variable's value comes from; None where no pass knows."""
    if variable.span is None:
        return None
    operator, _, name = str(variable.span.source_name.name).partition(" ")
    return Origin(int(variable.span.line), operator, name)


def returns(variable: Any) -> Origin | None:
    """Return the node whose result a variable has; None where it has none, or only a step on the way to it."""
    return None if variable.span is None or variable.span.column == _STEP else of(variable)


def step(span: Span | None) -> Span | None:
    """Return the span of a step on the way to what has a span."""
    return Span(span.source_name, span.line, span.end_line, _STEP, _STEP) if span is not None else None


def bindings(module: tvm.IRModule) -> Iterator[Any]:
    """Yield the bindings of a module's function `main`, in order."""
    for block in module[_ENTRY].body.blocks:
        yield from block.bindings


def marked(module: tvm.IRModule, nodes: Sequence[onnx.NodeProto], values: Mapping[str, Any]) -> tvm.IRModule:
    """Return an imported module whose variables say which node they come from.

    What a converter computes on the way to its node's result is read by that node alone, so it belongs to its reader.

    Args:
        module: The module.
        nodes: The nodes of the graph that it was imported from.
        values: What the importer made of each value of that graph, by name.
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
    """Return a module whose function `main` has other spans on some of its variables."""
    renewed = {variable: type(variable)(variable.name, variable.ty, span) for variable, span in spans.items()}

    def replaced(variable: Any) -> Any:
        return renewed.get(variable, variable)

    main = module[_ENTRY]
    body = tvm_ffi.structural_map(main.body, (relax.Var, replaced), (relax.DataflowVar, replaced))
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    functions = {**dict(module.functions_items()), module.get_global_var(_ENTRY): function}
    return tvm.IRModule(functions, module.attrs, module.global_infos)


def _identity(expression: Any) -> int:
    return int(expression.__chandle__())
