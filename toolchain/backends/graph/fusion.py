"""TVM's fusion of operators, after which a kernel's result still says which node of the model's file it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from toolchain.models import origins


def fuse(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module of single kernels as calls of fused ones.

    FuseOps gives the result of a group another variable than the one that had it before. Both are the same computation
    on the same values, by which the new variable is recognized.

    Args:
        module: A Relax module after AnnotateTIROpPattern.
    """
    grouped = relax.transform.FuseOps()(module)
    keys: dict[Any, int] = {}
    known: dict[int, Any] = {}
    before, after = _Values(module, keys), _Values(grouped, keys)
    for binding in origins.bindings(module):
        known.setdefault(before.bound(binding), binding.var.span)
    spans = {binding.var: known.get(after.bound(binding)) or binding.var.span for binding in origins.bindings(grouped)}
    done: tvm.IRModule = relax.transform.FuseTIR()(origins.with_spans(grouped, spans))
    return done


class _Values:
    """Numbers the values of a module: two that are computed alike, from the same values, have the same number.

    Args:
        module: Calls of its Relax functions count as what those compute.
        numbers: The numbers by what is computed; shared with the module that this one is compared with.
    """

    def __init__(self, module: tvm.IRModule, numbers: dict[Any, int]) -> None:
        self._functions = dict(module.functions_items())
        self._numbers = numbers
        self._variables = {one: self._number("input", index) for index, one in enumerate(module["main"].params)}
        self._fields: dict[int, Sequence[int]] = {}  # of values that are tuples

    def bound(self, binding: Any) -> int:
        """Return the number of a binding's value, which its variable has from then on."""
        self._variables[binding.var] = number = self._value(binding.value)
        return number

    def _number(self, *computed: Any) -> int:
        return self._numbers.setdefault(computed, len(self._numbers))

    def _value(self, expression: Any) -> int:
        if isinstance(expression, relax.Var):
            return self._variables.get(expression) or self._number("object", int(expression.__chandle__()))
        if isinstance(expression, relax.Call):
            return self._call(expression)
        if isinstance(expression, relax.Tuple):
            fields = [self._value(field) for field in expression.fields]
            number = self._number("tuple", *fields)
            self._fields[number] = fields
            return number
        if isinstance(expression, relax.TupleGetItem):
            whole, index = self._value(expression.tuple_value), int(expression.index)
            return self._fields[whole][index] if whole in self._fields else self._number("field", whole, index)
        if isinstance(expression, (tvm.ir.GenericConst, relax.If)):
            return self._number("object", int(expression.__chandle__()))
        return self._number("text", str(expression))

    def _call(self, call: Any) -> int:
        arguments = [self._value(argument) for argument in call.args]
        function = self._functions.get(call.op) if isinstance(call.op, tvm.ir.GlobalVar) else None
        if not isinstance(function, relax.Function):
            attributes = int(call.attrs.__chandle__()) if call.attrs is not None else 0
            return self._number("call", str(call.op), attributes, *arguments)
        self._variables.update(zip(function.params, arguments, strict=True))
        for block in function.body.blocks:
            for binding in block.bindings:
                self.bound(binding)
        return self._value(function.body.body)
