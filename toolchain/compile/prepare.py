"""What is done to a model before it is imported, for the sake of the board that it is compiled for."""

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
from toolchain.tensors import Tensors

if TYPE_CHECKING:
    import tvm
    from numpy.typing import NDArray

    from toolchain.models.importer import ImportedModel

_SAMPLES = 8  # to calibrate with, where a network is quantized on its way
_MEASURED = 4  # random ones that ranges are measured with, beside what is given


def is_computed_to_the_letter(source: SourceModel, backend: Backend) -> bool:
    """Whether a device computes each operator of a model as the file has it.

    ONNX Runtime's optimizations round the biases of a network with powers of two as scales, and so halves another way:
    each is one step in a layer, and many layers make much of it.
    """
    return backend.computes_int8 or quantize.is_quantized(source)


@dataclass(frozen=True)
class Suited:
    """A model as a board's accelerator can compute it.

    Attributes:
        source: The model.
        quantized: How near it is to the user's own; None where it is that.
    """

    source: SourceModel
    quantized: InInt8 | None = None


def suited(source: SourceModel, request: BuildRequest) -> Suited:
    """Return a model as the board's accelerator can compute it: quantized, where that computes int8 alone.

    A network of floats is calibrated with what it is to be run with, and with random numbers of the same seed; a user
    who has data of the model's own quantizes it beforehand. One that is quantized with scales that are no powers of two
    keeps its ranges. One that cannot be quantized stays as it is.

    Args:
        source: The model.
        request: For which board, and what it is run with. It is told when the model is quantized, or why it is not.
    """
    given, tell = request.model.given, request.tell
    if not request.backend.computes_int8 or quantize.is_quantized(source):
        return Suited(source)
    if obstacle := _obstacle(source):
        tell(f"{obstacle}: the whole model runs on the CPU")
        return Suited(source)
    if quantize.has_ranges(source):
        tell("rounding its scales to powers of two, within its ranges; `toolchain quantize` reports each layer")
    else:
        tell(f"quantizing it to int8 with {_SAMPLES} samples; `toolchain quantize` does this with your data")
    own = _own(given, source)
    samples = [*own, *_random(given, source, _SAMPLES)][:_SAMPLES]
    made = quantize.quantized(source, samples, quantize.Settings(random=not own))
    found = InInt8(
        "its own results" if made.refitted else "floats",
        made.method,
        made.samples,
        made.samples - len(own),
        made.output_snr_db,
        made.top1_agreement,
    )
    for line in found.lines():
        tell(line)
    return Suited(made.source, found)


def _own(given: inputs.Source, source: SourceModel) -> list[dict[str, NDArray[Any]]]:
    """Return the inputs that a user named; none if they are random."""
    return [inputs.make(given, source.inputs)] if given.npz or given.image else []


def _random(given: inputs.Source, source: SourceModel, count: int) -> list[dict[str, NDArray[Any]]]:
    return [inputs.random(source.inputs, given.seed + number) for number in range(count)]


def fitted(imported: ImportedModel, request: BuildRequest) -> tvm.IRModule:
    """Return a model's module as the board's backend wants it for the numbers that it is run with.

    Args:
        imported: The model of the request.
        request: For which board, and what the model is run with; it is told what was done.

    Raises:
        InputError: What it is to be run with does not fit it.
    """
    given, model = request.model.given, imported.source
    own = _own(given, model)  # what does not fit is told in any case

    def samples() -> list[Tensors]:
        every = [*own, *_random(given, model, _MEASURED)]
        return [{one.name: made[one.name] for one in model.inputs} for made in every]

    return request.backend.rescale_for_half(imported.module, samples, request.tell)


def _obstacle(source: SourceModel) -> str:
    """Say why a model cannot be quantized; empty if it can."""
    try:
        found = quantize.quantizable(source)
    except InputError as fault:
        return fault.message
    return "" if found else f"{source.name} has no convolution that can be quantized"
