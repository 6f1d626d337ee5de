"""Products of tiles by the matrix unit of x86 processors (AMX): in bfloat16 and of bytes, by its instructions where
this machine has them, and by the portable code that stands for them everywhere."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tvm

from tests.support import cpu_bytes, cpu_kernels
from tests.support.cpu_kernels import CONVOLUTIONS, NATIVE, WIDE, applied, assembly, layer_of, random, run
from tests.support.parts import require_processor
from tests.unit.backends.cpu.kernels import test_attention
from tests.unit.backends.cpu.kernels.bfloat16.test_bfloat16 import rounded
from tests.unit.backends.cpu.kernels.int8.test_conv import CASES
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.tiles import attention, conv, dense, int8, int8_stem, stem
from toolchain.backends.cpu.kernels.tiles.product import Config
from toolchain.backends.cpu.layers import Activation, Dense, PostOp
from toolchain.backends.cpu.machine import machine, with_bfloat16

SAPPHIRE_RAPIDS = tvm.target.Target(
    {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "sapphirerapids", "num-cores": 2}
)
HERE = machine(NATIVE).tiles
PORTABLE = replace(WIDE, tiles=True, bfloat16="portable", dot="vpdpbusd")
each_body = pytest.mark.parametrize("has_instructions", [False, True], ids=["portable", "instructions"])
BLOCKED = [name for name in CONVOLUTIONS if not name.startswith(("plain", "one plain"))]
BLOCKED = [name for name in BLOCKED if "groups" not in CONVOLUTIONS[name]]


def of(template, *, has_instructions):
    """Return a template whose kernels have the one or the other body."""
    if has_instructions:
        require_processor("amx_tile", present=HERE)
        return template
    return SimpleNamespace(
        covers=template.covers,
        configs=template.configs,
        pack=getattr(template, "pack", None),
        kernel=lambda *arguments: emit.portable(template.kernel(*arguments)),
    )


# --- results ---------------------------------------------------------------------------------------------------


def check(template, layer, config):
    """Compare a convolution in bfloat16 with ONNX Runtime's of rounded numbers."""
    inputs = cpu_kernels.inputs_of(layer)
    arguments = cpu_kernels.arguments(template, layer, PORTABLE, config, inputs)
    result = np.full(layer.out.shape, 77, np.float32)
    actual = run(template.kernel(layer, PORTABLE, config), arguments, result)
    exact = replace(inputs, data=rounded(inputs.data), weights=rounded(inputs.weights))
    expected = cpu_kernels.expected(layer, exact)
    np.testing.assert_allclose(cpu_kernels.unblocked(actual, layer.out), expected, rtol=2e-5, atol=2e-5)
    others = [block for block in range(actual.shape[1]) if block not in range(layer.out.first, layer.out.first + 9)]
    assert not layer.out.held or (actual[:, others] == 77).all()


@each_body
@pytest.mark.parametrize("name", BLOCKED)
def test_convolution_in_bfloat16(name, has_instructions):
    layer = replace(layer_of(lanes=16, **CONVOLUTIONS[name], epilogue=(PostOp("relu"),)), bfloat16=True)
    assert conv.covers(layer)
    check(of(conv, has_instructions=has_instructions), layer, conv.configs(layer, PORTABLE)[0][0])


PLAIN = {
    "plain": CONVOLUTIONS["plain"],
    "one plain channel": CONVOLUTIONS["one plain channel"],
    "one row": {"data": (1, 3, 40, 40), "channels": 16, "kernel": (1, 3), "padding": (0, 1, 0, 1)},
    "pointwise": {"data": (1, 3, 40, 40), "channels": 16, "kernel": (1, 1)},
    "two rows of four": {"data": (2, 8, 13, 11), "channels": 24, "kernel": (2, 4), "strides": (1, 3)},
    "narrower than a window": {"data": (1, 3, 9, 5), "channels": 16, "kernel": (3, 8), "padding": (1, 4, 1, 4)},
    "far rows": {"data": (1, 3, 17, 9), "channels": 16, "kernel": (3, 3), "padding": (3, 1, 3, 1), "dilation": (3, 1)},
}


@each_body
@pytest.mark.parametrize("name", PLAIN)
def test_first_convolution_in_bfloat16(name, has_instructions):
    shape = {**PLAIN[name], "plain": True}
    layer = replace(layer_of(lanes=16, **shape, epilogue=(PostOp("relu"),)), bfloat16=True)
    assert stem.covers(layer)
    for config, _ in stem.configs(layer, PORTABLE)[:2]:
        check(of(stem, has_instructions=has_instructions), layer, config)


def test_windows_that_are_too_wide_for_a_pixel_of_the_copy():
    wide = [layer_of((1, 3, 32, 32), 16, (3, 9), 16, plain=True), layer_of((1, 5, 9, 9), 16, (5, 5), 16, plain=True)]
    assert not any(stem.covers(layer) for layer in wide)


CONFIGS = [Config(*size) for size in ((1, 1), (2, 2), (1, 4), (4, 1), (1, 6), (6, 1), (3, 1), (1, 3), (2, 1), (1, 2))]


@each_body
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_group_of_tiles(config, has_instructions):
    layer = layer_of((1, 80, 7, 9), 192, (3, 3), 16, padding=(1,) * 4, epilogue=(PostOp("add"), PostOp("silu")))
    layer = replace(layer, bfloat16=True)
    assert config in dict(conv.configs(layer, PORTABLE))
    check(of(conv, has_instructions=has_instructions), layer, config)


def test_groups_that_the_registers_do_not_hold_are_no_candidates():
    layer = replace(layer_of((1, 64, 7, 9), 192, (1, 1), 16), bfloat16=True)
    assert not {Config(2, 3), Config(3, 2), Config(4, 2), Config(6, 6)} & set(dict(conv.configs(layer, PORTABLE)))
    assert not conv.configs(layer, replace(PORTABLE, tiles=False))


@each_body
def test_parts_of_buffers(has_instructions):
    layer = replace(layer_of((2, 48, 6, 6), 32, (3, 3), 16, padding=(1,) * 4, bias=False), bfloat16=True)
    # The other blocks are NaN.
    data, out = replace(layer.data, first=2, held=6), replace(layer.out, first=1, held=5)
    check(of(conv, has_instructions=has_instructions), replace(layer, data=data, out=out), Config(2, 2))


@each_body
@pytest.mark.parametrize("shape", [(5, 32, 40), (17, 64, 48), (130, 48, 200), (1, 128, 64), (33, 16, 7)], ids=str)
def test_fully_connected_in_bfloat16(shape, has_instructions):
    template = of(dense, has_instructions=has_instructions)
    layer = Dense(*shape, bias=True, epilogue=(PostOp("add"), PostOp("gelu")), bfloat16=True)
    data, bias, other = random((layer.rows, layer.inputs)), random((layer.outputs,), 2), random(shape[::2], 3)
    weights = random(layer.weights_shape, 1) / np.float32(np.sqrt(layer.inputs))
    for config, _ in dense.configs(layer, PORTABLE)[:2]:
        arguments = [data, dense.pack(layer, PORTABLE, config, weights), bias, other]
        actual = run(template.kernel(layer, PORTABLE, config), arguments, np.full(shape[::2], 77, np.float32))
        sums = rounded(data).astype(np.float64) @ rounded(weights).astype(np.float64).T + bias
        np.testing.assert_allclose(actual, applied(sums, layer.epilogue, [other]), rtol=2e-5, atol=2e-5)


def test_infinite_numbers_stay_in_their_rows():
    layer = Dense(3, 48, 16, bfloat16=True)
    data, weights = random((3, 48)), np.abs(random((16, 48), 1)) + 1
    data[1, 5] = np.inf
    config = dense.configs(layer, PORTABLE)[0][0]
    arguments = [data, dense.pack(layer, PORTABLE, config, weights)]
    actual = run(emit.portable(dense.kernel(layer, PORTABLE, config)), arguments, np.zeros((3, 16), np.float32))
    assert np.isfinite(actual[[0, 2]]).all()
    assert (actual[1] == np.inf).all()


@each_body
@test_attention.each_layer
def test_attention_in_bfloat16(one, has_instructions):
    one = replace(one, bfloat16=True)
    assert attention.covers(one)
    for config, _ in attention.configs(one, PORTABLE)[:3]:
        used = of(attention, has_instructions=has_instructions)
        test_attention.check(one, PORTABLE, config, within=3e-2, used=used)


@each_body
@pytest.mark.parametrize("config", [Config(1, 6), Config(2, 2), Config(2, 1), Config(1, 1)], ids=str)
def test_attention_with_all_groups_of_tiles(config, has_instructions):
    layer = replace(test_attention.layer(75, 85, 48, 64, mask=(1, 1, 75, 85)), bfloat16=True)
    assert config in dict(attention.configs(layer, PORTABLE))
    test_attention.check(layer, PORTABLE, config, within=3e-2, used=of(attention, has_instructions=has_instructions))


@each_body
@pytest.mark.parametrize("case", [case for case in CASES if not CASES[case][3].get("few")])
def test_convolution_of_bytes(case, has_instructions):
    cpu_bytes.require_dot()
    data, channels, kernel, options = CASES[case]
    layer = cpu_bytes.conv(data, channels, kernel, 16, **options)
    template = of(int8, has_instructions=has_instructions)
    for config, _ in int8.configs(layer, PORTABLE)[:2]:
        cpu_bytes.check(template, layer, PORTABLE, config)


FIRST = {
    "7x7 down by 2": ((1, 3, 30, 45), (7, 7), {"padding": (3,) * 4, "strides": (2, 2)}),
    "3x3": ((2, 4, 9, 21), (3, 3), {"padding": (1,) * 4}),
    "pointwise": ((1, 3, 40, 40), (1, 1), {}),
    "narrow": ((1, 1, 5, 6), (2, 3), {"padding": (0, 2, 1, 2), "strides": (1, 3)}),
    "far rows": ((1, 3, 17, 40), (3, 3), {"padding": (3, 1, 3, 1), "dilation": (3, 1)}),
}


@each_body
@pytest.mark.parametrize("case", FIRST)
def test_first_convolution_of_bytes(case, has_instructions):
    cpu_bytes.require_dot()
    data, kernel, options = FIRST[case]
    layer = cpu_bytes.conv(data, 40, kernel, 16, few=True, epilogue=(PostOp("relu"),), **options)
    for config, _ in int8_stem.configs(layer, PORTABLE)[:2]:
        cpu_bytes.check(of(int8_stem, has_instructions=has_instructions), layer, PORTABLE, config)


def test_bytes_that_the_unit_does_not_multiply():
    assert not int8.covers(cpu_bytes.conv((1, 3, 8, 8), 16, (3, 3), 16, few=True))
    assert not int8_stem.covers(cpu_bytes.conv((1, 3, 8, 40), 16, (3, 17), 16, few=True))
    assert not int8.covers(cpu_bytes.conv((1, 16, 8, 8), 16, (3, 3), 16, offset=True))
    assert not int8.configs(cpu_bytes.conv((1, 16, 8, 8), 16, (3, 3), 16), replace(PORTABLE, dot=""))


# --- instructions ----------------------------------------------------------------------------------------------

LAYERS = {
    "tdpbf16ps": replace(layer_of((1, 64, 28, 28), 64, (3, 3), 16, padding=(1, 1, 1, 1)), bfloat16=True),
    "tdpbf16ps of rows": Dense(128, 768, 3072, bfloat16=True),
    "tdpbusd": cpu_bytes.conv((1, 64, 28, 28), 64, (3, 3), 16, padding=(1, 1, 1, 1)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_processor_with_the_unit_uses_it_without_a_call(name):
    kind, layer = with_bfloat16(machine(SAPPHIRE_RAPIDS), SAPPHIRE_RAPIDS), LAYERS[name]
    chosen = kernels.default(layer, kind)
    assert "tiles" in chosen.template
    code = assembly(kernels.kernel(layer, kind, chosen), SAPPHIRE_RAPIDS)
    for instruction in (name.split()[0], "ldtilecfg", "tilerelease", "syscall"):
        assert instruction in code
    assert "toolchain_tiles" not in "".join(line for line in code.splitlines() if "call" in line)


def test_without_a_matrix_unit_other_templates_are_chosen():
    ice_lake = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "icelake-server"})
    kind = with_bfloat16(machine(ice_lake), ice_lake)
    assert not kind.tiles
    assert not [
        name for layer in LAYERS.values() for name in [kernels.default(layer, kind).template] if "tiles" in name
    ]


def test_kernels_of_several_groups_are_in_one_library():
    """They share the names of what they inline, but for those that depend on the group."""
    layer = replace(layer_of((1, 64, 9, 9), 64, (1, 1), 16, bias=False), bfloat16=True)
    inputs, results = cpu_kernels.inputs_of(layer), []
    functions = {f"kernel{n}": conv.kernel(layer, PORTABLE, CONFIGS[n]) for n in (0, 1, 2)}
    module = tvm.IRModule(
        {name: emit.portable(function).with_attr("global_symbol", name) for name, function in functions.items()}
    )
    library = tvm.compile(module, target=NATIVE)
    for n, name in zip((0, 1, 2), functions, strict=True):
        arguments = cpu_kernels.arguments(conv, layer, PORTABLE, CONFIGS[n], inputs)
        out = tvm.runtime.tensor(np.zeros(layer.out.shape, np.float32))
        library[name](*map(tvm.runtime.tensor, arguments), out)
        results.append(out.numpy())
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


REFUSED = """
import ctypes
import sys

import numpy as np
import tvm

# seccomp: arch_prctl (158) fails with EPERM, all else is allowed.
libc = ctypes.CDLL(None)
program = b"".join(
    code.to_bytes(2, "little") + bytes([yes, no]) + value.to_bytes(4, "little")
    for code, yes, no, value in ((0x20, 0, 0, 0), (0x15, 0, 1, 158), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000))
)
memory = ctypes.create_string_buffer(program)
prog = (ctypes.c_uint64 * 2)(4, ctypes.addressof(memory))
assert libc.prctl(38, 1, 0, 0, 0) == 0
library = tvm.runtime.load_module(sys.argv[1])
arrays = [tvm.runtime.tensor(np.zeros([int(n) for n in shape.split("x")], kind)) for shape, kind in
          (word.split(":") for word in sys.argv[2:])]
assert libc.prctl(22, 2, prog, 0, 0) == 0
library["main"](*arrays)
"""


def test_a_process_that_may_not_use_the_unit_gets_an_error(tmp_path):
    layer, library = Dense(16, 64, 16, bfloat16=True), tmp_path / "kernel.so"
    config = dense.configs(layer, PORTABLE)[0][0]
    function = dense.kernel(layer, with_bfloat16(machine(SAPPHIRE_RAPIDS), SAPPHIRE_RAPIDS), config)
    tvm.compile(tvm.IRModule({"main": function}), target=SAPPHIRE_RAPIDS).export_library(str(library))
    shape = "x".join(map(str, dense.pack(layer, PORTABLE, config, np.zeros((16, 64), np.float32)).shape))
    tensors = ["16x64:float32", f"{shape}:int32", "16x16:float32"]
    command = [sys.executable, "-c", REFUSED, str(library), *tensors]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 1
    assert "Linux refuses the AMX tiles of the processor to this process" in ended.stderr


# --- the choice ------------------------------------------------------------------------------------------------


def test_one_row_has_no_use_for_tiles():
    chosen = kernels.candidates(Dense(1, 768, 3072, bfloat16=True), PORTABLE)[0].choice
    assert chosen.template == "bfloat16_dense"


def test_products_of_pairs_are_slow_where_tiles_are_quick():
    layer = replace(layer_of((1, 64, 28, 28), 64, (1, 1), 16), bfloat16=True)
    pairs, tiles = (
        kernels.candidates(layer, PORTABLE, without=frozenset({name}))[0].cost
        for name in ("bfloat16_tiles", "bfloat16")
    )
    assert pairs > 4 * tiles


def test_a_pixel_that_goes_with_all():
    pixel = Activation(2, 40, 1, 1, 16)
    layer = layer_of((2, 32, 6, 5), 40, (1, 1), 16, epilogue=(PostOp("relu"),))
    epilogue = (PostOp("mul", other=pixel), PostOp("relu"))
    layer, factors = replace(layer, epilogue=epilogue, bfloat16=True), random((2, 40, 1, 1), 7)
    inputs = replace(cpu_kernels.inputs_of(replace(layer, epilogue=())), operands=(factors,))
    arguments = cpu_kernels.arguments(conv, layer, PORTABLE, Config(1, 1), inputs)
    function = emit.portable(conv.kernel(layer, PORTABLE, Config(1, 1)))
    actual = run(function, arguments, np.zeros(layer.out.shape, np.float32))
    exact = replace(inputs, data=rounded(inputs.data), weights=rounded(inputs.weights))
    expected = cpu_kernels.expected(layer, exact)
    np.testing.assert_allclose(cpu_kernels.unblocked(actual, layer.out), expected, rtol=2e-5, atol=2e-5)
