"""The `quantize` command: a float model becomes an int8 one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolchain import _options
from toolchain._commands import Console, Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolchain.model import SourceModel
    from toolchain.quantize import LayerReport, Quantized
    from toolchain.tensors import Tensors

_RANDOM = "random"
_SAMPLES = 64
_RANDOM_SAMPLES = 8


@click.command("quantize")
@click.argument("source", metavar="MODEL")
@click.option(
    "--calibration",
    required=True,
    metavar="DIR|random",
    help="Folder of samples: pictures, or .npz and .npy files; or random numbers.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help=f"Most samples to use, spread over the folder; {_SAMPLES}, or {_RANDOM_SAMPLES} random ones, by default.",
)
@click.option(
    "--method",
    type=click.Choice(["mse", "max", "percentile"]),
    default="mse",
    show_default=True,
    help="Scales of activations: least squared error, nothing cut off, or one value in 10000.",
)
@click.option("--exclude", multiple=True, metavar="NODE", help="Leave this convolution on floats.")
@click.option("-o", "--output", type=_options.PATH, help="The model to write; MODEL-int8.onnx by default.")
@click.option("--report", "report_path", type=_options.PATH, help="Write what --json prints to a file.")
@_options.shape_option
@_options.seed_option
@_options.json_flag
@click.pass_obj
def quantize_command(console: Console, /, source: str, *, as_json: bool, **options: Any) -> Result:
    """Quantize the convolutions of MODEL (a zoo name or an .onnx file) to int8, with powers of two as scales.

    The result is a standard ONNX model with QuantizeLinear and DequantizeLinear. The figures compare it with MODEL on
    the samples.
    """
    from toolchain import files, model, quantize  # noqa: PLC0415 - the help needs none of this

    loaded = model.load(source, _options.parse_shapes(options["shapes"]), options["seed"])
    output = options["output"] or Path(f"{loaded.name}-int8.onnx")
    settings = quantize.Settings(options["method"], options["exclude"], random=options["calibration"] == _RANDOM)
    with contextlib.ExitStack() as stack:
        # Opened before the work: minutes later is late to learn that a file cannot be written.
        written = stack.enter_context(files.atomic_path(output))
        report = stack.enter_context(files.atomic_path(options["report_path"])) if options["report_path"] else None
        found = quantize.quantized(loaded, _samples(loaded, options), settings, console.say)
        document = found.document() | {"file": str(output)}
        written.write_bytes(found.source.proto.SerializeToString(deterministic=True))
        if report:
            report.write_bytes(files.canonical_json(document))
    return Result(f"{_text(found)}\n{output}: sha256:{found.source.sha256}", document, as_json)


def _samples(loaded: SourceModel, options: dict[str, Any]) -> Sequence[Tensors]:
    from toolchain import _quantize_samples  # noqa: PLC0415 - as above

    if options["calibration"] == _RANDOM:
        return _quantize_samples.random(loaded.inputs, options["samples"] or _RANDOM_SAMPLES, options["seed"])
    return _quantize_samples.Folder(Path(options["calibration"]), loaded.inputs, options["samples"] or _SAMPLES)


# --- text ------------------------------------------------------------------------------------------------------


def _text(found: Quantized) -> str:
    from toolchain import report  # noqa: PLC0415 - as above

    if found.unchanged:
        return f"{found.source.name} has int8 convolutions with powers of two as scales: it is left as it is"
    heads = ("LAYER", "SNR", "INPUT", "WEIGHT", "OUTPUT", "SHIFT", "RESIDUAL")
    table = report.columns([heads, *map(_row, found.layers)])
    return "\n".join([table, "", report.columns(_summary(found)), *(f"warning: {one}" for one in found.warnings)])


def _row(layer: LayerReport) -> tuple[str, ...]:
    exponents = (layer.input_exponent, layer.weight_exponent, layer.output_exponent)
    residual = "-" if layer.residual_shift is None else f"<< {layer.residual_shift}"
    return (layer.name, _decibels(layer.snr_db), *(f"2^{one}" for one in exponents), f">> {layer.shift}", residual)


def _summary(found: Quantized) -> list[tuple[str, str]]:
    agreement = found.top1_agreement
    rows = [
        ("quantized", f"{len(found.layers)} convolutions, scales by {found.method}"),
        ("on floats", ", ".join(found.left) or "none"),
        ("samples", str(found.samples)),
        ("output", f"{_decibels(found.output_snr_db)} signal over noise, against floats"),
        ("top-1", "the result is no classes" if agreement is None else f"{agreement:.1%} the same as on floats"),
    ]
    return [*rows, ("before", "quantized with other scales, which were taken back")] if found.refitted else rows


def _decibels(ratio: float | None) -> str:
    return "exact" if ratio is None else f"{ratio:.1f} dB"
