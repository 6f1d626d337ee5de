"""Small models with a state, which the tests of sequences share: one output is an input of the next step."""

from __future__ import annotations

import numpy as np
import onnx

from tests.support import nets


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng([len(shape), *shape]).standard_normal(shape, dtype=np.float32) / np.float32(
        np.sqrt(shape[-1])
    )


def gru(hidden: int = 24, features: int = 16) -> onnx.ModelProto:
    """Return a step of a GRU and a layer after it: h is the state, hn its next value."""
    nodes = [
        nets.node("GRU", ["x", "w", "r", "", "", "h"], ["sequence", "hn"], hidden_size=hidden, linear_before_reset=1),
        nets.node("Squeeze", ["sequence", "axes"], ["flat"]),
        nets.node("MatMul", ["flat", "v"], ["y"]),
    ]
    inputs = [nets.value("x", (1, 1, features)), nets.value("h", (1, 1, hidden))]
    outputs = [nets.value("y", (1, 4)), nets.value("hn", (1, 1, hidden))]
    initial = {"w": weights(1, 3 * hidden, features), "r": weights(1, 3 * hidden, hidden), "v": weights(hidden, 4)}
    return nets.model(nodes, inputs, outputs, initial | {"axes": np.array([0, 1])})


def lstm(hidden: int = 24, features: int = 16) -> onnx.ModelProto:
    """Return a step of an LSTM, whose output is its hidden state too."""
    names = ["x", "w", "r", "", "", "h", "c"]
    nodes = [
        nets.node("LSTM", names, ["sequence", "hn", "cn"], hidden_size=hidden),
        nets.node("Squeeze", ["sequence", "axes"], ["y"]),
    ]
    state = (1, 1, hidden)
    inputs = [nets.value("x", (1, 1, features)), nets.value("h", state), nets.value("c", state)]
    outputs = [nets.value("y", (1, 1, hidden)), nets.value("hn", state), nets.value("cn", state)]
    initial = {"w": weights(1, 4 * hidden, features), "r": weights(1, 4 * hidden, hidden), "axes": np.array([0])}
    return nets.model(nodes, inputs, outputs, initial)


def decoder(length: int = 40, size: int = 16) -> onnx.ModelProto:
    """Return a decoder's step with caches of a fixed size, written at its position; a mask leaves the rest out."""
    nodes = [
        nets.node("MatMul", ["x", "wq"], ["q"]),
        nets.node("MatMul", ["x", "wk"], ["k"]),
        nets.node("MatMul", ["x", "wv"], ["v"]),
        nets.node("ScatterND", ["past_key", "position", "k"], ["present_key"]),
        nets.node("ScatterND", ["past_value", "position", "v"], ["present_value"]),
        nets.node("Transpose", ["present_key"], ["keys"], perm=[1, 0]),
        nets.node("MatMul", ["q", "keys"], ["scores"]),
        nets.node("Add", ["scores", "mask"], ["masked"]),
        nets.node("Softmax", ["masked"], ["attention"], axis=-1),
        nets.node("MatMul", ["attention", "present_value"], ["y"]),
    ]
    cache = (length, size)
    inputs = [nets.value("x", (1, size)), nets.value("position", (1, 1), "int64"), nets.value("mask", (1, length))]
    inputs += [nets.value(f"past_{name}", cache) for name in ("key", "value")]
    outputs = [nets.value("y", (1, size)), *(nets.value(f"present_{name}", cache) for name in ("key", "value"))]
    return nets.model(nodes, inputs, outputs, {f"w{name}": weights(size, size) + i for i, name in enumerate("qkv")})


def attention(length: int = 40, size: int = 16) -> onnx.ModelProto:
    """Return what a decoder's step computes with its caches, which are inputs here and are not written."""
    proto = decoder(length, size)
    scatters = {node.output[0]: node.input[0] for node in proto.graph.node if node.op_type == "ScatterND"}
    nodes = [node for node in proto.graph.node if node.op_type != "ScatterND"]
    for node in nodes:
        node.input[:] = [scatters.get(name, name) for name in node.input]
    # Keys and values of the step are computed as well, and summed up.
    nodes += [nets.node("Sum", ["k", "v"], ["z"])]
    inputs = [value for value in proto.graph.input if value.name != "position"]
    return nets.model(
        nodes,
        inputs,
        [nets.value("y", (1, size)), nets.value("z", (1, size))],
        {f"w{name}": weights(size, size) + i for i, name in enumerate("qkv")},
    )


def steps_of_decoder(count: int, length: int = 40, size: int = 16) -> dict[str, np.ndarray]:
    """Return the inputs of a sequence that writes the cache again and again, from its beginning."""
    rng = np.random.default_rng(3)
    mask = np.full((count, 1, length), -1e9, np.float32)
    for step in range(count):
        mask[step, 0, : min(step + 1, length)] = 0
    position = (np.arange(count) % length).reshape(count, 1, 1)
    return {"x": rng.standard_normal((count, 1, size), dtype=np.float32), "position": position, "mask": mask}


WRITES = ("rows", "elements", "range", "circular", "where")
"""Ways to write a row of a cache: ScatterND, ScatterElements, TensorScatter and Where."""


def transformer(write: str = "rows", layers: int = 2, length: int = 40, size: int = 16) -> onnx.ModelProto:
    """Return a step of a decoder with two heads, whose caches 1 x heads x length x channels are written in some way.

    Args:
        write: How a row gets into a cache, one of `WRITES`.
        layers: Layers, each with a cache of keys and one of values.
        length: Rows of a cache.
        size: Features of a row; each of two heads has half of them.
    """
    heads, inputs, outputs, value = 2, [], [], "x"
    cache, row = (1, heads, length, size // heads), (1, heads, 1, size // heads)
    indices = ["position", "of_elements"] if write == "elements" else ["position", "of_rows"]
    nodes = [nets.node("Reshape", indices, ["place"])]
    if write == "where":
        nodes = [nets.node("Equal", ["rows", "position"], ["place"])]
    for layer in range(layers):
        names = {kind: f"{kind}_{layer}" for kind in ("key", "value")}
        nodes += [nets.node("MatMul", [value, f"w{name}{layer}"], [f"flat_{name}_{layer}"]) for name in "qkv"]
        for name in "qkv":  # one row: its heads are those of the features in order
            nodes.append(nets.node("Reshape", [f"flat_{name}_{layer}", "row"], [f"{name}_{layer}"]))
        for new, name in zip("kv", names.values(), strict=True):
            nodes += _write(write, f"past_{name}", f"{new}_{layer}", f"present_{name}")
            inputs.append(nets.value(f"past_{name}", cache))
            outputs.append(nets.value(f"present_{name}", cache))
        nodes += [
            nets.node("Transpose", [f"present_{names['key']}"], [f"keys_{layer}"], perm=[0, 1, 3, 2]),
            nets.node("MatMul", [f"q_{layer}", f"keys_{layer}"], [f"scores_{layer}"]),
            nets.node("Add", [f"scores_{layer}", "mask"], [f"masked_{layer}"]),
            nets.node("Softmax", [f"masked_{layer}"], [f"attention_{layer}"], axis=-1),
            nets.node("MatMul", [f"attention_{layer}", f"present_{names['value']}"], [f"read_{layer}"]),
            nets.node("Reshape", [f"read_{layer}", "flat"], [f"joined_{layer}"]),
            nets.node("MatMul", [f"joined_{layer}", f"wo{layer}"], [f"projected_{layer}"]),
            nets.node("Add", [f"projected_{layer}", value], [f"sum_{layer}"]),
            nets.node("Tanh", [f"sum_{layer}"], [f"out_{layer}"]),
        ]
        value = f"out_{layer}"
    nodes.append(nets.node("Identity", [value], ["y"]))
    step = [nets.value("x", (1, size)), nets.value("position", (1,), "int64"), nets.value("mask", (1, length))]
    initial = {f"w{name}{i}": weights(size, size) + i / 8 for i in range(layers) for name in "qkvo"}
    numbers = {"row": np.array(row), "flat": np.array((1, size)), "of_rows": np.array([1, 1])}
    numbers |= {"of_elements": np.array([1, 1, 1, 1]), "every": np.array(row), "rows": np.arange(length).reshape(-1, 1)}
    used = {name for node in nodes for name in node.input}
    constants = {name: array for name, array in (initial | numbers).items() if name in used}
    opset = 24 if write in {"range", "circular"} else 17
    return nets.model(nodes, [*step, *inputs], [nets.value("y", (1, size)), *outputs], constants, opset)


def _write(write: str, past: str, new: str, present: str) -> list[onnx.NodeProto]:
    """Return the nodes that write a row `1 x heads x 1 x channels` into a cache."""
    if write == "rows":  # as exporters write an assignment to rows that are not the first axis
        return [
            nets.node("Transpose", [past], [f"{past}_first"], perm=[2, 0, 1, 3]),
            nets.node("Transpose", [new], [f"{new}_first"], perm=[2, 0, 1, 3]),
            nets.node("ScatterND", [f"{past}_first", "place", f"{new}_first"], [f"{present}_first"]),
            nets.node("Transpose", [f"{present}_first"], [present], perm=[1, 2, 0, 3]),
        ]
    if write == "elements":
        return [
            nets.node("Expand", ["place", "every"], [f"{new}_place"]),
            nets.node("ScatterElements", [past, f"{new}_place", new], [present], axis=2),
        ]
    if write == "where":
        return [nets.node("Where", ["place", new, past], [present])]
    mode = "circular" if write == "circular" else "linear"
    return [nets.node("TensorScatter", [past, new, "position"], [present], axis=2, mode=mode)]


def states_of_transformer(layers: int = 2) -> dict[str, str]:
    """Return the pairs of its caches."""
    names = [f"{kind}_{layer}" for layer in range(layers) for kind in ("key", "value")]
    return {f"past_{name}": f"present_{name}" for name in names}


def steps_of_transformer(count: int, length: int = 40, size: int = 16) -> dict[str, np.ndarray]:
    """Return the inputs of a sequence that writes the caches again and again, from their beginning."""
    steps = steps_of_decoder(count, length, size)
    return steps | {"position": steps["position"].reshape(count, 1)}


def encoder(layers: int = 36, channels: int = 8) -> onnx.ModelProto:
    """Return a streaming encoder: each causal convolution has a cache of the frames that it needs again."""
    nodes, value, cache = [], "x", (1, channels, 2)
    for layer in range(layers):
        nodes += [
            nets.node("Concat", [f"cached_{layer}", value], [f"joined_{layer}"], axis=2),
            nets.node("Slice", [f"joined_{layer}", "start", "end", "axis"], [f"new_cached_{layer}"]),
            nets.node("Conv", [f"joined_{layer}", f"w{layer % 3}"], [f"conv_{layer}"], kernel_shape=[3]),
            nets.node("Tanh", [f"conv_{layer}"], [f"tanh_{layer}"]),
            nets.node("Add", [f"tanh_{layer}", value], [f"value_{layer}"]),
        ]
        value = f"value_{layer}"
    nodes.append(nets.node("Identity", [value], ["y"]))
    inputs = [nets.value("x", (1, channels, 4)), *(nets.value(f"cached_{i}", cache) for i in range(layers))]
    outputs = [nets.value("y", (1, channels, 4)), *(nets.value(f"new_cached_{i}", cache) for i in range(layers))]
    # Small, so that rounding does not grow from layer to layer.
    initial = {f"w{i}": weights(channels, channels, 3) / np.float32(8 + i) for i in range(3)}
    numbers = {"start": np.array([-2]), "end": np.array([2**31]), "axis": np.array([2])}
    return nets.model(nodes, inputs, outputs, initial | numbers)


def aliases() -> onnx.ModelProto:
    """Return sums of what was so far, with states that share memory.

    y is the same tensor as a state, the input x is one, and two states change places.
    """
    nodes = [
        nets.node("Add", ["x", "total"], ["total_out"]),
        nets.node("Identity", ["total_out"], ["y"]),
        nets.node("Identity", ["x"], ["x_out"]),
        nets.node("Add", ["last", "left"], ["right_out"]),
        nets.node("Identity", ["right"], ["left_out"]),
        nets.node("Sub", ["total", "left"], ["z"]),
    ]
    inputs = [nets.value(name, (1, 4)) for name in ("x", "total", "last", "left", "right")]
    outputs = [nets.value(name, (1, 4)) for name in ("y", "z", "total_out", "x_out", "left_out", "right_out")]
    return nets.model(nodes, inputs, outputs)
