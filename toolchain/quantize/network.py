"""Turn a network on floats into one whose convolutions compute with int8, in ONNX's own QDQ form.

Scales are powers of two, one for each tensor, or for each channel of a weight: a convolution is then a sum of whole
numbers and a shift, and needs no multiplier. Weights have 0 as their zero point, and so have activations where no other
gains a bit: what it adds to the sums is the same for all pixels, and a part of the bias. Post-training quantization as
in Krishnamoorthi 2018 (arXiv:1806.08342), with biases corrected for the rounding of the weights (Nagel et al. 2019,
arXiv:1906.04721).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from toolchain import files
from toolchain.errors import InputError
from toolchain.models.source import SourceModel, as_declared
from toolchain.quantize import accuracy as quantize_accuracy
from toolchain.quantize import graph as quantize_graph
from toolchain.quantize import plan as quantize_plan
from toolchain.quantize import qoperators, strip, ties, write
from toolchain.quantize.accuracy import Accuracy
from toolchain.quantize.calibrate import calibrate, corrected_bias, own_bias
from toolchain.quantize.graph import Floating, Graph
from toolchain.quantize.plan import Layer, Plan, plan
from toolchain.quantize.ranges import Grid, Range
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
        random: Whether the samples are random numbers; the warnings then say what that means.
    """

    method: str = ""
    exclude: tuple[str, ...] = ()
    random: bool = False


@dataclass(frozen=True)
class LayerReport:
    """One quantized convolution with what follows it; its scales are 2 to the power of the exponents.

    Attributes:
        name: The convolution's name.
        output: The tensor at its end.
        input_exponent: Of its input.
        input_zero: The byte that stands for 0 there.
        weight_exponents: Of its weight: the least and the greatest of its channels.
        output_exponent: Of its output.
        output_zero: The byte that stands for 0 there.
        shifts: Right shift from its sums to its output: the least and the greatest of its channels.
        residual_shift: Left shift of what is added to its sums; None where nothing is.
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
        top1_agreement: Share of images for which both networks put the same class first; None where there are none.
        unchanged: Whether the model was in this form already.
        refitted: Whether it was quantized in another way before; its results are then compared with its own.
        warnings: What to know before one believes the figures.
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
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "source"}
        layers = [dataclasses.asdict(layer) for layer in self.layers]
        return found | {"model": self.source.name, "sha256": self.source.sha256, "layers": layers}


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
    """Whether a model's file is quantized, in whatever way, and so says how far its activations go."""
    return strip.has_pairs(source.proto) or qoperators.are_in(source.proto)


def _silent(_text: str) -> None:
    """Tell nobody."""


def quantized(
    source: SourceModel,
    samples: Sequence[Tensors],
    settings: Settings | None = None,
    say: Callable[[str], None] = _silent,
) -> Quantized:
    """Quantize a network's convolutions, and compare the result with the network on floats.

    Those stay on floats whose weights are not constant. A model that is in the wanted form is
    left as it is; one that is quantized with other scales is taken back to floats first.

    Args:
        source: The model.
        samples: Inputs, each as the model takes them; they are gone through twice, one at a time.
        settings: How.
        say: Takes a line about progress.

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
    if chosen.method == FILE and floating.ranges is None:
        raise InputError(
            f"{source.name} is a float model without quantization ranges in the file",
            hint=f"use one of {', '.join(METHODS)}",
        )
    usual = METHODS[0] if floating.ranges is None else FILE
    chosen = dataclasses.replace(chosen, method=chosen.method or usual)
    graph, refitted = Graph(floating.proto), floating.ranges is not None
    wanted = plan(graph, chosen.exclude, source.name)
    say(f"quantizing {len(wanted.layers)} convolutions of {source.name} with {len(samples)} sample(s)")
    written, exponents = _converted(graph, wanted, samples, chosen, floating)
    say("comparing it with the model's own results" if refitted else "comparing it with the float network")
    tensors = [layer.output for layer in wanted.layers]
    own = as_declared(source) if refitted else None
    accuracy = quantize_accuracy.compare(floating.proto, written, tensors, samples, own)
    return Quantized(
        _replaced(source, written.proto),
        _reports(wanted, exponents, written, accuracy),
        wanted.left,
        chosen.method,
        len(samples),
        accuracy.output,
        accuracy.agreement,
        refitted=refitted,
        warnings=_warnings(chosen, len(samples), written.inexact),
    )


def _converted(
    graph: Graph, wanted: Plan, samples: Sequence[Tensors], chosen: Settings, floating: Floating
) -> tuple[Written, Exponents]:
    kept = chosen.method == FILE
    found = calibrate(graph, wanted, samples, METHODS[0] if kept else chosen.method)
    activations = _within(floating.ranges or {}, found.grids, chosen) if kept else found.grids
    added = {layer.weight for layer in wanted.layers if layer.residual}  # sums of one unit alone can be added to
    names = {layer.weight for layer in wanted.layers}
    weights = {name: powers(graph.array(name), apart=name not in added) for name in names}
    exponents = settled(wanted.layers, Exponents(activations, weights), ties.tied(graph, wanted.tensors))

    def bias(layer: Layer) -> NDArray[np.float64]:
        # What random numbers have for means says nothing of the data that the file was calibrated with.
        if kept and chosen.random:
            return own_bias(graph, layer)
        return corrected_bias(graph, layer, exponents, found.means[layer.input])

    return write.write(graph, wanted, exponents, {layer.conv: bias(layer) for layer in wanted.layers}), exponents


def _within(ranges: Mapping[str, Range], found: Mapping[str, Grid], chosen: Settings) -> dict[str, Grid]:
    """Return grids of activations within the file's ranges; real samples may say that it is better to saturate."""
    known = {name: one.grid() for name, one in ranges.items() if name in found}
    if not chosen.random:
        known = {name: min(one, found[name], key=lambda grid: grid.exponent) for name, one in known.items()}
    return {**found, **known}


def _replaced(source: SourceModel, proto: onnx.ModelProto) -> SourceModel:
    digest = files.sha256_bytes(proto.SerializeToString(deterministic=True))
    return dataclasses.replace(source, proto=proto, sha256=digest)


def _reports(wanted: Plan, exponents: Exponents, written: Written, accuracy: Accuracy) -> tuple[LayerReport, ...]:
    found = [
        LayerReport(
            name=layer.name,
            output=layer.output,
            input_exponent=exponents.activations[layer.input].exponent,
            input_zero=exponents.activations[layer.input].zero,
            weight_exponents=_ends(exponents.weights[layer.weight]),
            output_exponent=exponents.activations[layer.output].exponent,
            output_zero=exponents.activations[layer.output].zero,
            shifts=_ends(exponents.shifts(layer)),
            residual_shift=exponents.residual_shift(layer),
            exact=layer.name not in written.inexact,
            snr_db=accuracy.layers[layer.output],
        )
        for layer in wanted.layers
    ]
    return tuple(sorted(found, key=lambda layer: float("inf") if layer.snr_db is None else layer.snr_db))


def _ends(numbers: Powers) -> tuple[int, int]:
    return min(numbers), max(numbers)


def _warnings(chosen: Settings, samples: int, inexact: Sequence[str]) -> tuple[str, ...]:
    found = []
    if chosen.random and chosen.method == FILE:
        found.append(
            "the samples are random numbers: the ranges are those of the file, but the figures do not apply to real "
            "data; pass a folder of real samples with --calibration"
        )
    elif chosen.random:
        found.append(
            "the samples are random numbers: the scales fit noise, and the figures do not apply to real "
            "data; pass a folder of real samples with --calibration"
        )
    elif samples < _FEW:
        found.append(
            f"{samples} sample(s) are few: the scales may be too small for other data, and the figures come from "
            f"the same samples as the scales; pass at least {_FEW}"
        )
    if inexact:
        found.append(
            f"the biases of {', '.join(inexact)} are too large for a quarter step: hardware and ONNX may round them "
            "differently, by one step"
        )
    return tuple(found)
