"""Outputs that are inputs of the next step: what is declared, and what names and shapes propose."""

from __future__ import annotations

import pytest

from tests.support import nets, state_nets
from toolchain.errors import InputError
from toolchain.models import source, state_pairs
from toolchain.models.request import Model
from toolchain.tensors import TensorSpec

SHAPE = (1, 2, 3)


def specs(*names, shape=SHAPE, dtype="float32"):
    return [TensorSpec(name, shape, dtype) for name in names]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("h", "hn"),
        ("state", "stateN"),
        ("h0", "hn"),
        ("h_0", "h_n"),
        ("hidden_in", "hidden_out"),
        ("cached_key_3", "new_cached_key_3"),
        ("processed_lens", "new_processed_lens"),
        ("past_key_values.0.key", "present.0.key"),
        ("past_key", "present_key"),
        ("prev_frame", "frame"),
        ("mem_in", "out_mem"),
    ],
)
def test_names_that_look_like_a_state(before, after):
    pairs = state_pairs.detected([*specs("x"), *specs(before)], [*specs("y"), *specs(after)])
    assert [(pair.input, pair.output) for pair in pairs] == [(before, after)]


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (specs("x", "image_in"), specs("y", "image_out")),
        (specs("x", "input"), specs("y", "output")),
        (specs("x", "h"), [*specs("y"), *specs("hn", shape=(2,))]),
        (specs("x", "h"), [*specs("y"), *specs("hn", dtype="float16")]),
        (specs("x", "h"), specs("y", "hn", "h_out")),
        (specs("h"), specs("y", "hn")),
        (specs("x", "h"), specs("hn")),
        (specs("x", "h", "h0"), specs("y", "hn")),
    ],
    ids=["pictures", "generic", "shape", "type", "two candidates", "no input left", "no output left", "used twice"],
)
def test_names_that_do_not(inputs, outputs):
    assert not state_pairs.detected(inputs, outputs)


@pytest.fixture(scope="module")
def gru(tmp_path_factory):
    return nets.save(state_nets.gru(), tmp_path_factory.mktemp("gru"))


def test_a_pair_is_proposed_and_nothing_changes_before_it_is_declared(gru):
    proposed = source.load_request(Model(gru))
    assert (proposed.states, proposed.step_inputs) == ((), proposed.inputs)
    assert "`--state auto`" in proposed.guessed[-1]
    assert proposed.guessed[-1].endswith(": --state h=hn")
    assert not source.load_request(Model(gru, detection="off")).guessed
    declared, used = (
        source.load_request(Model(gru, states={"h": "hn"})),
        source.load_request(Model(gru, detection="use")),
    )
    assert declared == used
    assert ([spec.name for spec in used.step_inputs], used.step_output_names) == (["x"], ("y",))
    assert used.sha256 == proposed.sha256


@pytest.mark.parametrize(
    ("pairs", "details", "hint"),
    [
        ({"hh": "hn"}, "there is no input hh; inputs: x, h", "did you mean h"),
        ({"h": "hm"}, "there is no output hm; outputs: y, hn", "--state INPUT=OUTPUT"),
        ({"h": "y"}, "h=y: the input is h 1x1x24 float32, but the output is y 1x4 float32", "--state INPUT=OUTPUT"),
        ({"x": "hn", "h": "hn"}, "output hn is in two states", "--state INPUT=OUTPUT"),
    ],
)
def test_a_wrong_pair_is_refused(gru, pairs, details, hint):
    with pytest.raises(InputError, match="cannot be the state of the model") as caught:
        source.load_request(Model(gru, states=pairs))
    assert details in caught.value.details
    assert hint in caught.value.hint


def test_a_model_without_a_state_has_none_to_use(tmp_path):
    path = nets.save(nets.relu(), tmp_path)
    with pytest.raises(InputError, match="no output of the model looks like the next value of an input"):
        source.load_request(Model(path, detection="use"))


def test_a_cache_that_grows_is_refused_by_name(tmp_path):
    path = nets.save(nets.cached_step(), tmp_path)
    with pytest.raises(InputError, match="present grows with each step, and a state has a fixed size") as caught:
        source.load_request(Model(path, dims={"past": 7, "new": 1}, states={"past": "present"}))
    assert caught.value.details == "Concat node 'present' appends to past"
    assert "a static cache" in caught.value.hint
