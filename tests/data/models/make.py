"""Make the model files of this folder again: python -m tests.data.models.make, from the repository's root."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support import nets
from tests.support.nets import node, value

FOLDER = Path(__file__).parent
FILTER = {"w": np.arange(4 * 3 * 3 * 3, dtype=np.float32).reshape(4, 3, 3, 3) / 100}
IMAGE, FEATURES = value("x", (1, 3, 8, 8)), value("y", (1, 4, 6, 6))


def typed(element: int) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, element, [2]) for name in ("x", "y")]
    return nets.model([node("Identity", ["x"], ["y"])], ends[:1], ends[1:])


def with_weights_among_inputs() -> onnx.ModelProto:
    ends = [value("w", (4, 3, 3, 3)), IMAGE]
    return nets.model([node("Conv", ["x", "w"], ["y"])], ends, [FEATURES], FILTER)


def with_sequence_input() -> onnx.ModelProto:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2])
    return nets.model([node("SequenceAt", ["s", "i"], ["y"])], [sequence, value("i", (), "int64")], [value("y", (2,))])


def with_unsupported_operators() -> onnx.ModelProto:
    counts = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    pool = {"ngram_counts": [0], "ngram_indexes": [0, 1], "pool_int64s": [1, 2]}
    nodes = [
        node("Abs", ["x"], ["a"], name="fine"),
        node("TfIdfVectorizer", ["a"], ["t"], name="count_words", **counts, **pool),
        node("Det", ["m"], ["y"]),
    ]
    return nets.model(nodes, [value("x", (3,), "int64"), value("m", (2, 2))], [value("t", (2,)), value("y", ())])


def with_wrong_product() -> onnx.ModelProto:
    nodes = [node("Relu", ["a"], ["r"], name="fine"), node("MatMul", ["r", "b"], ["y"], name="wrong_product")]
    return nets.model(nodes, [value("a", (2, 4)), value("b", (5, 4))], [value("y", (2, 4))])


def with_unknown_padding() -> onnx.ModelProto:
    nodes = [node("Conv", ["x", "w"], ["y"], auto_pad="SOMEHOW")]
    return nets.model(nodes, [IMAGE], [FEATURES], FILTER)


def with_unknown_operator() -> onnx.ModelProto:
    return nets.model([node("Reluu", ["x"], ["y"])], [value("x", (2,))], [value("y", (2,))])


def with_result_from_nowhere() -> onnx.ModelProto:
    return nets.model([node("Relu", ["z"], ["y"])], [value("x", (2,))], [value("y", (2,))])


def with_data_dependent_output() -> onnx.ModelProto:
    return nets.model([node("NonZero", ["x"], ["y"])], [value("x", (2, 3))], [value("y", (2, "n"), "int64")])


def with_bfloat16_output() -> onnx.ModelProto:
    output = helper.make_tensor_value_info("y", TensorProto.BFLOAT16, [2])
    return nets.model([node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)], [value("x", (2,))], [output])


def without_inputs() -> onnx.ModelProto:
    return nets.model([node("Identity", ["w"], ["y"])], [], [value("y", (4, 3, 3, 3))], FILTER)


def quantized() -> onnx.ModelProto:
    """A convolution between QuantizeLinear and DequantizeLinear pairs, as quantization tools export it."""
    weights = {
        "w": np.random.default_rng(0).integers(-128, 128, (4, 3, 3, 3), dtype=np.int8),
        "ws": np.linspace(0.01, 0.02, 4, dtype=np.float32),
        "wz": np.zeros(4, np.int8),
        "s": np.float32(0.02),
        "z": np.int8(3),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        node("Conv", ["xd", "wd"], ["y"]),
    ]
    return nets.model(nodes, [IMAGE], [FEATURES], weights)


def float16() -> onnx.ModelProto:
    weights = {"w": FILTER["w"].astype(np.float16)}
    ends = [value("x", (1, 3, 8, 8), "float16")], [value("y", (1, 4, 6, 6), "float16")]
    return nets.model([node("Conv", ["x", "w"], ["y"])], *ends, weights)


def external(folder: Path) -> None:
    proto = nets.model([node("Conv", ["x", "w"], ["y"])], [IMAGE], [FEATURES], FILTER)
    onnx.save(proto, folder / "external.onnx", save_as_external_data=True, location="external.data", size_threshold=0)


MODELS = {
    "bfloat16-input": typed(TensorProto.BFLOAT16),
    "bfloat16-output": with_bfloat16_output(),
    "data-dependent-output": with_data_dependent_output(),
    "float16": float16(),
    "minus-one": nets.relu((-1, 3)),
    "no-inputs": without_inputs(),
    "open": nets.relu(("batch", 3, "height")),
    "quantized": quantized(),
    "result-from-nowhere": with_result_from_nowhere(),
    "sequence-input": with_sequence_input(),
    "string-input": typed(TensorProto.STRING),
    "unknown-operator": with_unknown_operator(),
    "unknown-padding": with_unknown_padding(),
    "unsupported-operators": with_unsupported_operators(),
    "weights-among-inputs": with_weights_among_inputs(),
    "wrong-product": with_wrong_product(),
}


def main() -> None:
    for name, proto in MODELS.items():
        onnx.save(proto, FOLDER / f"{name}.onnx")
    whole = with_weights_among_inputs().SerializeToString()
    (FOLDER / "truncated.onnx").write_bytes(whole[: len(whole) // 2])
    (FOLDER / "garbage.onnx").write_bytes(np.random.default_rng(0).bytes(512))
    (FOLDER / "empty.onnx").write_bytes(b"")
    (FOLDER / "external.data").unlink(missing_ok=True)
    external(FOLDER)


if __name__ == "__main__":
    main()
