"""Quantized networks as VTA wants them, and what its kernels compute in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
import tvm_ffi
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from tests.support import nets
from tests.support.nets import node, value
from tests.support.vta_layers import maxima
from toolchain.backends.base import EXACT
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.network.partition import partition
from toolchain.models.ort import onnxruntime

NUMBERS = itertools.count()


class Net:
    """A network in QDQ form, from `x` to some outputs; scales are 2^-exponent, activations have one zero point."""

    def __init__(
        self, channels: int = 16, size: int | tuple[int, int] = 8, batch: int = 1, seed: int = 0, zero: int = 0
    ) -> None:
        height, width = (size, size) if isinstance(size, int) else size
        self.shape = (batch, channels, height, width)
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.held: dict[str, Any] = {"zero": np.int8(0), "middle": np.int8(zero)}
        self._numbers = itertools.count()

    def add(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add an operation; returns its result."""
        name = f"{operator.lower()}{next(self._numbers)}"
        self.nodes.append(node(operator, inputs, [name], **attributes))
        return name

    def hold(self, array: Any) -> str:
        name = f"held{len(self.held)}"
        self.held[name] = array
        return name

    def scale(self, exponent: int) -> str:
        return self.hold(np.float32(2.0**-exponent))

    def rounded(self, name: str, exponent: int, *, scale: str = "", zero: str = "middle") -> str:
        """Make int8 of numbers, and numbers of that."""
        grid = [scale or self.scale(exponent), zero]
        return self.add("DequantizeLinear", [self.add("QuantizeLinear", [name, *grid]), *grid])

    def weights(self, *shape: int, exponent: int = 9, scale: str = "", **attributes: Any) -> str:
        numbers = self.hold(self.random.integers(-128, 128, shape).astype(np.int8))
        return self.add("DequantizeLinear", [numbers, scale or self.scale(exponent), "zero"], **attributes)

    def bias(self, channels: int) -> str:
        """Hold random numbers that leave no ties: a sum of products is never half-way to the next one with them."""
        return self.hold((self.random.integers(-3000, 3000, channels) + 0.25).astype(np.float32) / np.float32(2**13))

    def conv(self, name: str, inputs: int, outputs: int, kernel: int = 1, **attributes: Any) -> str:
        weights = self.weights(outputs, inputs, kernel, kernel)
        return self.add("Conv", [name, weights, self.bias(outputs)], **attributes)

    def layer(self, name: str, inputs: int, outputs: int, kernel: int = 1, **attributes: Any) -> str:
        """Add a convolution, an activation and the rounding of its result."""
        stride, pad = attributes.pop("stride", 1), kernel // 2
        layer_output = self.conv(name, inputs, outputs, kernel, strides=[stride] * 2, pads=[pad] * 4, **attributes)
        return self.rounded(self.add("Relu", [layer_output]), 4)

    def proto(self, *outputs: str) -> onnx.ModelProto:
        results = [value(name, None, "int8" if name.startswith("quantize") else "float32") for name in outputs]
        return onnx.shape_inference.infer_shapes(nets.model(self.nodes, [value("x", self.shape)], results, self.held))

    def data(self, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal(self.shape).astype(np.float32) * np.float32(2)


def reference(proto: onnx.ModelProto, data: np.ndarray) -> list[np.ndarray]:
    """Run a model in ONNX Runtime as it is written."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: data})


def computed(layer: Conv2d, x: np.ndarray, w: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """Return what a kernel computes, on packed tensors; asserts that no sum leaves int32."""
    rest = list(others)
    top, left, bottom, right = layer.padding
    lanes, block = x.shape[-2:]
    images = x.astype(np.float64).transpose(0, 4, 1, 5, 2, 3)
    images = images.reshape(-1, layer.in_channels, layer.height, layer.width)
    images = np.pad(images, [(0, 0), (0, 0), (top, bottom), (left, right)], constant_values=layer.pad)
    if layer.is_filled:
        assert np.all(rest.pop() == layer.pad)
    windows = sliding_window_view(images, layer.kernel, (2, 3))[:, :, :: layer.stride[0], :: layer.stride[1]]
    w = _whole(w) if layer.alone else w
    weights = (
        w.astype(np.float64).transpose(0, 4, 1, 5, 2, 3).reshape(layer.out_channels, layer.in_channels, *layer.kernel)
    )
    sums = np.tensordot(windows, weights, ([1, 4, 5], [1, 2, 3]))  # whole numbers below 2^53
    sums = sums.reshape(-1, lanes, *sums.shape[1:3], layer.out_channels // block, block)
    sums = sums.transpose(0, 4, 2, 3, 1, 5).astype(np.int64)
    if layer.bias:
        sums += rest.pop(0)[:, None, None]
    if layer.residual_shift is not None:
        residual, identity = rest
        assert np.array_equal(identity, np.eye(block) * 2 ** min(layer.residual_shift, 6))
        sums += residual.astype(np.int64) << layer.residual_shift
    assert np.abs(sums).max() < 2**31
    if layer.pool is not None:
        sums = maxima(layer.pool, sums[:, :, : layer.sum_height, : layer.sum_width])
    return (sums >> layer.shift).clip(layer.low, layer.high).astype(np.int8)


def _whole(w: np.ndarray) -> np.ndarray:
    """Return the weights of blocks that stand alone with zeros for all other blocks."""
    grouped = np.zeros((w.shape[0], w.shape[0], *w.shape[2:]), w.dtype)
    grouped[np.arange(len(w)), np.arange(len(w))] = w[:, 0]
    return grouped


def layers(module: tvm.IRModule) -> list[Conv2d]:
    """Return the layers of a module's kernels, in the order in which they are called."""
    return [Conv2d.from_json(str(module[call.args[0]].attrs[EXACT])) for call in kernel_calls(module)]


def kernel_calls(module: tvm.IRModule) -> list[Any]:
    values = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
    return [call for call in values if _is_kernel(module, call)]


def _is_kernel(module: tvm.IRModule, call: Any) -> bool:
    if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != "relax.call_tir":
        return False
    return EXACT in (module[call.args[0]].attrs or {})


def calls(module: tvm.IRModule, name: str) -> int:
    """Count the calls of an operator."""
    values = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
    return sum(getattr(getattr(call, "op", None), "name", "") == f"relax.{name}" for call in values)


Compute = Callable[..., np.ndarray]
"""Returns what a kernel makes: of its layer, and of its tensors but for the last."""


def with_calls(module: tvm.IRModule, compute: Compute) -> tvm.IRModule:
    """Return a module whose kernels are computed by a function."""
    blocks = []
    for block in module["main"].body.blocks:
        bindings = [
            relax.VarBinding(binding.var, _called(module, binding.value, compute))
            if _is_kernel(module, binding.value)
            else binding
            for binding in block.bindings
        ]
        blocks.append(type(block)(bindings))
    main = module["main"]
    body = relax.SeqExpr(blocks, main.body.body)
    functions = {**dict(module.functions_items())}
    functions[module.get_global_var("main")] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    plain = {variable: function for variable, function in functions.items() if EXACT not in (function.attrs or {})}
    return relax.transform.Normalize()(tvm.IRModule(plain, module.attrs, module.global_infos))


def _called(module: tvm.IRModule, call: Any, compute: Compute) -> Any:
    layer = Conv2d.from_json(str(module[call.args[0]].attrs[EXACT]))
    name = f"tests.vta.kernel{next(NUMBERS)}"

    def run(*tensors: Any) -> None:
        *operands, out = map(tvm.runtime.from_dlpack, tensors)
        out.copyfrom(compute(layer, *(operand.numpy() for operand in operands)))

    tvm_ffi.register_global_func(name, run)
    return relax.op.call_dps_packed(name, call.args[1], call.ty_args[0])


def run(module: tvm.IRModule, data: np.ndarray, compute: Compute = computed) -> list[np.ndarray]:
    """Run a module whose kernels a function computes, by default in NumPy."""
    main = relax.VirtualMachine(tvm.compile(with_calls(module, compute), target="llvm"), tvm.cpu())["main"]
    result = main(tvm.runtime.tensor(data))
    return [tensor.numpy() for tensor in ([result] if hasattr(result, "numpy") else list(result))]


def same(net: Net, *outputs: str, exact: bool = True, config: VtaConfig = DEFAULT) -> tvm.IRModule:
    """Compare a split network with what ONNX Runtime computes of it; returns the split module."""
    module = partition(from_onnx(net.proto(*outputs)), config).module
    for mine, reference_output in zip(run(module, net.data()), reference(net.proto(*outputs), net.data()), strict=True):
        assert np.unique(reference_output).size > 8
        if exact:
            np.testing.assert_array_equal(mine, reference_output)
        else:
            np.testing.assert_allclose(mine, reference_output, rtol=1e-6, atol=1e-7)
    return module
