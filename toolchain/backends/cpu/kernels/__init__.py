"""The templates in one place: which can compute a layer, with what settings, and which is likely the fastest.

A template is a module with these members:

    NAME: str                                       what records call it
    Config                                          frozen dataclass of integers: how the work is cut
    covers(layer) -> bool                           whether it can compute a layer
    configs(layer, machine) -> [(Config, cost)]     candidates, cheapest first; cost: see `Candidate`
    variants(layer, machine) -> [(Config, cost)]    further ones for the tuner, which cost estimates cannot tell apart;
                                                    a template need not have it
    kernel(layer, machine, config) -> PrimFunc      the code
    pack(layer, machine, config, weights) -> array  weights as the kernel reads them; if the layer has weights
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from toolchain.backends.base import LAYER
from toolchain.backends.cpu.kernels import attention, dense, depthwise, direct, elementwise, pool, recurrent, winograd
from toolchain.backends.cpu.kernels.bfloat16 import attention as bfloat16_attention
from toolchain.backends.cpu.kernels.bfloat16 import conv as bfloat16
from toolchain.backends.cpu.kernels.bfloat16 import dense as bfloat16_dense
from toolchain.backends.cpu.kernels.bfloat16.emit import with_definitions as with_bfloat16_definitions
from toolchain.backends.cpu.kernels.float16 import conv as float16
from toolchain.backends.cpu.kernels.float16 import dense as float16_dense
from toolchain.backends.cpu.kernels.float16 import depthwise as float16_depthwise
from toolchain.backends.cpu.kernels.float16 import winograd as float16_winograd
from toolchain.backends.cpu.kernels.int8 import conv as int8_conv
from toolchain.backends.cpu.kernels.int8 import depthwise as int8_depthwise
from toolchain.backends.cpu.kernels.int8 import elementwise as int8_elementwise
from toolchain.backends.cpu.kernels.int8 import pool as int8_pool
from toolchain.backends.cpu.kernels.packed import dense as packed_dense
from toolchain.backends.cpu.kernels.packed import in_bytes as packed_in_bytes
from toolchain.backends.cpu.kernels.packed import weights as packed_weights
from toolchain.backends.cpu.kernels.sparse import conv as sparse
from toolchain.backends.cpu.kernels.sparse import dense as sparse_dense
from toolchain.backends.cpu.kernels.sparse.weights import example
from toolchain.backends.cpu.kernels.tiles import attention as tiles_attention
from toolchain.backends.cpu.kernels.tiles import conv as tiles
from toolchain.backends.cpu.kernels.tiles import dense as tiles_dense
from toolchain.backends.cpu.kernels.tiles import int8 as int8_tiles
from toolchain.backends.cpu.kernels.tiles import int8_stem as int8_tiles_plain
from toolchain.backends.cpu.kernels.tiles import stem as tiles_plain
from toolchain.backends.cpu.kernels.winograd import compact as winograd_compact
from toolchain.backends.cpu.kernels.winograd import row as winograd_row
from toolchain.backends.cpu.layers import (
    BFLOAT16,
    FLOAT16,
    PACKED,
    Attention,
    Conv,
    Dense,
    Layer,
    has_pairs,
    precision_of,
    task_of,
    to_json,
)
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.cpu.numerics import with_nan
from toolchain.errors import BuildError
from toolchain.models.converters.sequence.recurrence import Recurrence

_TEMPLATES: dict[str, ModuleType] = {
    module.NAME: module
    for module in (
        *(direct, depthwise, winograd, winograd_row, winograd_compact, dense, attention, recurrent, pool, elementwise),
        *(int8_conv, int8_tiles, int8_tiles_plain, int8_depthwise, int8_pool, int8_elementwise),
        *(sparse, sparse_dense),
        *(bfloat16, bfloat16_dense, bfloat16_attention),
        *(tiles, tiles_plain, tiles_dense, tiles_attention),
        *(float16, float16_depthwise, float16_winograd, float16_dense),
        *(packed_dense, packed_in_bytes),
    )
}
_BFLOAT16_TILES = frozenset(module.NAME for module in (tiles, tiles_plain, tiles_dense, tiles_attention))
_WITH_TILES = _BFLOAT16_TILES | {int8_tiles.NAME, int8_tiles_plain.NAME}
_IN_BFLOAT16 = {bfloat16.NAME, bfloat16_dense.NAME, bfloat16_attention.NAME} | _BFLOAT16_TILES
_PACKED = {packed_dense.NAME, packed_in_bytes.NAME}
_IN_FLOAT16 = {float16.NAME, float16_depthwise.NAME, float16_winograd.NAME, float16_dense.NAME}

NAMES = tuple(_TEMPLATES)
"""Names of all templates."""
LARGER_WEIGHTS = "larger_weights"
"""The name of all templates that store more numbers than the layer's weights have, where templates are left out."""
_WITH_LARGER_WEIGHTS = {winograd.NAME, winograd_row.NAME, float16_winograd.NAME}

_PACKED_BY_PLACE = {sparse.NAME, sparse_dense.NAME}
"""Templates whose packed weights hold offsets into their layer's data."""

Packing = tuple[str, int, int]
"""What decides how weights are packed: a template, the blocks of a tile, and the size of Winograd's tiles."""

_Layer = TypeVar("_Layer", bound=Layer)

# For 390 layers with up to 24 candidates each, these find kernels that take 0.1 % longer than the best of all, by three
# quarters of the builds.
_MOST = 10
_LEAST = 4
_PAIR_OF_HALVES = 0x3F003F00  # 0.5 in bfloat16, twice
_PROMISING = 1.3  # times the least cost
_MOST_TUNED = 48  # candidates and variants together
_POSSIBLE = 2.0  # times the least cost: what a tuner still tries, since estimates are of usual processors


@dataclass(frozen=True)
class Choice:
    """A template with its settings.

    Attributes:
        template: Name of the template.
        config: Its `Config`.
    """

    template: str
    config: Any

    def document(self) -> dict[str, Any]:
        """Return it as records hold it."""
        return {"template": self.template, **dataclasses.asdict(self.config)}


@dataclass(frozen=True)
class Candidate:
    """A choice and what it is estimated to cost.

    Attributes:
        choice: The choice.
        cost: Time of the busiest core, in the time that one vector multiply-add takes there at best.
    """

    choice: Choice
    cost: float


def is_covered(layer: Layer, without: frozenset[str] = frozenset()) -> bool:
    """Whether some template can compute a layer, but for those that must not be used."""
    return bool(_covering(layer, without))


def lacking(machine: Machine) -> frozenset[str]:
    """Name the templates that need a part which a processor lacks."""
    return frozenset() if machine.tiles else _WITH_TILES


def is_left_out(name: str, without: frozenset[str]) -> bool:
    """Whether a template must not be used; what leaves out one leaves out its variants.

    The variant that transforms its weights in each run is slower, and there to save memory.
    """
    if name == winograd_compact.NAME and LARGER_WEIGHTS not in without:
        return True
    if winograd.NAME in without and name in {*_WITH_LARGER_WEIGHTS, winograd_compact.NAME}:
        return True
    if packed_dense.NAME in without and name in _PACKED:
        return True
    return name in without or (LARGER_WEIGHTS in without and name in _WITH_LARGER_WEIGHTS)


def _covering(layer: Layer, without: frozenset[str]) -> list[ModuleType]:
    """List the templates that compute a layer and may be used."""
    return [
        template for name, template in _TEMPLATES.items() if not is_left_out(name, without) and _covers(name, layer)
    ]


def _covers(name: str, layer: Layer) -> bool:
    """Whether a template can compute a layer in its precision."""
    precision = precision_of(layer)
    if (precision == "bfloat16") != (name in _IN_BFLOAT16) or (precision == FLOAT16) != (name in _IN_FLOAT16):
        return False
    if precision.startswith(PACKED) != (name in _PACKED):
        return False
    return bool(_TEMPLATES[name].covers(layer))


def candidates(layer: Layer, machine: Machine, *, without: frozenset[str] = frozenset()) -> list[Candidate]:
    """List the choices for a layer, the one with the least estimated cost first.

    Args:
        machine: The processor.
        without: Names of templates that must not be used.
    """
    # Candidates depend on the task alone, so that all layers of a task share their records.
    layer = task_of(layer)
    ranked = []
    for template in _covering(layer, without):
        choices = template.configs(layer, machine)
        ranked += [Candidate(Choice(template.NAME, config), cost) for config, cost in choices]
    ranked.sort(key=lambda candidate: candidate.cost)
    if not ranked:
        return []
    # All that are nearly as cheap as the best, but at least a few and at most so many as tuning has time for.
    promising = [candidate for candidate in ranked if candidate.cost <= _PROMISING * ranked[0].cost]
    return max(promising, ranked[:_LEAST], key=len)[:_MOST]


def variants(layer: Layer, machine: Machine, *, without: frozenset[str] = frozenset()) -> list[Candidate]:
    """List what a tuner tries after the candidates, the least estimated cost first; arguments as `candidates`."""
    listed = candidates(layer, machine, without=without)
    layer = task_of(layer)
    tried, ranked = {candidate.choice for candidate in listed}, []
    for template in _covering(layer, without):
        more = template.variants(layer, machine) if hasattr(template, "variants") else []
        for config, cost in (*template.configs(layer, machine), *more):
            chosen = Choice(template.NAME, config)
            if chosen not in tried and cost <= _POSSIBLE * listed[0].cost:
                tried.add(chosen)
                ranked.append(Candidate(chosen, cost))
    return sorted(ranked, key=lambda candidate: candidate.cost)[: _MOST_TUNED - len(listed)]


def by_packing(layer: Layer, machine: Machine, *, without: frozenset[str] = frozenset()) -> dict[Packing, Candidate]:
    """Return the cheapest choice for each way to pack a layer's weights; arguments as `candidates`."""
    layer = task_of(layer)
    cheapest: dict[Packing, Candidate] = {}
    for template in _covering(layer, without):
        if template.NAME in _PACKED_BY_PLACE:
            continue
        more = template.variants(layer, machine) if hasattr(template, "variants") else []
        for config, cost in (*template.configs(layer, machine), *more):
            settings = vars(config)
            packing = (template.NAME, settings.get("blocks", 0), settings.get("tile", 0))
            if packing not in cheapest or cost < cheapest[packing].cost:
                cheapest[packing] = Candidate(Choice(template.NAME, config), cost)
    return cheapest


def default(layer: Layer, machine: Machine, *, without: frozenset[str] = frozenset()) -> Choice:
    """Return the choice that is likely the fastest.

    Raises:
        BuildError: No template covers the layer.
    """
    ranked = candidates(layer, machine, without=without)
    if not ranked:
        raise BuildError("no template computes this layer", details=to_json(layer))
    return ranked[0].choice


def in_bfloat16(layer: _Layer, machine: Machine, without: frozenset[str] = frozenset()) -> _Layer:
    """Return a layer in bfloat16, unless no template computes that, or its estimated cost in float32 is less.

    Estimates are of processors with the instruction.
    """
    if not isinstance(layer, (Conv, Dense, Attention)):
        return layer
    if isinstance(layer, (Conv, Dense)) and layer.vectors:
        return layer
    if isinstance(layer, Dense) and layer.bits:
        return layer
    rounded = replace(layer, bfloat16=True)
    ranked, floats = (candidates(precision, machine, without=without) for precision in (rounded, layer))
    return layer if not ranked or (floats and floats[0].cost <= ranked[0].cost) else rounded


def choice(document: dict[str, Any]) -> Choice | None:
    """Return the choice of a record; None if there is no such template or setting any more."""
    settings = dict(document)
    template = _TEMPLATES.get(str(settings.pop("template", "")))
    # Records of another version may name a template or a setting that no longer exists.
    if template is None or set(settings) != {field.name for field in dataclasses.fields(template.Config)}:
        return None
    return Choice(template.NAME, template.Config(**settings))


def fits(layer: Layer, chosen: Choice) -> bool:
    """Whether a choice that was made elsewhere can compute a layer."""
    return _covers(chosen.template, layer)


def kernel(layer: Layer, machine: Machine, chosen: Choice) -> tirx.PrimFunc:
    """Write the kernel of a layer; its attribute `LAYER` tells what is computed."""
    function: tirx.PrimFunc = _TEMPLATES[chosen.template].kernel(layer, machine, chosen.config)
    if has_pairs(layer) and precision_of(layer) != BFLOAT16:
        function = with_bfloat16_definitions(function, machine)
    return with_nan(function, machine).with_attr(LAYER, to_json(task_of(layer)))


def without_subnormals(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return numbers with zeros in the place of those that have no full precision, which lie below 1.2e-38.

    Training leaves such weights where it decays them. A product with one takes a hundred times longer than another on
    x86, and adds nothing to any sum that is worth computing.
    """
    # Bytes and integers have no subnormals.
    if numbers.dtype != np.float32:
        return numbers
    smallest = np.finfo(np.float32).tiny
    subnormal = (numbers < smallest) & (numbers > -smallest) & (numbers != 0)
    return np.where(subnormal, np.float32(0), numbers) if subnormal.any() else numbers


def pack(layer: Conv | Dense | Recurrence, machine: Machine, chosen: Choice, weights: NDArray[Any]) -> NDArray[Any]:
    """Return a layer's weights as its kernel reads them."""
    packed: NDArray[Any] = _TEMPLATES[chosen.template].pack(layer, machine, chosen.config, weights)
    return without_subnormals(packed)


def examples(layer: Layer, machine: Machine, chosen: Choice) -> dict[int, NDArray[Any]]:
    """Return the arguments of a kernel, by number, that cannot be random numbers when it is measured."""
    if not isinstance(layer, (Conv, Dense)):
        return {}
    if chosen.template in {sparse.NAME, sparse_dense.NAME}:
        return {1: pack(layer, machine, chosen, example(layer, machine.lanes))}
    if isinstance(layer, Dense) and chosen.template in _PACKED:
        return {1: pack(layer, machine, chosen, packed_weights.example(layer))}
    # Random integers would mostly be pairs of subnormal numbers; behind weights in float16 there are powers of two.
    weights = np.full(layer.weights_shape, 0.5, np.float32)
    given = {1: pack(layer, machine, chosen, weights)} if chosen.template in _IN_BFLOAT16 | _IN_FLOAT16 else {}
    if isinstance(layer, Conv) and layer.data.dtype == BFLOAT16:
        given[0] = np.full(layer.data.shape, _PAIR_OF_HALVES, np.int32)
    return given
