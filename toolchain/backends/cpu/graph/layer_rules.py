"""Which operations are layers, on floats or on bytes: each rule returns whether it planned the operation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from toolchain.backends.cpu.graph.attention import AttentionOperation
from toolchain.backends.cpu.graph.items import Flat, Heads, own_activation
from toolchain.backends.cpu.graph.planning import Planning
from toolchain.backends.cpu.graph.plans import BytePlan, ImagePlan, RowPlan
from toolchain.backends.cpu.layers import Activation, Conv, Dense, Map, Pool
from toolchain.backends.graph import quantization
from toolchain.backends.graph.quantization import Weights
from toolchain.backends.graph.values import Operation, Value, four, pair

_FEW = 4  # channels of an image that a convolution reads as it is
_MOST_GROUPS = 8  # of a convolution that are worth multiplying zeros for
_MATRIX = 2  # axes
_LAYOUTS = ("NCHW", "OIHW", "NCHW")
_PIXELS = [2, 3]  # axes of NCHW


def conv(plans: Planning, operation: Operation, index: int) -> bool:
    """A convolution whose weights are known."""
    data, weights = operation.inputs
    if not (weights.is_image and data.is_image and operation.out.is_image):
        return False
    kernel = (weights.image[2], weights.image[3])
    layer = _conv_layer(operation, plans.activation(data), plans.activation(operation.out), kernel)
    if layer is None:
        return False
    # With few groups, a convolution of one group with zeros between the groups may be covered where the other is not.
    shares = (layer.groups, 1) if 1 < layer.groups <= _MOST_GROUPS else (layer.groups,)
    return any(
        _conv_of_bytes(plans, operation, index, replace(layer, groups=groups), layer.groups) for groups in shares
    ) or any(
        _conv_of_numbers(plans, operation, index, replace(layer, groups=groups), layer.groups) for groups in shares
    )


def _conv_of_bytes(plans: Planning, operation: Operation, index: int, layer: Conv, groups: int) -> bool:
    data, weights = operation.inputs
    bytes_ = plans.bytes.get(data)
    scaled = quantization.weights(weights) if bytes_ is not None else None
    if bytes_ is None or scaled is None:
        return False
    bare = replace(layer, data=bytes_.activation)
    bare = replace(bare, offset=scaled.has_offset and not bare.is_depthwise)
    plan = BytePlan(bytes_.value, operation.out, index, bare=bare, groups=groups, data_grid=bytes_.grid, scaled=scaled)
    return plans.take(plan)


def _conv_of_numbers(plans: Planning, operation: Operation, index: int, layer: Conv, groups: int) -> bool:
    data, weights = operation.inputs[0], quantization.fold_to_constant(operation.inputs[1])
    if weights.constant is None:
        return False
    few = data not in plans.blocked and data.image[1] <= _FEW
    bares = [
        replace(layer, data=own_activation(data, lanes)) for lanes in ((1, plans.lanes) if few else (plans.lanes,))
    ]
    return any(plans.take(ImagePlan(data, operation.out, index, weights, bare=bare, groups=groups)) for bare in bares)


def dense(plans: Planning, operation: Operation, index: int) -> bool:
    """The product of rows with a matrix that is known; of bytes, a convolution of images of one pixel."""
    data, weights = operation.inputs
    typed = data.dtype == weights.dtype == "float32" and data.shape and operation.out.shape
    if not typed or weights.shape is None or len(weights.shape) != _MATRIX:
        return False
    if _dense_of_bytes(plans, operation, index):
        return True
    if quantization.fold_to_constant(weights).constant is None:
        return False
    is_transposed = operation.name == "matmul"
    *rows, inputs = data.shape or ()
    bare = Dense(math.prod(rows), inputs, weights.shape[is_transposed])
    return plans.take(RowPlan(data, operation.out, index, weights, bare=bare, is_transposed=is_transposed))


def _dense_of_bytes(plans: Planning, operation: Operation, index: int) -> bool:
    data, weights = operation.inputs
    bytes_ = plans.bytes.get(data) if operation.name == "matmul" and not data.is_image else None
    scaled = quantization.weights(weights) if bytes_ is not None else None
    if bytes_ is None or scaled is None:
        return False
    # Rows of bytes are images of one pixel, so that one template does both.
    pixel = Weights(scaled.numbers.reshape(*scaled.numbers.shape, 1, 1), scaled.scales)
    bare = Conv(bytes_.activation, plans.activation(operation.out), (1, 1), offset=scaled.has_offset)
    return plans.take(BytePlan(bytes_.value, operation.out, index, bare=bare, data_grid=bytes_.grid, scaled=pixel))


def attention(plans: Planning, operation: Operation, index: int) -> bool:
    """An attention, which was found before."""
    if isinstance(operation, AttentionOperation):
        plans.items.append(Heads(operation, index))
    return isinstance(operation, AttentionOperation)


def pool(plans: Planning, operation: Operation, index: int) -> bool:
    """The mean or the maximum of windows."""
    data, out = operation.inputs[0], operation.out
    if _pool_of_bytes(plans, operation, index):
        return True
    if not data.is_image or not out.is_image:
        return False
    bare = _pool_layer(operation, plans.activation(data), plans.activation(out))
    return bare is not None and plans.take(ImagePlan(data, out, index, bare=bare))


def _pool_of_bytes(plans: Planning, operation: Operation, index: int) -> bool:
    # The largest byte stands for the largest number; a mean is of numbers until it is rounded.
    bytes_, out = plans.bytes.get(operation.inputs[0]), operation.out
    if bytes_ is None or not out.has_pixels:
        return False
    bare = _pool_layer(operation, bytes_.activation, own_activation(out, bytes_.activation.lanes))
    if bare is None:
        return False
    if bare.reduce == "max":
        result = plans.new_bytes(out)
        bare = replace(bare, out=own_activation(result, bytes_.activation.lanes))
        return plans.take_bytes(
            BytePlan(bytes_.value, result, index, bare=bare, data_grid=bytes_.grid, result_grid=bytes_.grid), out
        )
    return out.is_image and plans.take(BytePlan(bytes_.value, out, index, bare=bare, data_grid=bytes_.grid))


def adaptive(plans: Planning, operation: Operation, index: int) -> bool:
    """The mean of each channel, as an operation of its own."""
    if not operation.out.is_image or operation.out.image[2:] != (1, 1):
        return False
    return str(operation.attributes.layout) == "NCHW" and _global(plans, operation, operation.out, "mean", index)


def reduced(plans: Planning, operation: Operation, index: int) -> bool:
    """The mean or maximum of each channel."""
    data, out, axes = operation.inputs[0], operation.out, operation.attributes.axis
    if not data.is_image or axes is None or sorted(int(axis) % 4 for axis in axes) != _PIXELS:
        return False
    if _global(plans, operation, out, operation.name, index):
        return True
    image = plans.block.new_value(out, (*data.image[:2], 1, 1))
    if out.is_image or not _global(plans, operation, image, operation.name, index):
        return False
    image.readers = 1
    plans.items.append(Flat(image, out, index))
    return True


def _global(plans: Planning, operation: Operation, out: Value, reduce: Any, index: int) -> bool:
    data = operation.inputs[0]
    if not data.is_image:
        return False
    window, bytes_ = (data.image[2], data.image[3]), plans.bytes.get(data)
    if bytes_ is not None and reduce == "mean":
        bare = Pool(bytes_.activation, replace(bytes_.numbers, height=1, width=1), reduce, window)
        if plans.take(BytePlan(bytes_.value, out, index, bare=bare, data_grid=bytes_.grid)):
            return True
    bare = Pool(plans.activation(data), plans.activation(out), reduce, window)
    return out.is_image and plans.take(ImagePlan(data, out, index, bare=bare))


def shuffle(plans: Planning, operation: Operation, index: int) -> bool:
    """Channels of groups dealt out in turn."""
    data = operation.inputs[0]
    if data not in plans.blocked:
        return False
    bare = Map(plans.activation(data), plans.activation(operation.out), shuffle=int(operation.values[0]))
    return plans.take(ImagePlan(data, operation.out, index, bare=bare))


# --- attributes of Relax, read once for layers on floats and on bytes ----------------------------------------


def _conv_layer(operation: Operation, data: Activation, out: Activation, kernel: tuple[int, int]) -> Conv | None:
    """Return a convolution, with the padding of an operation before it; None if its tensors are not NCHW."""
    attributes = operation.attributes
    if (str(attributes.data_layout), str(attributes.kernel_layout), str(attributes.out_layout)) != _LAYOUTS:
        return None
    top, begin, bottom, right = four(attributes.padding)
    more = four(operation.values or (0, 0, 0, 0))
    padding = (top + more[0], begin + more[1], bottom + more[2], right + more[3])
    shape = (pair(attributes.strides), padding, pair(attributes.dilation), int(attributes.groups))
    return Conv(data, out, kernel, *shape)


def _pool_layer(operation: Operation, data: Activation, out: Activation) -> Pool | None:
    """Return a pooling; None if its tensors are not NCHW."""
    attributes, mean = operation.attributes, operation.name == "nn.avg_pool2d"
    if str(attributes.layout) != "NCHW":
        return None
    return Pool(
        data,
        out,
        "mean" if mean else "max",
        pair(attributes.pool_size),
        pair(attributes.strides),
        four(attributes.padding),
        pair(attributes.dilation),
        mean and bool(attributes.count_include_pad),
    )
