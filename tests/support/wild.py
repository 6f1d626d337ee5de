"""Small models of kinds that other people's files have and that were wrong or refused, with their neighbours.

What is right is written out, computed by NumPy, or left to ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.support import nets
from tests.support.nets import node, value

Array = NDArray[Any]
FLOAT, HALF, BFLOAT, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.BOOL


@dataclass(frozen=True)
class Wild:
    """A model, what it is run with and what is right.

    Attributes:
        proto: The model.
        fed: Its inputs by name; those that are missing are drawn.
        right: Its first output; None where ONNX Runtime decides.
    """

    proto: onnx.ModelProto
    fed: Mapping[str, Array] = field(default_factory=dict)
    right: Array | None = None


def cases() -> dict[str, Wild]:
    """Return all of them by name."""
    kinds = (_guards, _rows, _constants, _halves, _empty, _drawn, _operators, _special_values, _forms)
    return {name: case for kind in kinds for name, case in kind()}


Named = Iterator[tuple[str, Wild]]


def normal(*shape: int, seed: int = 3) -> Array:
    """Return normal numbers of single precision, the same ones each time."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def counted(*shape: int) -> Array:
    """Return 0, 1, 2 and so on as floats."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def net(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    weights: Mapping[str, Any] | None = None,
    opset: int = 17,
    output: str = "float32",
    right: Array | None = None,
) -> Wild:
    """Return a case whose model has these inputs, and the output y of an open shape."""
    values = [value(name, array.shape, str(array.dtype)) for name, array in feeds.items()]
    proto = nets.model(nodes, values, [value("y", None, output)], weights, opset)
    proto.ir_version = 10 if opset > 18 else 8
    return Wild(proto, feeds, right)


def drawn(nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, tuple[tuple[int, ...], str]], **options: Any) -> Wild:
    """Return a case whose inputs nobody gives."""
    case = net(nodes, {name: np.zeros(shape, dtype) for name, (shape, dtype) in inputs.items()}, **options)
    return Wild(case.proto)


def _guards() -> Named:
    """Attention with the guard against NaN that PyTorch writes behind Softmax."""
    nodes = [
        node("MatMul", ["q", "k"], ["s"]),
        node("Add", ["s", "mask"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("IsNaN", ["p"], ["n"]),
        node("Where", ["n", "zero", "p"], ["w"]),
        node("MatMul", ["w", "v"], ["y"]),
    ]
    for length in (16, 49, 50, 197):
        mask = np.triu(np.full((length, length), -np.inf, np.float32), 1)
        feeds = {"q": normal(1, 4, length, 16), "k": normal(1, 4, 16, length), "v": normal(1, 4, length, 16, seed=4)}
        yield f"nan-guard-{length}", net(nodes, feeds, {"zero": np.float32(0), "mask": mask})


def _rows() -> Named:
    """Normalisations of rows that are shorter than a vector."""
    for shape in ((17, 3), (1, 7, 50, 3), (50, 8), (350, 2)):
        weights = {"g": normal(shape[-1]), "b": normal(shape[-1], seed=4)}
        nodes = [node("LayerNormalization", ["x", "g", "b"], ["y"], axis=-1)]
        yield f"layer-norm-{'x'.join(map(str, shape))}", net(nodes, {"x": normal(*shape)}, weights)


def _constants() -> Named:
    forms: dict[str, dict[str, Any]] = {
        "float": {"value_float": 0.5},
        "floats": {"value_floats": [0.5, 0.25, 2.0]},
        "int": {"value_int": 3},
        "ints": {"value_ints": [1, 2, 3]},
    }
    for form, attributes in forms.items():
        x = np.array([1, 2, 3], np.int64 if "int" in form else np.float32)
        nodes = [node("Constant", [], ["c"], **attributes), node("Mul", ["x", "c"], ["y"])]
        yield (
            f"constant-{form}",
            net(nodes, {"x": x}, output=str(x.dtype), right=x * np.asarray(next(iter(attributes.values())), x.dtype)),
        )
    sparse = helper.make_sparse_tensor(_tensor([2, 3], "v"), _tensor(np.array([0, 4]), "i"), [3, 3])
    dense = np.zeros((3, 3), np.float32)
    dense[0, 0], dense[1, 1] = 2, 3
    x = normal(1, 3)
    yield (
        "constant-sparse",
        net(
            [node("Constant", [], ["w"], sparse_value=sparse), node("MatMul", ["x", "w"], ["y"])],
            {"x": x},
            right=x @ dense,
        ),
    )
    pairs = helper.make_sparse_tensor(_tensor([2, 3], "w"), _tensor(np.array([[0, 0], [1, 1]]), "w_i"), [3, 3])
    for name, tensor in (("weights", sparse), ("weights-by-pairs", pairs)):
        case = net([node("MatMul", ["x", "w"], ["y"])], {"x": x}, right=x @ dense)
        tensor.values.name = "w"
        case.proto.graph.sparse_initializer.append(tensor)
        yield f"sparse-{name}", case
    filters = helper.make_sparse_tensor(_tensor([1, -1], "w"), _tensor(np.array([0, 13]), "w_i"), [2, 1, 3, 3])
    case = net([node("Conv", ["x", "w"], ["y"])], {"x": normal(1, 1, 5, 5)})
    case.proto.graph.sparse_initializer.append(filters)
    full = np.zeros(18, np.float32)
    full[0], full[13] = 1, -1
    image = case.fed["x"][0, 0]
    yield "sparse-filters", Wild(case.proto, case.fed, np.stack([image[:3, :3], -image[1:4, 1:4]])[None])
    yield (
        "constant-axes",
        net(
            [node("Constant", [], ["a"], value_ints=[0, 2]), node("Unsqueeze", ["x", "a"], ["y"])],
            {"x": x},
            right=x[None, :, None],
        ),
    )
    yield (
        "constant-shape",
        net([node("Constant", [], ["a"], value_ints=[3, -1]), node("Reshape", ["x", "a"], ["y"])], {"x": x}, right=x.T),
    )
    yield (
        "constant-in-branch",
        net(
            [
                node("If", ["c"], ["k"], then_branch=_branch(1.5), else_branch=_branch(-2.0)),
                node("Mul", ["x", "k"], ["y"]),
            ],
            {"c": np.array(0, bool), "x": x},
            right=x * -2,
        ),
    )
    for alpha in (None, 0.5):
        attributes = {} if alpha is None else {"alpha": alpha}
        right = x / (1 + np.exp(-(alpha or 1) * x))
        yield f"swish-{alpha}", net([node("Swish", ["x"], ["y"], **attributes)], {"x": x}, opset=24, right=right)


def _tensor(values: Any, name: str) -> onnx.TensorProto:
    array = np.asarray(values)
    return numpy_helper.from_array(
        array if array.dtype == np.int64 and name not in {"v", "w"} else array.astype(np.float32), name
    )


def _branch(number: float) -> onnx.GraphProto:
    return nets.graph([node("Constant", [], ["k"], value_float=number)], [], [value("k", ())])


def _halves() -> Named:
    """Half precision inside, single at the interface, as converters write it; and both types at one node."""
    x, image = normal(1, 256), normal(1, 3, 9, 9)
    weights = {f"w{index}": (normal(256, 256, seed=index) / 16).astype(np.float16) for index in range(2)}

    def wrapped(*nodes: onnx.NodeProto, kind: int = HALF) -> list[onnx.NodeProto]:
        return [node("Cast", ["x"], ["h"], to=kind), *nodes, node("Cast", ["r"], ["y"], to=FLOAT)]

    layers = [node("MatMul", ["h", "w0"], ["a"]), node("Relu", ["a"], ["b"]), node("MatMul", ["b", "w1"], ["r"])]
    yield "half-products", net(wrapped(*layers), {"x": x}, weights)
    filters = {"w": (normal(8, 3, 3, 3) / 5).astype(np.float16), "b": normal(8).astype(np.float16)}
    yield "half-convolution", net(wrapped(node("Conv", ["h", "w", "b"], ["r"])), {"x": image}, filters)
    rows = {"g": normal(256).astype(np.float16)}
    norm = [node("LayerNormalization", ["h", "g"], ["a"]), node("Softmax", ["a"], ["r"])]
    yield "half-normalisation", net(wrapped(*norm), {"x": x}, rows)
    yield "half-pooling", net(wrapped(node("AveragePool", ["h"], ["r"], kernel_shape=[3, 3])), {"x": image})
    yield (
        "half-weights-only",
        net([node("Cast", ["w0"], ["w"], to=FLOAT), node("MatMul", ["x", "w"], ["y"])], {"x": x}, weights),
    )
    shared = [("x", "float16"), ("g", "float32"), ("b", "float32"), ("m", "float32"), ("v", "float32")]
    for name, types in {"scale": shared, "mean": [(n, "float16" if n in "xgb" else t) for n, t in shared]}.items():
        vectors = {n: (np.abs(normal(3, seed=index)) + 0.5).astype(t) for index, (n, t) in enumerate(types) if n != "x"}
        nodes = [node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y"])]
        yield f"batch-norm-mixed-{name}", net(nodes, {"x": image.astype(np.float16)}, vectors, output="float16")
    for size in (1, 3, 5):
        lrn = [node("LRN", ["x"], ["y"], size=size)]
        yield f"half-lrn-{size}", net(lrn, {"x": normal(1, 6, 4, 4).astype(np.float16)}, output="float16")
    numbers = normal(8)
    yield (
        "bfloat16-round-trip",
        net(wrapped(node("Identity", ["h"], ["r"]), kind=BFLOAT), {"x": numbers}, right=_bfloat16(numbers)),
    )
    yield (
        "bfloat16-weights",
        net(
            [
                node("Cast", ["w"], ["b"], to=BFLOAT),
                node("Cast", ["b"], ["f"], to=FLOAT),
                node("MatMul", ["x", "f"], ["y"]),
            ],
            {"x": x},
            {"w": normal(256, 4)},
            right=x @ _bfloat16(normal(256, 4)),
        ),
    )
    yield (
        "half-round-trip",
        net(
            wrapped(node("Identity", ["h"], ["r"])), {"x": numbers}, right=numbers.astype(np.float16).astype(np.float32)
        ),
    )


def _bfloat16(array: Array) -> Array:
    """Round to the nearest number with 8 bits of mantissa, ties to even."""
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def _empty() -> Named:
    """Tensors without elements."""
    x, row = normal(1, 3), normal(10)
    none = np.zeros((1, 0), np.float32)
    join = [node("Concat", ["x", "none"], ["y"], axis=1)]
    yield "empty-constant", net(join, {"x": x}, {"none": none}, right=x)
    yield (
        "empty-constants",
        net([node("Concat", ["none", "x", "none"], ["y"], axis=1)], {"x": x}, {"none": none}, right=x),
    )
    slices = {"s": np.array([0]), "e": np.array([5]), "a": np.array([0]), "t": np.array([-1])}
    cut = node("Slice", ["x", "s", "e", "a", "t"], ["none"])
    yield "empty-slice", net([cut, node("Concat", ["none", "x"], ["y"], axis=0)], {"x": row}, slices, right=row)
    yield (
        "empty-slice-computed",
        net(
            [
                cut,
                node("Relu", ["none"], ["r"]),
                node("Mul", ["r", "two"], ["d"]),
                node("Concat", ["x", "d"], ["y"], axis=0),
            ],
            {"x": row},
            slices | {"two": np.float32(2)},
            right=row,
        ),
    )
    wide = normal(2, 6)
    for name, sizes in {"first": [0, 6], "last": [6, 0], "middle": [2, 0, 4]}.items():
        names = [f"p{index}" for index in range(len(sizes))]
        nodes = [node("Split", ["x", "s"], names, axis=1), node("Concat", names, ["y"], axis=1)]
        yield f"empty-part-{name}", net(nodes, {"x": wide}, {"s": np.array(sizes)}, right=wide)
    product = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["y"])]
    bias = {"w": np.zeros((0, 4), np.float32), "b": normal(4)}
    yield "empty-product", net(product, {"x": np.zeros((2, 0), np.float32)}, bias, right=np.tile(bias["b"], (2, 1)))
    for name, number in {"ReduceSum": 0, "ReduceProd": 1, "ReduceL2": 0}.items():
        axes = {"axes": np.array([1])} if name == "ReduceSum" else {}
        reduced = node(name, ["n", *axes], ["r"], keepdims=1, **({} if axes else {"axes": [1]}))
        nodes = [node("Slice", ["x", "s", "e", "a"], ["n"]), reduced, node("Add", ["x", "r"], ["y"])]
        weights = {"s": np.array([3]), "e": np.array([3]), "a": np.array([1])} | axes
        yield f"empty-{name}", net(nodes, {"x": x}, weights, right=x + np.float32(number))
    yield (
        "empty-pad",
        net(
            [
                node("Slice", ["x", "s", "e", "a"], ["n"]),
                node("Pad", ["n", "p"], ["z"]),
                node("Add", ["x", "z"], ["y"]),
            ],
            {"x": x},
            {"s": np.array([3]), "e": np.array([3]), "a": np.array([1]), "p": np.array([0, 0, 0, 3])},
            right=x,
        ),
    )
    yield (
        "empty-gather",
        net(
            [node("Gather", ["x", "i"], ["n"], axis=1), node("Concat", ["n", "x"], ["y"], axis=1)],
            {"x": x},
            {"i": np.zeros(0, np.int64)},
            right=x,
        ),
    )
    yield (
        "empty-expand",
        net(
            [node("Expand", ["none", "s"], ["n"]), node("Concat", ["n", "x"], ["y"], axis=1)],
            {"x": normal(4, 3)},
            {"none": none, "s": np.array([4, 0])},
            right=normal(4, 3),
        ),
    )
    yield (
        "empty-filled",
        net(
            [node("ConstantOfShape", ["s"], ["n"]), node("Concat", ["n", "x"], ["y"], axis=0)],
            {"x": x},
            {"s": np.array([0, 3])},
            right=x,
        ),
    )
    yield (
        "empty-tile",
        net(
            [node("Tile", ["x", "t"], ["n"]), node("Concat", ["n", "x"], ["y"], axis=0)],
            {"x": x},
            {"t": np.array([0, 1])},
            right=x,
        ),
    )
    step = normal(1, 2, 3, 4)
    cache = net(
        [node("Concat", ["past", "x"], ["y"], axis=2)],
        {"past": np.zeros((1, 2, 0, 4), np.float32), "x": step},
        right=step,
    )
    cache.proto.graph.input[0].CopyFrom(value("past", (1, 2, "past_len", 4)))
    yield "empty-cache", cache
    nodes = [node("Concat", [f"past{index}", "x"], [f"all{index}"], axis=2) for index in range(2)]
    feeds = {"past0": np.zeros((1, 2, 0, 4), np.float32), "past1": np.zeros((1, 2, 0, 4), np.float32), "x": step}
    caches = net([*nodes, node("Add", ["all0", "all1"], ["y"])], feeds, right=2 * step)
    for index in range(2):
        caches.proto.graph.input[index].CopyFrom(value(f"past{index}", (1, 2, "past_len", 4)))
    yield "empty-caches", caches


def _drawn() -> Named:
    """Inputs that are drawn must be ones that the model takes."""
    ids, row = ((1, 6), "int64"), ((2, 3), "float32")
    table = {"table": normal(4, 8)}
    yield "small-table", drawn([node("Gather", ["table", "i"], ["y"])], {"i": ids}, weights=table)
    yield (
        "second-axis",
        drawn([node("Gather", ["table", "i"], ["y"], axis=1)], {"i": ids}, weights={"table": normal(12, 2)}),
    )
    yield (
        "last-axis",
        drawn([node("Gather", ["table", "i"], ["y"], axis=-1)], {"i": ids}, weights={"table": normal(12, 2)}),
    )
    yield (
        "moved-ids",
        drawn(
            [
                node("Cast", ["i"], ["c"], to=TensorProto.INT32),
                node("Flatten", ["c"], ["f"]),
                node("Gather", ["table", "f"], ["y"]),
            ],
            {"i": ids},
            weights=table,
        ),
    )
    yield (
        "shifted-ids",
        drawn(
            [node("Add", ["i", "one"], ["j"]), node("Gather", ["table", "j"], ["y"])],
            {"i": ids},
            weights=table | {"one": np.array(1)},
        ),
    )
    yield (
        "divisor",
        drawn([node("Div", ["a", "b"], ["y"])], {"a": ((4,), "int64"), "b": ((4,), "int64")}, output="int64"),
    )
    yield (
        "remainder",
        drawn([node("Mod", ["a", "b"], ["y"])], {"a": ((4,), "int32"), "b": ((4,), "int32")}, output="int32"),
    )
    yield (
        "gathered-axis",
        drawn([node("GatherElements", ["x", "i"], ["y"], axis=1)], {"x": row, "i": ((2, 3), "int64")}),
    )
    yield (
        "scattered-axis",
        drawn(
            [node("ScatterElements", ["x", "i", "u"], ["y"], axis=1)],
            {"x": row, "i": ((2, 1), "int64"), "u": ((2, 1), "float32")},
        ),
    )
    yield "coordinates", drawn([node("GatherND", ["x", "i"], ["y"])], {"x": row, "i": ((4, 2), "int64")})
    yield (
        "one-hot",
        drawn(
            [node("OneHot", ["i", "depth", "values"], ["y"])],
            {"i": ids},
            weights={"depth": np.array(3), "values": np.array([0, 1], np.float32)},
        ),
    )
    yield (
        "classes",
        drawn([node("NegativeLogLikelihoodLoss", ["x", "c"], ["y"])], {"x": ((5, 3), "float32"), "c": ((5,), "int64")}),
    )
    yield (
        "cross-entropy",
        drawn([node("SoftmaxCrossEntropyLoss", ["x", "c"], ["y"])], {"x": ((5, 3), "float32"), "c": ((5,), "int64")}),
    )
    yield (
        "lengths",
        drawn([node("ReverseSequence", ["x", "n"], ["y"])], {"x": ((3, 2), "float32"), "n": ((2,), "int64")}),
    )
    lstm = {"w": normal(1, 8, 3), "r": normal(1, 8, 2)}
    yield (
        "steps",
        drawn(
            [node("LSTM", ["x", "w", "r", "", "n"], ["y"], hidden_size=2)],
            {"x": ((3, 2, 3), "float32"), "n": ((2,), "int32")},
            weights=lstm,
        ),
    )
    yield "logarithm", drawn([node("Log", ["x"], ["y"])], {"x": row})
    yield (
        "int8-divisor",
        drawn([node("Div", ["a", "b"], ["y"])], {"a": ((4,), "int8"), "b": ((4,), "int8")}, output="int8"),
    )


def _operators() -> Named:
    """Single operators in forms that are rare."""
    x, cube, square = normal(2, 3), normal(2, 3, 4), normal(2, 2)
    for axis in (1, 2, -1):
        yield f"hardmax-{axis}", net([node("Hardmax", ["x"], ["y"], axis=axis)], {"x": cube}, opset=11)
    yield "split-one", net([node("Split", ["x", "s"], ["y"], axis=1)], {"x": x}, {"s": np.array([3])}, right=x)
    yield "split-one-18", net([node("Split", ["x"], ["y"], axis=1, num_outputs=1)], {"x": x}, opset=18, right=x)
    yield "split-one-11", net([node("Split", ["x"], ["y"], axis=1)], {"x": x}, opset=11, right=x)
    pads = {"p": np.array([1, 1, 1, 1])}
    yield (
        "pad-computed",
        net(
            [node("Pad", ["x", "p", "v"], ["y"])],
            {"x": square, "v": np.array(7, np.float32)},
            pads,
            right=np.pad(square, 1, constant_values=7),
        ),
    )
    yield (
        "pad-computed-reduced",
        net(
            [node("ReduceMax", ["x"], ["v"], keepdims=0), node("Pad", ["x", "p", "v"], ["y"])],
            {"x": square},
            pads,
            right=np.pad(square, 1, constant_values=square.max()),
        ),
    )
    yield (
        "pad-wrap-and-crop",
        net(
            [node("Pad", ["x", "p"], ["y"], mode="wrap")],
            {"x": counted(5)},
            {"p": np.array([-1, 2])},
            19,
            right=np.array([1, 2, 3, 4, 1, 2], np.float32),
        ),
    )
    yield (
        "pad-wrap-twice",
        net(
            [node("Pad", ["x", "p"], ["y"], mode="wrap")],
            {"x": counted(3)},
            {"p": np.array([4, 5])},
            19,
            right=np.pad(counted(3), (4, 5), mode="wrap"),
        ),
    )
    yield (
        "pad-edge-and-crop",
        net(
            [node("Pad", ["x", "p"], ["y"], mode="edge")],
            {"x": counted(5)},
            {"p": np.array([2, -2])},
            right=np.array([0, 0, 0, 1, 2], np.float32),
        ),
    )
    yield (
        "pad-reflect-and-crop",
        net([node("Pad", ["x", "p"], ["y"], mode="reflect")], {"x": counted(5)}, {"p": np.array([-1, 2])}),
    )
    large = np.array([88.85, 89, -88.95, 89.2, 1e-3, -0.5], np.float32)
    for operator in ("Sinh", "Cosh"):
        yield (
            f"{operator}-large",
            net(
                [node(operator, ["x"], ["y"])],
                {"x": large},
                right=getattr(np, operator.lower())(large.astype(np.float64)).astype(np.float32),
            ),
        )
    symmetric = {"coordinate_transformation_mode": "half_pixel_symmetric"}
    line = {"x": counted(1, 1, 1, 5)}
    yield (
        "resize-symmetric",
        net(
            [node("Resize", ["x", "", "s"], ["y"], mode="nearest", nearest_mode="floor", **symmetric)],
            line,
            {"s": np.array([1, 1, 1, 1.5], np.float32)},
            19,
            right=np.array([0, 0, 1, 2, 2, 3, 4], np.float32).reshape(1, 1, 1, 7),
        ),
    )
    for mode, scale in (("ceil", 2.5), ("round_prefer_ceil", 0.6)):
        yield (
            f"resize-symmetric-{mode}",
            net(
                [node("Resize", ["x", "", "s"], ["y"], mode="nearest", nearest_mode=mode, **symmetric)],
                line,
                {"s": np.array([1, 1, 1, scale], np.float32)},
                19,
            ),
        )
    yield (
        "resize-symmetric-linear",
        net(
            [node("Resize", ["x", "", "s"], ["y"], mode="linear", **symmetric)],
            line,
            {"s": np.array([1, 1, 1, 1.7], np.float32)},
            19,
        ),
    )
    for mode, sizes in (
        ("linear", (1, 5, 1, 22)),
        ("linear", (1, 5, 3, 22)),
        ("linear", (1, 5, 1, 1)),
        ("cubic", (1, 5, 2, 22)),
    ):
        yield (
            f"resize-corners-{mode}-{sizes[2]}x{sizes[3]}",
            net(
                [node("Resize", ["x", "", "", "s"], ["y"], mode=mode, coordinate_transformation_mode="align_corners")],
                {"x": normal(1, 5, 1, 11)},
                {"s": np.array(sizes)},
                19,
            ),
        )
    empty = onnx.AttributeProto(name="axes", type=onnx.AttributeProto.INTS)
    for operator in ("ReduceMax", "ReduceMean", "ReduceL1"):
        case = net([node(operator, ["x"], ["y"], keepdims=0)], {"x": x}, opset=16)
        case.proto.graph.node[0].attribute.append(empty)
        yield f"empty-axes-{operator}", case
    for noop, right in ((0, x.sum(keepdims=True).reshape(1, 1)), (1, x)):
        yield (
            f"empty-axes-noop-{noop}",
            net(
                [node("ReduceSum", ["x", "a"], ["y"], noop_with_empty_axes=noop)],
                {"x": x},
                {"a": np.zeros(0, np.int64)},
                right=right,
            ),
        )
    yield (
        "scalar-axes-unsqueeze",
        net(
            [node("Unsqueeze", ["x", "a"], ["y"])],
            {"x": normal(3, 4)},
            {"a": np.array(0)},
            16,
            right=normal(3, 4)[None],
        ),
    )
    yield (
        "scalar-axes-squeeze",
        net(
            [node("Squeeze", ["x", "a"], ["y"])], {"x": normal(3, 1)}, {"a": np.array(1)}, 16, right=normal(3, 1)[:, 0]
        ),
    )
    yield (
        "scalar-axes-sum",
        net([node("ReduceSum", ["x", "a"], ["y"], keepdims=0)], {"x": x}, {"a": np.array(-1)}, 16, right=x.sum(-1)),
    )


def _special_values() -> Named:
    x = np.array([np.nan, np.inf, -np.inf, 5, -5, -0.0], np.float32)
    limits = {"lo": np.float32(-1), "hi": np.float32(1)}
    yield "clip-nan", net([node("Clip", ["x", "lo", "hi"], ["y"])], {"x": x}, limits, right=np.clip(x, -1, 1))
    yield "sign-nan", net([node("Sign", ["x"], ["y"])], {"x": x}, right=np.sign(x))
    with np.errstate(invalid="ignore"):
        yield "zero-times-infinity", net([node("Mul", ["x", "z"], ["y"])], {"x": x}, {"z": np.float32(0)}, right=x * 0)


def _forms() -> Named:
    """Files that ONNX Runtime reads although they are unusual."""
    x = normal(3)
    case = net([node("Relu", ["x"], ["y"], domain="ai.onnx")], {"x": x}, right=np.maximum(x, 0))
    case.proto.opset_import.append(helper.make_opsetid("ai.onnx", 17))
    yield "domain-ai-onnx", case
    only = net([node("Relu", ["x"], ["y"], domain="ai.onnx")], {"x": x}, right=np.maximum(x, 0))
    only.proto.opset_import[0].domain = "ai.onnx"
    yield "domain-ai-onnx-only", only
    inner = nets.graph([node("Neg", ["x"], ["n"], domain="ai.onnx")], [], [value("n", (3,))])
    network = net(
        [node("If", ["c"], ["y"], then_branch=inner, else_branch=inner, domain="ai.onnx")],
        {"x": x, "c": np.array(1, bool)},
        right=-x,
    )
    yield "domain-ai-onnx-inside", network
    yield "unsorted", net([node("Relu", ["n"], ["y"]), node("Neg", ["x"], ["n"])], {"x": x}, right=np.maximum(-x, 0))
    unsorted = nets.graph([node("Relu", ["n"], ["r"]), node("Neg", ["x"], ["n"])], [], [value("r", (3,))])
    yield (
        "unsorted-inside",
        net(
            [node("If", ["c"], ["y"], then_branch=unsorted, else_branch=unsorted)],
            {"x": x, "c": np.array(1, bool)},
            right=np.maximum(-x, 0),
        ),
    )


def undefined() -> dict[str, onnx.ModelProto]:
    """Return models with a value of an attribute that the standard does not define, by name."""
    image, line = normal(1, 1, 4, 4), normal(4)
    pads, scales = {"p": np.array([1, 1])}, {"s": np.array([1, 1, 2, 2], np.float32)}
    lstm = {"w": normal(1, 8, 3), "r": normal(1, 8, 2)}
    cases = {
        "pad-mode": net([node("Pad", ["x", "p"], ["y"], mode="mirror")], {"x": line}, pads),
        "resize-mode": net([node("Resize", ["x", "", "s"], ["y"], mode="lanczos")], {"x": image}, scales),
        "resize-coordinates": net(
            [node("Resize", ["x", "", "s"], ["y"], coordinate_transformation_mode="pixel")], {"x": image}, scales
        ),
        "direction": net(
            [node("LSTM", ["x", "w", "r"], ["y"], hidden_size=2, direction="sideways")], {"x": normal(3, 2, 3)}, lstm
        ),
        "auto-pad": net([node("Conv", ["x", "w"], ["y"], auto_pad="SAME")], {"x": image}, {"w": normal(1, 1, 3, 3)}),
        "approximate": net([node("Gelu", ["x"], ["y"], approximate="quick")], {"x": line}, opset=20),
        "new-axis": net(
            [
                node("SequenceConstruct", ["x", "x"], ["s"]),
                node("ConcatFromSequence", ["s"], ["y"], axis=0, new_axis=2),
            ],
            {"x": line},
        ),
        "reduction": net(
            [node("ScatterElements", ["x", "i", "x"], ["y"], reduction="average")], {"x": line}, {"i": np.arange(4)}, 18
        ),
    }
    return {name: case.proto for name, case in cases.items()}
