"""Where a quantized network rounds numbers to bytes, and takes bytes for numbers again."""

from __future__ import annotations

from toolchain.backends.cpu.graph.items import own_activation
from toolchain.backends.cpu.graph.planning import Bytes, Planning
from toolchain.backends.cpu.graph.plans import BytePlan
from toolchain.backends.cpu.kernels.int8.emit import GROUP
from toolchain.backends.cpu.layers import Map
from toolchain.backends.graph import quantization
from toolchain.backends.graph.quantization import Grid
from toolchain.backends.graph.values import Block, Operation, Value


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
