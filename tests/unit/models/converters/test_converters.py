"""The registry: converters of our own take the place of TVM's, for as long as a model is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tests.support import nets
from tests.support.nets import node, value
from toolchain.errors import InputError
from toolchain.models import converters, importer, source


@pytest.fixture
def ours(monkeypatch):
    converters.names()  # loads the modules, which would otherwise register what they have in the empty table
    monkeypatch.setattr(converters, "_OURS", {})
    return converters.converter


def imported(tmp_path, *nodes, weights=None, outputs=("y",), opset=17):
    proto = nets.model(nodes, [value("x", (2, 3))], [value(name, (2, 3)) for name in outputs], weights, opset)
    return importer.import_model(source.load(nets.save(proto, tmp_path)))


def operators(module):
    return [binding.value.op.name for block in module["main"].body.blocks for binding in block.bindings]


def test_a_converter_takes_the_place_of_the_importers(ours, tmp_path):
    @ours("Relu", "Det")
    def negative(item):
        return relax.op.negative(item.inputs[0])

    assert "Det" in converters.names()
    module = imported(tmp_path, node("Relu", ["x"], ["t"]), node("Det", ["t"], ["y"])).module
    assert [name for name in operators(module) if "relax.neg" in name] == ["relax.negative"] * 2


def test_every_module_in_the_folders_is_loaded():
    converters.names()
    folder = Path(converters.__file__).parent
    modules = {".".join(path.relative_to(folder).with_suffix("").parts) for path in folder.glob("*/[!_]*.py")}
    assert "tensor.casts" in modules
    assert {f"{converters.__name__}.{module}" for module in modules} <= sys.modules.keys()


def test_the_importer_is_left_as_it_was(ours):
    before = onnx_frontend._get_convert_map
    with converters.registered():
        assert onnx_frontend._get_convert_map is not before
    with pytest.raises(ZeroDivisionError), converters.registered():
        raise ZeroDivisionError
    assert onnx_frontend._get_convert_map is before


def test_what_a_converter_sees(ours, tmp_path):
    nodes = []

    @ours("Pad")
    def look(item):
        nodes.append(item)
        return item.inputs[0]

    pad = node("Pad", ["x", "pads", "", "axes"], ["y"], name="border", mode="reflect")
    imported(tmp_path, pad, weights={"pads": np.array([0, 0]), "axes": np.array([1])}, opset=18)
    (item,) = nodes
    assert (item.operator, item.name, item.opset, item.outputs) == ("Pad", "border", 18, 1)
    assert (item.attributes["mode"], item.integers(3, "axes"), item.integers(2, "none")) == ("reflect", [1], None)
    assert (item.shape(0), item.dtype(0), item.input(2), item.input(7)) == ((2, 3), "float32", None, None)
    assert (item.is_constant(0), item.is_constant(1), item.constant(2)) == (False, True, None)
    with pytest.raises(InputError, match="Pad node 'border' cannot be compiled") as caught:
        item.constant(0)
    assert "input 0 is computed by the network" in caught.value.details


def test_several_results(ours, tmp_path):
    @ours("Split")
    def both(item):
        return [item.inputs[0], item.emit(relax.op.negative(item.inputs[0]))]

    assert len(imported(tmp_path, node("Split", ["x"], ["y", "z"], axis=0), outputs=("y", "z")).outputs) == 2


def test_what_a_converter_refuses_is_told_by_its_node(ours, tmp_path):
    @ours("Relu")
    def refuse(item):
        raise item.refusal("it is not known how", hint="use another")

    with pytest.raises(InputError, match="Relu node 'r' cannot be compiled") as caught:
        imported(tmp_path, node("Relu", ["x"], ["y"], name="r"))
    assert (caught.value.details, caught.value.hint) == ("it is not known how", "use another")
