"""Whatever no template covers: right on awkward shapes, in vectors and on all cores, and never a reason to fail."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax, tirx

from tests.support import nets
from tests.support.nets import node
from toolchain.backends.base import LAYER
from toolchain.backends.cpu import schedule
from toolchain.backends.cpu.expr import conditions, is_guard
from toolchain.backends.cpu.lowering import PIPELINE
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.cpu.schedule import block
from toolchain.models import importer, source
from toolchain.models.ort import onnxruntime

WIDE = Machine(lanes=16, registers=32, cores=2)
NARROW = Machine(lanes=4, registers=16, cores=3)
HERE = tvm.target.Target({"kind": "llvm", "mcpu": str(tvm.target.codegen.llvm_get_system_cpu()), "num-cores": 2})
ELSEWHERE = {
    "x86-64-v3": ({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"}, 8, r"%ymm\d", r"\tv?(add|mul|max)ss\t"),
    "cortex-a72": ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, 4, r"v\d+\.4s", r"\tf(add|mul|maxnm)\ts\d"),
    "cortex-a9": (
        {"mtriple": "arm-linux-gnueabihf", "mcpu": "cortex-a9", "mattr": ["+neon"], "mfloat-abi": "hard"},
        4,
        r"\bq\d+",
        r"\tv(add|mul|max)\.f32\ts\d",
    ),
}


# --- how a test is made ----------------------------------------------------------------------------------------


def lowered(module):
    transform = relax.transform
    with HERE:
        return tvm.transform.Sequential(
            [
                transform.DecomposeOpsForInference(),
                transform.CanonicalizeBindings(),
                transform.FoldConstant(),
                relax.get_pipeline("zero"),
            ]
        )(module)


def kernels(module):
    return {name.name_hint: function for name, function in module.functions_items() if is_kernel(function)}


def is_kernel(function):
    return isinstance(function, tirx.PrimFunc)


def is_done(function):
    return bool((function.attrs or {}).get("tirx.is_scheduled"))


def scheduled(module, machine):
    """Schedule all kernels, such that even small ones are shared among the cores."""
    changed = tvm.IRModule(dict(module.functions_items()))
    for name, function in module.functions_items():
        if is_kernel(function) and schedule._is_open(function):
            changed.update_func(name, schedule.schedule_kernel(function, machine))
    return changed


def run(module, *arrays):
    vm = relax.VirtualMachine(tvm.compile(module, target=HERE, tir_pipeline=PIPELINE), tvm.cpu())
    actual = vm["main"](*(tvm.runtime.tensor(array) for array in arrays))
    return actual.numpy() if hasattr(actual, "numpy") else actual[0].numpy()


def numbers(shape, dtype="float32", seed=0):
    stream = np.random.default_rng(seed)
    if dtype == "bool":
        return stream.integers(0, 2, shape).astype(dtype)
    if dtype.startswith("float"):
        return stream.standard_normal(shape).astype(dtype)
    return stream.integers(0, 5, shape).astype(dtype)


def close(actual, expected):
    assert actual.shape == expected.shape
    if np.issubdtype(expected.dtype, np.floating):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6 * np.abs(expected).max(initial=1.0))
    else:
        np.testing.assert_array_equal(actual, expected)


@pytest.fixture
def eager(monkeypatch):
    """Share work however little it is."""
    monkeypatch.setattr(block, "WORTH_CORES", 0)


def relax_module(build, *inputs):
    """Return the lowered module of an expression; inputs are (shape, dtype)."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{index}", relax.TensorType(shape, dtype)) for index, (shape, dtype) in enumerate(inputs)]
    with builder.function("main", variables):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(build(*variables)))
        builder.emit_func_output(out)
    return lowered(builder.get())


# --- networks as they are imported, against ONNX Runtime ---------------------------------------------------------


def gelu(x):
    return [
        node("Div", [x, "root"], ["a"]),
        node("Erf", ["a"], ["b"]),
        node("Add", ["b", "one"], ["c"]),
        node("Mul", [x, "c"], ["d"]),
        node("Mul", ["d", "half"], ["y"]),
    ]


ROOT = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}


def weights(*shape, seed=3):
    return numbers(shape, seed=seed)


def one(operator, x=("x",), **attributes):
    return [node(operator, list(x), ["y"], **attributes)]


# name: nodes, shapes (and types) of the inputs, constants
NETWORKS = {
    "relu": (one("Relu"), [(1, 3, 5, 7)], {}),
    "scale, shift, relu": (
        [node("Mul", ["x", "s"], ["a"]), node("Add", ["a", "b"], ["c"]), node("Relu", ["c"], ["y"])],
        [(1, 5, 7, 9)],
        {"s": weights(1, 5, 1, 1), "b": weights(5, 1, 1)},
    ),
    "residual": ([node("Add", ["x", "x1"], ["a"]), node("Relu", ["a"], ["y"])], [(2, 3, 1, 19), (2, 3, 1, 19)], {}),
    "sum of three": (one("Sum", ("x", "x1", "x2")), [(1, 4, 5, 3)] * 3, {}),
    "squeeze and excite": (
        [node("Sigmoid", ["x1"], ["a"]), node("Mul", ["x", "a"], ["y"])],
        [(1, 6, 9, 5), (1, 6, 1, 1)],
        {},
    ),
    "tanh": (one("Tanh"), [(3, 37)], {}),
    "gelu": (gelu("x"), [(5, 50)], ROOT),
    "softplus": (one("Softplus"), [(2, 33)], {}),
    "hard swish": (one("HardSwish"), [(1, 3, 7, 7)], {}),
    "leaky relu": (one("LeakyRelu", alpha=0.2), [(1, 3, 7, 7)], {}),
    "power": ([node("Abs", ["x"], ["a"]), node("Pow", ["a", "p"], ["y"])], [(3, 21)], {"p": np.float32(0.75)}),
    "odd power": ([node("Abs", ["x"], ["a"]), node("Pow", ["a", "p"], ["y"])], [(3, 21)], {"p": np.float32(1.3)}),
    "where": (one("Where", ("x", "x1", "x2")), [((3, 19), "bool"), (3, 19), (19,)], {}),
    "comparison": (one("Greater", ("x", "x1")), [(3, 19), (3, 19)], {}),
    "cast": (one("Cast", to=onnx.TensorProto.FLOAT), [((3, 67), "int8")], {}),
    "quantize": (one("QuantizeLinear", ("x", "s", "z")), [(1, 3, 7, 9)], {"s": np.float32(0.02), "z": np.uint8(128)}),
    "dequantize": (
        one("DequantizeLinear", ("x", "s", "z"), axis=1),
        [((1, 3, 7, 9), "uint8")],
        {"s": np.abs(weights(3)), "z": np.array([1, 2, 3], np.uint8)},
    ),
    "softmax": (one("Softmax", axis=-1), [(1, 1000)], {}),
    "softmax of rows": (one("Softmax", axis=-1), [(3, 13, 29)], {}),
    "softmax of channels": (one("Softmax", axis=1), [(1, 5, 6, 7)], {}),
    "softmax of one": (one("Softmax", axis=-1), [(7, 1)], {}),
    "softmax, guarded": (
        [
            node("Softmax", ["x"], ["a"], axis=-1),
            node("IsNaN", ["a"], ["b"]),
            node("Where", ["b", "zero", "a"], ["y"]),
        ],
        [(3, 49, 49)],
        {"zero": np.float32(0)},
    ),
    "softmax, its greatest": (
        [
            node("Softmax", ["x"], ["a"], axis=-1),
            node("ReduceMax", ["a"], ["b"], axes=[-1]),
            node("Equal", ["a", "b"], ["y"]),
        ],
        [(5, 50)],
        {},
    ),
    "elu, guarded": (
        [node("Elu", ["x"], ["a"]), node("IsNaN", ["a"], ["b"]), node("Where", ["b", "zero", "a"], ["y"])],
        [(3, 37)],
        {"zero": np.float32(0)},
    ),
    "elu or its remainder": (
        [node("Elu", ["x"], ["a"]), node("Mod", ["a", "x1"], ["y"], fmod=1)],
        [(3, 37), (3, 37)],
        {},
    ),
    "log softmax": (one("LogSoftmax", axis=-1), [(9, 21)], {}),
    "layer norm": (
        one("LayerNormalization", ("x", "s", "b"), axis=-1),
        [(3, 11, 45)],
        {"s": weights(45), "b": weights(45, seed=4)},
    ),
    "layer norm of short rows": (
        one("LayerNormalization", ("x", "s"), axis=-1),
        [(17, 3)],
        {"s": weights(3)},
    ),
    "instance norm": (
        one("InstanceNormalization", ("x", "s", "b")),
        [(2, 5, 7, 9)],
        {"s": weights(5), "b": weights(5, seed=4)},
    ),
    "response norm": (one("LRN", size=5, alpha=1e-2, beta=0.75, bias=1.0), [(1, 11, 6, 7)], {}),
    "short response norm": (one("LRN", size=3, alpha=1e-2, beta=0.6, bias=2.0), [(1, 4, 1, 5)], {}),
    "global average": (one("GlobalAveragePool"), [(2, 21, 7, 7)], {}),
    "sum of all": (one("ReduceSum", keepdims=0), [(8, 9, 64)], {}),
    "sum of the last": (one("ReduceSum", ("x", "axes")), [(7, 9, 37)], {"axes": np.array([2])}),
    "sum of the first": (one("ReduceSum", ("x", "axes"), keepdims=0), [(37, 9, 5)], {"axes": np.array([0])}),
    "sum of two": (one("ReduceSum", ("x", "axes")), [(5, 9, 4, 6)], {"axes": np.array([1, 3])}),
    "greatest": (one("ReduceMax", axes=[1], keepdims=0), [(3, 41, 3)], {}),
    "product": (one("ReduceProd", axes=[-1], keepdims=0), [(3, 17)], {}),
    "length": (one("ReduceL2", axes=[-1], keepdims=0), [(9, 35)], {}),
    "place of the greatest": (one("ArgMax", axis=-1, keepdims=0), [(9, 133)], {}),
    "class of each pixel": (one("ArgMax", axis=1, keepdims=0), [(1, 5, 6, 7)], {}),
    "transpose": (one("Transpose", perm=[1, 0]), [(45, 70)], {}),
    "channels last": (one("Transpose", perm=[0, 2, 3, 1]), [(1, 19, 5, 9)], {}),
    "channels first": (one("Transpose", perm=[0, 3, 1, 2]), [(1, 5, 9, 19)], {}),
    "heads apart": (
        [node("Reshape", ["x", "s"], ["a"]), node("Transpose", ["a"], ["y"], perm=[1, 2, 0])],
        [(21, 48)],
        {"s": np.array([21, 3, 16])},
    ),
    "channel shuffle": (
        [
            node("Reshape", ["x", "s"], ["a"]),
            node("Transpose", ["a"], ["b"], perm=[0, 2, 1, 3, 4]),
            node("Reshape", ["b", "t"], ["y"]),
        ],
        [(1, 12, 5, 5)],
        {"s": np.array([1, 3, 4, 5, 5]), "t": np.array([1, 12, 5, 5])},
    ),
    "depth to space": (one("DepthToSpace", blocksize=2), [(1, 12, 5, 9)], {}),
    "concat of channels": (one("Concat", ("x", "x1", "x2"), axis=1), [(1, 3, 5, 7), (1, 1, 5, 7), (1, 6, 5, 7)], {}),
    "concat of rows": (one("Concat", ("x", "x1"), axis=-1), [(5, 7), (5, 20)], {}),
    "concat, relu": (
        [node("Concat", ["x", "x1"], ["a"], axis=1), node("Relu", ["a"], ["y"])],
        [(2, 3, 5, 7), (2, 2, 5, 7)],
        {},
    ),
    "split": (
        [node("Split", ["x"], ["a", "b"], axis=1), node("Sigmoid", ["b"], ["c"]), node("Mul", ["a", "c"], ["y"])],
        [(2, 6, 5, 7)],
        {},
    ),
    "slice": (
        one("Slice", ("x", "b", "e", "a", "s")),
        [(2, 3, 21, 40)],
        {"b": np.array([1, 1]), "e": np.array([20, 40]), "a": np.array([2, 3]), "s": np.array([2, 3])},
    ),
    "slice backwards": (
        one("Slice", ("x", "b", "e", "a", "s")),
        [(5, 40)],
        {"b": np.array([38]), "e": np.array([2]), "a": np.array([1]), "s": np.array([-1])},
    ),
    "pad": (one("Pad", ("x", "p")), [(1, 3, 5, 7)], {"p": np.array([0, 0, 1, 2, 0, 1, 0, 3])}),
    "reflect": (one("Pad", ("x", "p"), mode="reflect"), [(1, 2, 5, 7)], {"p": np.array([0, 0, 3, 2, 0, 0, 2, 3])}),
    "gather": (one("Gather", ("w", "x"), axis=0), [((2, 7), "int64")], {"w": weights(5, 33)}),
    "gather elements": (one("GatherElements", ("x", "x1"), axis=1), [(4, 9), ((4, 6), "int64")], {}),
    "expand": (one("Expand", ("x", "s")), [(1, 3, 1, 1)], {"s": np.array([2, 3, 5, 7])}),
    "tile": (one("Tile", ("x", "s")), [(1, 3, 5)], {"s": np.array([1, 2, 3])}),
    "resize to the nearest": (
        one(
            "Resize", ("x", "", "s"), mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        ),
        [(1, 3, 5, 7)],
        {"s": np.array([1, 1, 2, 2], np.float32)},
    ),
    "resize, linear": (
        one("Resize", ("x", "", "s"), mode="linear"),
        [(1, 3, 5, 7)],
        {"s": np.array([1, 1, 2, 3], np.float32)},
    ),
    "conv": (
        [node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1]), node("Relu", ["a"], ["y"])],
        [(1, 5, 9, 11)],
        {"w": weights(7, 5, 3, 3), "b": weights(7)},
    ),
    "conv of one row": (one("Conv", ("x", "w"), strides=[1, 2]), [(1, 6, 1, 45)], {"w": weights(9, 6, 1, 4)}),
    "dilated conv": (one("Conv", ("x", "w"), dilations=[2, 3]), [(1, 4, 13, 17)], {"w": weights(5, 4, 3, 3)}),
    "grouped conv": (
        one("Conv", ("x", "w"), group=3, pads=[1, 1, 1, 1]),
        [(2, 6, 7, 7)],
        {"w": weights(9, 2, 3, 3)},
    ),
    "depthwise conv": (
        one("Conv", ("x", "w"), group=6, strides=[2, 2], pads=[1, 1, 1, 1]),
        [(1, 6, 19, 35)],
        {"w": weights(6, 1, 3, 3)},
    ),
    "conv 1d": (one("Conv", ("x", "w"), pads=[1, 1]), [(2, 5, 39)], {"w": weights(7, 5, 3)}),
    "conv 3d": (one("Conv", ("x", "w"), pads=[1] * 6), [(1, 3, 4, 7, 9)], {"w": weights(5, 3, 3, 3, 3)}),
    "transposed conv": (
        one("ConvTranspose", ("x", "w"), strides=[2, 2], pads=[1, 1, 1, 1]),
        [(1, 5, 6, 7)],
        {"w": weights(5, 3, 4, 4)},
    ),
    "max pool": (one("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), [(2, 3, 15, 37)], {}),
    "max pool 1d": (one("MaxPool", kernel_shape=[3], strides=[2], pads=[1, 1]), [(1, 3, 75)], {}),
    "average pool": (one("AveragePool", kernel_shape=[3, 3], pads=[1] * 4), [(1, 3, 9, 21)], {}),
    "average pool 3d": (one("AveragePool", kernel_shape=[2, 2, 2], strides=[2, 2, 2]), [(1, 3, 4, 6, 22)], {}),
    "matmul": (one("MatMul", ("x", "x1")), [(13, 37), (37, 45)], {}),
    "attention scores": (one("MatMul", ("x", "x1")), [(3, 17, 16), (3, 16, 21)], {}),
    "wide matmul": (one("MatMul", ("x", "w")), [(39, 70)], {"w": weights(70, 272)}),
    "dense": (
        [node("Gemm", ["x", "w", "b"], ["a"], transB=1), node("Relu", ["a"], ["y"])],
        [(1, 75)],
        {"w": weights(50, 75), "b": weights(50)},
    ),
    "matrix and vector": (one("MatMul", ("x", "x1")), [(21, 45), (45,)], {}),
    "recurrent cell": (
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("MatMul", ["x1", "r"], ["b"]),
            node("Add", ["a", "b"], ["c"]),
            node("Split", ["c"], ["d", "e", "f"], axis=1),
            node("Sigmoid", ["d"], ["g"]),
            node("Tanh", ["e"], ["h"]),
            node("Mul", ["g", "h"], ["i"]),
            node("Mul", ["i", "f"], ["y"]),
        ],
        [(2, 7), (2, 5)],
        {"w": weights(7, 27), "r": weights(5, 27, seed=4)},
    ),
}

# What is worth a second look with other vectors, another number of cores, and fewer registers.
AGAIN = [
    *("gelu", "where", "softmax of rows", "softmax of channels", "layer norm", "response norm", "global average"),
    *("sum of two", "length", "place of the greatest", "channels first", "slice", "conv", "depthwise conv"),
    *("max pool", "wide matmul", "dense"),
]


def proto_of(name):
    nodes, inputs, constants = NETWORKS[name]
    typed = [shape if isinstance(shape[0], tuple) else (shape, "float32") for shape in inputs]
    values = [nets.value("x" if index == 0 else f"x{index}", *shape) for index, shape in enumerate(typed)]
    proto = nets.model(nodes, values, [onnx.ValueInfoProto(name="y")], constants, opset=17)
    inferred = onnx.shape_inference.infer_shapes(proto)
    return inferred, [numbers(*shape, seed=index) for index, shape in enumerate(typed)]


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        *(pytest.param(name, WIDE, id=name) for name in NETWORKS),
        *(pytest.param(name, NARROW, id=f"{name}, narrow") for name in AGAIN),
    ],
)
def test_networks(name, machine, eager, tmp_path):
    proto, arrays = proto_of(name)
    names = [value.name for value in proto.graph.input]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    [expected, *_] = session.run(None, dict(zip(names, arrays, strict=True)))
    module = lowered(importer.import_model(source.load(nets.save(proto, tmp_path))).module)
    changed = scheduled(module, machine)
    assert all(
        is_done(function) for function in kernels(changed).values() if schedule._is_open(function) or is_done(function)
    )
    close(run(changed, *arrays), expected)


@pytest.mark.parametrize("length", [5, 16, 20, 70])
@pytest.mark.parametrize(("operator", "first"), [("ReduceMax", -np.inf), ("ReduceMin", np.inf)])
def test_limits_of_infinite_rows(operator, first, length, tmp_path):
    """Of the elements of the last vector, some were in the one before: they count as what a reduction starts with."""
    proto = nets.model(
        one(operator, axes=[-1], keepdims=0), [nets.value("x", (3, length))], [nets.value("y", (3,))], {}
    )
    module = scheduled(lowered(importer.import_model(source.load(nets.save(proto, tmp_path))).module), WIDE)
    rows = numbers((3, length))
    rows[1:] = first
    rows[2, 0] = 7
    np.testing.assert_array_equal(run(module, rows), nets.run(proto, {"x": rows})[0])


# --- what networks do not show ---------------------------------------------------------------------------------

OP = relax.op
NN = relax.op.nn


def parts_of_blocks(x):
    return OP.reshape(OP.permute_dims(x, [0, 1, 4, 2, 3]), (1, 32, 5, 7))


def constant(*shape):
    return relax.const(weights(*shape))


def mean(x, axes):
    return x.mean(axes, keepdims=True, dtype=np.float64).astype(np.float32)


def in_blocks(x):
    return np.pad(x, ((0, 0), (0, 13), (0, 0), (0, 0))).reshape(1, 1, 16, 5, 7).transpose(0, 1, 3, 4, 2)


def normed(x, axes):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def channels(count):
    return weights(count).reshape(1, count, 1, 1)


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


BLOCKED = (1, 2, 5, 7, 16)
EXPRESSIONS = {
    "blocked scale and shift": (
        lambda x: NN.relu(OP.add(OP.multiply(x, constant(1, 2, 1, 1, 16)), constant(1, 2, 1, 1, 16))),
        [BLOCKED],
        lambda x: np.maximum(x * weights(1, 2, 1, 1, 16) + weights(1, 2, 1, 1, 16), 0),
    ),
    "blocked average": (lambda x: OP.mean(x, [2, 3], keepdims=True), [BLOCKED], lambda x: mean(x, (2, 3))),
    "to blocks": (
        lambda x: OP.layout_transform(x, lambda n, c, h, w: (n, c // 16, h, w, c % 16), pad_value=0.0),
        [(1, 3, 5, 7)],
        in_blocks,
    ),
    "from blocks": (parts_of_blocks, [BLOCKED], lambda x: x.transpose(0, 1, 4, 2, 3).reshape(1, 32, 5, 7)),
    "blocked concat": (
        lambda x, y: OP.concat(relax.Tuple([x, y]), 1),
        [BLOCKED, (1, 1, 5, 7, 16)],
        lambda x, y: np.concatenate([x, y], 1),
    ),
    "group norm": (
        lambda x: NN.group_norm(x, constant(12), constant(12), num_groups=3, channel_axis=1, axes=[2, 3]),
        [(2, 12, 5, 7)],
        lambda x: normed(x.reshape(2, 3, 4, 5, 7), (2, 3, 4)).reshape(x.shape) * channels(12) + channels(12),
    ),
    "sum of transposed": (
        lambda x, y: OP.add(OP.permute_dims(x), OP.multiply(OP.permute_dims(y), y)),
        [(37, 37), (37, 37)],
        lambda x, y: x.T + y.T * y,
    ),
    "heads of rows": (
        lambda x: OP.permute_dims(OP.reshape(OP.reshape(x, (2, 19, 48)), (2, 19, 3, 16)), [0, 2, 3, 1]),
        [(38, 48)],
        lambda x: x.reshape(2, 19, 3, 16).transpose(0, 2, 3, 1),
    ),
    "sum of many": (OP.sum, [(977, 3, 128)], lambda x: x.sum(dtype=np.float64).astype(np.float32)),
    "variance": (lambda x: OP.variance(x, [1]), [(9, 77)], lambda x: x.var(1)),
    "doubles": (lambda x: NN.softmax(x, -1), [((5, 37), "float64")], softmax),
    "any": (lambda x: OP.max(x, [1]), [((9, 37), "int8")], lambda x: x.max(1)),
    "integers": (
        lambda x, y: OP.matmul(x, y, out_dtype="int32"),
        [((9, 37), "int8"), ((37, 21), "int8")],
        lambda x, y: x.astype(np.int32) @ y.astype(np.int32),
    ),
    "transposed product": (
        lambda x, y: OP.permute_dims(NN.relu(OP.matmul(x, y))),
        [(21, 37), (37, 50)],
        lambda x, y: np.maximum(x @ y, 0).T,
    ),
    "no axes": (lambda x: OP.add(x, x), [()], lambda x: x + x),
    "no elements": (NN.relu, [(0, 7)], lambda x: x),
    "many operands": (
        lambda *x: OP.concat(relax.Tuple(list(x)), 0),
        [(row % 3 + 1, 5) for row in range(70)],
        lambda *x: np.concatenate(x),
    ),
    "guarded exponentials": (
        lambda x: OP.exp(NN.pad(x, [0, 0, 2, 2])),
        [(3, 19)],
        lambda x: np.exp(np.pad(x, ((0, 0), (2, 2)))),
    ),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions(name, eager):
    build, inputs, reference = EXPRESSIONS[name]
    typed = [shape if shape and isinstance(shape[0], tuple) else (shape, "float32") for shape in inputs]
    module = relax_module(build, *typed)
    arrays = [numbers(*shape, seed=index) for index, shape in enumerate(typed)]
    close(run(scheduled(module, WIDE), *arrays), np.asarray(reference(*arrays)))


FUNCTIONS = {
    "exp": (OP.exp, np.exp),
    "log": (OP.log, np.log),
    "sigmoid": (OP.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "tanh": (OP.tanh, np.tanh),
    "square root": (lambda x: OP.power(OP.abs(x), relax.const(np.float32(0.5))), lambda x: np.abs(x) ** 0.5),
    "three quarters": (lambda x: OP.power(OP.abs(x), relax.const(np.float32(0.75))), lambda x: np.abs(x) ** 0.75),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_exact(name):
    build, reference = FUNCTIONS[name]
    near = np.linspace(-3, 3, 2001)
    edges = [0.0, 88.7, 88.8, 1e-30, 1e-40, -87.0, -104.0, 1e38, -1e38, np.inf, -np.inf, np.nan]
    x = np.concatenate([near, np.linspace(-90, 90, 1001), edges, 2.0 ** np.arange(-120, 120)]).astype(np.float32)
    module = scheduled(relax_module(build, (x.shape, "float32")), WIDE)
    assert all(map(is_done, kernels(module).values()))
    actual = run(module, x)
    with np.errstate(all="ignore"):
        expected = reference(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(actual, expected, rtol=4e-7, atol=3e-38)


def test_error_function_is_exact(tmp_path):
    x = np.concatenate([np.linspace(-5, 5, 4001), [np.inf, -np.inf, 0]]).astype(np.float32)
    proto = nets.model([node("Erf", ["x"], ["y"])], [nets.value("x", x.shape)], [nets.value("y", x.shape)])
    module = scheduled(lowered(importer.import_model(source.load(nets.save(proto, tmp_path))).module), WIDE)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(run(module, x), session.run(None, {"x": x})[0], rtol=1e-6, atol=3e-7)


# --- what becomes of it ----------------------------------------------------------------------------------------


def assembly(function, target, kind="asm"):
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    built = tvm.compile(module, target=target)
    return getattr(built, "mod", built).inspect_source(kind)


def layers():
    """One kernel of each kind."""
    return {
        "fill": relax_module(lambda x, y: NN.relu(OP.add(x, y)), *[((1, 40, 13, 13), "float32")] * 2),
        "rows": relax_module(lambda x: NN.softmax(x, -1), ((64, 333), "float32")),
        "product": relax_module(OP.matmul, ((64, 77), "float32"), ((77, 96), "float32")),
    }


@pytest.mark.parametrize("cpu", ELSEWHERE)
def test_code_for_other_processors_is_in_vectors(cpu):
    described, lanes, vectors, scalars = ELSEWHERE[cpu]
    target = tvm.target.Target({"kind": "llvm", "num-cores": 4, **described})
    for name, module in layers().items():
        [function] = kernels(schedule.schedule(module, target, lanes)).values()
        assert is_done(function)
        code = assembly(function, target)
        assert len(re.findall(vectors, code)) > 5, name
        assert len(re.findall(scalars, code)) < len(re.findall(vectors, code)) / 10, name


def test_accumulators_and_steps_of_functions_stay_in_registers():
    for name, module in layers().items():
        [function] = kernels(scheduled(module, WIDE)).values()
        code = assembly(function, HERE, "ll")
        assert not re.search(r"call .*TVMBackendAllocWorkspace", code), name
        assert not re.search(r"@llvm\.exp|@expf", code), name


def test_only_work_that_is_worth_it_is_shared():
    little = relax_module(NN.relu, ((1, 1000), "float32"))
    much = relax_module(NN.relu, ((1, 64, 112, 112), "float32"))
    texts = [next(iter(kernels(scheduled(module, WIDE)).values())).script() for module in (little, much)]
    assert ["T.parallel" in text for text in texts] == [False, True]
    serial = next(iter(kernels(scheduled(much, replace(WIDE, cores=1))).values()))
    assert "T.parallel" not in serial.script()


def test_a_guard_is_seen_as_one():
    guarded = tirx.if_then_else(tirx.Var("i", "int64") < 3, tirx.const(1.0, "float32"), tirx.const(0.0, "float32"))
    assert is_guard(guarded)
    assert list(conditions(guarded + guarded)) == [guarded.args[0]] * 2


def test_tiles_do_not_ask_at_each_element_whether_they_are_inside():
    ragged = relax_module(OP.matmul, ((197, 70), "float32"), ((70, 197), "float32"))
    [function] = kernels(scheduled(ragged, WIDE)).values()
    assert "T.where" not in function.script()


def test_same_kernel_becomes_the_same_code():
    module = layers()["rows"]
    texts = [next(iter(kernels(scheduled(module, WIDE)).values())).script() for _ in range(2)]
    assert texts[0] == texts[1]


# --- what is left alone, and what is done in a simpler way -----------------------------------------------------


def test_kernels_of_templates_and_scheduled_ones_are_left_alone():
    module = layers()["product"]
    [(name, function)] = kernels(module).items()
    for mark in (LAYER, "tirx.is_scheduled"):
        marked = tvm.IRModule(dict(module.functions_items()))
        marked.update_func(module.get_global_var(name), function.with_attrs({mark: True}))
        same = schedule.schedule(marked, HERE, 16)
        assert kernels(same)[name].same_as(kernels(marked)[name])


def test_a_reshape_stays_one_that_is_recognised():
    x = numbers((4, 6))
    module = relax_module(lambda x: NN.relu(OP.reshape(NN.relu(x), (3, 8))), ((4, 6), "float32"))
    changed = schedule.schedule(module, HERE, 16)
    assert [name for name, function in kernels(changed).items() if not is_done(function)] in ([], ["reshape"])
    close(run(changed, x), np.maximum(x, 0).reshape(3, 8))


OPEN = {
    "fill": (lambda n: [(n, 5, 33), (n, 5, 33)], lambda x, y: NN.relu(OP.add(x, y)), lambda x, y: np.maximum(x + y, 0)),
    "one axis": (lambda n: [(n,)], OP.tanh, np.tanh),
    "rows": (lambda n: [(n, 33)], lambda x: NN.softmax(x, -1), softmax),
    "product": (lambda n: [(3, n, 9), (3, 9, n)], OP.matmul, np.matmul),
    "sum": (lambda n: [(n, 9)], OP.sum, lambda x: x.sum()),
}


@pytest.mark.parametrize("name", OPEN)
def test_open_shapes(name):
    shapes, build, reference = OPEN[name]
    module = relax_module(build, *((shape, "float32") for shape in shapes(tirx.Var("n", "int64"))))
    changed = scheduled(module, WIDE)
    assert all(map(is_done, kernels(changed).values())) == (name != "sum")
    arrays = [numbers(shape, seed=index) for index, shape in enumerate(shapes(41))]
    close(run(changed, *arrays), np.asarray(reference(*arrays)))


def test_a_kernel_of_unusual_blocks_is_left_as_it_is():
    shapes = [((8, 10), "float32"), ((8, 3), "int64"), ((8, 3), "float32")]
    module = relax_module(lambda x, index, by: OP.scatter_elements(x, index, by, 1), *shapes)
    arrays = [numbers(*shape, seed=index) for index, shape in enumerate(shapes)]
    arrays[1] = np.argsort(numbers((8, 10)), axis=1)[:, :3].copy()
    expected = arrays[0].copy()
    np.put_along_axis(expected, arrays[1], arrays[2], 1)
    close(run(scheduled(module, WIDE), *arrays), expected)
