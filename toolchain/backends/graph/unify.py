"""One function for every size of a dimension, from the functions that were compiled for some of the sizes.

A network that is compiled for several sizes differs in numbers alone: extents, strides, and the shapes of tensors. Each
such number is a polynomial of the size, nearly always `factor * size + offset`, which some sizes decide and prove.
Functions are compared as the graphs of objects that TVM writes as JSON: they must be the same graph, but for these
numbers.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

SIZE = "size"
"""The name of the variable."""

DTYPE = "int64"
_VARIABLES = frozenset({"ir.Var", "relax.expr.DataflowVar", "tirx.IterVar"})
_FUNCTION, _BINDING = "ir.GlobalVar", "relax.expr.VarBinding"
_LOOP_KIND = "tirx.For.kind"
_INTEGER, _FLOAT = "ir.IntImm", "ir.FloatImm"
_PLAIN = {1, 2, 3}  # TVM's numbers of the types int, bool and float

Node = dict[str, Any]
Indices = tuple[int, ...]
Polynomial = tuple[int, int, int]
"""The factors of 1, of the size and of its square."""


class DifferentError(Exception):
    """Functions differ in more than numbers that follow from the size.

    Attributes:
        binding: Number of the binding of a Relax function where they do; -1 elsewhere.
    """

    binding: int = -1


@dataclass(frozen=True)
class Size:
    """The variable that stands for the size in a kernel."""

    variable: tirx.Var

    @classmethod
    def new(cls) -> Size:
        return cls(tirx.Var(SIZE, DTYPE))

    def expression(self, polynomial: Polynomial) -> Any:
        """Return a polynomial of the size."""
        return evaluate(polynomial, self.variable)

    def index(self, polynomial: Polynomial) -> Any:
        """Return the same as an index in a buffer."""
        return evaluate(polynomial, tirx.Cast("int32", self.variable))


@dataclass(frozen=True)
class Unified:
    """A function for every size.

    Attributes:
        function: The function; its global variables have the names `f0`, `f1` and so on.
        size: The variable that it uses for the size; it is bound nowhere.
        is_open: Whether the size occurs.
        called: The names of the functions that are called, for each size, by their common name.
    """

    function: Any
    size: tirx.Var
    is_open: bool
    called: Mapping[str, tuple[str, ...]]


def unify(functions: Sequence[Any], sizes: Sequence[int], *, floats: bool = True) -> Unified:
    """Return the function that is each of some functions at its size.

    Args:
        functions: One for each size.
        sizes: At least four, all different.
        floats: Whether floats may follow from the size, as the number of a mean does.

    Raises:
        DifferentError: There is none.
    """
    union = _Union([json.loads(tvm.ir.save_json(function)) for function in functions], sizes, floats=floats)
    function, size = tvm.ir.load_json(json.dumps(union.document()))
    return Unified(function, size, union.is_open, union.called)


def polynomial_of(values: Sequence[int], sizes: Sequence[int]) -> Polynomial | None:
    """Return the polynomial of degree 2 or less by which values follow from sizes; None if there is none.

    Three sizes decide, and the others prove: heads of attention have `size * size` scores.
    """
    (first, second, third), points = values[:3], sizes[:3]
    slopes = Fraction(second - first, points[1] - points[0]), Fraction(third - second, points[2] - points[1])
    square = (slopes[1] - slopes[0]) / (points[2] - points[0])
    factor = slopes[0] - square * (points[0] + points[1])
    offset = first - factor * points[0] - square * points[0] ** 2
    if any(number.denominator > 1 for number in (offset, factor, square)):
        return None
    polynomial = int(offset), int(factor), int(square)
    is_right = all(evaluate(polynomial, size) == value for size, value in zip(sizes, values, strict=True))
    return polynomial if is_right else None


def evaluate(polynomial: Polynomial, size: Any) -> Any:
    """Return the value of a polynomial at a size, which may be a variable."""
    offset, factor, square = polynomial
    value = size * (size * square + factor) if square else size * factor
    return value + offset


def _dividend(values: Sequence[float], sizes: Sequence[int]) -> float | None:
    """Return the integer that each value is the quotient of and its size, rounded to float32; None for no such."""
    dividend = np.float32(round(values[0] * sizes[0]))
    quotients = [dividend / np.float32(size) for size in sizes]
    return float(dividend) if quotients == [np.float32(value) for value in values] else None


class _Union:
    """Walks through the graphs of all sizes at once; a node of the result stands for one node of each."""

    def __init__(self, graphs: Sequence[Node], sizes: Sequence[int], *, floats: bool) -> None:
        self._graphs, self._sizes = [graph["nodes"] for graph in graphs], sizes
        self._metadata, self._floats = graphs[0]["metadata"], floats
        self._roots = tuple(graph["root_index"] for graph in graphs)
        self._nodes: list[Node] = []
        self._known: dict[Indices, int] = {}
        self._partners: list[dict[int, Indices]] = [{} for _ in graphs]
        self.called: dict[str, tuple[str, ...]] = {}
        self.is_open = False
        self._bindings = 0
        self._none = self._add("None")
        self._int64 = self._add("ir.PrimType", {"span": self._none, "dtype": DTYPE})
        self._size = self._expression("ir.Var", self._int64, name=self._add("ffi.String", SIZE))

    def document(self) -> Node:
        """Return an array of the result and the variable, as TVM reads it."""
        root = self._add("ffi.Array", [self._visit(self._roots), self._size])
        return {"root_index": root, "nodes": self._nodes, "metadata": self._metadata}

    def _add(self, kind: str, data: Any = None) -> int:
        self._nodes.append({"type": kind} if data is None else {"type": kind, "data": data})
        return len(self._nodes) - 1

    def _visit(self, indices: Indices) -> int:
        if indices not in self._known:
            self._known[indices] = self._join(indices)
        return self._known[indices]

    def _join(self, indices: Indices) -> int:
        nodes = [graph[index] for graph, index in zip(self._graphs, indices, strict=True)]
        kind = str(nodes[0]["type"])
        if any(node["type"] != kind for node in nodes):
            raise DifferentError(" and ".join(sorted({str(node["type"]) for node in nodes})))
        data = [node.get("data") for node in nodes]
        if kind in _VARIABLES:
            self._pair(indices)
        if kind == _BINDING:
            return self._binding(data)
        if kind == _FUNCTION:
            return self._function(data)
        if kind == _FLOAT and len({each["value"] for each in data}) > 1:
            return self._float(data)
        if kind == _INTEGER:
            values = [graph[each["value"]]["data"] for graph, each in zip(self._graphs, data, strict=True)]
            if len(set(values)) > 1:
                return self._integer(data, values)
        return self._add(kind, self._members(kind, data))

    def _binding(self, data: Sequence[Any]) -> int:
        number, self._bindings = self._bindings, self._bindings + 1
        try:
            return self._add(_BINDING, self._members(_BINDING, data))
        except DifferentError as fault:
            fault.binding = number
            raise

    def _pair(self, indices: Indices) -> None:
        """Refuse one variable at some size for two at another."""
        for partners, index in zip(self._partners, indices, strict=True):
            if partners.setdefault(index, indices) != indices:
                raise DifferentError("a variable has several uses")

    def _function(self, data: Sequence[Any]) -> int:
        names = tuple(str(graph[each["name_hint"]]["data"]) for graph, each in zip(self._graphs, data, strict=True))
        known = {functions: name for name, functions in self.called.items()}
        name = known.get(names) or f"f{len(self.called)}"
        self.called[name] = names
        kind = self._visit(tuple(each["ty"] for each in data))
        return self._expression(_FUNCTION, kind, name_hint=self._add("ffi.String", name))

    def _members(self, kind: str, data: Sequence[Any]) -> Any:
        """Return the members of nodes, which are the numbers of others; what is a value by itself must be the same."""
        first = data[0]
        if isinstance(first, dict) and all(each.keys() == first.keys() for each in data):
            values = _value_fields(kind)
            return {
                name: self._same(f"{kind}.{name}", [each[name] for each in data])
                if name in values or not isinstance(member, int)
                else self._visit(tuple(each[name] for each in data))
                for name, member in first.items()
            }
        if isinstance(first, list):
            # Of graphs with more nodes at some size, the first node that differs is the one to name.
            members = [self._visit(indices) for indices in zip(*data, strict=False)]
            self._same("number of parts", [len(each) for each in data])
            return members
        return self._same(kind, data)

    @staticmethod
    def _same(kind: str, values: Sequence[Any]) -> Any:
        # A loop that is worth several cores at some sizes alone is shared if it is at the first.
        is_shared = kind == _LOOP_KIND and set(values) <= {tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL}
        if any(value != values[0] for value in values) and not is_shared:
            other = next(value for value in values if value != values[0])
            raise DifferentError(f"{kind}: {values[0]!s:.80} and {other!s:.80}")
        return values[0]

    def _expression(self, kind: str, dtype: int, **members: int) -> int:
        return self._add(kind, {"span": self._none, "ty": dtype, **members})

    def _number(self, value: int) -> int:
        return self._expression(_INTEGER, self._int64, value=self._add("int", value))

    def _integer(self, data: Sequence[Any], values: Sequence[int]) -> int:
        """Return the expression of an integer that depends on the size."""
        value = self._polynomial(values)
        dtype = self._visit(tuple(each["ty"] for each in data))
        is_int64 = self._nodes[dtype]["data"]["dtype"] == DTYPE
        return value if is_int64 else self._expression("prim.Cast", dtype, value=value)

    def _polynomial(self, values: Sequence[int]) -> int:
        polynomial = polynomial_of(values, self._sizes)
        if polynomial is None:
            raise DifferentError(f"{values[0]} and {values[-1]} do not follow from the size")
        offset, factor, square = polynomial
        self.is_open = True
        value = self._size
        if square:
            scaled = self._expression("prim.Mul", self._int64, a=self._size, b=self._number(square))
            inner = self._expression("prim.Add", self._int64, a=scaled, b=self._number(factor))
            value = self._expression("prim.Mul", self._int64, a=inner, b=self._size)
        elif factor != 1:
            value = self._expression("prim.Mul", self._int64, a=value, b=self._number(factor))
        if offset:
            value = self._expression("prim.Add", self._int64, a=value, b=self._number(offset))
        return value

    def _float(self, data: Sequence[Any]) -> int:
        """Return the expression of a float that is a whole number of the size, or one divided by it, as in a mean."""
        values = [each["value"] for each in data]
        if not self._floats:
            raise DifferentError(f"the numbers {values[0]:.6g} and {values[-1]:.6g}")
        dtype = self._visit(tuple(each["ty"] for each in data))
        if all(float(value).is_integer() for value in values):
            polynomial = self._polynomial([int(value) for value in values])
            return self._expression("prim.Cast", dtype, value=polynomial)
        dividend = _dividend(values, self._sizes)
        if dividend is None or self._nodes[dtype]["data"]["dtype"] != "float32":
            raise DifferentError(f"the numbers {data[0]['value']:.6g} and {data[-1]['value']:.6g}")
        self.is_open = True
        number = self._add(_FLOAT, {"span": self._none, "ty": dtype, "value": dividend})
        return self._expression("prim.Div", dtype, a=number, b=self._expression("prim.Cast", dtype, value=self._size))


@functools.cache
def _value_fields(kind: str) -> frozenset[str]:
    """Return the fields of a class of objects that are numbers by themselves, and not numbers of other nodes."""
    # Private upstream, but what TVM writes JSON by.
    info = tvm_ffi.core._lookup_or_register_type_info_from_type_key(kind)  # noqa: SLF001
    names: set[str] = set()
    while info is not None:
        names |= {field.name for field in info.fields or () if field.field_static_type_index in _PLAIN}
        info = info.parent_type_info
    return frozenset(names)
