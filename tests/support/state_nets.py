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


def steps_of_decoder(count: int, length: int = 40, size: int = 16) -> dict[str, np.ndarray]:
    """Return the inputs of a sequence that writes the cache again and again, from its beginning."""
    rng = np.random.default_rng(3)
    mask = np.full((count, 1, length), -1e9, np.float32)
    for step in range(count):
        mask[step, 0, : min(step + 1, length)] = 0
    position = (np.arange(count) % length).reshape(count, 1, 1)
    return {"x": rng.standard_normal((count, 1, size), dtype=np.float32), "position": position, "mask": mask}


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
