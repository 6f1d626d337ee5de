"""A graph whose sizes depend on the data, rewritten with the largest possible sizes.

A tensor of results has room for as many as there can be; its results come first, and what lies behind them has no
meaning. What reads it must not mix the two: `rules` says how each operator keeps them apart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from toolchain.models import protos
from toolchain.models.protos import get_attribute
from toolchain.models.tails import sizes
from toolchain.models.tails.sizes import Table

PREFIX = "toolchain."

Shape = tuple[int, ...]
Rule = Callable[[onnx.NodeProto, "Tail"], None]

_SIZE_TYPES = frozenset({onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL})
_MAX_CONSTANT = 64  # elements of a constant that may be a shape, or be computed with one

ALWAYS = frozenset({"NonZero", "NonMaxSuppression", "Compress", "Shape", "Size"})
"""Operators that a rule rewrites although nothing that they read depends on the data so far."""


@dataclass(frozen=True, eq=False)
class Extent:
    """How much of a tensor is valid: its size along an axis for each value of the root, a tensor of one int64."""

    axis: int
    root: str
    sizes: NDArray[Any]

    @property
    def bound(self) -> int:
        """The largest size."""
        return int(self.sizes.max())

    def is_like(self, other: Extent) -> bool:
        """Whether both have the same size, along any axis."""
        return self.root == other.root and np.array_equal(self.sizes, other.sizes)

    def along(self, axis: int) -> Extent:
        return Extent(axis, self.root, self.sizes)


@dataclass
class Tail:
    """A graph while it is rewritten, node by node.

    Attributes:
        opset: Version of the standard's operators.
        shapes: The largest sizes, by tensor.
        kinds: Element types by tensor.
        tables: Tensors that follow from a count, or are small constants.
        extents: Tensors whose size depends on the data.
        parents: By count, the extent of the tensor from whose elements it chooses.
    """

    opset: int
    shapes: dict[str, Shape]
    kinds: dict[str, int]
    tables: dict[str, Table]
    extents: dict[str, Extent] = field(default_factory=dict)
    parents: dict[str, Extent] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    _aliases: dict[str, str] = field(default_factory=dict)
    _emitted: dict[object, tuple[str, ...]] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, proto: onnx.ModelProto) -> Tail:
        inferred = onnx.shape_inference.infer_shapes(protos.without_weights(proto), data_prop=True).graph
        tail = cls(protos.opset(proto), {}, {}, {})
        for value in (*inferred.input, *inferred.value_info, *inferred.output):
            kind = value.type.tensor_type
            tail.kinds[value.name] = kind.elem_type
            if kind.HasField("shape") and all(size.HasField("dim_value") for size in kind.shape.dim):
                tail.shapes[value.name] = tuple(size.dim_value for size in kind.shape.dim)
        tail.hold(proto.graph.initializer)
        return tail

    def hold(self, tensors: Iterable[onnx.TensorProto]) -> None:
        for tensor in tensors:
            self.constants[tensor.name] = tensor
            self.shapes[tensor.name], self.kinds[tensor.name] = tuple(tensor.dims), tensor.data_type
            if tensor.data_type in _SIZE_TYPES and np.prod(tensor.dims) <= _MAX_CONSTANT:
                self.tables[tensor.name] = sizes.fixed(numpy_helper.to_array(tensor))

    def rank(self, name: str) -> int:
        return len(self.shapes[name])

    def name_for(self, base: str) -> str:
        number = self._numbers[base] = self._numbers.get(base, 0) + 1
        name = f"{PREFIX}{base}.{number}"
        return self.name_for(base) if name in self.kinds else name

    def constant(self, value: Any, base: str = "constant") -> str:
        """Return the name of a constant, which equal constants share."""
        array = np.asarray(value)
        key = ("constant", array.dtype.str, array.shape, array.tobytes())
        if key not in self._emitted:
            self._emitted[key] = (self.own_constant(array, base),)
        return self._emitted[key][0]

    def own_constant(self, value: NDArray[Any], base: str = "constant") -> str:
        """Return the name of an unshared constant, for which an extent may be set."""
        name = self.name_for(base)
        self.hold([numpy_helper.from_array(value, name)])
        return name

    def emit(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add an operator with one result, and return its name."""
        node = helper.make_node(operator, inputs, [self.name_for(operator)], **attributes)
        return self.keep(node)[0]

    def keep(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """Add a node, unless there is an equal one, and return the names of its results."""
        for name in node.input:
            self.materialize(name)
        copy = protos.clone(node)
        del copy.output[:]
        copy.name = ""
        key = None if list(protos.bodies(node)) else (copy.SerializeToString(deterministic=True), len(node.output))
        if key in self._emitted:
            return self._emitted[key]
        self.nodes.append(node)
        self._infer(node)
        names = tuple(node.output)
        if key is not None:
            self._emitted[key] = names
        return names

    def _infer(self, node: onnx.NodeProto) -> None:
        """Infer the sizes of a node's results, unless they are known and do not depend on the data."""
        fixed = not any(name in self.extents for name in node.input)
        if all(name in self.shapes for name in node.output if name) and fixed:
            return
        if not onnx.defs.has(node.op_type) or not all(name in self.shapes for name in node.input if name):
            return  # a rule that needs the sizes will refuse the node
        schema = onnx.defs.get_schema(node.op_type, self.opset)
        types = {
            name: helper.make_tensor_type_proto(self.kinds[name], self.shapes[name]) for name in node.input if name
        }
        data = {name: self.constants[name] for name in node.input if name in self.constants}
        imports = [helper.make_opsetid("", self.opset)]
        inferred = onnx.shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=imports)
        for name, kind in inferred.items():
            dims = kind.tensor_type.shape.dim
            self.kinds[name] = kind.tensor_type.elem_type
            self.shapes.pop(name, None)
            if kind.tensor_type.HasField("shape") and all(size.HasField("dim_value") for size in dims):
                self.shapes[name] = tuple(size.dim_value for size in dims)

    def materialize(self, name: str) -> None:
        """Compute a tensor that is only known as a table."""
        table = self.tables.get(name)
        if table is None or name in self.kinds:
            return
        self.shapes[name], self.kinds[name] = table.shape, helper.np_dtype_to_tensor_dtype(table.values.dtype)
        if table.is_constant or table.root is None:
            self.hold([numpy_helper.from_array(np.ascontiguousarray(table.constant()), name)])
            return
        # The table lists the tensor for each value of the count: one of them is read.
        every = self.constant(table.values, "sizes")
        row = self.emit("Gather", [every, table.root], axis=0)
        self.nodes.append(helper.make_node("Reshape", [row, self.constant(np.array(table.shape, np.int64))], [name]))

    def count(self, extent: Extent) -> str:
        """Return the name of a tensor, one int64, with the number of valid elements."""
        # Sizes 0, 1, 2, ... are the count itself.
        if np.array_equal(extent.sizes, np.arange(len(extent.sizes))):
            return extent.root
        return self.emit("Gather", [self.constant(extent.sizes, "sizes"), extent.root], axis=0)

    def counts(self, extent: Extent, rank: int) -> str:
        """Return the name of a tensor that is true for valid elements, for tensors of some rank."""
        positions = np.arange(extent.bound).reshape([-1] + [1] * (rank - 1 - extent.axis))
        return self.emit("Less", [self.constant(positions, "places"), self.count(extent)])

    def filled(self, name: str, value: Any) -> str:
        """Return a tensor with a value in place of what lies behind its results."""
        if name not in self.extents:
            return name
        extent, dtype = self.extents[name], helper.tensor_dtype_to_np_dtype(self.kinds[name])
        other = self.constant(np.array(value, dtype))
        filled = self.emit("Where", [self.counts(extent, self.rank(name)), name, other])
        self.extents[filled] = extent
        return filled

    def new_root(self, count: str, bound: int, parents: Sequence[Extent | None]) -> NDArray[Any]:
        """Add a count that an operator computes; return its possible sizes."""
        self.shapes[count], self.kinds[count] = (1,), onnx.TensorProto.INT64
        for parent in parents:
            if parent is not None:
                self.parents[count] = parent
        return np.arange(bound + 1)

    def is_empty(self, extent: Extent, root: str, value: int) -> bool:
        """Whether nothing is valid for some value of a count."""
        if extent.root == root:
            return int(extent.sizes[value]) == 0
        parent = self.parents.get(extent.root)
        return parent is not None and int(extent.sizes[0]) == 0 and self.is_empty(parent, root, value)

    def walk(self, nodes: Iterable[onnx.NodeProto], rules: Mapping[str, Rule]) -> None:
        """Rewrite nodes; `Unsupported` if one needs the number of results, or mixes them with what lies behind."""
        for original in nodes:
            # Errors name the node of the file, so the original stays unchanged.
            node = protos.clone(original)
            self._rename(node)
            try:
                self._walk_node(node, rules)
            except (LookupError, ValueError, onnx.shape_inference.InferenceError) as fault:
                roots = {self.extents[name].root for name in node.input if name in self.extents}
                raise Unsupported(original, str(fault) if isinstance(fault, ValueError) else "", roots) from fault

    def _walk_node(self, node: onnx.NodeProto, rules: Mapping[str, Rule]) -> None:
        read = [name for name in protos.node_reads(node) if name]
        if node.input and all(name in self.tables for name in node.input):
            # What computes sizes from sizes becomes a table; then no node has to compute it.
            with contextlib.suppress(LookupError, ValueError):
                inputs = [self.tables[name] for name in node.input]
                self.set_table(node.output[0], sizes.compute(node.op_type, attribute_values(node), inputs))
                return
        tables = [self.tables[name] for name in read if name in self.tables]
        is_open = any(name in self.extents for name in read) or not all(table.is_constant for table in tables)
        if node.op_type in ALWAYS or is_open:
            if list(protos.bodies(node)) and node.op_type not in rules:
                raise ValueError("the results decide on how it is computed")
            rules[node.op_type](node, self)
        else:
            self.rewrite(node)

    def rewrite(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """Keep a node for the readers of its outputs, and return the names of its results."""
        names = self.keep(node)
        self.rename(node.output, names)
        return names

    def set_table(self, name: str, table: Table) -> None:
        self.kinds.pop(name, None)
        self.tables[name] = table

    def rename(self, names: Sequence[str], others: Sequence[str]) -> None:
        """Make readers of tensors read others, which are equal."""
        self._aliases.update({name: other for name, other in zip(names, others, strict=True) if name != other})

    def resolved(self, name: str) -> str:
        """Return the name of the tensor that readers of this one read."""
        return self._aliases.get(name, name)

    def _rename(self, node: onnx.NodeProto) -> None:
        for index, name in enumerate(node.input):
            node.input[index] = self.resolved(name)
        for body in protos.bodies(node):
            for inner in body.node:
                self._rename(inner)


class Unsupported(Exception):  # noqa: N818 - `bounded` makes an error for the user of it
    """A node that needs the number of results, or mixes them with what lies behind."""

    def __init__(self, node: onnx.NodeProto, reason: str, roots: Collection[str]) -> None:
        super().__init__(reason)
        self.node, self.reason, self.roots = node, reason, roots


def attribute_values(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes as Python values, tensors as arrays."""
    return {
        name: numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
        for name, value in protos.get_attributes(node).items()
    }


AxisRule = Callable[[onnx.NodeProto, Tail], int]
"""Returns along which axis a node's outputs have the results; LookupError or ValueError if they do not have them so."""


def keep_each(axis_rule: AxisRule) -> Rule:
    """Return the rule of nodes that treat each result by itself, and stay as they are."""

    def rule(node: onnx.NodeProto, tail: Tail) -> None:
        extents = [tail.extents[name] for name in node.input if name in tail.extents]
        if not extents:
            tail.rewrite(node)
            return
        extent = extents[0]
        if not all(other.is_like(extent) for other in extents):
            raise ValueError("it needs two selections of the same size")
        axis = axis_rule(node, tail)
        names = tail.rewrite(node)
        for name in filter(None, names):
            set_extent(tail, name, extent.along(axis))

    return rule


def set_extent(tail: Tail, name: str, extent: Extent) -> None:
    """Note that a tensor has results along an axis, unless their number is constant."""
    if tail.shapes[name][extent.axis] != extent.bound:
        raise ValueError("its size does not follow from the number of results")
    # A constant number of results needs no care: all of the tensor is valid.
    if (extent.sizes != extent.bound).any():
        tail.extents[name] = extent


def set_sizes(tail: Tail, name: str, table: Table) -> None:
    """Note the sizes of a tensor, of which at most one may depend on the data."""
    varying = np.flatnonzero((table.values != table.values[:1]).any(axis=0))
    if len(varying) > 1:
        raise ValueError("two axes depend on the data")
    if tuple(int(size) for size in table.values.max(axis=0)) != tail.shapes[name]:
        raise ValueError("its size does not follow from the number of results")
    if len(varying) and table.root is not None:
        tail.extents[name] = Extent(int(varying[0]), table.root, table.values[:, varying[0]])


def axes_of_node(node: onnx.NodeProto, tail: Tail, index: int) -> list[int]:
    """Return the axes that a node names, in an attribute or in an input."""
    axes = get_attribute(node, "axes", None)
    if axes is not None:
        return list(axes)
    return tail.tables[node.input[index]].list() if len(node.input) > index and node.input[index] else []


def first_axis(node: onnx.NodeProto, tail: Tail) -> int:
    """Return the axis of results in the first input; the results must not influence the other inputs."""
    if tail.extents.keys() & set(node.input[1:]):
        raise ValueError("the results decide on how it is computed")
    return tail.extents[node.input[0]].axis


def other_axis(default: int) -> AxisRule:
    """Return the rule of nodes that act along one axis, which must not be that of the results."""

    def rule(node: onnx.NodeProto, tail: Tail) -> int:
        result_axis, rank = first_axis(node, tail), tail.rank(node.input[0])
        if get_attribute(node, "axis", default) % rank == result_axis:
            raise ValueError("the results are not treated by themselves")
        return result_axis

    return rule


def sizes_of(tail: Tail, name: str) -> Table:
    """Return the sizes of a tensor for each value of its count."""
    if name in tail.tables:
        return sizes.fixed(np.array(tail.tables[name].shape, np.int64))
    extent = tail.extents.get(name)
    if extent is None:
        return sizes.fixed(np.array(tail.shapes[name], np.int64))
    values = np.tile(np.array(tail.shapes[name], np.int64), (len(extent.sizes), 1))
    values[:, extent.axis] = extent.sizes
    return Table(extent.root, values)
