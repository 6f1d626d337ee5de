"""Make the model files of this folder again: python -m tests.data.unworkable.make, from the repository's root.

Each cannot work on a board, for a reason of its own; tests/integration/test_unworkable_models.py says what users are
told.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support import nets
from tests.support.nets import graph, model, node, value

FOLDER = Path(__file__).parent
X, Y = value("x", (2, 3)), value("y", (2, 3))
RELU = node("Relu", ["x"], ["r"], name="fine")


def typed(nodes: list[onnx.NodeProto], kind: onnx.TypeProto, name: str = "y", opset: int = 17) -> onnx.ModelProto:
    """A model whose one output is no tensor of numbers."""
    return model(nodes, [X], [helper.make_value_info(name, kind)], opset=opset)


def of_domain(operator: str, domain: str, version: int, **attributes: object) -> onnx.ModelProto:
    """A model with an operator of another operator set."""
    made = model([RELU, node(operator, ["r"], ["y"], name="foreign", domain=domain, **attributes)], [X], [Y])
    made.opset_import.append(helper.make_opsetid(domain, version))
    return made


def text_labels() -> onnx.ModelProto:
    """Numbers become names, and the names become numbers again."""
    names = ["bearing", "healthy"]
    there = node(
        "LabelEncoder", ["x"], ["t"], "foreign", domain="ai.onnx.ml", keys_floats=[0.0, 1.0], values_strings=names
    )
    back = node("LabelEncoder", ["t"], ["y"], "back", domain="ai.onnx.ml", keys_strings=names, values_floats=[1.0, 2.0])
    made = model([there, back], [X], [Y])
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return made


def strings() -> onnx.ModelProto:
    text = numpy_helper.from_array(np.array(["a"], dtype=object), "text")
    made = model(
        [node("Cast", ["x"], ["s"], to=TensorProto.STRING), node("StringConcat", ["s", "text"], ["y"], name="join")],
        [X],
        [helper.make_tensor_value_info("y", TensorProto.STRING, [2, 3])],
        opset=20,
    )
    made.graph.initializer.append(text)
    return made


def sequence_output() -> onnx.ModelProto:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3]))
    return typed([node("SequenceConstruct", ["x", "x"], ["y"], name="pair")], kind)


def optional_output() -> onnx.ModelProto:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3]))
    return typed([node("Optional", ["x"], ["y"], name="perhaps")], kind)


def optional_input() -> onnx.ModelProto:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3]))
    nodes = [node("OptionalGetElement", ["o"], ["g"], name="unwrap"), node("Add", ["g", "x"], ["y"])]
    return model(nodes, [helper.make_value_info("o", kind), X], [Y])


def gradient_step() -> onnx.ModelProto:
    domain = "ai.onnx.preview.training"
    names = ["rate", "step", "x", "grad", "accumulated"]
    nodes = [node("Adagrad", names, ["y", "after"], name="learn", domain=domain)]
    ends = [value("rate", ()), value("step", (), "int64"), X, value("grad", (2, 3)), value("accumulated", (2, 3))]
    made = model(nodes, ends, [Y, value("after", (2, 3))])
    made.opset_import.append(helper.make_opsetid(domain, 1))
    return made


def unbounded() -> onnx.ModelProto:
    """The size of the middle depends on data, and what follows needs it."""
    nodes = [
        node("NonZero", ["x"], ["where"], name="which"),
        node("Shape", ["where"], ["size"]),
        node("Reshape", ["x", "size"], ["y"], name="by_count"),
    ]
    return model(nodes, [X], [value("y", ("a", "b"))])


def reshape_by_data() -> onnx.ModelProto:
    nodes = [RELU, node("Reshape", ["r", "target"], ["y"], name="as_told")]
    return model(nodes, [X, value("target", (2,), "int64")], [value("y", ("a", "b"))])


def growing_loop() -> onnx.ModelProto:
    """A loop that ends when the data say so, with one more element each time."""
    body = graph(
        [
            node("Identity", ["going"], ["still"]),
            node("Concat", ["v", "v"], ["longer"], name="grow", axis=0),
        ],
        [value("i", (), "int64"), value("going", (), "bool"), value("v", ("n", 3))],
        [value("still", (), "bool"), value("longer", ("m", 3))],
    )
    nodes = [node("Loop", ["count", "", "x"], ["y"], name="until", body=body)]
    return model(nodes, [value("count", (), "int64"), X], [value("y", ("n", 3))])


def uneven_branches() -> onnx.ModelProto:
    """An If on the data whose branches differ in shape."""
    branches = {
        "then_branch": graph([node("Identity", ["x"], ["a"])], [], [value("a", (2, 3))]),
        "else_branch": graph([node("Concat", ["x", "x"], ["b"], axis=0)], [], [value("b", (4, 3))]),
    }
    return model(
        [node("If", ["flag"], ["y"], name="either", **branches)], [value("flag", (), "bool"), X], [value("y", ("n", 3))]
    )


def random_output() -> onnx.ModelProto:
    return model([RELU, node("RandomNormalLike", ["r"], ["y"], name="noise")], [X], [Y])


def int4_input() -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.INT4, [2]) for name in ("x", "y")]
    return model([node("Identity", ["x"], ["y"])], ends[:1], ends[1:], opset=21)


def float8_output() -> onnx.ModelProto:
    end = helper.make_tensor_value_info("y", TensorProto.FLOAT8E4M3FN, [2, 3])
    return model([node("Cast", ["x"], ["y"], name="narrow", to=TensorProto.FLOAT8E4M3FN)], [X], [end], opset=19)


def complex_input() -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.COMPLEX64, [2]) for name in ("x", "y")]
    return model([node("Identity", ["x"], ["y"])], ends[:1], ends[1:])


def unknown_opset() -> onnx.ModelProto:
    return model([node("Relu", ["x"], ["y"])], [X], [Y], opset=99)


def ancient_opset() -> onnx.ModelProto:
    """An attribute that says which inputs are spread, as operators had it before opset 7."""
    nodes = [node("Add", ["x", "w"], ["y"], name="spread", broadcast=1, axis=0)]
    return model(nodes, [X], [Y], {"w": np.ones(2, np.float32)}, opset=5)


def unknown_ir() -> onnx.ModelProto:
    made = nets.relu()
    made.ir_version = 99
    return made


def external(location: str) -> onnx.ModelProto:
    """A model whose weights lie in another file."""
    made = model([node("Add", ["x", "w"], ["y"])], [X], [Y], {"w": np.ones((2, 3), np.float32)})
    onnx.external_data_helper.set_external_data(made.graph.initializer[0], location, length=24)
    made.graph.initializer[0].ClearField("raw_data")
    return made


def recursive_function() -> onnx.ModelProto:
    body = [node("Again", ["a"], ["b"], domain="own")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Again", ["a"], ["b"], body, opsets)
    made = model([node("Again", ["x"], ["y"], name="start", domain="own")], [X], [Y])
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.functions.append(function)
    return made


def circle() -> onnx.ModelProto:
    nodes = [node("Add", ["x", "b"], ["a"], name="first"), node("Relu", ["a"], ["b"], name="second")]
    return model([*nodes, node("Relu", ["b"], ["y"])], [X], [Y])


def too_few_inputs() -> onnx.ModelProto:
    return model([RELU, node("MatMul", ["r"], ["y"], name="alone")], [X], [Y])


def unequal_shapes() -> onnx.ModelProto:
    nodes = [RELU, node("Concat", ["r", "z"], ["y"], name="side_by_side", axis=0)]
    return model(nodes, [X, value("z", (2, 4))], [value("y", (4, 3))])


def image_file() -> onnx.ModelProto:
    nodes = [node("ImageDecoder", ["bytes"], ["y"], name="decode")]
    return model(nodes, [value("bytes", (100,), "uint8")], [value("y", ("h", "w", 3), "uint8")], opset=20)


def without_rank() -> onnx.ModelProto:
    return model([node("Relu", ["x"], ["y"])], [value("x", None)], [value("y", None)])


MODELS = {
    "ancient-opset": ancient_opset(),
    "circle": circle(),
    "complex-input": complex_input(),
    "custom-domain": of_domain("Frobnicate", "com.example", 1, strength=2),
    "external-missing": external("lost.data"),
    "external-outside": external("../models/external.data"),
    "float8-output": float8_output(),
    "foreign-relu": of_domain("Relu", "com.example", 1),
    "gradient-step": gradient_step(),
    "growing-loop": growing_loop(),
    "image-file": image_file(),
    "int4-input": int4_input(),
    "microsoft-unknown": of_domain("NGramRepeatBlock2", "com.microsoft", 1),
    "optional-input": optional_input(),
    "optional-output": optional_output(),
    "random-output": random_output(),
    "recursive-function": recursive_function(),
    "reshape-by-data": reshape_by_data(),
    "sequence-output": sequence_output(),
    "strings": strings(),
    "text-labels": text_labels(),
    "too-few-inputs": too_few_inputs(),
    "unbounded": unbounded(),
    "unequal-shapes": unequal_shapes(),
    "uneven-branches": uneven_branches(),
    "unknown-ir": unknown_ir(),
    "unknown-opset": unknown_opset(),
    "without-rank": without_rank(),
}


def main() -> None:
    for name, proto in MODELS.items():
        (FOLDER / f"{name}.onnx").write_bytes(proto.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
