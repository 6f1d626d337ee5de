"""Channels last: convolutions and what is between them read and write vectors of neighbouring channels.

ONNX has images as NCHW. Mali GPUs load and compute with vectors of four, and channels are what convolutions have in
fours, so images are transposed to NHWC (3-D ones to NDHWC, and so on) where the first convolution reads them, and back
where an operation reads them that is not known here. Weights are transposed when the model is built.

TVM's own pass, ConvertLayout, fails for half of the networks: it knows no tuples, and no views of other rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, te, topi

from toolchain.backends.graph.imported import Meaning, meaning
from toolchain.backends.graph.values import shape_of

_ENTRY = "main"
_PREFIX = "relax."
_LANES = 4
_RANKS = {3: "W", 4: "HW", 5: "DHW"}
"""By rank of an image, its dimensions besides batch and channels."""

_UNARY = ("nn.relu", "nn.silu", "nn.gelu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "erf", "abs", "negative")
_UNARY_WITH_NUMBERS = ("clip", "nn.leakyrelu", "astype")
_BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")
_REDUCTIONS = ("mean", "sum", "max", "min")
_OP = relax.op
_C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class _Made:
    """An expression in place of another, and whether its channels are last."""

    value: Any
    last: bool = True


def channels_last(module: tvm.IRModule, *, half: bool = False) -> tvm.IRModule:
    """Return a Relax module whose convolutions have their channels last; its inputs and outputs stay as they are.

    Args:
        module: Operators as the importer writes them, with weights as constants.
        half: Whether layers are to compute in half precision later, which only operators of Relax can be made to.
    """
    main = module[_ENTRY]
    writer = _Writer(module, half=half)
    blocks = [writer.block(one) if isinstance(one, relax.DataflowBlock) else one for one in main.body.blocks]
    body = relax.SeqExpr(blocks, main.body.body)
    functions = dict(writer.module.functions_items())
    functions[writer.module.get_global_var(_ENTRY)] = relax.Function(
        main.params, body, main.ret_ty, main.is_pure, main.attrs
    )
    transform = relax.transform
    steps = [transform.Normalize(), transform.CanonicalizeBindings(), transform.DeadCodeElimination()]
    done: tvm.IRModule = tvm.transform.Sequential(steps)(tvm.IRModule(functions, module.attrs, module.global_infos))
    return done


def with_plain_names(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose inputs are called by what C takes for a name: kernels call their arguments so."""
    main = module[_ENTRY]
    renamed = {
        one: relax.Var(f"input{number}", one.ty)
        for number, one in enumerate(main.params)
        if not _C_NAME.fullmatch(str(one.name))
    }
    if not renamed:
        return module
    body = tvm_ffi.structural_map(main.body, (relax.Var, lambda one: renamed.get(one, one)))
    params = [renamed.get(one, one) for one in main.params]
    functions = dict(module.functions_items())
    functions[module.get_global_var(_ENTRY)] = relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs)
    return tvm.IRModule(functions, module.attrs, module.global_infos)


@dataclass
class _Block:
    """What is known while a block is written.

    Attributes:
        own: The variables that the block has to write; any other one is there already, in the layout of the model.
        bindings: What has been written.
        bound: The variables of those bindings.
        last: By variable, the one that holds the same with its channels last.
        same: By variable, another one with the same value.
        stretched: By variable, the one that it is a view of, with one more dimension before its channels.
        squared: By variable, what it is the square of.
        pooled: By variable, the same without that dimension and with its channels last.
        stacked: By variable, those that it is a stack of.
        reduced: By variable, a call that makes the same, but without the dimensions that were reduced to 1.
    """

    own: frozenset[Any] = frozenset()
    bindings: list[Any] = field(default_factory=list)
    bound: set[Any] = field(default_factory=set)
    last: dict[Any, Any] = field(default_factory=dict)
    same: dict[Any, Any] = field(default_factory=dict)
    stretched: dict[Any, Any] = field(default_factory=dict)
    squared: dict[Any, Any] = field(default_factory=dict)
    pooled: dict[Any, Any] = field(default_factory=dict)
    reduced: dict[Any, Any] = field(default_factory=dict)
    stacked: dict[Any, list[Any]] = field(default_factory=dict)


def _operator(known: Meaning) -> Any:
    """Return the operator of Relax in place of a kernel of the importer: other passes know what it does."""
    if known.name != "pad":
        return relax.Call(tvm.ir.Op.get(_PREFIX + known.name), list(known.arguments))
    (data,), rank = known.arguments, len(known.values) // 2
    widths = [known.values[axis + side] for axis in range(rank) for side in (0, rank)]
    return _OP.nn.pad(data, widths, "constant", 0.0)


class _Writer:
    """Writes the dataflow blocks of a function anew.

    Variables keep their values and their layout; beside them, some have a twin whose channels are last. A variable that
    has one is only computed if somebody reads it as it is.
    """

    def __init__(self, module: tvm.IRModule, *, half: bool) -> None:
        self.half = half
        self._builder = relax.BlockBuilder(module)
        self._functions = dict(module.functions_items())
        self._now = _Block()
        self._rules = _rules()

    @property
    def module(self) -> tvm.IRModule:
        """The module with the kernels that had to be added."""
        return self._builder.get()

    def block(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        """Write one block."""
        self._now = _Block(frozenset(binding.var for binding in block.bindings))
        for binding in block.bindings:
            self._binding(binding)
        for binding in block.bindings:
            if not isinstance(binding.var, relax.DataflowVar):
                self.plain(binding.var)
        return relax.DataflowBlock(self._now.bindings)

    def _binding(self, binding: Any) -> None:
        variable, made = binding.var, None
        call = binding.value
        same = None if isinstance(binding, relax.MatchCast) else self._same(variable, call)
        if same is not None:
            self._now.same[variable] = same
            if self.twin(same) is not None:
                self._now.last[variable] = self.twin(same)
            return
        if isinstance(call, relax.Call) and not isinstance(binding, relax.MatchCast):
            made = self._ruled(variable, call)
        if made is None:
            self._kept(binding)
        elif made.last:
            self._now.last[variable] = self.twin_of(variable, made.value)
        else:
            self._bind(variable, made.value)

    def _ruled(self, variable: Any, call: Any) -> _Made | None:
        name = _name(call)
        known = meaning(call, self._functions.get(call.args[0])) if name == "call_tir" else None
        if known is not None and known.name in {*_BINARY, "pad"}:
            call = _operator(known)
            name = known.name if known.name in _BINARY else "nn.pad"
        rule = self._rules.get(name)
        made = rule(self, variable, call) if rule is not None and shape_of(variable.ty) is not None else None
        if made is None and known is not None:
            for one in relax.analysis.free_vars(call):
                self.plain(one)
            return _Made(call, last=False)
        return made

    def _same(self, variable: Any, value: Any) -> Any:
        """Return the variable that an expression only hands on."""
        if isinstance(value, relax.Var):
            return value
        if isinstance(value, relax.TupleGetItem) and value.index == 0:
            return self._now.same.get(value.tuple_value)
        if not isinstance(value, relax.Call) or not value.args or not isinstance(value.args[0], relax.Var):
            return None
        source = value.args[0]
        if _name(value) == "broadcast_to":
            return source if shape_of(source.ty) and shape_of(source.ty) == shape_of(variable.ty) else None
        return None

    def _kept(self, binding: Any) -> None:
        """Write a binding as it is."""
        if isinstance(binding.value, relax.Call) and _name(binding.value) == "nn.dropout":
            self._now.same[binding.var] = binding.value.args[0]  # its first field is; nobody wants the second
        for variable in relax.analysis.free_vars(binding.value):
            self.plain(variable)
        self._now.bindings.append(binding)
        self._now.bound.add(binding.var)

    # What rules ask for

    def twin_of(self, variable: Any, value: Any) -> Any:
        """Write a new variable that is like another one, but with its channels last."""
        return self.like(variable, transposed_shape(shape_of(variable.ty) or ()), value)

    def like(self, variable: Any, shape: Sequence[int], value: Any) -> Any:
        """Write a new variable with the name and the type of another one."""
        kind = relax.TensorType(list(shape), str(variable.ty.dtype))
        return self._bind(relax.DataflowVar(str(variable.name), kind), value)

    def _bind(self, variable: Any, value: Any) -> Any:
        self._now.bindings.append(relax.VarBinding(variable, value))
        self._now.bound.add(variable)
        return variable

    def plain(self, variable: Any) -> Any:
        """Return a variable in the layout of the model, after writing what makes it."""
        if variable in self._now.bound or variable not in self._now.own:
            return variable
        if variable in self._now.same and not isinstance(variable.ty, relax.TupleType):
            return self._bind(variable, self.plain(self._now.same[variable]))
        if variable in self._now.last:
            return self._bind(variable, _turned_back(self._now.last[variable], shape_of(variable.ty) or ()))
        return variable

    def twin(self, expression: Any) -> Any:
        """Return the variable that holds the same with its channels last; None if there is none yet."""
        return self._now.last.get(expression) if isinstance(expression, relax.Var) else None

    def last(self, expression: Any) -> Any:
        """Return a tensor of three to five dimensions with its channels last."""
        if isinstance(expression, tvm.ir.GenericConst):
            array = expression.value.numpy()
            return _constant(array.transpose(_order(array.ndim)), expression)
        found = self.twin(expression)
        if found is None:
            shape = shape_of(expression.ty) or ()
            found = self.twin_of(expression, _transposed(self.plain(expression), shape))
            self._now.last[expression] = found
        return found

    @property
    def now(self) -> _Block:
        """What is known of the block that is being written."""
        return self._now

    @property
    def builder(self) -> relax.BlockBuilder:
        """What adds kernels to the module."""
        return self._builder


_Rule = Callable[[_Writer, Any, Any], _Made | None]


def _rules() -> dict[str, _Rule]:
    """Return by operator what writes it with its channels last, if that is of use."""
    found: dict[str, _Rule] = {
        "concat": _concat,
        "stack": _stack,
        "reshape": _reshape,
        "expand_dims": _expand,
        "squeeze": _squeeze,
        "nn.softmax": _softmax,
        "nn.pad": _pad,
    }
    found.update(dict.fromkeys(_UNARY, _elementwise), **dict.fromkeys(_UNARY_WITH_NUMBERS, _elementwise))
    found.update(dict.fromkeys(_BINARY, _elementwise))
    found.update(dict.fromkeys(_REDUCTIONS, _reduction))
    for rank, places in _RANKS.items():
        found[f"nn.conv{rank - 2}d"] = _conv
        for kind in ("max", "avg"):
            found[f"nn.{kind}_pool{len(places)}d"] = _pool
            found[f"nn.adaptive_{kind}_pool{len(places)}d"] = _adaptive_pool
    return found


def _conv(writer: _Writer, variable: Any, call: Any) -> _Made | None:
    data, weight = call.args
    rank, attributes = len(shape_of(variable.ty) or ()), call.attrs
    places = _RANKS[rank]
    layouts = (str(attributes.data_layout), str(attributes.kernel_layout), str(attributes.out_layout))
    if layouts != (f"NC{places}", f"OI{places}", f"NC{places}") or not isinstance(weight, tvm.ir.GenericConst):
        return None
    array = weight.value.numpy()
    if array.shape[0] % _LANES and writer.twin(data) is None:
        return None
    transposed = _constant(array.transpose(*range(2, rank), 1, 0), weight)
    settings = {name: _numbers(getattr(attributes, name)) for name in ("strides", "padding", "dilation")} | {
        "groups": int(attributes.groups),
        "out_dtype": str(attributes.out_dtype or variable.ty.dtype),
    }
    is_image = rank == 4 and array.shape[1] <= _LANES and settings["groups"] == 1  # noqa: PLR2004 - height and width
    if is_image and writer.twin(data) is None and not writer.half:
        call = writer.builder.call_te(
            _first_conv, writer.plain(data), transposed, settings, primfunc_name_hint=f"conv{rank - 2}d"
        )
        return _Made(call)
    function = getattr(_OP.nn, f"conv{rank - 2}d")
    arrangement = {"data_layout": f"N{places}C", "kernel_layout": f"{places}IO", "out_layout": f"N{places}C"}
    return _Made(function(writer.last(data), transposed, **settings, **arrangement))


def _first_conv(data: te.Tensor, weight: te.Tensor, settings: Mapping[str, Any]) -> te.Tensor:
    """Convolve an image in NCHW; of so few channels, it is not worth a kernel of its own that transposes them."""
    transposed = te.compute(
        transposed_shape(data.shape), lambda n, h, w, c: data[n, c, h, w], name="transposed", tag=topi.tag.INJECTIVE
    )
    return topi.nn.conv(
        transposed,
        weight,
        settings["strides"],
        settings["padding"],
        settings["dilation"],
        settings["groups"],
        "NHWC",
        "HWIO",
        settings["out_dtype"],
    )


def _pool(writer: _Writer, variable: Any, call: Any) -> _Made | None:
    (data,), attributes = call.args, call.attrs
    if data in writer.now.stretched:
        _across_channels(writer, variable, call)
        return None
    places = _RANKS[len(shape_of(variable.ty) or ())]
    if writer.twin(data) is None or {str(attributes.layout), str(attributes.out_layout)} != {f"NC{places}"}:
        return None
    function = getattr(_OP.nn, _name(call).removeprefix("nn."))
    value = function(
        writer.twin(data),
        _numbers(attributes.pool_size),
        strides=_numbers(attributes.strides),
        padding=_numbers(attributes.padding),
        dilation=_numbers(attributes.dilation),
        ceil_mode=bool(attributes.ceil_mode),
        count_include_pad=bool(attributes.count_include_pad),
        layout=f"N{places}C",
        out_layout=f"N{places}C",
    )
    return _Made(value)


def _across_channels(writer: _Writer, variable: Any, call: Any) -> None:
    """Know an average over neighbouring channels, as local response normalisation has it: NHWC pooled as if NCHW."""
    attributes, source = call.attrs, writer.now.stretched[call.args[0]]
    size, *others = _numbers(attributes.pool_size)
    before, *rest = _numbers(attributes.padding)
    after = rest.pop(len(others))
    plain = {*others, *_numbers(attributes.strides), *_numbers(attributes.dilation)} == {1} and not any(rest)
    if not plain or len(others) != 2 or str(attributes.layout) != "NCDHW":  # noqa: PLR2004 - height and width
        return
    padded = bool(attributes.count_include_pad)
    value, padding = writer.twin(source), (0, before, 0, after)
    if writer.half and padded and source in writer.now.squared:
        # Half precision ends at the square of 255: TVM's pass keeps what comes after padding in single.
        wide = writer.twin(writer.now.squared[source])
        shape = [*transposed_shape(shape_of(source.ty) or ())[:-1], int(wide.ty.shape.values[-1]) + before + after]
        wide = writer.like(source, shape, _OP.nn.pad(wide, [0] * 6 + [before, after], "constant", 0.0))
        value, padding = writer.like(source, shape, _OP.multiply(wide, wide)), (0, 0, 0, 0)
    value = _OP.nn.avg_pool2d(value, (1, size), padding=padding, count_include_pad=padded, layout="NCHW")
    # Whoever squeezes it gets this; who reads it as it is, the original binding.
    writer.now.pooled[variable] = writer.twin_of(source, value)


def _adaptive_pool(writer: _Writer, variable: Any, call: Any) -> _Made | None:
    (data,), attributes = call.args, call.attrs
    places = _RANKS[len(shape_of(variable.ty) or ())]
    if writer.twin(data) is None or {str(attributes.layout), str(attributes.out_layout)} != {f"NC{places}"}:
        return None
    function = getattr(_OP.nn, _name(call).removeprefix("nn."))
    size = (shape_of(variable.ty) or ())[2:]
    return _Made(function(writer.twin(data), output_size=size, layout=f"N{places}C", out_layout=f"N{places}C"))


def _elementwise(writer: _Writer, variable: Any, call: Any) -> _Made | None:
    rank = len(shape_of(variable.ty) or ())
    if rank not in _RANKS or all(writer.twin(one) is None for one in call.args):
        return None
    operands = [_operand(writer, one, rank) for one in call.args]
    if any(one is None for one in operands):
        return None
    if _name(call) == "multiply" and call.args[0].same_as(call.args[1]):
        writer.now.squared[variable] = call.args[0]
    return _Made(relax.Call(call.op, operands, call.attrs, call.ty_args))


def _operand(writer: _Writer, expression: Any, rank: int) -> Any:
    """Return an operand that is broadcast to an image, for one whose channels are last; None if that is not known."""
    if not isinstance(expression.ty, relax.TensorType):
        return expression  # a number
    shape = shape_of(expression.ty)
    if shape is None:
        return None
    if len(shape) == rank:
        return writer.last(expression)
    if math.prod(shape) == 1:
        return expression if isinstance(expression, tvm.ir.GenericConst) else writer.plain(expression)
    if not isinstance(expression, tvm.ir.GenericConst):
        return None
    array = expression.value.numpy()
    array = array.reshape((1,) * (rank - array.ndim) + array.shape)
    return _constant(array.transpose(_order(rank)), expression)


def _concat(writer: _Writer, variable: Any, call: Any) -> _Made | None:
    fields = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    rank = len(shape_of(variable.ty) or ())
    if rank not in _RANKS or call.attrs.axis is None or all(writer.twin(one) is None for one in fields):
        return None
    axis = _order(rank).index(int(call.attrs.axis) % rank)
    return _Made(_OP.concat([writer.last(one) for one in fields], axis=axis))


def _stack(writer: _Writer, variable: Any, call: Any) -> None:
    fields = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    if int(call.attrs.axis or 0) == 0 and fields:
        writer.now.stacked[variable] = fields


def _reduction(writer: _Writer, variable: Any, call: Any) -> _Made | None:
    data, attributes = call.args[0], call.attrs
    axes = None if attributes.axis is None else _numbers(attributes.axis)
    if data in writer.now.stacked and _name(call) == "sum" and axes == [0] and not attributes.keepdims:
        return _sum_of(writer, variable, writer.now.stacked[data])
    twin, rank = writer.twin(data), len(shape_of(data.ty) or ())
    if twin is None or axes is None:
        return None
    gone = sorted(axis % rank for axis in axes)
    function, places = getattr(_OP, _name(call)), [_order(rank).index(axis) for axis in gone]
    value = function(twin, places, bool(attributes.keepdims))
    if attributes.keepdims:
        if gone == list(range(2, rank)):
            writer.now.reduced[variable] = function(twin, places)
        return _Made(value)
    left = [axis for axis in _order(rank) if axis not in gone]
    return _Made(value, last=False) if left == sorted(left) else None


def _sum_of(writer: _Writer, variable: Any, fields: list[Any]) -> _Made:
    """ONNX's Sum is imported as a stack that is reduced: additions need no such copy."""
    rank = len(shape_of(variable.ty) or ())
    last = rank in _RANKS and any(writer.twin(one) is not None for one in fields)
    first, *others = [writer.last(one) if last else writer.plain(one) for one in fields]
    shape = shape_of(variable.ty) or ()
    for other in others[:-1]:
        first = writer.like(variable, transposed_shape(shape) if last else shape, _OP.add(first, other))
    return _Made(_OP.add(first, others[-1]) if others else first, last)


def _reshape(writer: _Writer, variable: Any, call: Any) -> _Made | None:
    data = call.args[0]
    twin, shape = writer.twin(data), shape_of(data.ty)
    if twin is None or shape is None or not _is_flat(shape):
        return None
    if data in writer.now.reduced and shape_of(variable.ty) == shape[:2]:
        return _Made(writer.now.reduced[data], last=False)  # in one kernel
    return _Made(_OP.reshape(twin, list(shape_of(variable.ty) or ())), last=False)


def _expand(writer: _Writer, variable: Any, call: Any) -> None:
    if writer.twin(call.args[0]) is not None and _numbers(call.attrs.axis) == [1]:
        writer.now.stretched[variable] = call.args[0]


def _squeeze(writer: _Writer, variable: Any, call: Any) -> _Made | None:  # noqa: ARG001 - as rules are called
    axes = None if call.attrs.axis is None else _numbers(call.attrs.axis)
    found = writer.now.pooled.get(call.args[0]) if axes == [1] else None
    return None if found is None else _Made(found)


def _softmax(writer: _Writer, variable: Any, call: Any) -> _Made | None:
    rank, twin = len(shape_of(variable.ty) or ()), writer.twin(call.args[0])
    return None if twin is None else _Made(_OP.nn.softmax(twin, _order(rank).index(int(call.attrs.axis) % rank)))


def _pad(writer: _Writer, variable: Any, call: Any) -> _Made | None:
    twin, attributes = writer.twin(call.args[0]), call.attrs
    if twin is None or str(attributes.pad_mode) != "constant":
        return None
    widths = _numbers(attributes.pad_width)
    order = _order(len(shape_of(variable.ty) or ()))
    transposed = [widths[2 * axis + side] for axis in order for side in (0, 1)]
    return _Made(_OP.nn.pad(twin, transposed, "constant", float(attributes.pad_value)))


# --- layouts ---------------------------------------------------------------------------------------------------------


def _order(rank: int) -> list[int]:
    """Return which dimension of NCHW each one of NHWC is."""
    return [0, *range(2, rank), 1]


def transposed_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape with its second number last."""
    return tuple(shape[axis] for axis in _order(len(shape)))


def _is_flat(shape: Sequence[int]) -> bool:
    """Whether the elements of an image are in the same order in both layouts."""
    return shape[1] == 1 or math.prod(shape[2:]) == 1


def _transposed(expression: Any, shape: Sequence[int]) -> Any:
    if _is_flat(shape):
        return _OP.reshape(expression, list(transposed_shape(shape)))
    return _OP.permute_dims(expression, _order(len(shape)))


def _turned_back(expression: Any, shape: Sequence[int]) -> Any:
    if _is_flat(shape):
        return _OP.reshape(expression, list(shape))
    rank = len(shape)
    return _OP.permute_dims(expression, [0, rank - 1, *range(1, rank - 1)])


def _constant(array: Any, like: Any) -> Any:
    return relax.const(np.ascontiguousarray(array), str(like.ty.dtype))


def _numbers(values: Any) -> list[int]:
    return [int(one) for one in values]


def _name(call: Any) -> str:
    return str(call.op.name).removeprefix(_PREFIX) if isinstance(call.op, tvm.ir.Op) else ""
