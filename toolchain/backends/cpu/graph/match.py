"""Find what of a network the templates can compute, on numbers or on bytes, and on which layout the rest is done."""

from __future__ import annotations

from collections.abc import Callable

from toolchain.backends.cpu.graph import blocked_ops, effects, rules
from toolchain.backends.cpu.graph.items import BlockedOperation, Item, Plain, own_activation, prune
from toolchain.backends.cpu.graph.planning import Planning
from toolchain.backends.cpu.graph.plans import BytePlan, ImagePlan
from toolchain.backends.cpu.layers import Map
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph import quantization
from toolchain.backends.graph.values import Block, Operation

_Rule = Callable[[Planning, Operation, int], bool]


def plan_items(block: Block, machine: Machine, without: frozenset[str] = frozenset()) -> list[Item]:
    """Plan a block: the items that are needed, in the order of the operations.

    Args:
        block: The block, with patterns as single operations. Concatenations that are rounded change in it.
        machine: The processor.
        without: Names of templates that must not be used.
    """
    plans = Planning(block, machine, without)
    # Before planning, so that layers can store bytes straight into the concatenation's buffer.
    if plans.has_bytes:
        rules.round_inputs(block, plans.lanes)
    for index, operation in enumerate(block.operations):
        if not _RULES.get(operation.name, element_wise)(plans, operation, index):
            plans.items.append(Plain(operation, index))
    return prune(sorted(plans.items, key=lambda item: item.index), block)


def element_wise(plans: Planning, operation: Operation, index: int) -> bool:
    """Plan an element-wise operation: in the epilogue of a layer, as a layer of its own, or in Relax on blocks."""
    if len(operation.outputs) != 1:
        return False
    for value in operation.inputs:
        quantization.fold_to_constant(value)  # it is a constant from here on, whose bytes are still known
    return (
        _fuse_into_layer(plans, operation, index)
        or _plan_map(plans, operation, index)
        or _plan_blocked_operation(plans, operation, index)
    )


def _fuse_into_layer(plans: Planning, operation: Operation, index: int) -> bool:
    """Add it to the epilogue of the last layer that it reads; layers without bytes are preferred."""
    ends = [
        (value in plans.bytes, -plan.index, value, plan) for value in operation.inputs if (plan := plans.end(value))
    ]
    for *_, value, plan in sorted(ends, key=lambda end: end[:2]):
        more = effects.effects(operation, value, plan.axis_of(value))
        if more is not None and plans.extend(value, more, operation.out, index):
            return True
    return False


def _plan_map(plans: Planning, operation: Operation, index: int) -> bool:
    """Make it a layer of its own if it reads a blocked tensor, or a concatenation of blocked tensors."""
    for value in sorted(
        operation.inputs, key=lambda tensor: -plans.bytes[tensor].index if tensor in plans.bytes else 1
    ):
        more = effects.effects(operation, value, value.channel_axis)
        bytes_, out = plans.bytes.get(value), operation.out
        plan: ImagePlan | None = None
        if bytes_ is not None:
            plan = BytePlan(
                bytes_.value, out, index, bare=Map(bytes_.activation, bytes_.numbers), data_grid=bytes_.grid
            )
        elif value in plans.blocked or value in plans.joined_plain:
            lanes = plans.lanes if value in plans.blocked else 1
            plan = ImagePlan(value, out, index, bare=Map(own_activation(value, lanes), plans.activation(value)))
        fitting = plans.fit_effects(plan, more) if plan is not None and more is not None else None
        if plan is not None and fitting is not None and plans.take(plan.then(fitting, out, index)):
            return True
    return False


def _plan_blocked_operation(plans: Planning, operation: Operation, index: int) -> bool:
    """Leave it to Relax, but on blocked tensors."""
    tensors = [value for value in operation.inputs if value.constant is None]
    if not any(value in plans.blocked for value in tensors) or any(value in plans.slices for value in tensors):
        return False
    if not plans.has_blocks or not blocked_ops.can_run_blocked(operation, plans.lanes):
        return False
    plans.items.append(BlockedOperation(operation, index))
    plans.blocked.add(operation.out)
    return True


_RULES: dict[str, _Rule] = {
    "nn.conv2d": rules.conv,
    "matmul": rules.dense,
    "linear": rules.dense,
    "nn.max_pool2d": rules.pool,
    "nn.avg_pool2d": rules.pool,
    "nn.adaptive_avg_pool2d": rules.adaptive,
    "mean": rules.reduced,
    "max": rules.reduced,
    "attention": rules.attention,
    "shuffle": rules.shuffle,
    "concat": rules.concat,
    "split": rules.split,
    "strided_slice": rules.strided_slice,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims", "flatten"), rules.reshape),
    "quantize": rules.quantize,
    "dequantize": rules.dequantize,
}
