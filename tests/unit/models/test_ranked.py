"""Rows in an order of scores: near-equal ones may change places, and a wrong one is found all the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support import detector_nets, nets, ranked_nets
from tests.support.nets import node, value
from toolchain import rankings
from toolchain.models import ranked, reference
from toolchain.models import source as model


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    return model.load(nets.save(ranked_nets.detector(), tmp_path_factory.mktemp("detector")))


@pytest.fixture(scope="module")
def segmentation(tmp_path_factory):
    return model.load(nets.save(ranked_nets.segmentation(), tmp_path_factory.mktemp("segmentation")))


def _scene(seed, spread):
    """Return inputs with scores that lie so far apart, and the same with other last bits of the scores."""
    stream = np.random.default_rng(seed)
    logits = (spread * stream.standard_normal((1, ranked_nets.ANCHORS, ranked_nets.CLASSES))).astype(np.float32)
    boxes = stream.standard_normal((1, ranked_nets.ANCHORS, 4)).astype(np.float32)
    other = logits + (min(0.02 * spread, 3e-6) * stream.standard_normal(logits.shape)).astype(np.float32)
    return {"logits": logits, "boxes": boxes}, {"logits": other, "boxes": boxes}


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-5, 1e-4, 1e-2, 1.0]))
def test_near_equal_scores_may_change_places(detector, seed, spread):
    feeds, other = _scene(seed, spread)
    expected, got = reference.run(detector, feeds), reference.run(detector, other)
    comparison = rankings.compare(got, expected, ranked.rankings(detector, feeds, None))
    assert comparison.ok
    assert comparison.max_rel < 1e-4


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-5, 1e-2, 1.0]), st.data())
def test_a_wrong_row_is_found(detector, seed, spread, data):
    feeds, other = _scene(seed, spread)
    expected, got = reference.run(detector, feeds), reference.run(detector, other)
    row = data.draw(st.integers(0, ranked_nets.ROWS - 1))
    fault = data.draw(st.sampled_from(["box", "class", "score", "twice"]))
    rows = got["found"][0]
    if fault == "box":
        rows[row, data.draw(st.integers(0, 3))] += 0.05
    elif fault == "class":
        assume(spread == 1.0)  # else another class of the same anchor is as good
        rows[row, 5] = (rows[row, 5] + 1) % ranked_nets.CLASSES
    elif fault == "score":
        rows[row, 4] *= 0.9
    else:
        rows[row] = rows[row - 1]
    assert not rankings.compare(got, expected, ranked.rankings(detector, feeds, None)).ok


def test_what_came_next_may_be_there_instead_of_the_last(detector):
    """Two anchors compete for the last place; their boxes have nothing in common."""
    feeds, _ = _scene(0, 1.0)
    best = np.sort(feeds["logits"].reshape(-1))[::-1]
    feeds["logits"][feeds["logits"] == best[ranked_nets.ROWS]] = np.nextafter(
        best[ranked_nets.ROWS - 1], np.float32(-9)
    )
    other = {name: array.copy() for name, array in feeds.items()}
    other["logits"][feeds["logits"] == best[ranked_nets.ROWS - 1]] -= np.float32(1e-5)
    expected, got = reference.run(detector, feeds), reference.run(detector, other)
    (ranking,) = ranked.rankings(detector, feeds, None)
    assert not rankings.compare(got, expected, []).ok
    assert rankings.compare(got, expected, [ranking]).ok
    assert rankings.compare(got, expected, [ranking]).reordered == ("found",)


def test_scores_apart_keep_their_order(detector):
    feeds, _ = _scene(1, 1.0)
    expected = reference.run(detector, feeds)
    got = {"found": expected["found"][:, [1, 0, *range(2, ranked_nets.ROWS)]]}
    assert not rankings.compare(got, expected, ranked.rankings(detector, feeds, None)).ok


def test_one_of_two_classes_with_the_same_score(segmentation):
    data = np.random.default_rng(0).uniform(-1, 1, (1, 4, 6, 6)).astype(np.float32)
    data[0, 1, 2, 3] = data[0, 3, 2, 3] = 0.99
    expected = reference.run(segmentation, {"x": data})
    (ranking,) = ranked.rankings(segmentation, {"x": data}, None)
    assert ranking.names == ("y",)
    tie, wrong = expected["y"].copy(), expected["y"].copy()
    tie[0, 2, 3] = 3
    wrong[0, 2, 4] = (wrong[0, 2, 4] + 1) % 4
    assert rankings.compare({**expected, "y": tie}, expected, [ranking]).ok
    assert not rankings.compare({**expected, "y": wrong}, expected, [ranking]).ok
    tie[0, 2, 3] = 2
    assert not rankings.compare({**expected, "y": tie}, expected, [ranking]).ok


def test_the_least_ones_are_ranked_too(tmp_path):
    initializers = {"k": np.array([3])}
    nodes = [onnx.helper.make_node("TopK", ["x", "k"], ["v", "i"], largest=0)]
    proto = nets.model(nodes, [value("x", (2, 9))], [value("v", (2, 3)), value("i", (2, 3), "int64")], initializers)
    source = model.load(nets.save(proto, tmp_path))
    data = np.tile(np.linspace(1, 2, 9, dtype=np.float32), (2, 1))
    data[1, 4] = data[1, 2] + np.float32(1e-5) * 2
    data[1, 4] = np.nextafter(data[1, 2], np.float32(9))
    expected = reference.run(source, {"x": data})
    (ranking,) = ranked.rankings(source, {"x": data}, None)
    got = {name: array.copy() for name, array in expected.items()}
    got["i"][1, 2] = 4
    assert rankings.compare(got, expected, [ranking]).ok
    got["i"][0, 2] = 4
    assert not rankings.compare(got, expected, [ranking]).ok


def test_whole_numbers_and_models_without_an_order_have_none(tmp_path, detector):
    plain = model.load(nets.save(nets.relu(), tmp_path, "relu.onnx"))
    assert ranked.rankings(plain, {"x": np.zeros((2, 3), np.float32)}, None) == ()
    nodes = [onnx.helper.make_node("ArgMax", ["x"], ["y"], axis=1)]
    proto = nets.model(nodes, [value("x", (2, 9), "int64")], [value("y", (2, 1), "int64")], {})
    of_integers = model.load(nets.save(proto, tmp_path, "whole.onnx"))
    assert ranked.rankings(of_integers, {"x": np.arange(18).reshape(2, 9)}, None) == ()


@pytest.fixture(scope="module", params=detector_nets.NETS)
def suppression(request, tmp_path_factory):
    proto = detector_nets.NETS[request.param]()
    return model.load(nets.save(proto, tmp_path_factory.mktemp(request.param)))


def _apart(data, spread):
    """Have boxes side by side, so that none covers another one, with scores that lie so far apart."""
    index = np.arange(detector_nets.ANCHORS)
    data[0, 0], data[0, 1] = index % 10 * 60, index // 10 * 60
    data[0, 2:4] = data[0, :2] + 50
    data[0, 4:] = 0.1
    data[0, 4 + index % detector_nets.CLASSES, index] = 0.9 - spread * index
    return data


@pytest.mark.parametrize("spread", [1e-6, 1e-3])
def test_boxes_that_a_suppression_keeps_may_change_places(suppression, spread):
    data = _apart(detector_nets.scene(1.0), spread)
    other = data.copy()
    other[0, 4:] += np.random.default_rng(0).uniform(-2e-6, 2e-6, other[0, 4:].shape).astype(np.float32)
    expected, got = reference.run(suppression, {"x": data}), reference.run(suppression, {"x": other})
    rankings_found = ranked.rankings(suppression, {"x": data}, None)
    assert sorted(name for ranking in rankings_found for name in ranking.names) == sorted(expected)
    assert rankings.compare(got, expected, rankings_found).ok
    assert bool(rankings.compare(got, expected, rankings_found).reordered) is (spread < 1e-5)
    wrong = {name: value.copy() for name, value in got.items()}
    next(value for value in wrong.values() if value.shape[-1] >= 4).reshape(-1)[4 * 2] += 20
    assert not rankings.compare(wrong, expected, rankings_found).ok


def test_rows_of_padding_stay_behind(tmp_path):
    source = model.load(nets.save(detector_nets.traced(), tmp_path))
    data = _apart(detector_nets.scene(1.0), 1e-6)
    data[0, 4:, 4:] = 0
    expected = reference.run(source, {"x": data})
    (ranking,) = ranked.rankings(source, {"x": data}, None)
    rows = expected["found"]
    assert np.isneginf(ranking.scores[0]).sum() == detector_nets.MOST - 4
    assert rankings.compare({"found": rows[:, [1, 0, *range(2, 8)]]}, expected, [ranking]).ok
    assert not rankings.compare({"found": rows[:, [0, 1, 2, 4, 3, 5, 6, 7]]}, expected, [ranking]).ok
    lost = rows.copy()
    lost[0, 3] = 0
    assert not rankings.compare({"found": lost}, expected, [ranking]).ok


def test_a_sort_of_everything(tmp_path):
    nodes = [onnx.helper.make_node("TopK", ["x", "k"], ["v", "i"])]
    proto = nets.model(
        nodes, [value("x", (1, 5))], [value("v", (1, 5)), value("i", (1, 5), "int64")], {"k": np.array([5])}
    )
    source = model.load(nets.save(proto, tmp_path))
    data = np.array([[0.5, 0.7, 0.500001, 0.1, 0.9]], np.float32)
    expected = reference.run(source, {"x": data})
    ranking = ranked.rankings(source, {"x": data}, None)
    near, far = ({**expected, "i": expected["i"][:, list(order)]} for order in ((0, 1, 3, 2, 4), (1, 0, 2, 3, 4)))
    assert rankings.compare(near, expected, ranking).ok
    assert not rankings.compare(far, expected, ranking).ok


def test_the_last_order_of_many_is_that_of_the_rows(tmp_path):
    """As in a detector that picks candidates for each of 90 classes before it keeps the best of all."""
    nodes = []
    for number in range(12):
        nodes.append(node("Slice", ["x", f"from{number}", f"to{number}", "axis"], [f"part{number}"]))
        nodes.append(node("TopK", [f"part{number}", "two"], [f"best{number}", f"at{number}"]))
    nodes.append(node("Concat", [f"best{number}" for number in range(12)], ["all"], axis=1))
    nodes.append(node("TopK", ["all", "four"], ["v", "i"]))
    initializers = {"axis": np.array([1]), "two": np.array([2]), "four": np.array([4])}
    initializers |= {f"from{number}": np.array([number * 4]) for number in range(12)}
    initializers |= {f"to{number}": np.array([number * 4 + 4]) for number in range(12)}
    proto = nets.model(nodes, [value("x", (1, 48))], [value("v", (1, 4)), value("i", (1, 4), "int64")], initializers)
    source = model.load(nets.save(proto, tmp_path))
    data = np.linspace(0.1, 0.5, 48, dtype=np.float32).reshape(1, 48)
    data[0, [3, 7, 11]] = 0.9, 0.8, 0.800001
    expected = reference.run(source, {"x": data})
    (ranking,) = ranked.rankings(source, {"x": data}, None)
    assert rankings.compare({**expected, "i": expected["i"][:, [0, 2, 1, 3]]}, expected, [ranking]).ok
    assert not rankings.compare({**expected, "i": expected["i"][:, [1, 0, 2, 3]]}, expected, [ranking]).ok
