"""The search for the layers that stay float, with layers whose losses are known."""

from __future__ import annotations

import onnx
import pytest

from toolchain.quantize import float_layers
from toolchain.quantize.float_layers import Budget
from toolchain.quantize.real_scales import Layer


class Known:
    """Stands for a quantizer; its `networks` have the names of their float layers, and the judges sum up the others.

    A trial takes some seconds of its clock.
    """

    def __init__(self, losses, seconds=0.1, noises=None, work=None):
        self.losses = losses
        self.noises = noises or losses
        self.layers = tuple(Layer(name, "Conv", (name,), (work or {}).get(name, 1.0)) for name in losses)
        self.trials = 0
        self.now = 0.0
        self._seconds = seconds

    def quantized(self, floats):
        self.trials += 1
        self.now += self._seconds
        proto = onnx.ModelProto(doc_string=" ".join(sorted(floats)))
        assert set(proto.doc_string.split()) <= set(self.losses)
        return proto

    def loss(self, proto):
        return self._sum(self.losses, proto)

    def noise(self, proto):
        return self._sum(self.noises, proto)

    @staticmethod
    def _sum(values, proto):
        return sum(value for name, value in values.items() if name not in proto.doc_string.split())

    def choose(self, limit):
        budget = Budget(self.loss, limit)
        return float_layers.choose(self, self.noise, budget, clock=lambda: self.now)


def names(choice):
    return [layer.name for layer in choice.layers]


def losses(count, **large):
    return dict.fromkeys([f"l{number:03}" for number in range(count)], 0.001) | large


def test_nothing_stays_float_within_the_budget():
    network = Known(losses(20))
    choice = network.choose(1.0)
    assert (choice.layers, choice.loss_of_all, network.trials) == ((), pytest.approx(0.02), 1)


def test_the_layers_that_lose_most_stay_float():
    network = Known(losses(20, l003=2.0, l011=5.0, l017=0.7))
    choice = network.choose(1.0)
    assert [(layer.name, layer.operator) for layer in choice.layers] == [("l011", "Conv"), ("l003", "Conv")]
    assert [layer.gives_back for layer in choice.layers] == pytest.approx([5.0, 2.0])
    assert choice.loss_of_all == pytest.approx(7.717)


def test_a_layer_without_which_the_budget_holds_is_dropped():
    """The noise of a layer is not always what the metric loses."""
    network = Known({"a": 0.1, "b": 2.0, "c": 0.1}, noises={"a": 3.0, "b": 2.0, "c": 1.0})
    choice = network.choose(0.5)
    assert names(choice) == ["b"]
    assert choice.layers[0].gives_back == pytest.approx(2.0)


def test_the_time_of_a_layer_counts():
    """A large layer and three small ones give back the same; the small ones take less time in floats."""
    network = Known({"large": 3.1, "a": 1.2, "b": 1.1, "c": 1.0, "d": 0.1}, work={"large": 97.0})
    choice = network.choose(3.5)
    assert names(choice) == ["a", "b", "c"]
    assert [layer.time_share for layer in choice.layers] == pytest.approx([1 / 101] * 3, abs=1e-4)
    assert choice.layers[0].noise == pytest.approx(1.2 / 6.5, abs=1e-4)
    assert choice.noises["large"] == pytest.approx(3.1 / 6.5, abs=1e-4)


def test_a_budget_that_only_floats_keep():
    network = Known(losses(8))
    assert len(network.choose(0.0).layers) == 8


@pytest.mark.parametrize("seconds", [0.5, 2.0, 5.0])
def test_the_time_is_bounded(seconds):
    """300 layers, of which a few lose nearly all: they are found by halving groups."""
    large = {"l042": 3.0, "l043": 2.0, "l170": 4.0}
    network = Known(losses(300, **large), seconds)
    choice = network.choose(0.5)
    assert network.now <= 300
    assert set(large) <= set(names(choice))
    assert len(choice.layers) < 30
