"""Two releases layer by layer: which layers are the same, and which carry a slow-down."""

from types import SimpleNamespace

import numpy as np
import pytest

from toolchain import stats
from toolchain.bundle.kernels import Kernel
from toolchain.device.profiling import Call, Watched
from toolchain.pipeline.profile import against
from toolchain.pipeline.profile.layers import WatchedRelease, compare_layers


class _Templates:
    def operator(self, layer):
        return layer


_BACKEND = SimpleNamespace(templates=_Templates())


def graph(names, size=4):
    return {name: Kernel(name, (("float32", (1, size)),) * 2, layer=layer_name) for name, layer_name in names.items()}


def rounds(times, seed=0, noise=0.02):
    """Sixteen processes of five runs each, with times in ns by kernel's name."""
    stream = np.random.default_rng(seed)
    matched = []
    for _ in range(against.ROUNDS):
        calls = tuple(
            Call(name, 8, tuple(int(value * stream.lognormal(0, noise)) for _ in range(5))) for name, value in times
        )
        total = tuple(sum(column) for column in zip(*(call.own_ns for call in calls), strict=True))
        matched.append(Watched(calls, total, total, 0, waits=False))
    return matched


def layers(new, base, times_new, times_base):
    releases = WatchedRelease(new, rounds(times_new, 1)), WatchedRelease(base, rounds(times_base, 2))
    return compare_layers("net", *releases, _BACKEND)


def held(matched):
    none = stats.Estimate(0.0, 0.0, 0.0, 0.99, against.ROUNDS)
    fields = {"model": "net", "board": "b", "host": "h", "emulated": False, "new_digest": "0", "base_digest": "1"}
    return against.Against(**fields, rounds=against.ROUNDS, new_ms=1.0, base_ms=1.0, change=none, layers=matched)


def test_the_layer_that_is_slower_is_named_and_no_other():
    names = {f"conv{number}": f"conv2d_{number}" for number in range(20)}
    usual = [(name, 200_000) for name in names]
    slow = [(name, 300_000 if name == "conv7" else value) for name, value in usual]
    matched = layers(graph(names), graph(names), slow, usual)
    (worst,) = against.culprits(held(matched))
    assert (worst.new, worst.base) == ("conv7", "conv7")
    assert worst.more_ms == pytest.approx(0.1, rel=0.1)
    assert worst.change.low > 0.3
    assert "conv2d_7" in against.slower_text(held(matched))


def test_layers_of_another_name_are_the_same_by_what_they_compute_and_fusion_may_differ():
    new = graph({"a": "conv2d", "b": "relu", "c": "dense"})
    base = graph({"x": "conv2d", "z": "dense", "gone": "sigmoid"})
    matched = layers(new, base, [("a", 100), ("b", 50), ("c", 70)], [("x", 100), ("z", 70), ("gone", 9)])
    assert [(layer.new, layer.base) for layer in matched] == [("a", "x"), ("b", ""), ("c", "z"), ("", "gone")]
    assert [layer.name.split()[1] for layer in against.unmatched(held(matched))] == ["relu", "sigmoid"]
    assert not any(layer.is_slower for layer in against.unmatched(held(matched)))
    assert against.culprits(held(matched)) == ()


def test_what_other_kernels_compute_is_held_against_them_and_the_slow_layer_is_named():
    """The new build fuses what the base does not: that is no slow-down, whatever one layer of it takes."""
    new = graph({"a": "conv_a", "fused": "conv+relu", "c": "dense"})
    base = graph({"a": "conv_a", "conv": "conv", "relu": "relu", "c": "dense"})
    ours = [("a", 5_000_000), ("fused", 4_000_000), ("c", 1_000_000)]
    theirs = [("a", 4_500_000), ("conv", 3_500_000), ("relu", 500_000), ("c", 1_000_000)]
    matched = held(layers(new, base, ours, theirs))
    assert [layer.new for layer in against.culprits(matched)] == ["a"]
    fused = matched.layers[1]
    assert (fused.new, fused.base, fused.is_slower) == ("fused", "conv, relu", False)
    assert fused.more_ms == pytest.approx(0, abs=0.1)
    assert fused.change.low < 0 < fused.change.high
    ours[1] = ("fused", 5_000_000)
    slower = held(layers(new, base, ours, theirs))
    assert {layer.new for layer in against.culprits(slower)} == {"a", "fused"}


def test_a_layer_that_moved_is_not_matched_and_carries_nothing():
    new = graph({"a": "conv_a", "fused": "conv+relu", "b": "pool", "c": "dense"})
    base = graph({"a": "conv_a", "b": "pool", "conv": "conv", "c": "dense"})
    ours = [("a", 5_000_000), ("fused", 4_000_000), ("b", 90_000), ("c", 1_000_000)]
    theirs = [("a", 4_500_000), ("b", 90_000), ("conv", 4_000_000), ("c", 1_000_000)]
    matched = held(layers(new, base, ours, theirs))
    summary = against.slower_text(matched)
    assert summary.startswith("slower: 1 conv_a")
    assert "not matched: " in summary
    assert all(text in summary for text in ("2 conv+relu", "only in the new release", "3 conv", "only in the base"))
    assert [layer.new for layer in against.culprits(matched)] == ["a"]
    assert len(matched.document()["not_matched"]) == 2
    assert "not matched: only in the base" in str(against.render_text(matched)[0])


def test_layers_that_other_operators_compute_one_by_one_are_held_against_each_other_by_their_sizes():
    names = [f"k{number}" for number in range(6)]
    new, base = (graph({name: f"{prefix}_{name}" for name in names}) for prefix in ("plain", "template"))
    matched = layers(
        new, base, [(name, 300 if name == "k3" else 100) for name in names], [(name, 100) for name in names]
    )
    assert [(matched_layer.new, matched_layer.base) for matched_layer in matched] == [(name, name) for name in names]
    assert [matched_layer.new for matched_layer in against.culprits(held(matched))] == ["k3"]


def test_of_many_layers_together_the_first_are_named():
    names = {f"k{number}": f"odd_{number}" for number in range(9)}
    (merged,) = layers(graph(names), graph({"x": "conv"}), [(name, 100) for name in names], [("x", 900)])
    assert merged.name.endswith("odd_2 4 -> 4 + 6 more") or merged.name.endswith("+ 6 more")
    assert merged.new.count(", ") == 8


def test_no_layer_is_named_where_none_is_slower():
    names = {f"conv{number}": f"conv2d_{number}" for number in range(50)}
    usual = [(name, 200_000) for name in names]
    matched = layers(graph(names), graph(names), usual, usual)
    assert against.culprits(held(matched)) == ()
    assert against.slower_text(held(matched)) == "no layer is measurably slower"
    document = held(matched).document()
    assert document["carriers"] == []
    assert len(document["layers"]) == 50
