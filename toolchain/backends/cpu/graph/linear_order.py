"""Pointwise convolutions before the enlargement of what they read, and functions of elements before views.

A pointwise convolution and a resize of each channel are linear, so that either may come first. Decoders enlarge
feature maps, put them together and convolve the result: most of that work is on interpolated pixels. Convolved before
the resize, a map has fewer pixels, and a sum of the parts takes the place of their concatenation.

A function of each element may come before or after a view. Next to a convolution, it becomes part of the epilogue.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from toolchain.backends.cpu.graph.rewriting import ENTRY, with_blocks, with_main
from toolchain.backends.graph.values import name_of, pair, shape_of

_TAPS = 16  # multiply-adds that an interpolated element costs
_FUNCTIONS = frozenset({"nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.relu", "sigmoid", "tanh", "erf"})
_VIEWS = ("reshape", "permute_dims")


def reorder(module: tvm.IRModule) -> tvm.IRModule:
    """Move pointwise convolutions before resizes, and element-wise functions before views of a convolution.

    Args:
        module: A Relax module whose weights are constants; only its function `main` is rewritten.
    """
    builder = relax.BlockBuilder(module)

    def rewritten(block: Any) -> Any:
        return _Reorder(block, builder).run() if isinstance(block, relax.DataflowBlock) else block

    return with_main(module, relax.analysis.remove_all_unused(with_blocks(module[ENTRY], rewritten)))


class _Reorder:
    """Rewrites one dataflow block."""

    def __init__(self, block: relax.DataflowBlock, builder: relax.BlockBuilder) -> None:
        self._block, self._builder = block, builder
        self._calls = {binding.var: binding.value for binding in block.bindings}
        readers = Counter[Any]()
        for binding in block.bindings:
            readers.update(_variables(binding.value))
        self._readers = readers
        self._bindings: list[Any] = []

    def run(self) -> relax.DataflowBlock:
        """Return the block; what nobody reads any more is still in it."""
        for binding in self._block.bindings:
            changes = (change(binding) for change in (self._convolution, self._function))
            value = next((changed for changed in changes if changed is not None), binding.value)
            self._calls[binding.var] = value
            self._bindings.append(relax.VarBinding(binding.var, value))
        return relax.DataflowBlock(self._bindings)

    def _bind(self, like: Any, value: Any) -> Any:
        """Bind a call to a new variable."""
        value = self._builder.normalize(value)
        variable = relax.DataflowVar(f"{like.name}_part", value.ty, like.span)
        self._bindings.append(relax.VarBinding(variable, value))
        self._calls[variable] = value
        self._readers[variable] += 1
        return variable

    def _source(self, variable: Any, *names: str) -> Any:
        """Return the call that a variable is bound to, if it is of one of some operators and has one reader."""
        is_alone = isinstance(variable, relax.DataflowVar) and self._readers[variable] == 1
        call = self._calls.get(variable) if is_alone else None
        return call if name_of(call) in names else None

    # --- convolutions --------------------------------------------------------------------------------------------

    def _convolution(self, binding: Any) -> Any:
        """Return the sum of convolutions of what is resized, for one of resized tensors; None for all others."""
        call = binding.value
        weights = _pointwise_weights(call)
        if weights is None:
            return None
        joined = self._source(call.args[0], "concat")
        parts = [call.args[0]]
        if joined is not None:
            fields = self._calls.get(joined.args[0], joined.args[0])
            if int(joined.attrs.axis) != 1 or not isinstance(fields, relax.Tuple):
                return None
            parts = list(fields.fields)
        resized = [self._saves(part, binding.var) for part in parts]
        if not any(resized):
            return None
        return self._sum(binding, parts, resized, weights)

    def _saves(self, part: Any, result: Any) -> bool:
        """Whether a tensor is resized so that a convolution before that costs less."""
        resize = self._source(part, "image.resize2d")
        if resize is None or str(resize.attrs.layout) != "NCHW" or float(resize.attrs.extrapolation_value) != 0:
            return False
        source, target, out = (shape_of(value.ty) for value in (resize.args[0], part, result))
        if source is None or target is None or out is None:
            return False
        channels, outputs = source[1], out[1]
        before, after = math.prod(source[2:]), math.prod(target[2:])
        moved = before * channels * outputs + after * outputs * _TAPS
        return moved < after * channels * outputs + after * channels * _TAPS

    def _sum(self, binding: Any, parts: Sequence[Any], resized: Sequence[bool], weights: NDArray[np.float32]) -> Any:
        """Return the sum of each part's own convolution; what is not resized shares one."""
        pieces, begin = [], 0
        for part in parts:
            channels = (shape_of(part.ty) or ())[1]
            pieces.append(weights[:, begin : begin + channels])
            begin += channels
        plain = [number for number, is_resized in enumerate(resized) if not is_resized]
        terms = []
        if plain:
            data = parts[plain[0]]
            if len(plain) > 1:
                data = self._bind(binding.var, relax.op.concat([parts[number] for number in plain], axis=1))
            weight = np.concatenate([pieces[number] for number in plain], axis=1)
            terms.append(self._bind(binding.var, relax.op.nn.conv2d(data, relax.const(weight, "float32"))))
        for part, piece, is_resized in zip(parts, pieces, resized, strict=True):
            if is_resized:
                resize = self._calls[part]
                weight = relax.const(np.ascontiguousarray(piece), "float32")
                small = self._bind(binding.var, relax.op.nn.conv2d(resize.args[0], weight))
                large = relax.Call(resize.op, [small, *resize.args[1:]], resize.attrs, resize.ty_args)
                terms.append(self._bind(binding.var, large))
        total = terms[0]
        for term in terms[1:-1]:
            total = self._bind(binding.var, relax.op.add(total, term))
        return relax.op.add(total, terms[-1]) if len(terms) > 1 else self._calls[total]

    # --- functions of elements -----------------------------------------------------------------------------------

    def _function(self, binding: Any) -> Any:
        """Return the views of a function of a convolution's result, for the function of its views; else None."""
        call = binding.value
        if name_of(call) not in _FUNCTIONS:
            return None
        views, variable = [], call.args[0]
        while (view := self._source(variable, *_VIEWS)) is not None:
            views.append(view)
            variable = view.args[0]
        if not views or not self._is_convolution(variable):
            return None
        value = self._bind(binding.var, relax.Call(call.op, [variable], call.attrs, call.ty_args))
        for view in reversed(views[1:]):
            value = self._bind(binding.var, relax.Call(view.op, [value, *view.args[1:]], view.attrs, view.ty_args))
        return relax.Call(views[0].op, [value, *views[0].args[1:]], views[0].attrs, views[0].ty_args)

    def _is_convolution(self, variable: Any) -> bool:
        """Whether a variable is read once, and is a convolution with or without a bias."""
        add = self._source(variable, "add")
        candidates = [variable] if add is None else [*add.args]
        return any(self._source(candidate, "nn.conv2d") is not None for candidate in candidates)


def _variables(value: Any) -> list[Any]:
    """Return the variables that an expression reads, each as often as it stands there."""
    read: list[Any] = []
    relax.analysis.post_order_visit(value, lambda node: read.append(node) if isinstance(node, relax.Var) else None)
    return read


def _pointwise_weights(call: Any) -> NDArray[np.float32] | None:
    """Return the weights of a convolution of single pixels in NCHW; None for other operations."""
    if name_of(call) != "nn.conv2d" or not isinstance(call.args[1], tvm.ir.GenericConst):
        return None
    attributes, weights = call.attrs, call.args[1].value.numpy()
    layouts = (str(attributes.data_layout), str(attributes.kernel_layout), str(attributes.out_layout))
    is_plain = layouts == ("NCHW", "OIHW", "NCHW") and int(attributes.groups) == 1 and weights.dtype == np.float32
    if not is_plain or weights.shape[2:] != (1, 1) or pair(attributes.strides) != (1, 1) or any(attributes.padding):
        return None
    pointwise: NDArray[np.float32] = weights
    return pointwise
