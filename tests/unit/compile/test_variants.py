"""Networks for several shapes in one module, with the weights of all stored once."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.support import nets, variant_nets
from toolchain import board
from toolchain.backends.base import Backend
from toolchain.backends.cpu import backend as cpu
from toolchain.backends.cpu.layers import Activation, Conv, to_json
from toolchain.compile import executable, variants
from toolchain.compile.executable import Compiled, lift_constants
from toolchain.compile.request import BuildRequest
from toolchain.models import importer, source
from toolchain.models.ort import onnxruntime
from toolchain.models.request import Model

SIZES = (24, 40)


def written(path: str, name: str) -> tuple[list[Compiled], Backend]:
    """Return the modules of a model's two variants for a board, with a common packing, and the backend."""
    backend = BuildRequest(Model(path), board.load(name).resolved()).backend
    sources = [source.load_request(Model(path, {"x": (1, 3, size, 16)})) for size in SIZES]
    lowered = [backend.lower(importer.import_model(each).module) for each in sources]
    choices = variants.common_choices(lowered, backend)
    modules = [backend.apply_choices(module, choice) for module, choice in zip(lowered, choices, strict=True)]
    return [lift_constants(module) for module in modules], backend


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The path of a model, the modules of its two variants, and the target of this machine."""
    path = nets.save(variant_nets.pictures(), tmp_path_factory.mktemp("net"))
    modules, backend = written(path, "local")
    return path, modules, backend.target


def test_layers_with_equal_weights_are_packed_in_the_same_way(compiled):
    (small, large), _ = written(compiled[0], "rpi4")
    for first, second in zip(small.params.values(), large.params.values(), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(("limit", "count"), [(1.05, 2), (3.0, 1)])
def test_a_packing_is_common_where_no_layer_is_clearly_slower(limit, count, monkeypatch):
    """One image is too small for Winograd's tiles, another is not."""
    monkeypatch.setattr(cpu, "_SAME_PACKING", limit)
    backend = BuildRequest(Model("net.onnx"), board.load("rpi4").resolved()).backend
    images = [Activation(1, 512, size, size, 4) for size in (5, 8, 8)]
    layers = [to_json(Conv(image, image, (3, 3), padding=(1, 1, 1, 1))) for image in images]
    choices = backend.common_choices(layers)
    assert len({(choice["template"], choice["blocks"]) for choice in choices}) == count
    assert choices[1] == choices[2]


def test_each_network_computes_what_it_did_alone(compiled):
    path, modules, target = compiled
    merged = variants.merge(modules)
    assert merged.entries == ("main", "main_1")
    assert set().union(*merged.orders) == set(merged.params)
    code = executable.compile_module(merged.module, target, merged.entries)
    assert code.activations.keys() == {"main", "main_1"}
    assert all(code.activations.values())
    machine = relax.VirtualMachine(code.executable.jit(), tvm.cpu())
    session = onnxruntime.InferenceSession(path)
    for entry, order, size in zip(merged.entries, merged.orders, SIZES, strict=True):
        x = np.random.default_rng(size).standard_normal((1, 3, size, 16), dtype=np.float32)
        arguments = [tvm.runtime.tensor(array) for array in (x, *(merged.params[name] for name in order))]
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_allclose(machine[entry](*arguments).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_equal_kernels_are_there_once(compiled):
    modules = compiled[1]
    count = len(variants.merge([modules[0], modules[0]]).module.functions)
    assert count == len(modules[0].module.functions) + 1


def test_params_are_equal_in_type_and_shape_too(compiled):
    modules = compiled[1]
    zeros = [np.zeros(4, np.float32), np.zeros((2, 2), np.float32), np.zeros(4, np.int32), np.zeros(4, np.float32)]
    module = modules[0].module
    first = Compiled(module, {f"p{number}": value for number, value in enumerate(zeros)})
    second = Compiled(module, {"p0": zeros[2], "p1": np.ones(4, np.float32), "p2": zeros[0]})
    merged = variants.merge([first, second])
    assert merged.orders == (("p0", "p1", "p2", "p3"), ("p2", "p4", "p0"))
    assert list(merged.params) == ["p0", "p1", "p2", "p3", "p4"]


def test_a_single_network_stays_as_it_is(compiled):
    modules = compiled[1]
    merged = variants.merge(modules[:1])
    assert (merged.module.same_as(modules[0].module), merged.entries) == (True, ("main",))
