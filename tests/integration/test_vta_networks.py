"""Every convolution of whole networks, bit for bit, in whatever order the stages get their turns.

By default those of ResNet-18; `make exact` tries more networks, with one slot and with two.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from tvm import tirx

from tests.support.vta_layers import reference, tensors
from toolchain import board
from toolchain.backends.base.attributes import EXACT
from toolchain.backends.vta.codegen import kernels
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.device.simulator import Policy, Simulator
from toolchain.backends.vta.device.verifier import verify
from toolchain.backends.vta.isa.config import DEFAULT
from toolchain.backends.vta.network.partition import partitioned
from toolchain.compile import prepare
from toolchain.compile.request import BuildRequest
from toolchain.models import importer, inputs, source
from toolchain.models.request import Model

NETWORKS = os.environ.get("TOOLCHAIN_EXACT", "resnet-18").split(",")
KERNELS = {"resnet-18": 20, "resnet-34": 36, "resnet-50": 53, "mobilenet": 27}
"""How many convolutions VTA computes: all."""
RUNS = [*((policy, 0) for policy in Policy), (Policy.RANDOM, 1)]


def layers_of(network):
    """Return the convolutions of a network that VTA computes, in order."""
    kind = board.load("vta-sim").resolved()
    request = BuildRequest(Model(network, {}, inputs.Source()), kind)
    quantized = prepare.suited(source.load(network), request).source
    module = partitioned(importer.import_model(quantized).module, DEFAULT).module
    kernels_by_name = {
        variable: Conv2d.from_json(str(one.attrs[EXACT]))
        for variable, one in module.functions_items()
        if isinstance(one, tirx.PrimFunc) and EXACT in (one.attrs or {})
    }
    values = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
    return [kernels_by_name[value.args[0]] for value in values if len(getattr(value, "args", ())) and
            value.args[0] in kernels_by_name]  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
def test_every_convolution_is_exact(network):
    found = layers_of(network)
    assert len(found) == KERNELS[network]
    simulator = Simulator()
    for number, layer in enumerate(dict.fromkeys(found)):
        arguments = tensors(layer, number)
        wanted = reference(layer, arguments)
        best = kernels.candidates(layer)[0]
        # Where two slots were best, there is room for one.
        for choice in dict.fromkeys((best, replace(best, oc_threads=1, h_threads=1))):
            stream = kernels.stream(layer, choice)
            verify(stream.encoded())
            for policy, seed in RUNS:
                arguments[-1][:] = 77
                simulator.run(stream, arguments, policy=policy, seed=seed)
                np.testing.assert_array_equal(arguments[-1], wanted, err_msg=f"{layer} {choice} {policy}")
