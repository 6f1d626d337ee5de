"""Changes to a model before its import, for the board that it is compiled for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolchain import quantize
from toolchain.backends.base import Backend
from toolchain.bundle.manifest import InInt8
from toolchain.compile.request import BuildRequest
from toolchain.errors import InputError
from toolchain.models import inputs
from toolchain.models.source import SourceModel
from toolchain.states import count_steps
from toolchain.tensors import Tensors

if TYPE_CHECKING:
    import tvm
    from numpy.typing import NDArray

    from toolchain.models.importer import ImportedModel

_SAMPLES = 8  # for the calibration where a build quantizes a network
_RANDOM_SAMPLES = 4  # for the ranges of half precision, beside the user's input


def is_compared_unoptimized(source: SourceModel, backend: Backend) -> bool:
    """Whether the reference must compute each operator of a model exactly as the file has it.

    ONNX Runtime's optimizations round the biases of a network with powers of two as scales, which rounds halves
    another way. Each difference is one step in a layer, and it grows over many layers.
    """
    return backend.computes_int8 or quantize.is_quantized(source)


@dataclass(frozen=True)
class Prepared:
    """A model as a board's accelerator can compute it."""

    source: SourceModel  # the model
    quantized: InInt8 | None = None  # its difference from the user's model; None if it is the user's model


def quantize_if_needed(source: SourceModel, request: BuildRequest) -> Prepared:
    """Return a model as the board's accelerator can compute it: quantized, if the accelerator computes int8 alone.

    A network of floats is calibrated with the user's input, and with random numbers of the same seed; users with a data
    set quantize the model beforehand. A network whose scales are not powers of two keeps its ranges. A network that
    cannot be quantized stays as it is. What happens is reported in a line.
    """
    input_source, progress = request.model.given, request.progress
    if not request.backend.computes_int8 or quantize.is_quantized(source):
        return Prepared(source)
    if obstacle := _obstacle(source):  # not an error: the CPU can compute such a model
        progress(f"{obstacle}: the whole model runs on the CPU")
        return Prepared(source)
    if quantize.has_ranges(source):
        progress("rounding its scales to powers of two, within its ranges; `toolchain quantize` reports each layer")
    else:
        progress(f"quantizing it to int8 with {_SAMPLES} samples; `toolchain quantize` does this with your data")
    user_samples = _user_samples(input_source, source)
    # Random numbers complete them: the ranges of one input are too narrow for the next.
    samples = [*user_samples, *_random_samples(input_source, source, _SAMPLES)][:_SAMPLES]
    network = quantize.quantized(source, samples, quantize.Settings(random=not user_samples))
    difference = InInt8(
        "its own results" if network.refitted else "floats",
        network.method,
        network.samples,
        network.samples - len(user_samples),
        network.output_snr_db,
        network.top1_agreement,
    )
    for line in difference.lines():
        progress(line)
    return Prepared(network.source, difference)


def rescale_for_half(imported: ImportedModel, request: BuildRequest) -> tvm.IRModule:
    """Return a model's module, its values rescaled if the board's number format would not hold them.

    Args:
        imported: The model of the request.
        request: The board and the inputs; a line is reported about each change.

    Raises:
        InputError: The inputs do not fit the model.
    """
    input_source, model = request.model.given, imported.source
    user_samples = _user_samples(input_source, model)  # here, since not every backend asks for samples

    def samples() -> list[Tensors]:
        arrays = [*user_samples, *_random_samples(input_source, model, _RANDOM_SAMPLES)]
        return [{spec.name: sample[spec.name] for spec in model.inputs} for sample in arrays]

    return request.backend.rescale_for_half(imported.module, samples, request.progress)


def _user_samples(input_source: inputs.Source, source: SourceModel) -> list[dict[str, NDArray[Any]]]:
    """Return the inputs of the user's files; empty without files."""
    if not input_source.options:
        return []
    if not source.states:
        return [inputs.make(input_source, source.inputs)]
    # Each step, with a random state: what a real one is, only the model itself can say.
    steps = inputs.make(input_source, source.step_inputs, is_sequence=True)
    return [
        {**inputs.random(source.inputs, input_source.seed), **{name: value[step] for name, value in steps.items()}}
        for step in range(count_steps(steps))
    ]


def _random_samples(input_source: inputs.Source, source: SourceModel, count: int) -> list[dict[str, NDArray[Any]]]:
    return [inputs.random(source.inputs, input_source.seed + number) for number in range(count)]


def _obstacle(source: SourceModel) -> str:
    """Explain why a model cannot be quantized; empty if it can."""
    try:
        convolutions = quantize.quantizable(source)
    except InputError as fault:
        return fault.message
    return "" if convolutions else f"{source.name} has no convolution that can be quantized"
