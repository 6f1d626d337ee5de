"""The `quantize` command: convert a float model to int8."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, declare
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, record
from toolchain.cli.reports import json_kind
from toolchain.errors import InputError
from toolchain.report import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolchain.models.source import SourceModel
    from toolchain.quantize import Quantized
    from toolchain.tensors import Tensors

_REPORT = json_kind("a report of `quantize`", "layers", "top1_agreement")
_RANDOM = "random"
_SAMPLES = 64
_RANDOM_SAMPLES = 8


@dataclass(frozen=True)
class QuantizeOptions:
    """The options of `quantize`."""

    calibration: str | None = option(
        "--calibration",
        metavar="DIR|random",
        help="Folder of samples: pictures, .npz or .npy files; or `random`. A quantized model needs none.",
    )
    samples: int | None = option(
        "--samples",
        type=click.IntRange(min=1),
        help=f"Largest number of samples to use. Default: {_SAMPLES}, or {_RANDOM_SAMPLES} random ones.",
    )
    method: str | None = option(
        "--method",
        type=click.Choice(["mse", "max", "percentile", "file"]),
        help="How scales of activations are chosen: least squared error, no clipping, clipping one value in 10000, or "
        "the ranges in the file. Default: file for a quantized model, mse for others.",
    )
    exclude: tuple[str, ...] = option(
        "--exclude", multiple=True, metavar="NODE", help="Do not quantize this convolution; can be repeated."
    )
    output: Path | None = option(
        "-o", "--output", type=common.PATH, help="Where to write the model. Default: MODEL-int8.onnx."
    )
    report_path: Path | None = option("--report", type=common.PATH, help="Write the JSON result to a file.")
    model: common.ModelOptions = record(common.ModelOptions)

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
    """MODEL is a predefined network or an .onnx file. The scales are powers of two. The result is a standard ONNX model
    with QuantizeLinear and DequantizeLinear. The figures compare it with MODEL on the samples.
    """
    from toolchain import files
    from toolchain import quantize as quantizing
    from toolchain.models import source as model

    loaded = model.load_request(options.model.model(source))
    for line in loaded.guessed:
        console.say(line)
    model.check_memory(loaded)
    if options.calibration is None and not quantizing.has_ranges(loaded):
        raise InputError(
            f"{loaded.name} is not quantized, and the ranges of its activations are not known",
            hint="add --calibration FOLDER with samples, or --calibration random to try it",
        )
    output = options.output or Path(f"{loaded.name}-int8.onnx")
    _check_target(Path(source), output)
    settings = quantizing.Settings(options.method or "", options.exclude, random=options.is_random)
    with contextlib.ExitStack() as stack:
        # Opened before the work, which takes minutes: an output that cannot be written is reported at once.
        model_file = stack.enter_context(files.atomic_path(output))
        report_file = stack.enter_context(files.atomic_path(options.report_path)) if options.report_path else None
        result = quantizing.quantized(loaded, _samples(loaded, options), settings, console.say)
        document = result.document() | {"file": str(output)}
        model_file.write_bytes(result.source.proto.SerializeToString(deterministic=True))
        if report_file:
            report_file.write_bytes(files.canonical_json(document))
    return Result([*_render_text(result), f"{output}: sha256:{result.source.sha256}"], document, as_json)


def _check_target(source: Path, output: Path) -> None:
    """Check that the output replaces at most the result of an earlier run.

    Raises:
        InputError: It would overwrite the model itself, or another file.
    """
    from toolchain import outputs
    from toolchain import quantize as quantizing
    from toolchain.models import source as model

    def foreign(path: Path) -> str:
        try:
            quantized = quantizing.is_quantized(model.load(str(path), {}, 0))
        except InputError as fault:
            return fault.message
        return "" if quantized else "it is a model that `quantize` did not write"

    if output.exists() and source.exists() and output.samefile(source):
        raise InputError(f"{output} is the model itself and is not overwritten", hint="name another file with -o")
    outputs.check_file(output, "a quantized model", foreign)


def _samples(loaded: SourceModel, options: QuantizeOptions) -> Sequence[Tensors]:
    from toolchain.quantize import samples

    if options.calibration is None or options.is_random:
        return samples.random(loaded.inputs, options.samples or _RANDOM_SAMPLES, options.model.seed)
    return samples.Folder(Path(options.calibration), loaded.inputs, options.samples or _SAMPLES)


# --- text ------------------------------------------------------------------------------------------------------


def _render_text(result: Quantized) -> list[str | Table]:
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
