"""What the operations of a block have become so far: layers, and where the tensors between them lie.

A quantized network (ONNX calls the form QDQ) computes on numbers, and rounds them to bytes and back between operations.
Here a tensor of numbers that comes from bytes is those bytes, with their grid: layers read them as they are, and what
is rounded is the result of the layer before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.graph.effects import Effect, Operand, Rounding
from toolchain.backends.cpu.graph.items import Item, own_activation
from toolchain.backends.cpu.graph.plans import BytePlan, ImagePlan, LayerPlan, RowPlan
from toolchain.backends.cpu.kernels.int8.grids import byte_of
from toolchain.backends.cpu.layers import Activation, Layer, Map, in_float16
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph import quantization
from toolchain.backends.graph.quantization import NUMBERS, Grid
from toolchain.backends.graph.values import Block, Value


@dataclass(frozen=True, eq=False)
class Bytes:
    """Bytes in blocks that a tensor of the network is the same as, or has the numbers of.

    Attributes:
        value: The bytes.
        activation: Where they lie.
        grid: What they stand for.
        index: Number of the operation that makes them.
        is_alone: Whether one operation alone needs them.
        was_plain: Whether the same is on plain layout too, or can be had there by no more than rounding.
    """

    value: Value
    activation: Activation
    grid: Grid
    index: int
    is_alone: bool
    was_plain: bool = False

    @property
    def numbers(self) -> Activation:
        """The place of the numbers, in blocks as well."""
        return replace(self.activation, dtype="float32")


class Planning:
    """The plans for a block.

    Attributes:
        block: The block.
        lanes: Channels of the machine's blocks.
        byte: The type that bytes have in kernels; in the network it may be another.
        adds_pairs: As the machine does.
        items: What becomes of it.
        blocked: The tensors of numbers that lie in blocks.
        slices: Those of them that are parts of others.
        joined_plain: Concatenations on plain layout, whose parts lie in blocks.
        bytes: By tensor of the network, the bytes that it is the same as.
        has_blocks: Whether tensors can be brought into blocks, and back again.
        has_bytes: Whether they can be rounded to bytes there, for products that the machine has.
    """

    def __init__(self, block: Block, machine: Machine, without: frozenset[str]) -> None:
        self.block, self.lanes, self._machine = block, machine.lanes, machine
        self._without = without | kernels.lacking(machine)
        self.byte, self.adds_pairs = byte_of(machine), machine.adds_pairs
        self.items: list[Item] = []
        self.blocked: set[Value] = set()
        self.slices: set[Value] = set()
        self.joined_plain: set[Value] = set()
        self.bytes: dict[Value, Bytes] = {}
        self._ends: dict[Value, LayerPlan] = {}  # layers by their result, which more can be done to
        self._places: dict[Value, Activation] = {}  # of bytes
        # Layers of one pixel suffice to ask the templates.
        pixel = Activation(1, self.lanes, 1, 1, self.lanes)
        plain = replace(pixel, lanes=1)
        self.has_blocks = self.covers(Map(pixel, plain)) and self.covers(Map(plain, pixel))
        rounding = Map(plain, replace(pixel, dtype=self.byte))
        self.has_bytes = bool(machine.dot) and self.has_blocks and self.covers(rounding)

    def covers(self, layer: Layer) -> bool:
        """Whether a template computes a layer."""
        return kernels.is_covered(in_float16(layer) if self._machine.float16 else layer, self._without)

    def computes(self, layer: Layer) -> bool:
        """Whether a template computes a layer with the instructions of this processor."""
        return bool(kernels.candidates(layer, self._machine, without=self._without))

    def activation(self, value: Value) -> Activation:
        """Return a tensor in blocks, in a buffer of its own."""
        return self._places[value] if value in self._places else own_activation(value, self.lanes)

    def _is_covered(self, plan: LayerPlan) -> bool:
        if isinstance(plan, BytePlan) and not plan.bare.is_quantized:  # what is rounded only on the way is not kept
            plan = plan.with_result_grid(NUMBERS, self.byte)
        out = plan.bare.out if isinstance(plan, ImagePlan) else None
        return self.covers(plan.layer(lambda value: out if out and value is plan.out else self.activation(value)))

    def take(self, plan: LayerPlan) -> bool:
        """Take a layer if a template computes it."""
        # A call of a kernel without code on a constant would be folded, to whatever lay in memory.
        is_constant = quantization.fold_to_constant(plan.data).constant is not None
        impossible = is_constant or not (self.has_blocks or isinstance(plan, RowPlan))
        if impossible or not self._is_covered(plan):
            return False
        self._add(plan)
        return True

    def _add(self, plan: LayerPlan) -> None:
        self.items.append(plan)
        # Only a result in blocks or rows can have more post-ops.
        if isinstance(plan, RowPlan) or (isinstance(plan, ImagePlan) and plan.bare.out.lanes > 1):
            self._ends[plan.out] = plan
        if isinstance(plan, ImagePlan) and plan.is_kept and plan.out.is_image and plan.bare.out.lanes == self.lanes:
            self.blocked.add(plan.out)

    def end(self, value: Value) -> LayerPlan | None:
        """Return the layer whose result a tensor is, as floats or as bytes, if nothing else reads it."""
        bytes_ = self.bytes.get(value)
        if bytes_ is not None:
            return self._ends.get(bytes_.value) if bytes_.is_alone else None
        return self._ends.get(value) if value.is_alone else None

    def extend(
        self, value: Value, more: list[Effect], out: Value, index: int, result_grid: Grid | None = None
    ) -> LayerPlan | None:
        """Extend the epilogue of a layer; return the longer layer, or None if no template computes it.

        Args:
            value: What `end` knows the layer of.
            more: What is done.
            out: The result then.
            index: Number of the last operation.
            result_grid: The grid of a result in bytes.
        """
        plan, bytes_ = self.end(value), self.bytes.get(value)
        if plan is None or (result_grid is not None and not isinstance(plan, BytePlan)):
            return None
        before: list[Effect] = []
        if bytes_ is not None:
            grid = bytes_.grid
            # The layer's data may be bytes of the network's type; its kernel rounds to those of the machine.
            if isinstance(plan, BytePlan) and plan.bare.data.is_bytes:
                grid = grid.moved(self.byte, plan.bare.data.dtype)
            before = [Rounding(grid)]
        fitting = self.fit_effects(plan, more)
        longer = None if fitting is None else plan.then([*before, *fitting], out, index)
        if longer is not None and isinstance(longer, BytePlan):
            longer = longer.with_result_grid(result_grid, self.byte)
        if longer is None or not self._is_covered(longer):
            return None
        del self._ends[plan.out]
        # The longer layer replaces the shorter one, whose result no longer exists. One that is not kept may still get
        # longer, or it is dropped: then others read the shorter one's result.
        if not isinstance(longer, ImagePlan) or longer.is_kept:
            self.items.remove(plan)
            self.blocked.discard(plan.out)
        self._add(longer)
        return longer

    def fit_effects(self, plan: LayerPlan, more: list[Effect]) -> list[Effect] | None:
        """Return effects as a plan can have them: layers on bytes take other tensors in bytes, and on their blocks."""
        if not isinstance(plan, BytePlan):
            return more
        fitting: list[Effect] = []
        for effect in more:
            if not isinstance(effect, Operand):
                fitting.append(effect)
                continue
            other = self.bytes.get(effect.value)
            if other is None or other.activation.lanes != plan.bare.out.lanes:
                return None
            fitting.append(replace(effect, value=other.value, grid=other.grid))
        return fitting

    # Bytes

    def new_bytes(self, out: Value) -> Value:
        """Return a new tensor of bytes in blocks, for one of the network."""
        return self.block.new_value(out, out.pixels, self.byte)

    def take_bytes(self, plan: BytePlan, out: Value) -> bool:
        """Take a layer that makes bytes if a template computes it.

        Args:
            plan: The layer.
            out: The tensor of the network that the bytes are, or have the numbers of.
        """
        return self.take(plan) and self.note_result(plan, out)

    def note_result(self, plan: BytePlan, out: Value) -> bool:
        """Note that a tensor of the network is the bytes that a layer of `items` makes."""
        activation, grid, was_plain = plan.bare.out, plan.result_grid or NUMBERS, plan.bare.data.lanes == 1
        self._places[plan.out] = activation
        bytes_ = Bytes(plan.out, activation, grid, plan.index, is_alone=True, was_plain=was_plain)
        return self.note(out, bytes_, plan.index)

    def note(self, out: Value, bytes_: Bytes, index: int) -> bool:
        """Note that a tensor of the network is some bytes, and plan its change to plain layout for other readers."""
        self.bytes[out] = replace(bytes_, is_alone=bytes_.is_alone and out.is_alone)
        if not bytes_.was_plain:
            grid = None if out.dtype == "float32" else bytes_.grid.moved(self.byte, out.dtype)
            bare = Map(bytes_.activation, own_activation(out, 1))
            self.take(BytePlan(bytes_.value, out, index, bare=bare, data_grid=bytes_.grid, result_grid=grid))
        return True
