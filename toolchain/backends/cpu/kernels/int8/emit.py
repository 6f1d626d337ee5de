"""What the templates on bytes share: dot products, and the epilogue between a sum and the byte that is stored."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument, Buffer, Coordinates, Expr
from toolchain.backends.cpu.kernels.int8.grids import parameter_count, quantizer_units
from toolchain.backends.cpu.kernels.int8.narrow import narrow_to_bytes
from toolchain.backends.cpu.layers import Conv, ImageLayer
from toolchain.backends.cpu.machine import Machine

GROUP = 4
"""Bytes that a dot product adds to one lane."""

# Adding it to a float32 of less than 2^22 leaves no bits for a fraction: the addition rounds half to even, as ONNX
# wants it, on every processor, and the low byte of the result's bits is the whole number's.
_ROUNDING = 1.5 * 2**23


def dot(machine: Machine, sums: Expr, data: Expr, weights: Expr) -> Expr:
    """Return sums + products of four neighbouring bytes for each 32-bit lane.

    Args:
        machine: The processor.
        sums: int32, one for each lane.
        data: Four bytes of data as one int32, in each lane.
        weights: int8, four for each lane.
    """
    lanes = machine.lanes
    if machine.dot == "vpdpbusd":  # Intel SDM volume 2, VPDPBUSD: unsigned by signed
        name, byte = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", "uint8"
    else:  # Arm ARM, SDOT (vector): signed by signed
        name, byte = f"llvm.aarch64.neon.sdot.v{lanes}i32.v{GROUP * lanes}i8", "int8"
    same_bits = tirx.reinterpret(f"{byte}x{GROUP * lanes}", data)
    if machine.dot == "sdot":
        return tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, sums, weights, same_bits)
    return tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, sums, same_bits, weights)


def four_bytes(buffer: Buffer, offset: Expr) -> Expr:
    """Return four neighbouring bytes as one int32."""
    return tirx.reinterpret("int32", buffer[emit.ramp(offset, GROUP)])


def load_float32(buffer: Buffer, offset: Expr, lanes: int) -> Expr:
    """Return neighbouring elements as float32."""
    value = buffer[emit.ramp(offset, lanes)]
    return value if str(buffer.dtype) == "float32" else tirx.Cast(emit.wide("float32", lanes), value)


def arguments(layer: ImageLayer, weights: Argument | None = None) -> list[Argument]:
    """List the arguments of a layer's kernel.

    Args:
        weights: Its packed weights; without, the weights are as they are before that.
    """
    arguments = [Argument("data", layer.data.shape, layer.data.dtype)]
    if isinstance(layer, Conv):
        channels = (layer.out.blocks, layer.out.lanes)
        arguments.append(weights or Argument("weights", layer.weights_shape, "int8"))
        arguments += [Argument("sums", channels, "int32"), Argument("scales", channels)]
        arguments += [Argument("offsets", channels, "int32")] if layer.offset else []
    if parameter_count(layer):
        arguments.append(Argument("parameters", (parameter_count(layer),)))
    for number, op in enumerate(layer.epilogue):
        if op.other is not None:
            arguments.append(Argument(f"operand{number}", op.other.shape, op.other.dtype))
        elif op.takes_argument:
            arguments.append(Argument(f"operand{number}", (layer.out.blocks, layer.out.lanes)))
    return [*arguments, Argument("out", layer.out.shape, layer.out.dtype)]


class ByteEpilogue:
    """Writes a layer's epilogue and the rounding to bytes."""

    def __init__(self, layer: ImageLayer, parameters: Buffer, others: Sequence[Buffer], out: Buffer) -> None:
        """Take a layer's flat buffers; `parameters` as `grids.parameters` returns them."""
        self._layer, self._parameters, self._others, self._out = layer, parameters, others, out

    def mean(self, total: Expr, count: Expr, divisor: Expr, lanes: int) -> Expr:
        """Return the mean of bytes in the unit that the parameters start with.

        Args:
            total: Their sum, int32.
            count: How many they are.
            divisor: By what their sum is divided.
            lanes: Elements of the vector.
        """
        factor = T.Bind(self._parameters[0] / tirx.Cast("float32", divisor))
        zeros = T.Bind(self._parameters[1] * tirx.Cast("float32", count))
        above = tirx.Cast(emit.wide("float32", lanes), total) - emit.splat(zeros, lanes)
        return T.Bind(above * emit.splat(factor, lanes))

    def scaled(self, value: Expr, lanes: int) -> Expr:
        """Return bytes in the unit that the parameters start with."""
        return T.Bind(tirx.Cast(emit.wide("float32", lanes), value) * self._splat(0, lanes) + self._splat(1, lanes))

    def value(self, value: Expr, coordinates: Coordinates, lanes: int) -> Expr:
        """Return a vector after epilogue and rounding: float32, or int32 whose low bytes are the result.

        Args:
            value: float32, in the unit that the parameters start with.
            coordinates: Image, block, row and column of the result.
            lanes: Elements of the vector.
        """
        value, position, scaled = self._apply_epilogue(value, coordinates, lanes)
        if not self._layer.out.is_bytes:
            return value
        limited = self._clip(value, position, lanes, scaled=scaled)
        rounded = T.Bind(limited + emit.splat(_ROUNDING, lanes))
        zero = emit.splat(tirx.Cast("int32", self._parameters[position + 3]), lanes)
        return T.Bind(tirx.reinterpret(emit.wide("int32", lanes), rounded) + zero)

    def store_four(self, machine: Machine, values: Sequence[Expr], coordinates: Coordinates) -> None:
        """Store four neighbouring columns, after epilogue and rounding, in a blocked result in bytes.

        Args:
            machine: The processor.
            values: float32, in the unit that the parameters start with; at last all are less than 2^31.
            coordinates: Image, block, row and first column of the result.
        """
        image, block, row, column = coordinates
        ready = []
        for number, value in enumerate(values):
            result, position, scaled = self._apply_epilogue(value, (image, block, row, column + number), machine.lanes)
            ready.append(result if scaled else T.Bind(result * self._splat(position, machine.lanes)))
        zero = tirx.Cast("int32", self._parameters[position + 3])
        indices = emit.ramp(emit.offset(self._layer.out, *coordinates), len(values) * machine.lanes)
        T.buffer_store(self._out, narrow_to_bytes(machine, ready, zero), [indices])

    def _apply_epilogue(self, value: Expr, coordinates: Coordinates, lanes: int) -> tuple[Expr, int, bool]:
        """Return a vector after the epilogue, the next parameter's position, and whether it is in the next unit."""
        layer, position = self._layer, 2
        others, scaled = iter(self._others), iter(quantizer_units(layer))
        for op in layer.epilogue:
            if op.other is not None:
                source = (*coordinates[:2], 0, 0) if op.other.height == op.other.width == 1 else coordinates
                other = load_float32(next(others), emit.offset(op.other, *source), lanes)
                operand = other * self._splat(position, lanes) + self._splat(position + 1, lanes)
                value = emit.apply_post_op(op, value, operand, lanes)
                position += 2
            elif op.kind == "quantize":
                limited = self._clip(value, position, lanes, scaled=next(scaled))
                # The zero is left out on the way: it would be subtracted again.
                value = tirx.nearbyint(limited) * self._splat(position + 3, lanes)
                position += 4
            elif op.takes_argument:
                operand = next(others)[emit.ramp(coordinates[1] * lanes, lanes)]
                value = emit.apply_post_op(op, value, operand, lanes)
            else:
                value = emit.activation(op, value, lanes)
            value = T.Bind(value)
        return value, position, next(scaled, True)

    def store(self, value: Expr, coordinates: Coordinates, lanes: int) -> None:
        """Store a vector, after epilogue and rounding, in a blocked result; arguments as for `value`."""
        result = self.element(value, coordinates, lanes)
        T.buffer_store(self._out, result, [emit.ramp(emit.offset(self._layer.out, *coordinates), lanes)])

    def element(self, value: Expr, coordinates: Coordinates, lanes: int) -> Expr:
        """Return a vector after epilogue and rounding in the result's type; arguments as for `value`."""
        return tirx.Cast(emit.wide(self._layer.out.dtype, lanes), self.value(value, coordinates, lanes))

    def _clip(self, value: Expr, position: int, lanes: int, *, scaled: bool) -> Expr:
        """Return a value in the unit of a grid, between its limits."""
        if not scaled:
            value = value * self._splat(position, lanes)
        return T.Bind(tirx.min(tirx.max(value, self._splat(position + 1, lanes)), self._splat(position + 2, lanes)))

    def _splat(self, position: int, lanes: int) -> Expr:
        return emit.splat(self._parameters[position], lanes)
