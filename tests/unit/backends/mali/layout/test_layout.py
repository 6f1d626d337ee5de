"""Which operators get their channels last, and the names of inputs."""

from __future__ import annotations

import pytest
from tvm import relax

from tests.support import nets
from tests.support.channels_last import SHAPE, conv, net, transposed
from tests.support.nets import node
from toolchain.backends.graph.values import shape_of
from toolchain.backends.mali import layout
from toolchain.models import importer
from toolchain.models import source as model


@pytest.mark.parametrize("half", [False, True])
def test_inputs_and_outputs_stay_as_they_are(half, tmp_path):
    main = transposed(net([conv("x", "a"), node("Relu", ["a"], ["y"])]), tmp_path, half=half)["main"]
    assert shape_of(main.params[0].ty) == shape_of(main.ret_ty) == SHAPE


# --- names -----------------------------------------------------------------------------------------------------------


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
