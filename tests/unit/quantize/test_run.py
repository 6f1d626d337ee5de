from __future__ import annotations

import numpy as np
import pytest

from tests.support import nets, qdq_nets
from tests.support.nets import node
from toolchain.errors import InputError
from toolchain.quantize.calibrate import Probe

SHAPE = (1, 2, 3, 3)
HELD = {"w": np.eye(2, dtype=np.float32)[:, :, None, None] * 2}


@pytest.fixture
def proto():
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["r"]), node("Neg", ["r"], ["y"])]
    return qdq_nets.floating(nodes, SHAPE, HELD)


@pytest.mark.parametrize("optimized", [True, False])
def test_tensors_from_the_middle_are_what_nodes_make(proto, optimized):
    """Optimized too: there the convolution and its ReLU become one, and the tensor between them stays."""
    array = qdq_nets.random(SHAPE)
    tensors = Probe(proto, ["c", "r", "y"], optimized=optimized).run({"x": array})
    np.testing.assert_allclose(tensors["c"], 2 * array, rtol=1e-6)
    np.testing.assert_array_equal(tensors["r"], np.maximum(tensors["c"], 0))
    np.testing.assert_array_equal(tensors["y"], -tensors["r"])


def test_inputs_come_back_and_nothing_comes_that_was_not_asked_for(proto):
    array = qdq_nets.random(SHAPE)
    tensors = Probe(proto, ["x", "r", "r"]).run({"x": array})
    assert tensors.keys() == {"x", "r"}
    assert tensors["x"] is array


def test_the_network_stays_as_it_is(proto):
    before = proto.SerializeToString()
    Probe(proto, ["c", "y"])
    assert proto.SerializeToString() == before


def test_a_network_that_does_not_load_is_refused(proto):
    proto.graph.node[1].op_type = "Unheard"
    with pytest.raises(InputError, match="cannot run the model") as caught:
        Probe(proto, ["c"])
    assert "Unheard" in caught.value.details
    assert "inspect model" in caught.value.hint


def test_a_sample_that_does_not_fit_is_refused(proto):
    with pytest.raises(InputError, match="cannot run the model") as caught:
        Probe(proto, ["c"]).run({"x": qdq_nets.random((1, 3, 3, 3))})
    assert "Got: 3 Expected: 2" in caught.value.details


def test_a_tensor_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="cannot run the model") as caught:
        Probe(nets.relu(), ["elsewhere"])
    assert "elsewhere" in caught.value.details
