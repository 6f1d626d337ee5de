"""Operators that ONNX Runtime's optimizer and exporters fuse: layers with activations, sums with normalizations.

The schemas are those of ContribOperators.md in ONNX Runtime's repository; each is written as the standard's operators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from toolchain.models.converters import Node, as_operator, converter

_IN_THE_STANDARD = {
    "com.microsoft.Pad": ("Pad", 13),
    "com.microsoft.Trilu": ("Trilu", 14),
    "com.microsoft.Gelu": ("Gelu", 20),
    "com.microsoft.GridSample": ("GridSample", 16),
}


# The standard has adopted these under the same name.
@converter(*_IN_THE_STANDARD)
def standard_operator(node: Node) -> Any:
    operator, opset = _IN_THE_STANDARD[node.operator]
    return as_operator(node, operator, node.inputs, dict(node.attributes), opset=opset)


# --- activations -------------------------------------------------------------------------------------------------


@converter("com.microsoft.FastGelu")
def fast_gelu(node: Node) -> Any:
    """Compute the tanh approximation of Gelu, of a sum with a bias if there is one."""
    return relax.op.nn.gelu_tanh(_add_present(node, node.inputs[0], node.input(1)))


@converter("com.microsoft.BiasGelu")
def bias_gelu(node: Node) -> Any:
    return relax.op.nn.gelu(_add_present(node, *node.inputs))


@converter("com.microsoft.QuickGelu")
def quick_gelu(node: Node) -> Any:
    """Compute x * sigmoid(alpha * x)."""
    data, alpha = node.inputs[0], float(node.attributes.get("alpha", 1.702))
    if alpha == 1:
        return relax.op.nn.silu(data)
    scaled = relax.op.multiply(data, relax.const(alpha, node.dtype(0)))
    return relax.op.multiply(data, relax.op.sigmoid(scaled))


@converter("SwiGLU")
def swiglu(node: Node) -> Any:
    """Compute a * sigmoid(alpha * a) * b."""
    data, alpha = node.inputs[0], float(node.attributes.get("alpha", 1.0))
    scaled = data if alpha == 1 else relax.op.multiply(data, relax.const(alpha, node.dtype(0)))
    return relax.op.multiply(relax.op.multiply(data, relax.op.sigmoid(scaled)), node.inputs[1])


def _add_present(node: Node, value: Any, *others: Any) -> Any:
    """Return the sum of a value and those others that are not None."""
    for other in others:
        value = value if other is None else node.emit(relax.op.add(value, other))
    return value


def _activate(node: Node, value: Any, name: str, numbers: dict[str, float]) -> Any:
    if name in {"", "Identity"}:
        return value
    if name == "Clip":
        return relax.op.clip(value, numbers["alpha"], numbers["beta"])
    return as_operator(node, name, (value,), numbers)


# --- layers ------------------------------------------------------------------------------------------------------


@converter("com.microsoft.FusedConv")
def fused_conv(node: Node) -> Any:
    attributes = dict(node.attributes)
    name = attributes.pop("activation", "")
    numbers = dict(zip(("alpha", "beta"), attributes.pop("activation_params", ()), strict=False))
    result = as_operator(node, "Conv", node.inputs[:3], attributes)
    return _activate(node, _add_present(node, result, node.input(3)), name, numbers)


@converter("com.microsoft.FusedGemm")
def fused_gemm(node: Node) -> Any:
    attributes = {name: value for name, value in node.attributes.items() if not name.startswith("activation")}
    numbers = {
        name: node.attributes[f"activation_{name}"]
        for name in ("alpha", "beta", "gamma")
        if f"activation_{name}" in node.attributes
    }
    result = as_operator(node, "Gemm", node.inputs, attributes)
    return _activate(node, result, node.attributes.get("activation", ""), numbers)


@converter("com.microsoft.FusedMatMul", "com.microsoft.TransposeMatMul")
def fused_matmul(node: Node) -> Any:
    """Multiply matrices that are transposed first, and scale the product."""
    operands = []
    for index, name in enumerate("AB"):
        rank = len(node.shape(index))
        axes = list(range(rank))
        if rank > 1 and node.attributes.get(f"transBatch{name}", 0):  # the first axis becomes the last but one
            axes = [*axes[1:-1], 0, axes[-1]]
        if rank > 1 and node.attributes.get(f"trans{name}", 0):
            axes[-2:] = axes[:-3:-1]
        operand = node.inputs[index]
        operands.append(operand if axes == sorted(axes) else node.emit(relax.op.permute_dims(operand, axes)))
    product = node.emit(relax.op.matmul(*operands))
    alpha = float(node.attributes.get("alpha", 1.0))
    return product if alpha == 1 else relax.op.multiply(product, relax.const(alpha, node.dtype(0)))


# --- normalizations ----------------------------------------------------------------------------------------------


# TVM's converter ignores the first axis, so that its kernel for several axes fails to compile.
@converter("SimplifiedLayerNormalization", "com.microsoft.SimplifiedLayerNormalization", "RMSNormalization")
def rms_normalization(node: Node) -> Any:
    first = int(node.attributes.get("axis", -1)) % len(node.shape(0))
    root, out = _divide_by_root(node, node.inputs[0], range(first, len(node.shape(0))), node.inputs[1])
    return [out, root] if node.outputs > 1 else out


def _divide_by_root(node: Node, value: Any, axes: Any, scale: Any) -> tuple[Any, Any]:
    """Return the reciprocal of the root mean square, and the value times that and a scale."""
    input_dtype = str(value.ty.dtype)
    dtype = "float64" if input_dtype == "float64" else "float32"  # squares overflow half precision
    wide = node.emit(relax.op.astype(value, dtype))
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    mean = relax.op.mean(relax.op.multiply(wide, wide), axis=list(axes), keepdims=True)
    root = node.emit(relax.op.rsqrt(relax.op.add(mean, relax.const(epsilon, dtype))))
    scaled = relax.op.astype(relax.op.multiply(wide, root), input_dtype)
    return root, node.emit(relax.op.multiply(scaled, relax.op.astype(scale, input_dtype)))


@converter("com.microsoft.SkipLayerNormalization")
def skip_layer_normalization(node: Node) -> Any:
    total = _add_present(node, node.inputs[0], node.inputs[1], node.input(4))
    attributes = {"axis": -1, "epsilon": float(node.attributes.get("epsilon", 1e-12))}
    outputs = 1 if node.outputs in {1, 4} else node.outputs  # ONNX Runtime's CPU makes no mean with the sum
    inputs = [total, *(value for value in node.inputs[2:4] if value is not None)]
    results = as_operator(node, "LayerNormalization", inputs, attributes, opset=17, outputs=outputs)
    return _with_sum(node, results, total)


# The sum is the fourth output; the two outputs before it are not used.
def _with_sum(node: Node, results: Any, total: Any) -> Any:
    values = list(results.fields) if isinstance(results, relax.Tuple) else [results]
    if node.outputs <= len(values):
        return values[: node.outputs]
    nothing = relax.const(0.0, "float32")
    return [*values[:1], nothing, nothing, total][: node.outputs]


@converter("com.microsoft.SkipSimplifiedLayerNormalization")
def skip_rms_normalization(node: Node) -> Any:
    total = _add_present(node, node.inputs[0], node.inputs[1], node.input(3))
    _, out = _divide_by_root(node, total, [-1], node.inputs[2])
    return _with_sum(node, out, total)


# BERT's embeddings, added up and normalized; the mask becomes lengths.
@converter("com.microsoft.EmbedLayerNormalization")
def embed_layer_normalization(node: Node) -> list[Any]:
    batch, length = node.shape(0)
    tokens, segments = (_rows(node, table, ids) for table, ids in ((2, 0), (4, 1)))
    positions = _rows(node, 3, 8)
    if node.input(8) is None:
        first_rows = relax.op.take(node.inputs[3], relax.const(np.arange(length), "int64"), axis=0)
        positions = node.emit(relax.op.expand_dims(first_rows, 0))
    total = _add_present(node, tokens, positions, segments)
    attributes = {"axis": -1, "epsilon": float(node.attributes.get("epsilon", 1e-12))}
    normalized = as_operator(node, "LayerNormalization", (total, *node.inputs[5:7]), attributes, opset=17)
    mask = node.input(7)
    lengths = relax.const(np.zeros(batch, np.int32), "int32") if mask is None else relax.op.sum(mask, axis=[1])
    return [normalized, node.emit(relax.op.astype(lengths, "int32")), total][: node.outputs]


def _rows(node: Node, table: int, ids: int) -> Any:
    """Return the rows of a table for ids [batch, sequence]; None if either is left out."""
    if node.input(table) is None or node.input(ids) is None:
        return None
    shape = node.shape(ids)
    rows = relax.op.take(node.inputs[table], relax.op.reshape(node.inputs[ids], (-1,)), axis=0)
    return node.emit(relax.op.reshape(rows, (*shape, node.shape(table)[1])))
