"""Names of inputs: OpenCL C takes them for names."""

from __future__ import annotations

import pytest
from tvm import relax

from tests.support import nets
from tests.support.channels_last import conv, net
from tests.support.nets import node
from toolchain.backends.mali import layout
from toolchain.models import importer
from toolchain.models import source as model


@pytest.mark.parametrize(("name", "expected"), [("x", True), ("gpu_0/data_0", False), ("é", False)])
def test_names_of_inputs_are_fit_for_kernels(name, expected, tmp_path):
    nodes = [conv(name, "a"), node("Relu", ["a"], ["y"])]
    imported = importer.import_model(model.load(nets.save(net(nodes, name=name), tmp_path)))
    renamed = layout.use_c_names(imported.module)
    (parameter,) = renamed["main"].params
    assert (str(parameter.name) == str(imported.module["main"].params[0].name)) is expected
    assert str(parameter.name).isascii()
    assert str(parameter.name).isidentifier()
    relax.analysis.well_formed(renamed)
