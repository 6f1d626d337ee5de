"""The CPU's backend and its templates."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx

from tests.support import nets
from toolchain import board
from toolchain.backends.base import EXACT, LAYER
from toolchain.backends.cpu import kernels as templates
from toolchain.backends.cpu.backend import Cpu, CpuTemplates
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
from toolchain.backends.mali.backend import Mali
from toolchain.backends.vta.backend import Vta
from toolchain.errors import InputError
from toolchain.models import importer, source

LOCAL = board.load("local").resolved()
KIND = dataclasses.replace(LOCAL, target=dataclasses.replace(LOCAL.target, mcpu="x86-64-v3"), cores=2)
CPU = Cpu(KIND)


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """A convolution, and a softmax that no template computes."""
    proto = nets.model(
        [nets.node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), nets.node("Softmax", ["c"], ["y"])],
        [nets.value("x", (1, 16, 9, 9))],
        [nets.value("y", (1, 16, 9, 9))],
        {"w": np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32)},
    )
    return importer.import_model(source.load(nets.save(proto, tmp_path_factory.mktemp("net")))).module


def kernels(actual):
    return [item for _, item in actual.functions_items() if isinstance(item, tirx.PrimFunc)]


def layers(actual):
    return [str(function.attrs[LAYER]) for function in kernels(actual) if LAYER in (function.attrs or {})]


def convolution(actual):
    (layer,) = {text for text in layers(actual) if '"kind":"conv"' in text}
    return layer


def test_layers_of_templates_have_no_body_until_they_are_finished(module):
    lowered = CPU.lower(module)
    assert any(EXACT in (function.attrs or {}) for function in kernels(lowered))
    finished = CPU.apply_choices(lowered, {})
    assert not any(EXACT in (function.attrs or {}) for function in kernels(finished))
    assert layers(finished)
    assert tvm.compile(finished, target=CPU.target).mod is not None


def test_a_choice_is_followed_where_it_fits_and_passed_over_where_it_does_not(module):
    lowered = CPU.lower(module)
    task = convolution(lowered)
    first, *_, last = CPU.templates.candidates(task)
    likely, chosen = CPU.apply_choices(lowered, {}), CPU.apply_choices(lowered, {task: last})
    same = tvm_ffi.structural_equal
    assert same(CPU.apply_choices(lowered, {task: first}), likely)
    assert same(CPU.apply_choices(lowered, {task: {"template": "nosuch"}}), likely)
    assert same(Cpu(KIND).apply_choices(lowered, {task: last}), chosen)
    assert not same(chosen, likely)


def test_without_templates_all_kernels_are_fused_and_scheduled(module):
    plain = Cpu(KIND, Cpu.template_names)
    lowered = plain.lower(module)
    assert layers(lowered) == []
    assert tvm.compile(plain.apply_choices(lowered, {}), target=plain.target).mod is not None


def test_rounded_weights_are_for_cpus_alone():
    bits = [Cpu(KIND.with_precision(weights=weights)).machine.weight_bits for weights in ("", "int8", "int4")]
    assert bits == [0, 8, 4]
    for name, backend in (("rk3588", Mali), ("vta-sim", Vta)):
        with pytest.raises(InputError, match=f"board {name} does not compute with weights of int8") as caught:
            _ = backend(board.load(name).resolved().with_precision(weights="int8")).target
        assert caught.value.hint == "leave --weights out"


def test_bfloat16_is_for_x86_cpus_alone():
    assert [Cpu(KIND.with_precision(bfloat16=asked)).machine.bfloat16 for asked in (False, True)] == ["", "portable"]
    for name, backend in (("rpi4", Cpu), ("rk3588", Mali), ("vta-sim-x86_64", Vta)):
        with pytest.raises(InputError, match=f"board {name} does not compute in bfloat16") as caught:
            _ = backend(board.load(name).resolved().with_precision(bfloat16=True)).target
        assert "--bfloat16" in caught.value.hint


@pytest.mark.parametrize(("mcpu", "records"), [("x86-64-v4", "x86-64-v4"), ("x86-64-v3", "x86-64-v3"), ("x86-64", "")])
def test_the_records_that_come_with_the_toolchain_are_those_of_the_same_vectors(mcpu, records):
    kind = dataclasses.replace(KIND, target=dataclasses.replace(KIND.target, mcpu=mcpu))
    assert Cpu(kind).shipped == records


def test_there_are_none_for_arm():
    assert Cpu(board.load("rpi4").resolved()).shipped == ""


def test_a_backend_makes_its_target_once():
    assert CPU.target is CPU.target
    assert CPU.machine.lanes == 8


# --- templates -------------------------------------------------------------------------------------------------------

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
    assert actual[0] == templates.default(LAYER_OF_3X3, SSE).document()
    assert {"direct", "winograd"} & names(actual)
    assert len({tuple(sorted(item.items())) for item in actual}) == len(actual) > 1


def test_estimates_are_of_the_threads_that_will_run():
    kind = board.load("rpi5").with_precision(float16=True)
    assert [Cpu(kind, threads=threads).machine.cores for threads in (0, 1, 8)] == [4, 1, 4]
    place = Activation(1, 512, 7, 7, 8, dtype="float16")
    layer = to_json(Conv(place, place, (3, 3), padding=(1, 1, 1, 1)))
    # Four cores would wait for Winograd's larger weights.
    chosen = [Cpu(kind, threads=threads).templates.candidates(layer)[0]["template"] for threads in (1, 4)]
    assert chosen == ["float16_winograd", "float16"]


def test_variants_are_further_choices_for_a_tuner():
    listed, variants = TEMPLATES.candidates(CONV), TEMPLATES.variants(CONV)
    assert 0 < len(variants) <= 48 - len(listed)
    assert not [choice for choice in variants if choice in listed]
    assert len({tuple(sorted(choice.items())) for choice in variants}) == len(variants)
    assert all(TEMPLATES.fits(CONV, choice) for choice in variants)
    used = listed[0]["template"]
    assert used not in names(CpuTemplates(SSE, frozenset({used})).variants(CONV))
    assert CpuTemplates(SSE, frozenset(templates.NAMES)).variants(CONV) == []


def test_a_template_that_is_left_out_is_no_candidate_and_does_not_fit():
    (used, *_) = TEMPLATES.candidates(CONV)
    without = CpuTemplates(SSE, frozenset({used["template"]}))
    assert TEMPLATES.fits(CONV, used)
    assert not without.fits(CONV, used)
    assert without.module(CONV, used) is None
    assert used["template"] not in names(without.candidates(CONV))


def test_without_any_template_there_are_no_candidates():
    assert CpuTemplates(SSE, frozenset(templates.NAMES)).candidates(CONV) == []


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
