"""The layers that a network becomes, with what is done to their results, before anything is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from toolchain.backends.cpu.graph import effects
from toolchain.backends.cpu.graph.effects import Affine, BoundPostOp, Effect, Operand, Rounding
from toolchain.backends.cpu.kernels.int8 import grids
from toolchain.backends.cpu.kernels.packed.weights import scaled
from toolchain.backends.cpu.layers import Activation, Conv, Dense, ImageLayer, Layer, Map
from toolchain.backends.graph.quantization import NUMBERS, Grid, Weights
from toolchain.backends.graph.values import Value
from toolchain.models.converters.quantized.packed import PackedWeights


@dataclass(eq=False)
class LayerPlan(ABC):
    """A layer.

    Attributes:
        data: What it reads.
        out: What it makes, after `effects`.
        index: Number of the last operation it stands for.
        weights: Constant with its weights, if it has any.
        effects: What is done to the result.
    """

    data: Value
    out: Value
    index: int
    weights: Value | None = None
    effects: list[Effect] = field(default_factory=list)

    @property
    def channels(self) -> int:
        """Channels of the result."""
        return (self.out.shape or ())[self.axis_of(self.out)]

    @abstractmethod
    def axis_of(self, value: Value) -> int:
        """Return the axis of the channels in the result, or in the same as Relax has it."""

    @property
    def reads(self) -> list[Value]:
        return [self.data, *(effect.value for effect in self.effects if isinstance(effect, Operand))]

    @property
    def makes(self) -> list[Value]:
        return [self.out]

    def then(self, more: list[Effect], out: Value, index: int) -> Self:
        """Return the layer with more done to its result."""
        return replace(self, effects=[*self.effects, *more], out=out, index=index)

    @abstractmethod
    def layer(self, locate: Callable[[Value], Activation]) -> Layer:
        """Return the layer.

        Args:
            locate: Returns where a blocked tensor lies.
        """

    def split_effects(self) -> tuple[Affine | None, list[BoundPostOp]]:
        """Return what goes into weights and bias, and the epilogue."""
        merged = effects.merge(self.effects)
        # A factor and a sum that come first need no post-ops: they go into the weights and the bias.
        first = merged[0] if merged else None
        if self.weights is None or not isinstance(first, Affine):
            return None, effects.epilogue(merged, self.channels)
        return first, effects.epilogue(merged[1:], self.channels)

    @property
    def has_bias(self) -> bool:
        folded, _ = self.split_effects()
        return folded is not None and bool((folded.shift != 0).any())

    def bias(self) -> NDArray[np.float64]:
        folded, _ = self.split_effects()
        return np.broadcast_to(np.array(0.0) if folded is None else folded.shift, (self.channels,))

    def folded_weights(self) -> NDArray[np.float32] | None:
        """Return the weights, outputs first, with a factor for each in them; None if they stay as they are."""
        folded, _ = self.split_effects()
        factors = None if folded is None or (folded.scale == 1).all() else folded.scale
        weights = self._transposed_weights()
        if factors is None or self.weights is None:
            return weights
        weights = self.weights.array if weights is None else weights
        shape = (-1, *[1] * (weights.ndim - 1))
        return (weights * np.broadcast_to(factors, (self.channels,)).reshape(shape)).astype(np.float32)

    def _transposed_weights(self) -> NDArray[np.float32] | None:
        """Return the weights as the layer wants them before they are packed; None if they are so already."""
        return None


@dataclass(eq=False)
class ImagePlan(LayerPlan):
    """A layer on images.

    Attributes:
        bare: The layer without bias and epilogue, in buffers of its own; weights are OIHW.
        groups: Groups of channels in the weights; a layer with fewer gets zeros for what they leave out.
    """

    bare: ImageLayer = field(kw_only=True)
    groups: int = 1

    def axis_of(self, value: Value) -> int:
        """Return the axis of the channels in the result, or in the same as Relax has it."""
        return value.channel_axis

    @property
    def is_kept(self) -> bool:
        """Whether it is worth a kernel of its own, however its result is used."""
        return True

    def layer(self, locate: Callable[[Value], Activation]) -> ImageLayer:
        """Return the layer; what is read or made plain stays so."""
        post_ops = self.split_effects()[1]
        epilogue = tuple(
            replace(post_op.op, other=locate(post_op.value)) if post_op.value else post_op.op for post_op in post_ops
        )
        data = self.bare.data if self.bare.data.lanes == 1 else locate(self.data)
        out = self.bare.out if self.bare.out.lanes == 1 else locate(self.out)
        layer = replace(self.bare, data=data, out=out, epilogue=epilogue)
        return replace(layer, bias=self.has_bias) if isinstance(layer, Conv) else layer

    def numbers(self, layer: ImageLayer) -> list[NDArray[Any]]:
        """Return what those post-ops take that want a number for each channel, as [blocks, lanes]."""
        vectors = [post_op.numbers for post_op in self.split_effects()[1] if post_op.numbers is not None]
        return [grids.pad_channels(layer, post_op.astype(np.float32)) for post_op in vectors]

    def _transposed_weights(self) -> NDArray[np.float32] | None:
        if not isinstance(self.bare, Conv) or self.bare.groups == self.groups or self.weights is None:
            return None
        # The weights of a grouped convolution as those of an ordinary one.
        groups, weights = self.groups, self.weights.array
        outputs, inputs, *kernel = weights.shape
        full = np.zeros((groups, outputs // groups, groups, inputs, *kernel), np.float32)
        for group, block in enumerate(weights.reshape(groups, -1, inputs, *kernel)):
            full[group, :, group] = block
        return full.reshape(outputs, groups * inputs, *kernel)


@dataclass(eq=False)
class BytePlan(ImagePlan):
    """A layer that reads bytes or makes some; rows of features are images of one pixel.

    Attributes:
        data_grid: Grid of the data; `NUMBERS` for numbers.
        result_grid: Grid of the result; None for numbers.
        scaled: Weights of a convolution, with as many groups as `groups`.
    """

    data_grid: Grid = NUMBERS
    result_grid: Grid | None = None
    scaled: Weights | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it is worth a kernel of its own: Relax makes numbers of bytes together with what follows."""
        if self.result_grid is not None or self.bare.out.lanes == 1 or not isinstance(self.bare, Map):
            return True
        return self.bare.data.is_bytes and any(isinstance(effect, Rounding) for effect in self.effects)

    @property
    def is_copy(self) -> bool:
        """Whether it only brings bytes into blocks."""
        same = self.data_grid == self.result_grid and self.bare.data.dtype == self.bare.out.dtype
        return same and self.bare.data.lanes == 1 and isinstance(self.bare, Map) and not self.effects

    @property
    def has_bias(self) -> bool:
        """Whether the layer has a bias of its own: those of bytes are in the sums."""
        return False

    def with_result_grid(self, grid: Grid | None, byte: str) -> BytePlan:
        """Return the layer with a result on a grid, in a type of byte; without one in numbers."""
        out = replace(self.bare.out, dtype="float32" if grid is None else byte)
        return replace(self, bare=replace(self.bare, out=out), result_grid=grid)

    def split_effects(self) -> tuple[Affine | None, list[BoundPostOp]]:
        """Return the bias, and the epilogue."""
        # Only a sum goes into the integer sums; a factor would change the unit of the products.
        first = self.effects[0] if self.effects else None
        if self.scaled is None or not isinstance(first, Affine) or (first.scale != 1).any():
            return None, effects.epilogue(effects.merge(self.effects), self.channels)
        return first, effects.epilogue(effects.merge(self.effects[1:]), self.channels)

    def constants(self, layer: ImageLayer) -> list[NDArray[Any]]:
        """Return what the kernel gets behind the data, with the weights before they are packed."""
        arrays, above = self._weighted(layer) if isinstance(layer, Conv) else ([], 0.0)
        if grids.parameter_count(layer):
            arrays.append(grids.parameters(layer, self.data_grid, self._grids, above))
        return arrays

    @property
    def _grids(self) -> list[Grid]:
        """Grids as `grids.parameters` wants them."""
        return [
            grid
            for grid in (*(post_op.grid for post_op in self.split_effects()[1]), self.result_grid)
            if grid is not None
        ]

    def _weighted(self, layer: Conv) -> tuple[list[NDArray[Any]], float]:
        """Return weights, sums, scales and offsets, and what is left of the biases."""
        if self.scaled is None:
            return [], 0.0
        scaled = self.scaled if layer.groups == self.groups else self.scaled.of_one_group(self.groups)
        unit = scaled.scales * self.data_grid.scale  # a channel whose weights are all zero may have none
        whole_bias = np.divide(self.bias(), unit, out=np.zeros(len(unit)), where=unit != 0)
        low, raised = grids.to_int8(scaled.numbers)
        arrays = [scaled.numbers if layer.is_depthwise else low]
        arrays += [grids.sums(layer, self.data_grid, scaled.numbers, whole_bias)]
        arrays += [grids.scales(layer, self.data_grid, scaled.scales, self._grids)]
        arrays += [grids.offsets(layer, raised)] if layer.offset else []
        return arrays, grids.fraction(whole_bias)

    def numbers(self, layer: ImageLayer) -> list[NDArray[Any]]:
        """Return what those post-ops take that want a number for each channel, as [blocks, lanes]."""
        vectors = [post_op.numbers for post_op in self.split_effects()[1] if post_op.numbers is not None]
        return grids.per_channel(layer, self._grids, vectors)


@dataclass(eq=False)
class RowPlan(LayerPlan):
    """A fully connected layer on plain rows.

    Attributes:
        bare: The layer without bias and epilogue; weights are [outputs, inputs].
        is_transposed: Whether the constant is [inputs, outputs].
        packed: The weights in place of `weights` if they stay packed.
        of_pixel: Whether it is a 1x1 convolution of images of one pixel, whose channels are a row.
    """

    bare: Dense = field(kw_only=True)
    is_transposed: bool = False
    packed: PackedWeights | None = None
    of_pixel: bool = False

    def axis_of(self, value: Value) -> int:
        """Return the axis of the channels in the result: the last, or that of an image of one pixel."""
        return value.channel_axis if self.of_pixel else len(value.shape or ()) - 1

    def layer(self, locate: Callable[[Value], Activation]) -> Dense:  # noqa: ARG002 - nothing of it is blocked
        return replace(self.bare, bias=self.has_bias, epilogue=tuple(post_op.op for post_op in self.split_effects()[1]))

    def folded_packed(self) -> PackedWeights | None:
        """Return packed weights, with a factor for each output in their scales; None for others."""
        folded, _ = self.split_effects()
        if self.packed is None or folded is None:
            return self.packed
        return scaled(self.packed, np.broadcast_to(folded.scale, (self.channels,)))

    def _transposed_weights(self) -> NDArray[np.float32] | None:
        return self.weights.array.T if self.is_transposed and self.weights is not None else None
