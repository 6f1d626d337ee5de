from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import tvm

from tests.support.cpu_kernels import AARCH64, ARMV7, MIDDLE, NARROW, NATIVE, WIDE
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.kernels import recurrent
from toolchain.backends.cpu.kernels.recurrent import Config
from toolchain.backends.cpu.lowering import PIPELINE
from toolchain.backends.cpu.machine import machine
from toolchain.models.converters.sequence.recurrence import Activation, Recurrence
from toolchain.models.converters.sequence.recurrence_kernel import generic_kernel

SIGMOID, TANH = Activation("sigmoid"), Activation("tanh")
LSTM = Recurrence("lstm", 4, 6, 33, (False, True), (SIGMOID, TANH, TANH), peepholes=True, lengths=True)
GRU = Recurrence("gru", 4, 6, 33, (True,), (SIGMOID, TANH), batch_first=True)
RESET = Recurrence("gru_reset", 4, 6, 33, (False, True), (SIGMOID, TANH), clip=0.5)
RNN = Recurrence("rnn", 4, 6, 33, (False,), (Activation("softplus"),))
CUTS = (Config(1, 1, 1, 0), Config(1, 3, 2, 0), Config(3, 1, 1, 0), Config(2, 1, 1, 1), Config(1, 1, 4, 1))


def ran(function, arguments, about):
    library = tvm.compile(function.with_attr("global_symbol", "main"), target=NATIVE, tir_pipeline=PIPELINE)
    results = [tvm.runtime.tensor(np.full(shape, np.nan, np.float32)) for shape in about.results.values()]
    library(*map(tvm.runtime.tensor, arguments.values()), *results)
    return [result.numpy() for result in results]


def given(about):
    stream = np.random.default_rng(0)
    built = {name: (stream.standard_normal(shape) * 0.5).astype("float32") for name, shape in about.arguments.items()}
    if about.lengths:
        built["lengths"] = np.array([4, 1, 3, 4, 2, 1], np.int32)
    return built


@pytest.mark.parametrize("about", [LSTM, GRU, RESET, RNN], ids=lambda about: about.cell)
def test_it_computes_what_the_kernel_for_any_processor_does(about):
    arguments = given(about)
    expected = ran(generic_kernel(about), arguments, about)
    for processor, cut in zip((WIDE, WIDE, MIDDLE, WIDE, NARROW), CUTS, strict=True):
        packed = {**arguments, "weights": recurrent.pack(about, processor, cut, arguments["weights"])}
        for actual, reference in zip(
            ran(recurrent.kernel(about, processor, cut), packed, about), expected, strict=True
        ):
            np.testing.assert_allclose(actual[..., : about.units], reference[..., : about.units], rtol=1e-5, atol=2e-6)


def test_every_other_step_reads_the_weights_from_their_end():
    """What was read last is read first again, while the cache still has it."""
    about = dataclasses.replace(RNN, units=64)
    script = recurrent.kernel(about, WIDE, Config(1, 1, 1, 0)).script()
    assert re.search(r"Select\((\w+) % 2 == 0, (\w+), 3 - \2\)", script)


def test_it_does_not_grow_with_the_steps():
    def lines(steps):
        return recurrent.kernel(dataclasses.replace(RNN, steps=steps), WIDE, CUTS[0]).script().count("\n")

    assert lines(300) == lines(4)


@pytest.mark.parametrize("target", [AARCH64, ARMV7], ids=["aarch64", "armv7"])
def test_it_compiles_for_arm(target):
    processor = machine(target)
    for about in (LSTM, GRU):
        function = recurrent.kernel(about, processor, recurrent.configs(about, processor)[0][0])
        assert (
            tvm.compile(function.with_attr("global_symbol", "main"), target=target, tir_pipeline=PIPELINE) is not None
        )


def test_candidates():
    item = dataclasses.replace(LSTM, batch=1, units=512, steps=50)
    best = kernels.candidates(item, WIDE)[0].choice
    assert best.template == "recurrent"
    assert kernels.choice(best.document()) == best
    fused = Recurrence("gru_reset", 50, 1, 512, (False,), (SIGMOID, TANH))
    assert recurrent.configs(fused, WIDE)[0][0].together == 1, "a single stream is shared by the cores"
    small = dataclasses.replace(fused, units=16)
    assert recurrent.configs(small, WIDE)[0][0].together == 0, "waiting costs more than such a step"
    once = dataclasses.replace(fused, steps=1, units=128)
    assert recurrent.configs(once, WIDE)[0][0].together == 0, "nor does starting pay for one step"
    assert not recurrent.covers(dataclasses.replace(fused, dtype="float64"))
