"""Models of single nodes, imported, compiled and run, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.support.operator_cases import PROCESSOR, Case, computed
from toolchain.errors import InputError
from toolchain.models.ort import onnxruntime

Array = NDArray[Any]


@dataclass(frozen=True)
class One:
    """A node and what it is given.

    Attributes:
        operator: Its name.
        inputs: Values of its inputs; None where one is left out.
        attributes: Its attributes.
        given: How many of the inputs, from the first on, come with each run; the others are constants.
        outputs: Which of its outputs are wanted.
        domain: Domain of the operator.
        version: Version of the operators of that domain.
    """

    operator: str
    inputs: Sequence[Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    given: int = 1
    outputs: Sequence[bool] = (True,)
    domain: str = ""
    version: int = 1


def model(nodes: Sequence[One], opset: int) -> tuple[onnx.ModelProto, list[Array]]:
    """Return a model of independent nodes, and the inputs of a run."""
    protos, inputs, constants, outputs, values = [], [], [], [], []
    for number, spec in enumerate(nodes):
        names = ["" if array is None else f"x{number}_{index}" for index, array in enumerate(spec.inputs)]
        results = [f"y{number}_{index}" if is_wanted else "" for index, is_wanted in enumerate(spec.outputs)]
        protos.append(
            helper.make_node(spec.operator, names, results, f"n{number}", domain=spec.domain, **spec.attributes)
        )
        outputs += [onnx.ValueInfoProto(name=name) for name in results if name]
        for index, (name, array) in enumerate(zip(names, spec.inputs, strict=True)):
            if array is not None and index < spec.given:
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
                values.append(array)
            elif array is not None:
                constants.append(numpy_helper.from_array(array, name))
    domains = {node.domain: node.version for node in sorted(nodes, key=lambda node: node.version) if node.domain}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(*each) for each in sorted(domains.items()))]
    graph = helper.make_graph(protos, "nodes", inputs, outputs, constants)
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx.shape_inference.infer_shapes(proto), values


def expected(proto: onnx.ModelProto, values: Sequence[Array]) -> list[Array]:
    """Return what ONNX Runtime makes of it, without its optimizations; or the standard's reference evaluator."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    names = [value.name for value in proto.graph.input]
    feeds = dict(zip(names, values, strict=True))
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return [np.asarray(output) for output in ReferenceEvaluator(proto).run(None, feeds)]
    results: list[Array] = session.run(None, feeds)
    return results


def each_expected(nodes: Sequence[One], opset: int) -> list[Array]:
    """Return the same, of each node for itself: ONNX Runtime may lack some element types of some."""
    return [array for node in nodes for array in expected(*model([node], opset))]


def fed(operator: str, *inputs: Array | None, outputs: int = 1, **attributes: Any) -> One:
    """Return a node all of whose inputs come with each run."""
    return One(operator, inputs, attributes, len(inputs), (True,) * outputs)


def agree(
    nodes: Sequence[One], opset: int = 18, *, rtol: float = 1e-4, atol: float = 1e-5, kind: str = PROCESSOR
) -> None:
    """Check that all outputs of some nodes, in one model, are those of ONNX Runtime."""
    proto, values = model(nodes, opset)
    theirs = each_expected(nodes, opset)
    for value, array in zip(proto.graph.output, theirs, strict=True):  # onnx infers no types of other domains
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, element, array.shape))
    ours = computed(Case("nodes", proto, values, (), rtol, atol), kind)
    faults = []
    for name, actual, reference in zip([output.name for output in proto.graph.output], ours, theirs, strict=True):
        spec = nodes[int(name[1:].split("_")[0])]
        try:
            assert (actual.shape, actual.dtype) == (reference.shape, reference.dtype), (
                actual.shape,
                actual.dtype,
            )
            near = 1e-2 if reference.dtype == np.float16 else rtol
            np.testing.assert_allclose(
                actual,
                reference,
                rtol=near,
                atol=max(atol, 1e-3) if reference.dtype == np.float16 else atol,
            )
        except AssertionError as fault:
            shapes = [None if array is None else array.shape for array in spec.inputs]
            faults.append(f"{spec.operator} {dict(spec.attributes)} {shapes}, output {name}: {str(fault)[:500]}")
    assert not faults, "\n".join(faults)


def agree_model(
    proto: onnx.ModelProto,
    inputs: Sequence[Array],
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    kind: str = PROCESSOR,
) -> None:
    """Check that a whole model, imported from its file, compiled and run, gives what ONNX Runtime gives."""
    computed_outputs = computed(Case("model", proto, inputs, (), rtol, atol), kind)
    for ours, theirs in zip(computed_outputs, expected(proto, inputs), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)


def refusal(node: One, opset: int = 18) -> InputError:
    """Return the error for a model of a node that cannot be compiled."""
    proto, values = model([node], opset)
    for value in proto.graph.output:  # onnx infers no types of other domains
        value.type.tensor_type.elem_type = value.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
    try:
        computed(Case("refused", proto, values, (), 0, 0))
    except InputError as fault:
        return fault
    raise AssertionError(f"{node.operator} with {sorted(node.attributes)} was compiled")
