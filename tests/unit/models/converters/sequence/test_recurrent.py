"""LSTM, GRU and RNN against ONNX Runtime: many nodes in one model, since compiling a model costs more than a node."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from tests.support.one_node import One, agree, model
from tests.support.operator_cases import Case, computed
from toolchain.errors import InputError

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DIRECTIONS = ("forward", "reverse", "bidirectional")
ALL = {"LSTM": (True, True, True), "GRU": (True, True), "RNN": (True, True)}


def node(
    operator,
    direction="forward",
    *,
    sizes=(5, 2, 3, 4),
    bias=True,
    lengths=None,
    states=False,
    peepholes=False,
    input_count=1,
    dtype=np.float32,
    outputs=None,
    scale=0.5,
    **attributes,
):
    """Make a node; sizes: steps, batch, features, units."""
    steps, batch, features, units = sizes
    directions, gates = 1 + (direction == "bidirectional"), GATES[operator]
    generator = np.random.default_rng(sum(map(ord, f"{operator}{direction}{sizes}{sorted(attributes)}")))

    def some(*shape):
        return (generator.standard_normal(shape) * scale).astype(dtype)

    first = attributes.get("layout", 0)
    state = (batch, directions, units) if first else (directions, batch, units)
    inputs = [
        some(*((batch, steps) if first else (steps, batch)), features) * 2,
        some(directions, gates * units, features),
        some(directions, gates * units, units),
        some(directions, 2 * gates * units) if bias else None,
        None if lengths is None else np.array(lengths, np.int32),
        some(*state) if states else None,
    ]
    if operator == "LSTM":
        inputs += [some(*state) if states else None, some(directions, 3 * units) if peepholes else None]
    while inputs[-1] is None:
        inputs.pop()
    all_attributes = {"hidden_size": units, "direction": direction, **attributes}
    return One(operator, inputs, all_attributes, input_count, ALL[operator] if outputs is None else outputs)


@pytest.mark.parametrize("operator", GATES)
def test_directions_biases_states_and_lengths(operator):
    agree(
        [
            node(operator, direction, **more)
            for direction in DIRECTIONS
            for more in (
                {"bias": False, "states": True},
                {"lengths": [5, 5]},
                {"lengths": [5, 1], "states": True},
                {"sizes": (1, 1, 7, 20)},
            )
        ],
        14,
    )


@pytest.mark.long
def test_lstm_with_peepholes_clip_and_coupled_gates():
    agree(
        [
            node("LSTM", direction, peepholes=True, **more)
            for direction in DIRECTIONS
            for more in ({}, {"states": True, "clip": 0.4}, {"input_forget": 1}, {"lengths": [4, 2]})
        ]
    )


@pytest.mark.long
def test_gru_with_linear_before_reset():
    agree(
        [
            node("GRU", direction, linear_before_reset=1, **more)
            for direction in DIRECTIONS
            for more in (
                {},
                {"bias": False},
                {"clip": 0.3},
                {"states": True, "lengths": [3, 1]},
                {"sizes": (2, 3, 5, 33)},
            )
        ]
    )


def test_clip():
    agree([node(operator, direction, clip=0.25, states=True) for operator in GATES for direction in DIRECTIONS[1:]])


WITHOUT_CONSTANTS = ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
WITH_CONSTANTS = {
    "Affine": (0.4, 0.1),
    "Elu": (0.6,),
    "HardSigmoid": (0.3, 0.4),
    "LeakyRelu": (0.2,),
    "ScaledTanh": (0.7, 0.5),
    "ThresholdedRelu": (0.1,),
}


@pytest.mark.long
def test_activation_functions():
    nodes = [node("RNN", activations=[name]) for name in WITHOUT_CONSTANTS]
    for name, (alpha, *beta) in WITH_CONSTANTS.items():
        more = {"activation_beta": beta} if beta else {}
        nodes.append(node("RNN", activations=[name], activation_alpha=[alpha], **more))
    nodes += [node("RNN", activations=[name]) for name in ("Elu", "HardSigmoid", "LeakyRelu")]
    agree(nodes)


def test_activation_functions_of_each_gate_and_direction():
    lstm = ["HardSigmoid", "Tanh", "LeakyRelu", "Sigmoid", "Softsign", "Elu"]
    agree(
        [
            node("LSTM", activations=["Sigmoid", "Relu", "Tanh"]),
            node("LSTM", "bidirectional", activations=lstm, activation_alpha=[0.3, 0.1, 0.7], activation_beta=[0.4]),
            node("LSTM", "bidirectional", activations=lstm, states=True, peepholes=True, lengths=[4, 2]),
            node("GRU", "bidirectional", activations=["Sigmoid", "Tanh", "HardSigmoid", "Softsign"], states=True),
            node("RNN", "bidirectional", activations=["Relu", "Tanh"]),
        ]
    )


def test_weights_that_are_inputs():
    agree([node(operator, "bidirectional", states=True, input_count=6, lengths=[4, 2]) for operator in GATES])


def test_some_outputs():
    selections = [(True, False, False), (False, True, False), (False, False, True), (True, False, True)]
    agree([node("LSTM", "bidirectional", outputs=outputs) for outputs in selections])
    agree([node("GRU", outputs=(False, True)), node("RNN", outputs=(True, False))])


def test_double_precision():
    """ONNX Runtime has no such kernels; the standard's own reference has."""
    nodes = [node(operator, "reverse", dtype=np.float64, states=True) for operator in GATES]
    proto, values = model(nodes, 14)
    names = [value.name for value in proto.graph.input]
    expected = ReferenceEvaluator(proto).run(None, dict(zip(names, values, strict=True)))
    for ours, its in zip(computed(Case("double", proto, values, (), 0, 0)), expected, strict=True):
        assert ours.dtype == np.float64
        np.testing.assert_allclose(ours, its, rtol=1e-12, atol=1e-12)


def test_half_precision_is_computed_in_single():
    half = node("GRU", "bidirectional", dtype=np.float16, states=True)
    proto, values = model([half], 14)
    outputs = computed(Case("half", proto, values, (), 0, 0))
    wide = One("GRU", [None if array is None else array.astype(np.float32) for array in half.inputs], half.attributes)
    expected = computed(Case("single", *model([wide], 14), (), 0, 0))
    assert all(array.dtype == np.float16 for array in outputs)
    np.testing.assert_array_equal(outputs[0], expected[0].astype(np.float16))


def test_batch_first_is_time_first_transposed():
    """ONNX Runtime has no layout 1."""
    firsts = [node(operator, "bidirectional", layout=1, states=True, lengths=[4, 2]) for operator in GATES]
    firsts += [node(operator, "reverse", layout=1) for operator in GATES]
    plains = []
    for first in firsts:
        swapped = [
            array.swapaxes(0, 1) if number in {0, 5, 6} and array is not None else array
            for number, array in enumerate(first.inputs)
        ]
        plains.append(One(first.operator, swapped, {**first.attributes, "layout": 0}, 1, first.outputs))
    results = iter(computed(Case("first", *model(firsts, 14), (), 0, 0)))
    expected = iter(computed(Case("plain", *model(plains, 14), (), 0, 0)))
    for first in firsts:
        np.testing.assert_array_equal(next(results), next(expected).transpose(2, 0, 1, 3))
        for _ in first.outputs[1:]:
            np.testing.assert_array_equal(next(results), next(expected).swapaxes(0, 1))


@given(data=st.data())
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_any_sizes_and_attributes(data):
    def one():
        operator = data.draw(st.sampled_from(sorted(GATES)))
        sizes = data.draw(st.tuples(*[st.integers(1, limit) for limit in (6, 5, 9, 40)]))
        lengths = st.none() | st.lists(st.integers(1, sizes[0]), min_size=sizes[1], max_size=sizes[1])
        flags = {name: data.draw(st.booleans()) for name in ("bias", "states")}
        if operator == "LSTM":
            flags["peepholes"] = data.draw(st.booleans())
        more = {"linear_before_reset": data.draw(st.integers(0, 1))} if operator == "GRU" else {}
        direction = data.draw(st.sampled_from(DIRECTIONS))
        return node(operator, direction, sizes=sizes, lengths=data.draw(lengths), scale=0.3, **flags, **more)

    agree([one() for _ in range(4)])


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"activations": ["Swish"]}, "swish"),
        ({"activations": ["Tanh", "Relu"]}, "2 activation functions instead of 1"),
        ({"activations": ["Affine"], "activation_alpha": [0.5]}, "no default alpha or beta"),
        ({"direction": "sideways"}, "'sideways' is not a valid direction"),
    ],
)
def test_what_is_no_activation_is_refused(attributes, reason):
    proto, values = model([node("RNN", **attributes)], 14)
    with pytest.raises(InputError) as caught:
        computed(Case("refused", proto, values, (), 0, 0))
    assert reason in str(caught.value.details)
