"""Turn a network on floats into one whose convolutions compute with int8, in ONNX's own QDQ form.

Scales are powers of two, one for each tensor, or for each channel of a weight: a convolution is then a sum of whole
numbers and a shift, and needs no multiplier. Weights have the zero point 0, and so have activations unless another
one gains a bit: its share of the sums is the same for all pixels, and a part of the bias. Post-training quantization as
in Krishnamoorthi 2018 (arXiv:1806.08342), with biases corrected for the rounding of the weights (Nagel et al. 2019,
arXiv:1906.04721). The result is compared with the network on floats: signal over noise, and how often the first class
differs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from toolchain import files
from toolchain.errors import InputError
from toolchain.models.source import SourceModel, as_declared
from toolchain.quantize import graph as quantize_graph
from toolchain.quantize import plan as quantize_plan
from toolchain.quantize import scales, strip, write
from toolchain.quantize.calibrate import Probe, calibrate, corrected_bias, own_bias
from toolchain.quantize.graph import Floating, Graph
from toolchain.quantize.plan import Plan, plan
from toolchain.quantize.scales import FILE, METHODS, Exponents, Powers, powers, settled
from toolchain.quantize.write import Written
from toolchain.tensors import Tensors

__all__ = ["METHODS", "LayerReport", "Quantized", "Settings", "has_ranges", "is_quantized", "quantizable", "quantized"]

_FEW = 8


@dataclass(frozen=True)
class Settings:
    """How a network is quantized.

    Attributes:
        method: How activations get their scales: one of `METHODS`, or `FILE`. By default the ranges of a quantized
            file are kept, and others get the least squared error.
        exclude: Names of convolutions that stay on floats.
        random: Whether the samples are random numbers, which the warnings mention.
    """

    method: str = ""
    exclude: tuple[str, ...] = ()
    random: bool = False


@dataclass(frozen=True)
class LayerReport:
    """One quantized convolution with its addition and activation; its scales are 2 to the power of the exponents.

    Attributes:
        name: The convolution's name.
        output: The tensor at its end.
        input_exponent: Of its input.
        input_zero: The byte that stands for 0 there.
        weight_exponents: Of its weight: the least and the greatest of its channels.
        output_exponent: Of its output.
        output_zero: The byte that stands for 0 there.
        shifts: Right shift from its sums to its output: the least and the greatest of its channels.
        residual_shift: Left shift of the residual; None without a residual.
        exact: Whether no sum lies half-way between two steps, so that every way to round gives the same.
        snr_db: Signal over noise of its output, against the float network; None where they are equal.
    """

    name: str
    output: str
    input_exponent: int
    input_zero: int
    weight_exponents: tuple[int, int]
    output_exponent: int
    output_zero: int
    shifts: tuple[int, int]
    residual_shift: int | None
    exact: bool
    snr_db: float | None


@dataclass(frozen=True)
class Quantized:
    """A quantized network, and how near it is to the one on floats.

    Attributes:
        source: The model in QDQ form, under the name of the one that it was made from.
        layers: The quantized convolutions, the one with the most noise first; none if the model was left as it was.
        left: Names of the convolutions that stay on floats.
        method: How activations got their scales.
        samples: How many samples that is based on.
        output_snr_db: Signal over noise of the results; None where they are equal, or were not compared.
        top1_agreement: Share of images for which both networks put the same class first; None without classes.
        unchanged: Whether the model was in this form already.
        refitted: Whether it was quantized in another way before; the results are then compared with those of the file.
        warnings: Reasons to doubt the figures.
    """

    source: SourceModel
    layers: tuple[LayerReport, ...] = ()
    left: tuple[str, ...] = ()
    method: str = ""
    samples: int = 0
    output_snr_db: float | None = None
    top1_agreement: float | None = None
    unchanged: bool = False
    refitted: bool = False
    warnings: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return all but the model itself, as JSON has it."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "source"}
        layers = [dataclasses.asdict(layer) for layer in self.layers]
        return fields | {"model": self.source.name, "sha256": self.source.sha256, "layers": layers}


def is_quantized(source: SourceModel) -> bool:
    """Whether a model is in QDQ form with int8 and powers of two as scales, weights about 0."""
    return strip.is_shiftable(quantize_graph.constants_as_initializers(source.proto))


def quantizable(source: SourceModel) -> tuple[str, ...]:
    """Name the convolutions that `quantized` makes int8 of, in order; it refuses a model that has none.

    Raises:
        InputError: A node computes with integers in another way.
    """
    proto = quantize_graph.floating(source).proto
    return tuple(map(quantize_graph.title, quantize_plan.quantizable(Graph(proto))))


def has_ranges(source: SourceModel) -> bool:
    """Whether a model's file is quantized in any way, and so has the ranges of its activations."""
    return strip.has_pairs(source.proto) or strip.has_qoperators(source.proto)


def quantized(
    source: SourceModel,
    samples: Sequence[Tensors],
    settings: Settings | None = None,
    say: Callable[[str], None] = lambda _text: None,
) -> Quantized:
    """Quantize a network's convolutions, and compare the result with the network on floats.

    Convolutions whose weights are not constant stay on floats. A model that is quantized with powers of two already is
    returned as it is; a model that is quantized with other scales is converted back to floats first. The samples are
    read twice, one at a time.

    Raises:
        InputError: There is nothing to quantize, no sample, an activation that is not finite, or a node that computes
            with integers in another way.
    """
    chosen = settings or Settings()
    if is_quantized(source):
        return Quantized(source, unchanged=True)
    if not len(samples):
        raise InputError(f"there are no samples to quantize {source.name} with")
    floating = quantize_graph.floating(source)
    chosen = _choose_method(chosen, floating, source.name)
    graph, refitted = Graph(floating.proto), floating.ranges is not None
    layer_plan = plan(graph, chosen.exclude, source.name)
    say(f"quantizing {len(layer_plan.layers)} convolutions of {source.name} with {len(samples)} sample(s)")
    written, exponents = _convert(graph, layer_plan, samples, chosen, floating)
    say("comparing it with the model's own results" if refitted else "comparing it with the float network")
    tensors = [layer.output for layer in layer_plan.layers]
    declared = as_declared(source) if refitted else None
    accuracy = compare(floating.proto, written, tensors, samples, declared)
    digest = files.sha256_bytes(written.proto.SerializeToString(deterministic=True))
    return Quantized(
        dataclasses.replace(source, proto=written.proto, sha256=digest),
        _reports(layer_plan, exponents, written, accuracy),
        layer_plan.left,
        chosen.method,
        len(samples),
        accuracy.output,
        accuracy.agreement,
        refitted=refitted,
        warnings=_warnings(chosen, len(samples), written.inexact),
    )


def _choose_method(settings: Settings, floating: Floating, name: str) -> Settings:
    """Return settings with a method that the model allows; by default, the ranges of its file are kept."""
    if settings.method == FILE and floating.ranges is None:
        raise InputError(
            f"{name} is a float model without quantization ranges in the file", hint=f"use one of {', '.join(METHODS)}"
        )
    default = METHODS[0] if floating.ranges is None else FILE
    return dataclasses.replace(settings, method=settings.method or default)


def _convert(
    graph: Graph, layer_plan: Plan, samples: Sequence[Tensors], chosen: Settings, floating: Floating
) -> tuple[Written, Exponents]:
    layers, keeps_ranges = layer_plan.layers, chosen.method == FILE
    calibration = calibrate(graph, layer_plan, samples, METHODS[0] if keeps_ranges else chosen.method)
    activations = calibration.grids
    if keeps_ranges:
        # The file's grids, or the finer ones of real samples, which may show that saturation pays.
        ranges = floating.ranges or {}
        file_grids = {name: interval.grid() for name, interval in ranges.items() if name in activations}
        if not chosen.random:
            for name, grid in file_grids.items():
                file_grids[name] = min(grid, activations[name], key=lambda grid: grid.exponent)
        activations = {**activations, **file_grids}
    # A residual has one unit, so the sums that it is added to need the same for all channels.
    with_residual = {layer.weight for layer in layers if layer.residual}
    names = {layer.weight for layer in layers}
    weights = {name: powers(graph.array(name), apart=name not in with_residual) for name in names}
    exponents = settled(layers, Exponents(activations, weights), scales.tied(graph, layer_plan.tensors))
    biases = {}
    for layer in layers:
        # The means of random numbers say nothing of the data that the file was calibrated with.
        if keeps_ranges and chosen.random:
            biases[layer.conv] = own_bias(graph, layer)
        else:
            biases[layer.conv] = corrected_bias(graph, layer, exponents, calibration.means[layer.input])
    return write.write(graph, layer_plan, exponents, biases), exponents


def _reports(layer_plan: Plan, exponents: Exponents, written: Written, accuracy: Accuracy) -> tuple[LayerReport, ...]:
    reports = [
        LayerReport(
            name=layer.name,
            output=layer.output,
            input_exponent=exponents.activations[layer.input].exponent,
            input_zero=exponents.activations[layer.input].zero,
            weight_exponents=_min_max(exponents.weights[layer.weight]),
            output_exponent=exponents.activations[layer.output].exponent,
            output_zero=exponents.activations[layer.output].zero,
            shifts=_min_max(exponents.shifts(layer)),
            residual_shift=exponents.residual_shift(layer),
            exact=layer.name not in written.inexact,
            snr_db=accuracy.layers[layer.output],
        )
        for layer in layer_plan.layers
    ]
    return tuple(sorted(reports, key=lambda layer: float("inf") if layer.snr_db is None else layer.snr_db))


def _min_max(numbers: Powers) -> tuple[int, int]:
    return min(numbers), max(numbers)


def sample_warning(settings: Settings, samples: int) -> str:
    """Return why figures that come from these samples may be doubted; empty if there is no reason."""
    if settings.random:
        scales = "the ranges are those of the file, but" if settings.method == FILE else "the scales fit noise, and"
        return (
            f"the samples are random numbers: {scales} the figures do not apply to real data; pass a folder of real "
            "samples with --calibration"
        )
    if samples < _FEW:
        return (
            f"{samples} sample(s) are few: the scales may be too small for other data, and the figures come from "
            f"the same samples as the scales; pass at least {_FEW}"
        )
    return ""


def _warnings(chosen: Settings, samples: int, inexact: Sequence[str]) -> tuple[str, ...]:
    warnings = [sample_warning(chosen, samples)]
    if inexact:
        warnings.append(
            f"the biases of {', '.join(inexact)} are too large for a quarter step: hardware and ONNX may round them "
            "differently, by one step"
        )
    return tuple(filter(None, warnings))


@dataclass(frozen=True)
class Accuracy:
    """Figures over all samples; a ratio of None stands for an error of exactly zero.

    Attributes:
        layers: Signal-to-noise ratio in dB by tensor.
        output: The same of all results together.
        agreement: Share of images for which both networks put the same class first; None where the results are not
            scores of classes.
    """

    layers: dict[str, float | None]
    output: float | None
    agreement: float | None


class Noise:
    """Sums up the power of a signal and of its error."""

    def __init__(self) -> None:
        self._signal = 0.0
        self._noise = 0.0

    def add(self, exact: NDArray[Any], actual: NDArray[Any]) -> None:
        """Count a tensor."""
        wide = exact.astype(np.float64)
        self._signal += float(np.square(wide).sum())
        self._noise += float(np.square(wide - actual).sum())

    @property
    def ratio(self) -> float | None:
        """Signal-to-noise ratio in dB; None where there is no noise."""
        if self._noise == 0:
            return None
        return round(10 * math.log10(max(self._signal, np.finfo(float).tiny) / self._noise), 2)


def compare(
    exact: onnx.ModelProto,
    written: Written,
    tensors: Sequence[str],
    samples: Sequence[Tensors],
    declared: onnx.ModelProto | None = None,
) -> Accuracy:
    """Run both networks on all samples.

    Args:
        exact: The network on floats.
        written: The quantized one; it runs as the standard says, which is what integer hardware computes.
        tensors: Names of the int8 tensors to compare.
        samples: Inputs.
        declared: The network that the results are compared with, if not `exact`: a quantized model as the user has
            it, which runs as the standard says.
    """
    results = [value.name for value in exact.graph.output]
    first = Probe(exact, [*tensors, *results])
    third = Probe(declared, results, optimized=False) if declared is not None else None
    second = Probe(written.proto, [*(written.rounded[name] for name in tensors), *results], optimized=False)
    layers, output = {name: Noise() for name in tensors}, Noise()
    hits: list[NDArray[np.bool_]] = []
    for sample in samples:
        expected, actual = first.run(sample), second.run(sample)
        for name, noise in layers.items():
            noise.add(expected[name], actual[written.rounded[name]])
        expected |= third.run(sample) if third is not None else {}
        for name in results:
            output.add(expected[name], actual[name])
        # Classes: one axis besides the batch is longer than 1, a score for each class of each image.
        scores = expected[results[0]]
        is_classes = scores.ndim > 1 and scores.dtype.kind == "f" and sum(size > 1 for size in scores.shape[1:]) == 1
        if len(results) == 1 and is_classes:
            hits.append(_first(scores) == _first(actual[results[0]]))
    agreement = float(np.mean(np.concatenate(hits))) if hits else None
    return Accuracy({name: noise.ratio for name, noise in layers.items()}, output.ratio, agreement)


def _first(result: NDArray[Any]) -> NDArray[np.intp]:
    return np.asarray(result.reshape(len(result), -1).argmax(axis=1))
