"""What a tuner may choose from on a CPU."""

from __future__ import annotations

import pytest

from toolchain.backends.base import LAYER
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.candidates import CpuTemplates
from toolchain.backends.cpu.layers import (
    Activation,
    Conv,
    Dense,
    Map,
    Pool,
    task_of,
    to_json,
)
from toolchain.backends.cpu.machine import Machine

SSE = Machine(lanes=4, registers=16, cores=2)
TEMPLATES = CpuTemplates(SSE)
IMAGE = Activation(1, 16, 8, 8, 4)
BYTES = Activation(1, 16, 8, 8, 4, dtype="uint8")
LAYER_OF_3X3 = Conv(IMAGE, IMAGE, (3, 3), padding=(1, 1, 1, 1))
CONV = to_json(task_of(LAYER_OF_3X3))


def names(actual):
    return {item["template"] for item in actual}


def test_the_likely_fastest_comes_first():
    actual = TEMPLATES.candidates(CONV)
    assert actual[0] == kernels.default(LAYER_OF_3X3, SSE).document()
    assert {"direct", "winograd"} & names(actual)
    assert len({tuple(sorted(item.items())) for item in actual}) == len(actual) > 1


def test_a_template_that_is_left_out_is_no_candidate_and_does_not_fit():
    (used, *_) = TEMPLATES.candidates(CONV)
    without = CpuTemplates(SSE, frozenset({used["template"]}))
    assert TEMPLATES.fits(CONV, used)
    assert not without.fits(CONV, used)
    assert without.module(CONV, used) is None
    assert used["template"] not in names(without.candidates(CONV))


def test_without_any_template_there_are_no_candidates():
    assert CpuTemplates(SSE, frozenset(kernels.NAMES)).candidates(CONV) == []


def test_a_candidates_kernel_says_what_it_computes():
    module = TEMPLATES.module(CONV, TEMPLATES.candidates(CONV)[0])
    assert str(module["main"].attrs[LAYER]) == CONV
    assert str(module["main"].attrs["global_symbol"]) == "main"


@pytest.mark.parametrize("choice", [{}, {"template": "nosuch"}, {"template": "direct", "columns": 1}])
def test_a_choice_of_another_version_fits_nothing(choice):
    assert not TEMPLATES.fits(CONV, choice)
    assert TEMPLATES.module(CONV, choice) is None


def test_a_choice_of_another_kind_of_layer_does_not_fit():
    dense = to_json(Dense(1, 64, 64))
    assert not TEMPLATES.fits(dense, TEMPLATES.candidates(CONV)[0])


@pytest.mark.parametrize(
    ("layer", "operator"),
    [
        (LAYER_OF_3X3, "conv2d"),
        (Conv(IMAGE, IMAGE, (3, 3), groups=16), "depthwise_conv2d"),
        (Conv(IMAGE, IMAGE, (3, 3), groups=4), "group_conv2d"),
        (Conv(BYTES, BYTES, (1, 1)), "int8_conv2d"),
        (Pool(IMAGE, IMAGE, "mean", (2, 2)), "avg_pool2d"),
        (Pool(BYTES, BYTES, "max", (2, 2)), "int8_max_pool2d"),
        (Dense(1, 2, 3), "dense"),
        (Map(IMAGE, IMAGE), "map"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_layer_does(layer, operator):
    assert TEMPLATES.operator(to_json(layer)) == operator


def test_the_work_of_a_layer_in_billions():
    assert TEMPLATES.gflop(CONV) == pytest.approx(2 * 16 * 8 * 8 * 16 * 9 / 1e9)
