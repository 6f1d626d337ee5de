"""The `quantize` command: convert a float model to int8."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from toolchain.cli import common, declare, helptext, values
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, record
from toolchain.cli.reports import json_kind
from toolchain.cli.samples import SampleOptions
from toolchain.errors import InputError
from toolchain.report import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from toolchain.models.inputs import Convert
    from toolchain.models.source import SourceModel
    from toolchain.pipeline.evaluate import SampleRequest
    from toolchain.pipeline.quantize import QuantizedModel
    from toolchain.quantize import Quantized
    from toolchain.steps import Steps
    from toolchain.tensors import Tensors

_REPORT = json_kind("a report of `quantize`", "layers", "top1_agreement")
_RANDOM = "random"
_SAMPLES = 64
_RANDOM_SAMPLES = 8
_NEXT = 5  # layers in int8 that a table has


@dataclass(frozen=True)
class AccuracyOptions:
    """How much int8 may lose, and on which data."""

    budget_name: ClassVar[str] = "--budget"
    remedy: ClassVar[str] = "add --for cpu, or another backend that multiplies by real scales"

    most_lost: float | None = option(
        "--budget",
        metavar="POINTS",
        type=values.Limit(min=0.0),
        subject=helptext.ACCURACY,
        help="Keep layers float until int8 loses at most POINTS of the metric, in its unit.",
    )
    least_snr_db: float | None = option(
        "--min-snr",
        metavar="DB",
        type=values.Limit(min=0.0),
        help="Keep layers float until the outputs have a signal-to-noise ratio of DB. Needs no labels.",
    )
    samples: SampleOptions = record(SampleOptions)

    @property
    def names(self) -> list[str]:
        """Names of the options that are set."""
        limits = {self.budget_name: self.most_lost, "--min-snr": self.least_snr_db}
        return [*(name for name, limit in limits.items() if limit is not None), *self.samples.names]

    def labelled(self) -> SampleRequest | None:
        """Return the metric with its data; None without.

        Raises:
            InputError: The options cannot be combined, or one of them needs another one.
        """
        if self.most_lost is not None and self.least_snr_db is not None:
            raise InputError(f"{self.budget_name} and --min-snr cannot be combined", hint="leave one of them out")
        request = self.samples.request()
        if self.most_lost is not None and not request:
            raise InputError(
                f"{self.budget_name} needs --metric and --data",
                hint="for example --metric top1 --data FOLDER; without labels, use --min-snr DB",
            )
        return request


@dataclass(frozen=True)
class QuantizeOptions:
    """The options of `quantize`."""

    processor: str | None = option(
        "--for",
        type=values.BackendName(),
        subject=helptext.QUANTIZATION,
        help="What computes the model: with real scales, or with powers of two for an accelerator that can only "
        "shift. Default: powers of two.",
    )
    calibration: str | None = option(
        "--calibration",
        metavar="DIR|random",
        help="Folder of samples: pictures, .wav, .npz or .npy files; or `random`. A quantized model needs none.",
    )
    samples: int | None = option(
        "--samples",
        type=click.IntRange(min=1),
        subject=helptext.QUANTIZATION,
        help=f"Largest number of samples to use. Default: {_SAMPLES}, or {_RANDOM_SAMPLES} random ones.",
    )
    method: str | None = option(
        "--method",
        type=click.Choice(["mse", "max", "percentile", "entropy", "file"]),
        help="How ranges of activations are chosen: least squared error (powers of two only), no clipping, clipping "
        "rare values, least loss of information (real scales only), or the ranges in the file. Default: max for real "
        "scales, file for a quantized model, mse for others.",
    )
    exclude: tuple[str, ...] = option(
        "--exclude", multiple=True, metavar="NODE", help="Do not quantize this layer; can be repeated."
    )
    output: Path | None = option(
        "-o", "--output", type=common.PATH, help="Where to write the model. Default: MODEL-int8.onnx."
    )
    report_path: Path | None = option("--report", type=common.PATH, help="Write the JSON result to a file.")
    accuracy: AccuracyOptions = record(AccuracyOptions)
    model: common.ModelOptions = record(common.ModelOptions)

    @property
    def has_real_scales(self) -> bool:
        """Whether scales are real numbers, as the processor allows."""
        from toolchain.backends import BACKENDS

        return bool(self.processor) and not BACKENDS[self.processor or ""].int8_template

    def check(self) -> None:
        """Check what the options say without the model.

        Raises:
            InputError: They cannot be combined, or one of them is for the other form of scales.
        """
        from toolchain import quantize as quantizing
        from toolchain.quantize import real_scales

        self.accuracy.labelled()
        if not self.has_real_scales and (names := self.accuracy.names):
            raise InputError(f"{names[0]} is not supported with powers of two as scales", hint=self.accuracy.remedy)
        methods = real_scales.CALIBRATORS if self.has_real_scales else [*quantizing.METHODS, "file"]
        if self.method and self.method not in methods:
            form = "real scales" if self.has_real_scales else "powers of two as scales"
            raise InputError(
                f"--method {self.method} is not supported with {form}", hint=f"use one of {', '.join(methods)}"
            )

    @property
    def is_random(self) -> bool:
        """Whether the samples are random numbers."""
        return self.calibration in {None, _RANDOM}


@declare.command({"--report": _REPORT})
@common.model_argument
@gather("options", QuantizeOptions)
@declare.json_flag
@click.pass_obj
def quantize(console: Console, /, source: str, options: QuantizeOptions, *, as_json: bool) -> Result:
    """MODEL is a predefined network or an .onnx file. The result is a standard ONNX model with QuantizeLinear and
    DequantizeLinear. The figures compare it with MODEL on the samples.
    """
    from toolchain import files
    from toolchain import quantize as quantizing
    from toolchain.models import source as model
    from toolchain.pipeline import steps

    options.check()
    request = options.model.plain_model(source)
    loaded = model.load_request(request)
    for line in loaded.guessed:
        console.say(line)
    model.check_memory(loaded)
    if options.calibration is None and not quantizing.has_ranges(loaded):
        raise InputError(
            f"{loaded.name} is not quantized, and the ranges of its activations are not known",
            hint="add --calibration FOLDER with samples, or --calibration random to try it",
        )
    output = options.output or Path(f"{loaded.name}-int8.onnx")
    check_target(Path(source), output)
    with contextlib.ExitStack() as stack:
        # Opened before the work, which takes minutes: an output that cannot be written is reported at once.
        model_file = stack.enter_context(files.atomic_path(output))
        report_file = stack.enter_context(files.atomic_path(options.report_path)) if options.report_path else None
        conversion = open_conversion(console, loaded, options, steps.steps_of(request))
        result = conversion()
        document = result.document() | {"file": str(output)}
        model_file.write_bytes(result.source.proto.SerializeToString(deterministic=True))
        if report_file:
            report_file.write_bytes(files.canonical_json(document))
    return Result([*render_text(result), f"{output}: sha256:{result.source.sha256}"], document, as_json)


def open_conversion(
    console: Console, loaded: SourceModel, options: QuantizeOptions, written: Steps | None
) -> Callable[[], Quantized | QuantizedModel]:
    """Check all that can be checked before the work; return what does the work.

    `written` are the model's steps; without them, pictures have the usual ImageNet preprocessing.

    Raises:
        InputError: The options, the samples or the data do not fit the model or each other.
    """
    from toolchain import quantize as quantizing
    from toolchain.pipeline import quantize as real
    from toolchain.pipeline import steps

    settings = quantizing.Settings(options.method or "", options.exclude, random=options.is_random)
    samples, accuracy = _samples(loaded, options, steps.of_model(written, loaded.inputs)), options.accuracy
    if not options.has_real_scales:
        real.read_all(samples, loaded.name, console.say)
        return functools.partial(quantizing.quantized, loaded, samples, settings, console.say)
    request = real.QuantizeRequest(
        loaded, samples, settings, accuracy.labelled(), accuracy.most_lost, accuracy.least_snr_db, written
    )
    return functools.partial(real.quantize, real.prepare(request, console.say), console.say)


def check_target(source: Path, output: Path) -> None:
    """Check that the output replaces at most the result of an earlier run.

    Raises:
        InputError: It would overwrite the model itself, or another file.
    """
    from toolchain import outputs
    from toolchain import quantize as quantizing
    from toolchain.models import source as model
    from toolchain.quantize import real_scales

    def foreign(path: Path) -> str:
        try:
            previous = model.load(str(path), {}, 0)
        except InputError as fault:
            return fault.message
        ours = quantizing.is_quantized(previous) or real_scales.is_ours(previous.proto)
        return "" if ours else "it is a model that `quantize` did not write"

    if output.exists() and source.exists() and output.samefile(source):
        raise InputError(f"{output} is the model itself and is not overwritten", hint="name another file with -o")
    outputs.check_file(output, "a quantized model", foreign)


def _samples(loaded: SourceModel, options: QuantizeOptions, convert: Convert | None) -> Sequence[Tensors]:
    from toolchain.quantize import samples

    if options.calibration is None or options.is_random:
        return samples.random(loaded.inputs, options.samples or _RANDOM_SAMPLES, options.model.seed)
    return samples.Folder(Path(options.calibration), loaded.inputs, options.samples or _SAMPLES, convert)


# --- text ------------------------------------------------------------------------------------------------------


def render_text(result: Quantized | QuantizedModel) -> list[str | Table]:
    from toolchain.quantize import Quantized

    return _render_powers(result) if isinstance(result, Quantized) else _render_real(result)


def _render_powers(result: Quantized) -> list[str | Table]:
    if result.unchanged:
        return [f"{result.source.name} has int8 convolutions with powers of two as scales: it is left as it is"]
    heads = ("LAYER", "SNR", "INPUT", "WEIGHT", "OUTPUT", "SHIFT", "RESIDUAL")
    rows = [
        (
            layer.name,
            _decibels(layer.snr_db),
            _grid(layer.input_exponent, layer.input_zero),
            _ends("2^", layer.weight_exponents),
            _grid(layer.output_exponent, layer.output_zero),
            _ends(">> ", layer.shifts),
            "-" if layer.residual_shift is None else f"<< {layer.residual_shift}",
        )
        for layer in result.layers
    ]
    warnings = (f"warning: {text}" for text in result.warnings)
    return [Table(rows, heads, numbers=[1]), "", Table(_summary(result)), *warnings]


def _grid(exponent: int, zero: int) -> str:
    return f"2^{exponent}, 0 at {zero}" if zero else f"2^{exponent}"


def _ends(before: str, ends: tuple[int, int]) -> str:
    low, high = ends
    return f"{before}{low}" if low == high else f"{before}{low} to {high}"


def _summary(result: Quantized) -> list[tuple[str, str]]:
    agreement = result.top1_agreement
    scales = "within the file's own ranges" if result.method == "file" else f"by {result.method}"
    compared = "the model's own" if result.refitted else "floats"
    rows = [
        ("quantized", f"{len(result.layers)} convolutions, scales {scales}"),
        ("on floats", ", ".join(result.left) or "none"),
        ("samples", str(result.samples)),
        ("output", f"{_decibels(result.output_snr_db)} signal over noise, against {compared}"),
        ("top-1", "the outputs are not classes" if agreement is None else f"{agreement:.1%} the same as {compared}"),
    ]
    return [*rows, ("before", "quantized with other scales, which were taken back")] if result.refitted else rows


def _decibels(ratio: float | None) -> str:
    return "exact" if ratio is None else f"{ratio:.1f} dB"


def _render_real(result: QuantizedModel) -> list[str | Table]:
    unit = result.unit
    others = " of the same" if result.judged == result.samples else " others"
    before = "exact" if result.before is None else f"{result.before:.4g} {unit}".rstrip()
    agreement = result.top1_agreement
    rows = [
        ("quantized", f"{len(result.layers)} layers, ranges by {result.method}"),
        ("on floats", ", ".join([*(layer.name for layer in result.kept), *result.excluded]) or "none"),
        ("samples", f"{result.samples} for the ranges, {result.judged}{others} for the figures"),
        ("output", f"{_decibels(result.output_snr_db)} signal over noise, against floats"),
        ("top-1", "the outputs are not classes" if agreement is None else f"{agreement:.1%} the same as floats"),
    ]
    if metric := result.metric:
        sides = f"{metric.float_value:.4g} in floats, {metric.int8_value:.4g} in int8"
        loss = f"{metric.loss.value:.4g} {metric.unit}".rstrip()
        interval = f"99 %: {metric.loss.low:.4g} to {metric.loss.high:.4g}"
        rows.append((metric.metric, f"{sides}: {loss} lost ({interval}), {metric.samples} samples"))
    if result.limit:
        rows.append(("limit", f"{result.limit}; with all layers in int8: {before}"))
    if correction := result.bias_correction:
        kept = "corrected" if correction.is_better else "left as they are"
        noises = f"{-correction.with_db:.2f} dB with correction, {-correction.without_db:.2f} dB without"
        rows.append(("biases", f"{kept}: {noises}, with all layers in int8"))
    return [*_layer_table(result), Table(rows), *(f"warning: {text}" for text in result.warnings)]


def _layer_table(result: QuantizedModel) -> list[str | Table]:
    """Return a table of the layers that stay float, and of the others with the most noise; empty without a choice."""
    kept = [
        (
            layer.name,
            layer.operator,
            "float",
            _gain(layer.gives_back, result.unit),
            _share(layer.noise),
            _share(layer.time_share),
        )
        for layer in result.kept
    ]
    noises = result.noises
    others = sorted((layer for layer in result.layers if layer.name in noises), key=lambda layer: -noises[layer.name])
    rest = [(layer.name, layer.operator, "int8", "-", _share(noises[layer.name]), "-") for layer in others[:_NEXT]]
    heads = ("LAYER", "OPERATOR", "COMPUTED IN", "GIVES BACK", "NOISE", "TIME")
    return [Table([*kept, *rest], heads, numbers=[4, 5]), ""] if kept else []


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _gain(gain: float | None, unit: str) -> str:
    return "not measured" if gain is None else f"{gain:.3g} {unit}".rstrip()
