"""The rules by operator, each of which returns whether it planned the operation: layers, channels, rounding."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from toolchain.backends.cpu.graph.attention import AttentionOperation
from toolchain.backends.cpu.graph.items import Flat, Heads, Join, Slice, own_activation
from toolchain.backends.cpu.graph.planning import Bytes, Planning
from toolchain.backends.cpu.graph.plans import BytePlan, ImagePlan, RowPlan
from toolchain.backends.cpu.kernels.int8 import grids
from toolchain.backends.cpu.kernels.int8.emit import GROUP
from toolchain.backends.cpu.layers import Activation, Conv, Dense, Map, Pool
from toolchain.backends.graph import quantization
from toolchain.backends.graph.quantization import LEAST, Grid, Weights
from toolchain.backends.graph.values import Block, Operation, Value, four, pair
from toolchain.models.converters.quantized.packed import PackedWeights

# --- layers, on floats or on bytes -----------------------------------------------------------------------------------

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
    if any(_conv_of_bytes(plans, operation, index, replace(layer, groups=groups), layer.groups) for groups in shares):
        return True
    return _pixel_of_packed(plans, operation, index, layer) or any(
        _conv_of_numbers(plans, operation, index, replace(layer, groups=groups), layer.groups) for groups in shares
    )


def _conv_of_bytes(plans: Planning, operation: Operation, index: int, layer: Conv, groups: int) -> bool:
    data, weights = operation.inputs
    bytes_ = plans.bytes.get(data)
    scaled = quantization.weights(weights) if bytes_ is not None else None
    if bytes_ is None or scaled is None:
        return False
    bare = replace(layer, data=bytes_.activation)
    if not bare.is_depthwise:
        whole = scaled if layer.groups == groups else scaled.of_one_group(groups)
        bare = replace(bare, offset=scaled.has_offset, unpaired=_is_unpaired(plans, whole))
    plan = BytePlan(bytes_.value, operation.out, index, bare=bare, groups=groups, data_grid=bytes_.grid, scaled=scaled)
    return plans.take(plan)


def _is_unpaired(plans: Planning, weights: Weights) -> bool:
    return plans.adds_pairs and grids.pairs_overflow(grids.to_int8(weights.numbers)[0])


def _pixel_of_packed(plans: Planning, operation: Operation, index: int, layer: Conv) -> bool:
    """A 1x1 convolution of images of one pixel, as a row of channels, whose weights stay packed."""
    data, weights = operation.inputs
    is_pixel = data.image[2:] == layer.kernel == (1, 1) and not any(layer.padding) and layer.groups == 1
    packed = quantization.packed_weights(weights) if is_pixel else None
    if packed is None:
        return False
    bare = _dense_layer(plans, data.image[0], packed)
    return plans.take(RowPlan(data, operation.out, index, weights, bare=bare, packed=packed, of_pixel=True))


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
    if _dense_of_bytes(plans, operation, index) or _dense_of_packed(plans, operation, index):
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
    unpaired = _is_unpaired(plans, pixel)
    out = plans.activation(operation.out)
    bare = Conv(bytes_.activation, out, (1, 1), offset=scaled.has_offset, unpaired=unpaired)
    return plans.take(BytePlan(bytes_.value, operation.out, index, bare=bare, data_grid=bytes_.grid, scaled=pixel))


def _dense_of_packed(plans: Planning, operation: Operation, index: int) -> bool:
    data, weights = operation.inputs
    packed = quantization.packed_weights(weights) if operation.name == "matmul" else None
    if packed is None:
        return False
    bare = _dense_layer(plans, math.prod((data.shape or ())[:-1]), packed)
    return plans.take(RowPlan(data, operation.out, index, weights, bare=bare, packed=packed))


def _dense_layer(plans: Planning, rows: int, packed: PackedWeights) -> Dense:
    outputs, inputs = packed.numbers.shape
    has_zeros = packed.zeros is not None
    layer = Dense(rows, inputs, outputs, bits=packed.bits, block=packed.block, zeros=has_zeros)
    rounded = replace(layer, rounds=True)
    return rounded if packed.rounds and plans.computes(rounded) else layer


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


# --- concatenations, slices and reshapes of blocked tensors ----------------------------------------------------------

_NCHW = 4  # axes


def concat(plans: Planning, operation: Operation, index: int) -> bool:
    """Tensors put together along the channels."""
    if len(operation.out.shape or ()) != _NCHW or int(operation.attributes.axis) % _NCHW != 1:
        return False
    if operation.out.dtype in LEAST:
        return _concat_of_bytes(plans, operation, index)
    if not all(value.is_image and value.constant is None for value in operation.inputs):
        return False
    if not any(value in plans.blocked for value in operation.inputs):
        return False
    join = Join(operation, index)
    # Where an input ends within a block, the result is put together on plain layout.
    aligned = all(first % plans.lanes == 0 for _, first in join.offsets())
    join.plain = not aligned
    if not all(_can_enter(plans, value, join) for value in operation.inputs):
        return False
    plans.items.append(join)
    (plans.blocked if aligned else plans.joined_plain).add(operation.out)
    return True


def _can_enter(plans: Planning, value: Value, join: Join) -> bool:
    """Whether a tensor can be copied into a part of another."""
    lanes = plans.lanes if value in plans.blocked else 1
    target = own_activation(value, 1 if join.plain else plans.lanes)
    larger = own_activation(join.out, target.lanes)
    slot = Activation(*value.image, target.lanes, 0, larger.blocks)
    return plans.covers(Map(own_activation(value, lanes), slot))


def _concat_of_bytes(plans: Planning, operation: Operation, index: int) -> bool:
    """Tensors on one grid; those that others need too are copied."""
    inputs = [plans.bytes[value] for value in operation.inputs if value in plans.bytes]
    same = {(source.grid, source.activation.lanes) for source in inputs}
    if len(inputs) < len(operation.inputs) or len(same) != 1 or inputs[0].activation.lanes != plans.lanes:
        return False
    if any(first % plans.lanes for _, first in Join(operation, index).offsets()):
        return False
    result = plans.new_bytes(operation.out)
    values = tuple(_copy_for_concat(plans, source, index) for source in inputs)
    plans.items.append(Join(Operation(operation.name, values, (result,), operation.call), index))
    return plans.note(
        operation.out, Bytes(result, own_activation(result, plans.lanes), inputs[0].grid, index, is_alone=True), index
    )


def _copy_for_concat(plans: Planning, source: Bytes, index: int) -> Value:
    """Return bytes that a concatenation alone reads."""
    # Other readers of the same bytes would see them change inside the larger buffer.
    if source.is_alone:
        return source.value
    result = plans.new_bytes(source.value)
    bare = Map(source.activation, own_activation(result, source.activation.lanes))
    plans.take(BytePlan(source.value, result, index, bare=bare, data_grid=source.grid, result_grid=source.grid))
    return result


def split(plans: Planning, operation: Operation, index: int) -> bool:
    """A tensor cut along the channels."""
    source, *pieces = (*operation.inputs[:1], *operation.outputs)
    together = pieces.pop()  # the tuple itself
    if source not in plans.blocked or together.readers or int(operation.attributes.axis) % 4 != 1:
        return False
    slices, first = [], 0
    for output in pieces:
        slices.append(Slice(source, output, index, first))
        first += output.image[1]
    needed = [piece for piece in slices if piece.out.readers]
    # A slice is a view only if it begins with a block.
    if any(piece.first % plans.lanes for piece in needed):
        return False
    for piece in needed:
        _add_slice(plans, piece)
    return True


def strided_slice(plans: Planning, operation: Operation, index: int) -> bool:
    """Some channels of a tensor."""
    source = operation.inputs[0]
    if source not in plans.blocked or not operation.out.is_image:
        return False
    _, axes, begin, _, *strides = operation.call.args
    steps = {int(stride) for field in strides for stride in field.fields}
    if [int(axis) % 4 for axis in axes.fields] != [1] or steps - {1}:
        return False
    channels = source.image[1]
    first = int(begin.fields[0])
    first = max(first + channels, 0) if first < 0 else min(first, channels)
    if first % plans.lanes:
        return False
    _add_slice(plans, Slice(source, operation.out, index, first))
    return True


def _add_slice(plans: Planning, piece: Slice) -> None:
    plans.items.append(piece)
    plans.blocked.add(piece.out)
    plans.slices.add(piece.out)


def reshape(plans: Planning, operation: Operation, index: int) -> bool:
    """Images of one pixel as rows, or the other way round."""
    source, out = operation.inputs[0], operation.out
    bytes_ = plans.bytes.get(source)
    # Bytes of the same pixels in another rank are the same bytes.
    if bytes_ is not None and out.has_pixels and source.pixels == out.pixels:
        return plans.note(out, bytes_, index)
    if source not in plans.blocked or source.image[2:] != (1, 1) or out.shape is None:
        return False
    plans.items.append(Flat(source, out, index))
    return True


# --- where numbers become bytes, and bytes numbers again -------------------------------------------------------------


def quantize(plans: Planning, operation: Operation, index: int) -> bool:
    """Round what a layer makes, or a tensor of numbers."""
    out, source = operation.out, operation.inputs[0]
    grid = _grid(plans, operation) if quantization.is_quantize(operation) else None
    if grid is None:
        return False
    bytes_ = plans.bytes.get(source)
    if bytes_ is not None and bytes_.grid == grid:
        return plans.note(out, bytes_, index)
    result = plans.new_bytes(out)
    longer = plans.extend(source, [], result, index, grid)
    if isinstance(longer, BytePlan):
        return plans.note_result(longer, out)
    return plans.take_bytes(_rounding(plans, source, result, index, grid), out)


def _grid(plans: Planning, operation: Operation) -> Grid | None:
    """Return the grid that bytes have in kernels; None if they cannot lie in blocks."""
    if not plans.has_bytes or not operation.out.has_pixels:
        return None
    return quantization.grid_of(operation, plans.byte)


def _rounding(plans: Planning, source: Value, result: Value, index: int, grid: Grid) -> BytePlan:
    """Return the layer that rounds a tensor, and does nothing else."""
    bytes_ = plans.bytes.get(source)
    if bytes_ is not None:
        return BytePlan(
            bytes_.value,
            result,
            index,
            bare=Map(bytes_.activation, bytes_.activation),
            data_grid=bytes_.grid,
            result_grid=grid,
        )
    # An image of three channels in full blocks would be mostly zeros: dot products take groups of four.
    few = source.pixels[1] <= GROUP
    data = plans.activation(source) if source in plans.blocked and not few else own_activation(source, 1)
    out = own_activation(result, GROUP if few else plans.lanes)
    return BytePlan(source, result, index, bare=Map(data, out), result_grid=grid)


def dequantize(plans: Planning, operation: Operation, index: int) -> bool:
    """Take bytes for the numbers that they stand for."""
    source, out = operation.inputs[0], operation.out
    grid = _grid(plans, operation) if quantization.is_dequantize(operation) else None
    if grid is None:
        return False
    bytes_ = plans.bytes.get(source) or _import_bytes(plans, operation, index, grid)
    return bytes_ is not None and bytes_.grid == grid and plans.note(out, bytes_, index)


def _import_bytes(plans: Planning, operation: Operation, index: int, grid: Grid) -> Bytes | None:
    """Move bytes into blocks that the network does not compute by rounding, such as its input."""
    value = operation.inputs[0]
    if value.variable is None or value.constant is not None or quantization.is_quantize(value.maker):
        return None
    result = plans.new_bytes(value)
    bare = Map(own_activation(value, 1), own_activation(result, GROUP if value.pixels[1] <= GROUP else plans.lanes))
    source_grid = grid.moved(plans.byte, value.dtype)
    plan = BytePlan(value, result, index, bare=bare, data_grid=source_grid, result_grid=grid)
    return plans.bytes[value] if plans.take_bytes(plan, value) else None


def round_inputs(block: Block, lanes: int) -> None:
    """Round the parts of a concatenation in place of the whole, where each fills its blocks.

    Layers then write their bytes where they belong.
    """
    operations = []
    for operation in block.operations:
        operations += _round_concat_inputs(block, operation, lanes) or [operation]
    block.operations = operations
    block.remove_dead()


def _round_concat_inputs(block: Block, operation: Operation, lanes: int) -> list[Operation]:
    """Return a rounded concatenation as a concatenation of rounded inputs; nothing if that is not possible."""
    source = operation.inputs[0] if quantization.is_quantize(operation) else None
    joined = source.maker if source is not None and source.is_alone and source.is_image else None
    if joined is None or joined.name != "concat" or int(joined.attributes.axis) % 4 != 1:
        return []
    channels = [value.image[1] for value in joined.inputs if value.constant is None and value.is_image]
    whole_blocks = not any(count % lanes for count in channels[:-1]) and min(channels, default=0) > GROUP
    if len(channels) < len(joined.inputs) or not whole_blocks:
        return []
    rounded_inputs = [block.new_value(value, value.image, operation.out.dtype) for value in joined.inputs]
    roundings = [
        Operation(operation.name, (value, *operation.inputs[1:]), (rounded_input,), operation.call)
        for value, rounded_input in zip(joined.inputs, rounded_inputs, strict=True)
    ]
    for rounded_input, maker in zip(rounded_inputs, roundings, strict=True):
        rounded_input.maker = maker
    whole_tensor = Operation(joined.name, tuple(rounded_inputs), operation.outputs, joined.call)
    operation.out.maker = whole_tensor
    return [*roundings, whole_tensor]
