"""How a network is compiled for every size of a dimension: joined from some sizes, or else row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm

from toolchain.backends.graph import time_convolutions
from toolchain.backends.graph.independence import Rows
from toolchain.compile import open_size, row_checks
from toolchain.compile.executable import Compiled
from toolchain.compile.request import BuildRequest
from toolchain.errors import InputError
from toolchain.models import importer, source
from toolchain.models.importer import ImportedModel
from toolchain.models.variants import dynamic_of
from toolchain.tensors import TensorSpec


@dataclass(frozen=True)
class Joined:
    """A network whose kernels take the size.

    Attributes:
        lowered: The network of the greatest size, as calls of kernels.
        compiled: The network of every size.
    """

    lowered: tvm.IRModule
    compiled: Compiled


@dataclass(frozen=True)
class ByRows:
    """A network that is computed row by row.

    Attributes:
        one: The network of one row.
        inputs: Where each input has the rows; None for an input that they share.
        results: Where each result has the rows.
    """

    one: ImportedModel
    inputs: Sequence[Rows | None]
    results: Sequence[Rows | None]


def prepare(
    greatest: ImportedModel, outputs: Mapping[str, Sequence[TensorSpec]], request: BuildRequest
) -> Joined | ByRows:
    """Return the network for every size of the request's range.

    Args:
        greatest: The network of the greatest size.
        outputs: The outputs of some sizes, by the names of their variants.
        request: The range and the board.

    Raises:
        InputError: Neither way is possible.
    """
    range_, backend, name = request.model.range, request.backend, greatest.source.name
    if range_ is None:
        raise ValueError("the request has no range")
    dynamic = dynamic_of(range_)
    open_size.check_outputs(dynamic, {dynamic.size(variant) or 0: own for variant, own in outputs.items()}, name)
    sizes = open_size.sizes_to_compare(range_.least, range_.greatest)
    request.progress(f"comparing the networks of {len(sizes)} sizes, from {min(sizes)} to {max(sizes)}")
    networks = [greatest, *(_imported(request, size) for size in sizes[1:])]
    # Convolutions are faster than products if their kernels are joined, so these come second.
    products = [time_convolutions.as_products(network.module) for network in networks]
    ways = [[network.module for network in networks], [module for module in products if module]]
    refusals: list[InputError] = []
    for modules in () if request.is_reduced else ways:
        if len(modules) == len(sizes):
            try:
                lowered = [backend.lower(module) for module in modules]
                return Joined(lowered[0], open_size.join(lowered, sizes, backend, name))
            except InputError as fault:
                refusals.append(fault)
    try:
        one = _imported(request, 1)
        inputs, results = row_checks.rows_of(one, networks, sizes)
    except InputError as fault:
        raise _joint(refusals, fault) from fault
    request.progress(f"computing {range_.name} row by row: there are no kernels for all sizes")
    return ByRows(one, inputs, results)


def _imported(request: BuildRequest, size: int) -> ImportedModel:
    return importer.import_model(source.load_request(request.model.of_size(size)))


def _joint(refusals: Sequence[InputError], fault: InputError) -> InputError:
    """Return an error with the reasons against all ways."""
    if not refusals:
        return fault
    last = refusals[-1]
    details = f"{last.details}\nnor row by row: {fault.message}: {fault.details}"
    return InputError(last.message, details=details, hint=last.hint)
