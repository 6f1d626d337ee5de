from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.vta_layers import RESNET, task
from toolchain.backends.vta.codegen.kernels import Choice, candidates, fits, stream
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.stream import Stream
from toolchain.errors import BuildError

LAYER = Conv2d(1, 14, 14, 64, 32, (3, 3), padding=(1, 1, 1, 1), shift=8)
SMALL = VtaConfig(log_uop_buff_size=9, log_inp_buff_size=11, log_wgt_buff_size=15, log_acc_buff_size=12)


@pytest.mark.parametrize("shape", [shape for shape, _ in RESNET])
def test_candidates(shape):
    layer = task(*shape)
    found = candidates(layer)
    assert len(found) == len(set(found)) == 48
    assert all(fits(layer, choice) for choice in found)


def test_candidates_have_instructions():
    for choice in candidates(LAYER, SMALL)[::8]:
        made = stream(LAYER, choice, SMALL)
        assert made.config is SMALL
        assert Stream.decode(made.encoded()) == made


@pytest.mark.parametrize("revision", Revision)
def test_the_revision(revision):
    assert stream(LAYER, Choice(1, 7, 7, 2, 2), DEFAULT, revision).revision is revision


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 3),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(*4 * [st.integers(0, 15)]),
    st.integers(0, 31),
    st.booleans(),
    st.sampled_from([None, 0, 15]),
    st.randoms(use_true_random=False),
)
def test_what_fits_can_be_made(batch, size, kernel, padding, shift, bias, residual, chance):
    layer = Conv2d(batch, *size, 32, 48, kernel, (2, 1), padding, shift, bias=bias, residual_shift=residual)
    if min(layer.out_height, layer.out_width) < 1 or not layer.reads_input:
        return
    found = candidates(layer)
    assert found
    assert stream(layer, chance.choice(found)).instructions


def test_the_smallest_tile_fits_wherever_anything_does():
    assert fits(LAYER, Choice(), SMALL)
    assert not fits(replace(LAYER, kernel=(33, 33), height=40, width=40), Choice())
    assert candidates(replace(LAYER, kernel=(33, 33), height=40, width=40)) == []


@pytest.mark.parametrize("choice", [Choice(tile_h=3), Choice(tile_b=2), Choice(tile_co=4), Choice(tile_ci=3)])
def test_tiles_that_do_not_divide(choice):
    assert not fits(LAYER, choice)
    with pytest.raises(BuildError, match="do not divide"):
        stream(LAYER, choice)


def test_tiles_that_do_not_fit():
    layer = task(*RESNET[0][0])
    choice = Choice(1, 56, 56, 4, 4)
    assert not fits(layer, choice)
    with pytest.raises(BuildError, match="fit in"):
        stream(layer, choice)


@pytest.mark.parametrize(
    ("config", "array"), [(VtaConfig(log_block=6), "1 by 64"), (VtaConfig(log_batch=1, log_block=6), "2 by 64")]
)
def test_a_layer_that_was_packed_for_another_array(config, array):
    assert candidates(LAYER, config) == []
    assert not fits(LAYER, Choice(), config)
    with pytest.raises(BuildError, match=f"do not fill the blocks of an array of {array}"):
        stream(LAYER, Choice(), config)


def test_it_is_fast():
    took = []
    for shape, _ in RESNET[::3]:
        layer = task(*shape)
        choice = candidates(layer)[0]
        start = time.process_time()
        stream(layer, choice)
        took.append(time.process_time() - start)
    assert sorted(took)[1] < 1


@pytest.mark.parametrize(
    ("height", "kernel", "stride", "padding", "reads"),
    [(1, 1, 2, 1, False), (1, 1, 1, 1, True), (1, 2, 2, 1, True), (3, 1, 5, 1, False), (3, 3, 5, 1, True)],
)
def test_a_layer_of_padding_alone_is_the_cpus(height, kernel, stride, padding, reads):
    """TensorIR reads nothing for it; as a window of one row above each stride it is met in no network."""
    layer = Conv2d(1, height, 2, 16, 16, (kernel, 1), (stride, 1), (padding, 0, 0, 0))
    assert layer.reads_input is reads
    assert bool(candidates(layer)) is reads
    assert fits(layer, Choice(1, 1, 1, 1, 1)) is reads
    if not reads:
        with pytest.raises(BuildError, match="only padding"):
            stream(layer, Choice(1, 1, 1, 1, 1))
