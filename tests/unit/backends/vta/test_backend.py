"""The VTA backend: which kernels are the array's, by which records they are made, and for which CPUs the rest."""

from __future__ import annotations

import base64
import dataclasses

import pytest
import tvm
from tvm import tirx
from tvm.relax.frontend.onnx import from_onnx

from tests.support.vta_nets import Net
from toolchain import board
from toolchain.backends import backend_of
from toolchain.backends.base import EXACT, LAYER
from toolchain.backends.cpu.backend import Cpu
from toolchain.backends.vta.backend import Vta, likely
from toolchain.backends.vta.codegen import kernels
from toolchain.backends.vta.codegen.kernels import RUN, Choice
from toolchain.backends.vta.codegen.layers import Conv2d, is_layer
from toolchain.backends.vta.device.devices import DEVICES
from toolchain.backends.vta.isa.stream import Stream
from toolchain.compile.applicable_records import record_key
from toolchain.errors import InputError

BOARDS = ("pynq-z1", "ultra96", "vta-sim", "vta-sim-aarch64", "vta-sim-armv7", "vta-sim-x86_64")
X86 = board.load("vta-sim-x86_64").resolved()


def rounds(net, data, exponent=4):
    """Add a convolution that is rounded so."""
    sums = net.conv(data, 16, 16, 3, pads=[1] * 4)
    return net.rounded(net.add("Relu", [sums]), exponent)


@pytest.fixture(scope="module")
def module():
    """Three layers that are one task: as they are, with another shift, and with a residual."""
    net = Net(16, 8)
    first = rounds(net, net.rounded("x", 4))
    second = rounds(net, first, 3)
    last = net.conv(second, 16, 16, 3, pads=[1] * 4)
    return from_onnx(net.proto(net.rounded(net.add("Relu", [net.add("Add", [last, first])]), 3)))


def with_float16(kind):
    return dataclasses.replace(kind, target=dataclasses.replace(kind.target, float16=True))


def named(lowered, attribute):
    """Return the array's layers, as they are in their network or as they are tuned."""
    texts = [str((function.attrs or {}).get(attribute, "")) for _, function in lowered.functions_items()]
    return [Conv2d.from_json(text) for text in texts if is_layer(text)]


def exact_layers(lowered):
    return named(lowered, EXACT)


def task_of(lowered):
    """Return the only task of a network, by which records name it."""
    (task,) = {layer.to_json() for layer in named(lowered, LAYER)}
    return task


def streams(finished):
    """Return by layer, as its network has it, the device and the instructions of each of the array's kernels."""
    by_stream = {}
    for _, function in finished.functions_items():
        if is_layer(str((function.attrs or {}).get(LAYER, ""))):
            name, device, blob, *_ = function.body.value.args
            assert str(name.value) == RUN
            by_stream[str(device.value), Stream.decode(base64.b64decode(str(blob.value)))] = function
    return by_stream


def finished(module, kind):
    backend = Vta(kind)
    return backend.apply_choices(backend.lower(module), {})


# --- boards ---


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_has_a_target_for_its_cpu_that_names_the_accelerator(name):
    kind = board.load(name).resolved()
    target = backend_of(kind).target
    assert (target.kind.name, target.attrs["mtriple"]) == ("llvm", kind.triple)
    assert str(target.export()["device"]) == kind.target.device in DEVICES


@pytest.mark.parametrize("name", BOARDS)
def test_kernels_compile_for_each_board(name, module):
    kind = board.load(name).resolved()
    compiled = finished(module, kind)
    assert tvm.compile(compiled, target=Vta(kind).target).mod is not None
    assert {device for device, _ in streams(compiled)} == {DEVICES[kind.target.device].name}


@pytest.mark.parametrize("name", ["vta-sim-2x16", "vta-sim-4x16", "vta-sim-1x32", "vta-sim-4x32"])
def test_kernels_are_made_for_the_array_that_a_board_names(name, module):
    by_stream = streams(finished(module, with_device(name)))
    assert {device for device, _ in by_stream} == {"sim"}
    assert {stream.config for _, stream in by_stream} == {DEVICES[name].config}
    layer = exact_layers(Vta(with_device(name)).lower(module))[0]
    side = DEVICES[name].config.block
    assert Vta(with_device(name)).templates.gflop(layer.to_json()) == 2 * 8 * 8 * side * side * 9 / 1e9


def test_half_precision_is_refused():
    with pytest.raises(InputError, match="accelerator of vta-sim-x86_64 computes in int8") as caught:
        _ = Vta(with_float16(X86)).target
    assert "--float16" in caught.value.hint


def test_a_board_that_names_no_accelerator_is_refused():
    with pytest.raises(InputError, match="is not a VTA"):
        _ = Vta(dataclasses.replace(X86, target=dataclasses.replace(X86.target, device=""))).target


def with_device(name):
    return dataclasses.replace(X86, target=dataclasses.replace(X86.target, device=name))


@pytest.mark.parametrize("name", ["vta-pynq-z1", "vta-sim-4x16", "vta-sim-1x32"])
def test_records_of_one_accelerator_are_not_anothers(name):
    assert record_key(Vta(X86)) != record_key(Vta(with_device(name)))
    assert Vta(X86).shipped == ""


# --- kernels ---


def test_quantized_convolutions_are_the_arrays(module):
    lowered = Vta(X86).lower(module)
    assert is_layer(task_of(lowered))
    assert len(exact_layers(lowered)) == 3
    assert len({layer.shift for layer in exact_layers(lowered)}) > 1
    assert sum(layer.residual_shift is not None for layer in exact_layers(lowered)) == 1
    assert Vta(X86).unsupported_layers(module) == ()


def test_without_the_template_the_cpu_computes_everything(module):
    lowered = Vta(X86, ["vta"]).lower(module)
    assert exact_layers(lowered) == []
    assert Vta(X86, ["vta"]).unsupported_layers(module) == ()
    assert streams(Vta(X86, ["vta"]).apply_choices(lowered, {})) == {}


def test_what_the_cpu_computes_is_named():
    net = Net(96, 8)
    data = net.rounded("x", 4)
    grouped = net.rounded(net.add("Conv", [data, net.weights(96, 3, 1, 1), net.bias(96)], group=32), 4)
    spread = net.rounded(net.conv(grouped, 96, 16, 3, dilations=[2, 2]), 4)
    floats = net.add("Conv", [net.add("Sigmoid", [spread]), net.weights(16, 16, 1, 1), net.bias(16)])
    module = from_onnx(net.proto(net.rounded(net.conv(net.rounded(floats, 4), 16, 16), 4)))
    first, second, third = Vta(X86).unsupported_layers(module)
    assert first.startswith("convolution 1: 1x96x8x8, 96x3x1x1 -> 1x96x8x8: it has 32 groups")
    assert "dilated" in second
    assert third.startswith("convolution 3: ")
    assert "not quantized" in third
    assert len(exact_layers(Vta(X86).lower(module))) == 1


def test_kernels_without_records_are_the_likely_fastest(module):
    lowered = Vta(X86).lower(module)
    written = {stream for _, stream in streams(Vta(X86).apply_choices(lowered, {}))}
    device = DEVICES["vta-sim"]
    assert written == {kernels.stream(exact, likely(exact, device)) for exact in exact_layers(lowered)}
    assert len(written) == 3


def test_one_record_is_applied_to_all_layers_of_its_task(module):
    lowered, choice = Vta(X86).lower(module), Choice(tile_h=2, tile_w=4)
    choices = {task_of(lowered): {"template": "vta", **choice.document()}}
    written = {stream for _, stream in streams(Vta(X86).apply_choices(lowered, choices))}
    assert written == {kernels.stream(exact, choice) for exact in exact_layers(lowered)}


def test_where_a_record_does_not_fit_it_is_the_likely_fastest():
    """Without the residual 28 rows fit, with it they do not."""
    net = Net(32, 28)
    data = net.rounded("x", 4)
    first = net.layer(data, 32, 16, 3)
    second = net.layer(data, 32, 16, 3)
    plain, last = second, net.conv(data, 32, 16, 3, pads=[1] * 4)
    total = net.rounded(net.add("Relu", [net.add("Add", [last, first])]), 4)
    lowered = Vta(X86).lower(from_onnx(net.proto(plain, total)))
    choice = Choice(tile_h=28, tile_w=28, tile_ci=2)
    choices = {task_of(lowered): {"template": "vta", **choice.document()}}
    written = {stream for _, stream in streams(Vta(X86).apply_choices(lowered, choices))}
    bare, added = sorted(set(exact_layers(lowered)), key=lambda one: one.residual_shift is not None)
    assert written == {kernels.stream(bare, choice), kernels.stream(added, likely(added, DEVICES["vta-sim"]))}


def test_a_finished_module_has_no_kernel_without_a_body(module):
    lowered = finished(module, X86)
    remaining = [
        function
        for _, function in lowered.functions_items()
        if isinstance(function, tirx.PrimFunc) and EXACT in function.attrs
    ]
    assert remaining == []


def test_templates_are_those_of_the_array_and_of_the_cpu():
    assert Vta.int8_template in Vta.template_names
    assert set(Cpu.template_names) == set(Vta.template_names) - {Vta.int8_template}


def test_the_array_is_used_unless_its_template_is_left_out():
    assert Vta(X86).computes_int8
    assert Vta(X86, ["winograd"]).computes_int8
    assert not Vta(X86, Vta.template_names).computes_int8
    assert not Cpu(X86).computes_int8
