"""Small ONNX graphs of random operators and odd sizes, all of them valid; equal seeds give equal graphs.

`build` makes networks of images; `build_any` makes graphs on tensors of any rank, whose sizes lie around vectors' ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class NothingFitsError(Exception):
    """No tensor of a graph has what an operator needs."""


class Graph:
    """Collects nodes; images are NCHW and may be read by any later node."""

    def __init__(self, seed: int, shapes: Sequence[tuple[int, ...]] = ()) -> None:
        """Start a graph with inputs of some shapes, or with one random image."""
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {f"x{number}": shape for number, shape in enumerate(shapes)}
        self.types: dict[str, int] = {}
        if not shapes:
            batch = int(self.random.choice([1, 1, 1, 2]))
            channels = int(self.random.choice([1, 3, 5, 16, 20]))
            self.shapes["image"] = (batch, channels, *(int(self.random.integers(1, 12)) for _ in range(2)))
        self._inputs = [*self.shapes]

    def node(self, kind: str, inputs: list[str], shape: tuple[int, ...], **attributes) -> str:
        name = f"v{len(self.shapes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        self.shapes[name] = tuple(map(int, shape))
        return name

    def weight(self, value: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        return self.weight((self.random.standard_normal(shape) * scale).astype(np.float32))

    def pick(self, *options):
        return options[int(self.random.integers(len(options)))]

    def either(self) -> bool:
        return bool(self.random.integers(2))

    def tensor(self, minimum: int = 1) -> str:
        """Some tensor of numbers with so many dimensions at least, a late one more often than an early one."""
        fitting = [name for name, shape in self.shapes.items() if len(shape) >= minimum and name not in self.types]
        if not fitting:
            raise NothingFitsError
        return fitting[-1 - min(int(self.random.geometric(0.4)) - 1, len(fitting) - 1)]

    def axis(self, name: str) -> int:
        """Some axis of a tensor, the last one more often than any other."""
        rank = len(self.shapes[name])
        return int(self.pick(rank - 1, *range(rank)))

    def images(self) -> list[str]:
        return [name for name, shape in self.shapes.items() if len(shape) == 4 and name not in self.types]

    def image(self) -> str:
        """Some image, a late one more often than an early one."""
        images = self.images()
        if not images:
            raise NothingFitsError
        return images[-1 - min(int(self.random.geometric(0.5)) - 1, len(images) - 1)]

    def like(self, name: str) -> str | None:
        """Another image of the same shape, if there is one."""
        same = [image for image in self.images() if self.shapes[image] == self.shapes[name] and image != name]
        return self.pick(*same) if same else None

    def finish(self) -> onnx.ModelProto:
        read = {name for node in self.nodes for name in node.input}
        loose = [name for name in self.shapes if name not in read and name not in self._inputs]
        inputs, outputs = ([self._value(name) for name in names] for names in (self._inputs, loose))
        graph = helper.make_graph(
            self.nodes, "random", inputs, outputs, [weight for weight in self.weights if weight.name in read]
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model

    def _value(self, name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, self.types.get(name, TensorProto.FLOAT), self.shapes[name])


def conv(g: Graph) -> None:
    data = g.image()
    batch, channels, height, width = g.shapes[data]
    kernel = (int(g.pick(1, 1, 3, 3, 5, 2)), int(g.pick(1, 3, 3, 5)))
    strides = (int(g.pick(1, 1, 2)), int(g.pick(1, 1, 2, 3)))
    dilations = (int(g.pick(1, 1, 2)), int(g.pick(1, 1, 2)))
    pads = [int(g.random.integers(0, extent + 1)) for extent in (*kernel, *kernel)]
    sizes = []
    for axis, extent in enumerate((height, width)):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        space = extent + pads[axis] + pads[axis + 2] - reach
        if space < 0:
            return
        sizes.append(space // strides[axis] + 1)
    groups = int(g.pick(1, 1, 1, channels, *(n for n in (2, 4) if channels % n == 0)))
    outputs = channels if groups == channels and g.either() else groups * int(g.random.integers(1, 20))
    weights = g.normal(outputs, channels // groups, *kernel, scale=(channels // groups * kernel[0] * kernel[1]) ** -0.5)
    bias = [g.normal(outputs)] if g.either() else []
    g.node(
        "Conv",
        [data, weights, *bias],
        (batch, outputs, *sizes),
        kernel_shape=kernel,
        strides=strides,
        dilations=dilations,
        pads=pads,
        group=groups,
    )


def padded_conv(g: Graph) -> None:
    data = g.image()
    batch, channels, height, width = g.shapes[data]
    top, left, bottom, right = (int(number) for number in g.random.integers(0, 3, 4))
    pads = g.weight(np.array([0, 0, top, left, 0, 0, bottom, right], np.int64))
    wide = (batch, channels, height + top + bottom, width + left + right)
    wider = g.node("Pad", [data, pads], wide)
    weights = g.normal(channels, 1, 1, 1)
    g.node("Conv", [wider, weights], wide, group=channels)


def activation(g: Graph) -> None:
    data = g.image()
    kind = g.pick(
        "Relu", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish", "Exp", "Abs", "Neg", "Elu"
    )
    attributes = {"LeakyRelu": {"alpha": 0.2}, "HardSigmoid": {"alpha": 0.3, "beta": 0.4}}.get(kind, {})
    if kind == "Exp":
        data = g.node("Tanh", [data], g.shapes[data])
    g.node(kind, [data], g.shapes[data], **attributes)


def clip(g: Graph) -> None:
    data = g.image()
    limits = [g.weight(np.float32(value)) for value in g.pick((0.0, 6.0), (-1.0, 1.0), (0.5, 3.0))]
    limits[int(g.pick(0, 1))] = g.pick("", limits[0]) if g.either() else limits[0]
    limits = [limits[0], g.weight(np.float32(4.0))] if limits[0] == limits[1] or not any(limits) else limits
    g.node("Clip", [data, *limits], g.shapes[data])


def slopes(g: Graph) -> None:
    data = g.image()
    g.node("PRelu", [data, g.normal(g.shapes[data][1], 1, 1)], g.shapes[data])


def resize(g: Graph) -> None:
    data = g.image()
    batch, channels, height, width = g.shapes[data]
    if max(height, width) <= 12:
        scales = g.weight(np.array([1, 1, 2, 2], np.float32))
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        g.node("Resize", [data, "", scales], (batch, channels, 2 * height, 2 * width), **how)


def silu(g: Graph) -> None:
    data = g.image()
    g.node("Mul", [data, g.node("Sigmoid", [data], g.shapes[data])], g.shapes[data])


def old_hard_swish(g: Graph) -> None:
    data = g.image()
    shape = g.shapes[data]
    more = g.node("Add", [data, g.weight(np.float32(3.0))], shape)
    inside = g.node("Clip", [more, g.weight(np.float32(0.0)), g.weight(np.float32(6.0))], shape)
    product = g.node("Mul", [data, inside], shape)
    g.node("Div", [product, g.weight(np.float32(6.0))], shape)


def per_channel(g: Graph) -> None:
    data = g.image()
    channels = g.shapes[data][1]
    kind = g.pick("Add", "Mul", "Sub", "Div")
    numbers = (1.5 + g.random.random((channels, 1, 1))).astype(np.float32)
    number = g.weight(g.pick(numbers, numbers[None], numbers[:1, 0, 0]))
    g.node(kind, [data, number] if (g.either() or g.either()) or kind == "Div" else [number, data], g.shapes[data])


def normalization(g: Graph) -> None:
    data = g.image()
    channels = g.shapes[data][1]
    numbers = [g.weight((0.5 + g.random.random(channels)).astype(np.float32)) for _ in range(4)]
    g.node("BatchNormalization", [data, *numbers], g.shapes[data])


def pair(g: Graph) -> None:
    data = g.image()
    other = g.like(data)
    if other is None:
        other = g.node("Relu", [data], g.shapes[data])
    kind = g.pick("Add", "Add", "Add", "Mul", "Sub", "Max")
    g.node(kind, [data, other], g.shapes[data])


def total(g: Graph) -> None:
    data = g.image()
    others = [name for name in (g.like(data), g.like(data)) if name is not None]
    g.node("Sum", [data, *others], g.shapes[data])


def pool(g: Graph) -> None:
    data = g.image()
    batch, channels, height, width = g.shapes[data]
    kernel = (int(g.pick(1, 2, 3)), int(g.pick(2, 3)))
    strides = (int(g.pick(1, 2)), int(g.pick(1, 2)))
    pads = [int(g.random.integers(0, (extent + 1) // 2)) for extent in (*kernel, *kernel)]
    sizes = []
    for axis, extent in enumerate((height, width)):
        space = extent + pads[axis] + pads[axis + 2] - kernel[axis]
        if space < 0:
            return
        sizes.append(space // strides[axis] + 1)
    kind = g.pick("MaxPool", "AveragePool")
    attributes = {} if kind == "MaxPool" else {"count_include_pad": int(g.pick(0, 1))}
    shape = (batch, channels, *sizes)
    g.node(kind, [data], shape, kernel_shape=kernel, strides=strides, pads=pads, **attributes)


def squeeze_and_excite(g: Graph) -> None:
    data = g.image()
    batch, channels, *_ = g.shapes[data]
    pixel = (batch, channels, 1, 1)
    mean = g.node(g.pick("GlobalAveragePool", "GlobalMaxPool"), [data], pixel)
    small = g.node("Conv", [mean, g.normal(channels, channels, 1, 1, scale=channels**-0.5)], pixel)
    gate = g.node(g.pick("Sigmoid", "HardSigmoid"), [small], pixel)
    g.node("Mul", g.pick([data, gate], [gate, data]), g.shapes[data])


def concat(g: Graph) -> None:
    data = g.image()
    batch, _, height, width = g.shapes[data]
    fitting = [image for image in g.images() if g.shapes[image][0] == batch and g.shapes[image][2:] == (height, width)]
    count = int(g.pick(1, 2, 2, 3))
    operands = [data, *(g.pick(*fitting) for _ in range(count))]
    g.random.shuffle(operands)
    channels = sum(g.shapes[name][1] for name in operands)
    if channels <= 160:
        g.node("Concat", operands, (batch, channels, height, width), axis=int(g.pick(1, -3)))


def grow(g: Graph) -> None:
    """What DenseNet does: a tensor that gets more channels again and again."""
    data = g.image()
    batch, channels, height, width = g.shapes[data]
    for _ in range(3):
        if g.shapes[data][1] > 100:
            return
        channels = g.shapes[data][1]
        new = int(g.pick(16, 16, 8, 4))
        made = g.node("Conv", [data, g.normal(new, channels, 1, 1, scale=channels**-0.5)], (batch, new, height, width))
        data = g.node("Concat", [data, made], (batch, channels + new, height, width), axis=1)


def part(g: Graph) -> None:
    data = g.image()
    batch, channels, height, width = g.shapes[data]
    if channels < 2:
        return
    first = min(int(g.pick(0, 4, 8, 16)), channels - 1)
    last = int(g.random.integers(first + 1, channels + 1))
    numbers = [g.weight(np.array([value], np.int64)) for value in (first, last, 1)]
    g.node("Slice", [data, *numbers], (batch, last - first, height, width))


def split(g: Graph) -> None:
    data = g.image()
    batch, channels, height, width = g.shapes[data]
    if channels % 2:
        return
    names = [f"v{len(g.shapes)}", f"v{len(g.shapes) + 1}"]
    g.nodes.append(helper.make_node("Split", [data], names, axis=1))
    for name in names:
        g.shapes[name] = (batch, channels // 2, height, width)


def shuffle(g: Graph) -> None:
    data = g.image()
    batch, channels, height, width = g.shapes[data]
    groups = next((n for n in (4, 2, 3) if channels % n == 0), 1)
    rest = channels // groups
    apart = g.weight(np.array([batch, groups, rest, height, width], np.int64))
    five = g.node("Reshape", [data, apart], (batch, groups, rest, height, width))
    transposed = g.node("Transpose", [five], (batch, rest, groups, height, width), perm=[0, 2, 1, 3, 4])
    g.node("Reshape", [transposed, g.weight(np.array(g.shapes[data], np.int64))], g.shapes[data])


def elsewhere(g: Graph) -> None:
    """Something that no template computes."""
    data = g.image()
    batch, channels, height, width = g.shapes[data]
    kind = g.pick("Softmax", "Transpose", "LRN", "Dropout")
    if kind == "Transpose":
        g.node(kind, [data], (batch, channels, width, height), perm=[0, 1, 3, 2])
    else:
        g.node(kind, [data], g.shapes[data], **{"Softmax": {"axis": 1}, "LRN": {"size": 3}}.get(kind, {}))


def head(g: Graph) -> None:
    data = g.image()
    batch, channels, height, width = g.shapes[data]
    features = channels
    if g.either():
        mean = g.node("ReduceMean", [data], (batch, channels), axes=[2, 3], keepdims=0)
    else:
        features = channels * height * width
        mean = g.node("Flatten", [data], (batch, features))
    if features > 4000:
        return
    outputs = int(g.random.integers(1, 40))
    weights = g.normal(features, outputs, scale=features**-0.5)
    logits = g.node("Gemm", [mean, weights, g.normal(outputs)], (batch, outputs))
    g.node(g.pick("Relu", "Softmax", "HardSwish"), [logits], (batch, outputs))


_OPERATORS = [
    conv, conv, conv, conv, padded_conv, activation, activation, slopes, resize, clip, silu, old_hard_swish, pair, pair,
    per_channel, normalization, total, pool, squeeze_and_excite, concat, concat, concat, grow, part, split, shuffle,
    elsewhere, head,
]  # fmt: skip


def build(seed: int, operators: int = 12) -> onnx.ModelProto:
    """Return a graph of about so many operators."""
    g = Graph(seed)
    conv(g)
    for _ in range(operators):
        g.pick(*_OPERATORS)(g)
    if not g.nodes:
        activation(g)
    return g.finish()


# --- tensors of any rank ---------------------------------------------------------------------------------------

_SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 47, 49, 63, 64, 65)
_MOST = 1 << 14
"""Elements of a tensor."""


def _shape(random: np.random.Generator) -> tuple[int, ...]:
    rank = int(random.choice([1, 2, 2, 3, 3, 4]))
    while True:
        shape = tuple(int(size) for size in random.choice(_SIZES, rank))
        if math.prod(shape) <= _MOST // 2:
            return shape


def function(g: Graph) -> None:
    data = g.tensor()
    shape = g.shapes[data]
    kind = g.pick("Relu", "Sigmoid", "Tanh", "Erf", "Abs", "Neg", "Softplus", "HardSwish", "Elu", "Sqrt", "Exp", "Log")
    if kind == "Exp":
        data = g.node("Tanh", [data], shape)
    if kind in {"Sqrt", "Log"}:
        data = g.node("Add", [g.node("Abs", [data], shape), g.weight(np.float32(1))], shape)
    g.node(kind, [data], shape)


def broadcast(g: Graph) -> None:
    """Two tensors, of which one may have fewer dimensions, or be of size 1 where the other one is not."""
    data = g.tensor()
    shape = g.shapes[data]
    others = [name for name in g.shapes if _fits(g.shapes[name], shape) and name not in g.types]
    sizes = [size if g.either() else 1 for size in shape[int(g.random.integers(len(shape) + 1)) :]]
    number = g.weight((1 + g.random.random(sizes)).astype(np.float32))
    other = g.pick(number, *others)
    kind = g.pick("Add", "Sub", "Mul", "Max", "Min", *(["Div"] if other == number else []))
    pair = [data, other] if kind == "Div" or g.either() else [other, data]
    g.node(kind, pair, shape)


def _fits(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether a tensor of a shape can be broadcast to another one."""
    pairs = zip(reversed(shape), reversed(other), strict=False)
    return len(shape) <= len(other) and all(dimension in {1, size} for dimension, size in pairs)


def guard(g: Graph) -> None:
    """What PyTorch's exporter writes behind a masked softmax."""
    data = g.tensor()
    shape = g.shapes[data]
    missing = g.node("IsNaN", [data], shape)
    g.types[missing] = TensorProto.BOOL
    g.node("Where", [missing, g.weight(np.float32(0)), data], shape)


def selection(g: Graph) -> None:
    """A choice of two numbers that are the same where it changes."""
    data = g.tensor()
    shape = g.shapes[data]
    if g.either():
        mask = g.weight(g.random.random(shape) < 0.5)
        g.node("Where", [mask, data, g.weight(np.float32(0.5))], shape)
        return
    condition = g.node("Greater", [data, g.weight(np.float32(0))], shape)
    g.types[condition] = TensorProto.BOOL
    g.node("Where", [condition, data, g.node("Mul", [data, g.weight(np.float32(0.1))], shape)], shape)


def reduction(g: Graph) -> None:
    data = g.tensor()
    shape = g.shapes[data]
    axes = sorted({g.axis(data) for _ in range(int(g.pick(1, 1, 2)))})
    keeps = g.either()
    kind = g.pick("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSumExp")
    remaining = [1 if axis in axes else size for axis, size in enumerate(shape) if keeps or axis not in axes]
    if kind == "ReduceSum":
        g.node(kind, [data, g.weight(np.array(axes, np.int64))], tuple(remaining), keepdims=int(keeps))
    else:
        g.node(kind, [data], tuple(remaining), axes=axes, keepdims=int(keeps))


def softmax(g: Graph) -> None:
    data = g.tensor()
    g.node(g.pick("Softmax", "Softmax", "LogSoftmax"), [data], g.shapes[data], axis=g.axis(data))


def normal_rows(g: Graph) -> None:
    data = g.tensor()
    axis, shape = g.axis(data), g.shapes[data]
    numbers = [g.weight((0.5 + g.random.random(shape[axis:])).astype(np.float32)) for _ in range(2)]
    g.node("LayerNormalization", [data, *numbers[: int(g.pick(1, 2))]], shape, axis=axis, epsilon=1e-2)


def normal_channels(g: Graph) -> None:
    data = g.tensor(3)
    shape = g.shapes[data]
    if g.either():  # of numbers that differ: of equal ones, ONNX Runtime makes NaN
        axes = sorted({0, g.axis(data)})
        if math.prod(shape[axis] for axis in axes) < 4:
            raise NothingFitsError
        different = g.node("Add", [data, g.normal(*shape)], shape)
        g.node("MeanVarianceNormalization", [different], shape, axes=axes)
        return
    numbers = [g.weight((0.5 + g.random.random(shape[1])).astype(np.float32)) for _ in range(2)]
    g.node("InstanceNormalization", [data, *numbers], shape, epsilon=1e-2)


def unit_length(g: Graph) -> None:
    """Of numbers that are not near zero."""
    data = g.tensor()
    shape = g.shapes[data]
    far = g.node("Add", [g.node("Abs", [data], shape), g.weight(np.float32(0.5))], shape)
    g.node("LpNormalization", [far], shape, axis=g.axis(data), p=int(g.pick(1, 2)))


def product(g: Graph) -> None:
    data = g.tensor(2)
    *rows, depth = g.shapes[data]
    if g.either() and math.prod(rows) * rows[-1] <= _MOST:  # with itself, as attention has them
        order = [*range(len(rows) - 1), len(rows), len(rows) - 1]
        other = g.node("Transpose", [data], (*rows[:-1], depth, rows[-1]), perm=order)
        small = g.node("Mul", [data, g.weight(np.float32(1 / depth))], (*rows, depth))
        g.node("MatMul", [small, other], (*rows, rows[-1]))
        return
    columns = int(g.pick(*_SIZES))
    if math.prod(rows) * columns <= _MOST:
        g.node("MatMul", [data, g.normal(depth, columns, scale=depth**-0.5)], (*rows, columns))


def joined(g: Graph) -> None:
    data = g.tensor()
    axis, shape = g.axis(data), g.shapes[data]
    around = (*shape[:axis], *shape[axis + 1 :])
    fitting = [
        name
        for name, other in g.shapes.items()
        if len(other) == len(shape) and (*other[:axis], *other[axis + 1 :]) == around and name not in g.types
    ]
    operands = [data, *(g.pick(*fitting) for _ in range(int(g.pick(1, 2))))]
    size = sum(g.shapes[operand][axis] for operand in operands)
    if math.prod(around) * size <= _MOST:
        g.node("Concat", operands, (*shape[:axis], size, *shape[axis + 1 :]), axis=axis)


def cut(g: Graph) -> None:
    data = g.tensor()
    axis, shape = g.axis(data), g.shapes[data]
    step = int(g.pick(1, 1, 2, 3, -1, -2))
    first, last = sorted(g.random.choice(shape[axis] + 1, 2, replace=False)) if shape[axis] > 1 else (0, 1)
    start, end = (first, last) if step > 0 else (last - 1, first - shape[axis] - 1)
    numbers = [g.weight(np.array([value], np.int64)) for value in (start, end, axis, step)]
    g.node("Slice", [data, *numbers], (*shape[:axis], -(-(last - first) // abs(step)), *shape[axis + 1 :]))


def turned(g: Graph) -> None:
    data = g.tensor(2)
    order = [int(axis) for axis in g.random.permutation(len(g.shapes[data]))]
    g.node("Transpose", [data], tuple(g.shapes[data][axis] for axis in order), perm=order)


def reshaped(g: Graph) -> None:
    """Two neighbouring dimensions become one, or one becomes two."""
    data = g.tensor()
    shape = g.shapes[data]
    axis = int(g.random.integers(len(shape)))
    if len(shape) > 1 and axis and g.either():
        made = (*shape[: axis - 1], shape[axis - 1] * shape[axis], *shape[axis + 1 :])
    elif len(shape) < 4:
        inner = int(g.pick(*(size for size in range(1, shape[axis] + 1) if shape[axis] % size == 0)))
        made = (*shape[:axis], shape[axis] // inner, inner, *shape[axis + 1 :])
    else:
        raise NothingFitsError
    g.node("Reshape", [data, g.weight(np.array(made, np.int64))], made)


def conv_of_rows(g: Graph) -> None:
    data = g.tensor(3)
    if len(g.shapes[data]) != 3:
        raise NothingFitsError
    batch, channels, length = g.shapes[data]
    size, outputs = int(g.pick(1, 3)), int(g.pick(1, 3, 7, 16, 17))
    if size <= length and batch * outputs * length <= _MOST:
        weights = g.normal(outputs, channels, size, scale=(channels * size) ** -0.5)
        g.node("Conv", [data, weights], (batch, outputs, length - size + 1), kernel_shape=[size])


_ANY = [
    *(function, function, broadcast, broadcast, guard, selection, reduction, reduction, softmax, softmax),
    *(normal_rows, normal_rows, normal_channels, unit_length, product, product, joined, joined, cut, cut),
    *(turned, reshaped, conv_of_rows, conv, pool, concat, pair, per_channel),
]


def build_any(seed: int, operators: int = 6) -> onnx.ModelProto:
    """Return a graph of about so many operators on tensors of any rank."""
    random = np.random.default_rng([seed, 1])
    g = Graph(seed, [_shape(random) for _ in range(int(random.integers(1, 3)))])
    for _ in range(operators):
        for _attempt in range(8):
            before = len(g.nodes)
            try:
                g.pick(*_ANY)(g)
            except NothingFitsError:
                continue
            if len(g.nodes) > before:
                break
    if not g.nodes:
        function(g)
    return g.finish()


def merged(models: Iterable[onnx.ModelProto]) -> onnx.ModelProto:
    """Return one network of many graphs, the names of the first with `g0_` in front, and so on."""
    merged_model = onnx.ModelProto()
    for number, model in enumerate(models):
        prefixed = onnx.compose.add_prefix(model, f"g{number}_")
        if not number:
            merged_model.CopyFrom(prefixed)
            continue
        for name in ("node", "input", "output", "initializer"):
            getattr(merged_model.graph, name).extend(getattr(prefixed.graph, name))
    return merged_model
