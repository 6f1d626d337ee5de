"""Bytes on OpenCL devices, to the bit: with powers of two as scales, layers on them are exact, and equal numpy's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support import nets, opencl, opencl_campaign, opencl_runtimes
from tests.support.nets import node, value
from toolchain.backends.mali import opencl_functions
from toolchain.models import reference, source


@dataclass(frozen=True)
class Case:
    """A convolution of bytes, or a product of matrices where there is no kernel.

    Attributes:
        zero: The byte that says zero.
        shape: Of the bytes.
        outputs: Channels.
        kernel: Height and width.
        settings: Attributes of the convolution.
        weight: What all weights are; None for random ones with both ends of int8.
        byte: What all bytes are; None for random ones with both ends.
        kind: Type of the bytes.
    """

    zero: int
    shape: tuple[int, ...]
    outputs: int
    kernel: tuple[int, int] | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    weight: int | None = None
    byte: int | None = None
    kind: str = "uint8"


PADDED, STEPS = ("pads", [1, 1, 1, 1]), ("strides", [2, 2])
UNEVEN, DILATED = ("pads", [1, 0, 2, 3]), ("dilations", [2, 1])
CASES = {
    "first-lowest-zero": Case(0, (1, 3, 9, 9), 8, (3, 3), (PADDED, STEPS)),
    "one-channel-highest-zero": Case(255, (1, 1, 5, 7), 1, (3, 3), (PADDED,)),
    "five-to-three-in-a-batch": Case(-128, (2, 5, 8, 6), 3, (3, 2), (UNEVEN, DILATED), kind="int8"),
    "whole-vectors": Case(127, (2, 16, 6, 6), 12, (1, 1), kind="int8"),
    "symmetric": Case(0, (1, 20, 7, 7), 10, (3, 3), (PADDED,), kind="int8"),
    "all-lowest": Case(0, (1, 6, 4, 4), 6, (3, 3), (PADDED,), -128, -128, "int8"),
    "dense-in-a-batch": Case(77, (3, 37), 10),
    "dense-up-to-the-end-of-int32": Case(0, (1, 65793), 4, weight=-128, byte=255),
}


MOVED = ("int8", "uint8")


def _bytes(random: np.random.Generator, shape: tuple[int, ...], kind: str, value: int | None) -> NDArray[Any]:
    """Return bytes with both ends of their type among them, or one byte everywhere."""
    limits = np.iinfo(kind)
    if value is not None:
        return np.full(shape, value, kind)
    data = random.integers(limits.min, limits.max + 1, shape).astype(kind)
    data.flat[:2] = limits.min, limits.max
    data.flat[-2:] = limits.max, limits.min
    return data


def _sums(case: Case, data: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.int64]:
    """Return what a layer sums up, in numbers of 64 bits."""
    above, widened = data.astype(np.int64) - case.zero, weights.astype(np.int64)
    if case.kernel is None:
        return above @ widened
    settings = {"pads": [0] * 4, "strides": [1, 1], "dilations": [1, 1], **dict(case.settings)}
    top, left, bottom, right = settings["pads"]
    (down, across), (far, wide) = settings["strides"], settings["dilations"]
    above = np.pad(above, ((0, 0), (0, 0), (top, bottom), (left, right)))
    window = [(size - 1) * step + 1 for size, step in zip(case.kernel, (far, wide), strict=True)]
    views = np.lib.stride_tricks.sliding_window_view(above, window, axis=(2, 3))
    sums: NDArray[np.int64] = np.einsum("nchwij,ocij->nohw", views[:, :, ::down, ::across, ::far, ::wide], widened)
    return sums


def _compiled(case: Case, folder: Any) -> None:
    """Compile a case and write numpy's results beside it."""
    random = np.random.default_rng(0)
    conv = case.kernel is not None
    size = (case.outputs, case.shape[1], *case.kernel) if case.kernel else (case.shape[1], case.outputs)
    data, weights = _bytes(random, case.shape, case.kind, case.byte), _bytes(random, size, "int8", case.weight)
    scales = np.float32(2.0) ** random.integers(-6, 6, case.outputs).astype(np.float32)
    sums = _sums(case, data, weights)
    assert abs(sums).max() < 2**31
    scaled = sums.astype(np.float32) * (0.5 * scales.reshape(-1, 1, 1) if conv else 0.5 * scales)
    layer = node("Conv", ["a", "b"], ["y"], **dict(case.settings)) if conv else node("MatMul", ["a", "b"], ["y"])
    nodes = [
        node("DequantizeLinear", ["x", "half", "zero"], ["a"]),
        node("DequantizeLinear", ["w", "scales", "zeros"], ["b"], axis=0 if conv else 1),
        layer,
    ]
    constants = {
        "half": np.array(0.5, np.float32),
        "zero": np.array(case.zero, case.kind),
        "w": weights,
        "scales": scales,
        "zeros": np.zeros(case.outputs, np.int8),
    }
    proto = nets.model(nodes, [value("x", case.shape, case.kind)], [value("y", scaled.shape)], constants)
    kernels = opencl_campaign.compiled(proto, folder, half=False)
    assert any("int8" in str(variable.name_hint) for variable in kernels.get_global_vars())
    np.savez(folder / "given.npz", data)
    np.savez(folder / "wanted.npz", scaled)


def _moved(kind: str, folder: Any) -> None:
    """Compile bytes that kernels of other kinds gather: transposed and pooled, with steps."""
    nodes = [
        node("Transpose", ["x"], ["y"], perm=[0, 2, 3, 1]),
        node("MaxPool", ["x"], ["z"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    shape, (lowest, greatest) = (2, 8, 6, 8), (np.iinfo(kind).min, np.iinfo(kind).max)
    results = [value("y", (2, 6, 8, 8), kind), value("z", (2, 8, 3, 4), kind)]
    opencl_campaign.compiled(nets.model(nodes, [value("x", shape, kind)], results), folder, half=False)
    data = np.random.default_rng(0).integers(lowest, greatest + 1, shape).astype(kind)
    np.savez(folder / "given.npz", data)
    np.savez(folder / "wanted.npz", data.transpose(0, 2, 3, 1), data.reshape(2, 8, 3, 2, 4, 2).max(axis=(3, 5)))


class Chain:
    """Random layers one after the other, with bytes between them; all scales are powers of two, so that sums are exact.

    Attributes:
        nodes: Of the network.
        held: Its constants.
        results: Its outputs: the bytes of each layer, or those of the last one alone.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.held: dict[str, NDArray[Any]] = {}
        self.results: list[Any] = []
        self.kind = self._one("int8", "uint8")
        self.shape = (self._one(1, 2), self._one(4, 5, 8), self._one(7, 9), 8)
        self._all, channels = self._one(1, 0), self.shape[1]
        last = self._layer("x", self._zero("x_zero"), channels, self._one(8, 6, 12), self._one(1, 3), 1)
        for _ in range(2):
            channels = len(self.held[f"{last}_w"])
            last = self._layer(last, f"{last}_zero", channels, channels, 3, channels)
            last = self._layer(last, f"{last}_zero", channels, self._one(8, 7, 4), self._one(1, 3), 1)
        self._result(last)

    def _one(self, *values: Any) -> Any:
        return values[self._random.integers(len(values))]

    def _zero(self, name: str) -> str:
        limits = np.iinfo(self.kind)
        self.held[name] = np.array(self._random.integers(limits.min, limits.max + 1), self.kind)
        return name

    def _result(self, name: str) -> None:
        self.results.append(value(name, None, self.kind))

    def _layer(self, data: str, zero: str, inputs: int, outputs: int, size: int, groups: int) -> str:
        """Add a layer of bytes, what follows it, and what makes bytes of it; return their name."""
        name, random = f"y{len(self.nodes)}", self._random
        strides, dilation = [self._one(1, 1, 2)] * 2, self._one(1, 1, 2) if size > 1 else 1
        pads = [dilation * (size // 2)] * 4
        pads[2] += self._one(0, 0, 1)
        self.held[f"{name}_w"] = random.integers(-128, 128, (outputs, inputs // groups, size, size)).astype(np.int8)
        self.held[f"{name}_scales"] = np.float32(2.0) ** random.integers(-12, -9, outputs).astype(np.float32)
        self.held[f"{name}_none"] = np.zeros(outputs, np.int8)
        self.held[f"{name}_bias"] = np.float32(random.integers(-64, 65, outputs) / 32)
        self.held["step"], self.held["low"], self.held["high"] = map(np.float32, (0.0625, -1.5, 3.25))
        self.nodes += [
            node("DequantizeLinear", [data, "step", zero], [f"{name}_a"]),
            node("DequantizeLinear", [f"{name}_w", f"{name}_scales", f"{name}_none"], [f"{name}_b"], axis=0),
        ]
        if groups > 1 and self._one(1, 0):  # of floats, as `toolchain quantize` leaves them
            self.held[f"{name}_w"] = np.float32(self.held[f"{name}_w"] / 4096)
            self.nodes[-1] = node("Identity", [f"{name}_w"], [f"{name}_b"])
        settings = {"pads": pads, "strides": strides, "dilations": [dilation] * 2, "group": groups}
        biased = self._one(1, 0)
        names_read = [f"{name}_a", f"{name}_b", *([f"{name}_bias"] if biased else [])]
        self.nodes.append(node("Conv", names_read, [f"{name}_c"], **settings))
        activation = self._one("Relu", "Clip", "")
        if activation:
            ends = ["low", "high"] if activation == "Clip" else []
            self.nodes.append(node(activation, [f"{name}_c", *ends], [f"{name}_d"]))
        zero = self._zero(f"{name}_zero")
        self.nodes.append(node("QuantizeLinear", [f"{name}_{'d' if activation else 'c'}", "step", zero], [name]))
        if self._all:
            self._result(name)
        return name


class Joints(Chain):
    """Random layers with what joins them: a layer's input is added to it, two are added up, or side by side."""

    def __init__(self, seed: int) -> None:  # not Chain's, which has layers in a row
        self._random = np.random.default_rng(seed)
        self.nodes, self.held, self.results = [], {}, []
        self.kind = self._one("int8", "uint8")
        self._all, channels, width = 0, self._one(4, 5, 8), self._one(4, 6, 8)
        self.shape = (self._one(1, 2), channels, self._one(7, 9), 8)
        self.held["step"], self.held["low"], self.held["high"] = map(np.float32, (0.0625, -1.5, 3.25))
        self.held["half"] = np.float32(0.03125)
        last = self._same("x", self._zero("x_zero"), channels, width)
        second = self._same(last, f"{last}_zero", width, width, last)
        third = self._same(second, f"{second}_zero", width, width)
        joins = [self._beside, self._layers, lambda first, second, _channels: self._summed(first, second)]
        for join in self._random.permutation(joins):
            third = join(second, third, width)
        self._result(self._same(third, f"{third}_zero", width, 5))

    def _numbers(self, data: str) -> str:
        """Make numbers of bytes once more, for a reader of their own."""
        name = f"n{len(self.nodes)}"
        self.nodes.append(node("DequantizeLinear", [data, self._one("step", "half"), f"{data}_zero"], [name]))
        return name

    def _bytes_of(self, data: str) -> str:
        """Limit numbers or not, and make bytes of them."""
        name, activation = f"q{len(self.nodes)}", self._one("Relu", "Clip", "")
        if activation:
            ends = ["low", "high"] if activation == "Clip" else []
            self.nodes.append(node(activation, [data, *ends], [f"{name}_d"]))
        self.nodes.append(
            node("QuantizeLinear", [f"{name}_d" if activation else data, "step", self._zero(f"{name}_zero")], [name])
        )
        return name

    def _conv(self, data: str, zero: str, inputs: int, outputs: int) -> str:
        """Add a layer of bytes that keeps height and width; return the name of its numbers."""
        name, random = f"c{len(self.nodes)}", self._random
        self.held[f"{name}_w"] = random.integers(-128, 128, (outputs, inputs, 3, 3)).astype(np.int8)
        self.held[f"{name}_scales"] = np.float32(2.0) ** random.integers(-12, -9, outputs).astype(np.float32)
        self.held[f"{name}_none"] = np.zeros(outputs, np.int8)
        self.nodes += [
            node("DequantizeLinear", [data, "step", zero], [f"{name}_a"]),
            node("DequantizeLinear", [f"{name}_w", f"{name}_scales", f"{name}_none"], [f"{name}_b"], axis=0),
            node("Conv", [f"{name}_a", f"{name}_b"], [name], pads=[1, 1, 1, 1]),
        ]
        return name

    def _same(self, data: str, zero: str, inputs: int, outputs: int, skipped: str = "") -> str:
        """Add a layer, to which what was before may be added; return the name of its bytes."""
        last = self._conv(data, zero, inputs, outputs)
        return self._bytes_of(self._sum(last, self._numbers(skipped)) if skipped else last)

    def _sum(self, first: str, second: str) -> str:
        name = f"s{len(self.nodes)}"
        self.nodes.append(node("Add", self._one([first, second], [second, first]), [name]))
        return name

    def _layers(self, first: str, second: str, channels: int) -> str:
        """Add up two layers, neither of which makes bytes."""
        layers = [self._conv(prefix, f"{prefix}_zero", channels, channels) for prefix in (first, second)]
        return self._bytes_of(self._sum(*layers))

    def _summed(self, first: str, second: str) -> str:
        return self._bytes_of(self._sum(self._numbers(first), self._numbers(second)))

    def _beside(self, first: str, second: str, channels: int) -> str:
        """Put two side by side, take the greatest of each window, and go on with as many channels as before."""
        name = f"b{len(self.nodes)}"
        self.nodes.append(node("Concat", [self._numbers(first), self._numbers(second)], [name], axis=1))
        pooled = self._one(
            "", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, {"kernel_shape": [2, 3], "pads": [0, 1, 1, 1]}
        )
        if pooled:
            self.nodes.append(node("MaxPool", [name], [f"{name}_m"], **pooled))
        data = self._bytes_of(f"{name}_m" if pooled else name)
        return self._same(data, f"{data}_zero", 2 * channels, channels)


CHAINS = int(os.environ.get("TOOLCHAIN_OPENCL_CHAINS", "2"))


def _chained(seed: int, folder: Any, kind: type[Chain] = Chain) -> None:
    """Compile a chain, and write beside it what ONNX Runtime makes of it to the letter."""
    network = kind(seed)
    results = {result.name: result for result in network.results}  # the last one is there twice, if all are
    proto = nets.model(network.nodes, [value("x", network.shape, network.kind)], list(results.values()), network.held)
    kernels = opencl_campaign.compiled(proto, folder, half=False)
    names = [str(variable.name_hint) for variable in kernels.get_global_vars()]
    assert not any("quantize" in name.replace("requantize", "") for name in names)  # all in the kernels of layers
    random = np.random.default_rng(seed)
    limits = np.iinfo(network.kind)
    data = random.integers(limits.min, limits.max + 1, network.shape).astype(network.kind)
    np.savez(folder / "given.npz", data)
    loaded = source.load(nets.save(proto, folder))
    np.savez(folder / "wanted.npz", *reference.run(loaded, {"x": data}, unoptimized=True).values())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    for name, case in CASES.items():
        _compiled(case, folder / name)
    for kind in MOVED:
        _moved(kind, folder / kind)
    for seed in range(CHAINS):
        _chained(seed, folder / f"chain-{seed}")
        _chained(seed, folder / f"joints-{seed}", Joints)
    names = (f"{kind}-{seed}" for kind in ("chain", "joints") for seed in range(CHAINS))
    return [folder / name for name in (*CASES, *MOVED, *names)]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    return opencl.plugin(tmp_path_factory.mktemp("cache"))


def run(name, folders, plugin):
    """Run compiled networks on one of the OpenCLs."""
    opencl_runtimes.require_one(name)
    variables = opencl_runtimes.environment(name) | plugin
    return opencl_campaign.run(folders, variables, 300, opencl_runtimes.command(name))


@pytest.mark.parametrize("name", [pytest.param(opencl_runtimes.POCL, marks=pytest.mark.nightly), opencl_runtimes.INTEL])
def test_sums_are_numpys_to_the_bit(name, folders, plugin):
    completed = run(name, folders, plugin)
    assert [(result.name, result.difference, result.fault) for result in completed] == [
        (folder.name, 0.0, "") for folder in folders
    ]


@pytest.fixture(scope="module")
def instructed(tmp_path_factory):
    """Return networks whose kernels no device compiles that would multiply bytes one by one."""
    folder = tmp_path_factory.mktemp("instructed")
    refused = opencl_functions._DOT_PREAMBLE.replace("#else\n", "#else\n#error no dot products of bytes\n")
    assert refused != opencl_functions._DOT_PREAMBLE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opencl_functions, "_DOT_PREAMBLE", refused)
        for name, case in CASES.items():
            _compiled(case, folder / name)
        for seed in range(CHAINS):
            _chained(seed, folder / f"chain-{seed}")
    return sorted(folder.iterdir())


@pytest.mark.nightly
def test_a_device_that_has_the_instructions_uses_them_and_sums_are_the_same(instructed, plugin):
    completed = run(opencl_runtimes.RUSTICL, instructed, plugin)
    assert [(result.name, result.difference, result.fault) for result in completed] == [
        (prefix.name, 0.0, "") for prefix in instructed
    ]


@pytest.mark.nightly
def test_one_that_lacks_them_would_have_refused(instructed, plugin):
    (result,) = run(opencl_runtimes.POCL, instructed[-1:], plugin)
    assert "no dot products of bytes" in result.fault
