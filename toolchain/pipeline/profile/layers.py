"""Match the layers of two releases of one model, and compare their times."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toolchain import stats
from toolchain.backends.base import Backend
from toolchain.bundle.kernels import Kernel
from toolchain.device.profiling import Watched
from toolchain.errors import InputError
from toolchain.pipeline.profile import MACHINE
from toolchain.pipeline.profile.rows import is_kernel, node_text, nodes_in_order, operator
from toolchain.stats import Estimate

ROUNDS = 16  # of each side; an even number, since each goes first in every other one
ERRORS = 0.01  # the largest chance that the interval of any layer misses
_MAX_TITLES = 3  # of layers that are compared together

# What a layer has in common with the same one of another build: its operator, and the sizes of its data and result.
_Key = tuple[str, int, int]


@dataclass(frozen=True)
class Layer:
    """A layer of both releases, or of one; or layers between two that match, which the releases fuse differently."""

    name: str  # operator and shapes in the new release
    new: str  # its kernels in the new release; empty if it has none
    base: str
    new_ms: float  # median of the rounds
    base_ms: float
    change: Estimate | None  # how much longer the new one takes: 0.05 is 5 % more; None if only one release has it

    @property
    def more_ms(self) -> float:
        """Milliseconds that the new one takes more."""
        return self.new_ms - self.base_ms

    @property
    def is_slower(self) -> bool:
        """Whether the whole interval is above 0; False without a counterpart."""
        return self.change is not None and self.change.low > 0


@dataclass(frozen=True)
class WatchedRelease:
    """The kernels of a release's graph by name, and its watched runs, a process for each round."""

    kernels: Mapping[str, Kernel]
    rounds: Sequence[Watched]


@dataclass(frozen=True)
class _Call:
    """A kernel's call in one release, with its nanoseconds in each watched run of each round."""

    key: _Key
    title: str
    kernel: str
    rounds: tuple[tuple[int, ...], ...]


def compare_layers(model: str, new: WatchedRelease, base: WatchedRelease, backend: Backend) -> tuple[Layer, ...]:
    """Match the layers of two releases and compare their times.

    Raises:
        InputError: A release calls other kernels in each process.
    """
    new_calls, base_calls = (_calls(model, release, backend) for release in (new, base))
    matches = list(_matches([call.key for call in new_calls], [call.key for call in base_calls]))
    # All intervals hold together with the confidence that one has; that of 16 rounds cannot be any higher.
    confidence = 1 - max(ERRORS / max(1, len(matches)), 2.0 ** (1 - ROUNDS) * 1.001)
    return tuple(_layer(new_calls[ours], base_calls[theirs], confidence) for ours, theirs in matches)


def _matches(new: Sequence[_Key], base: Sequence[_Key]) -> Iterator[tuple[slice, slice]]:
    """Yield what is compared with each other: layers that are the same, and all that lies between two of them.

    Two builds that fuse differently compute the same in other kernels. Only their sums say whether it takes longer.
    """
    end = (0, 0)
    for block in difflib.SequenceMatcher(None, new, base, autojunk=False).get_matching_blocks():
        if (block.a, block.b) != end:
            between = slice(end[0], block.a), slice(end[1], block.b)
            sizes = [[key[1:] for key in keys[gap]] for keys, gap in zip((new, base), between, strict=True)]
            if sizes[0] == sizes[1] and all(any(size) for size in sizes[0]):  # the same layers, by other operators
                yield from _one_by_one(end[0], end[1], len(sizes[0]))
            else:
                yield between
        yield from _one_by_one(block.a, block.b, block.size)
        end = block.a + block.size, block.b + block.size


def _one_by_one(first: int, second: int, count: int) -> Iterator[tuple[slice, slice]]:
    for step in range(count):
        yield slice(first + step, first + step + 1), slice(second + step, second + step + 1)


def _layer(new: Sequence[_Call], base: Sequence[_Call], confidence: float) -> Layer:
    titles = [call.title for call in new or base]
    more = [f"{len(titles) - _MAX_TITLES} more"] if len(titles) > _MAX_TITLES else []
    sums: list[list[tuple[int, ...]]] = []  # what the calls of a side take together, in each run of each round
    for calls in (new, base):
        together = zip(*(call.rounds for call in calls), strict=True)
        sums.append([tuple(map(sum, zip(*samples, strict=True))) for samples in together])
    new_ms, base_ms = (median_ms(rounds) if rounds else 0.0 for rounds in sums)
    change = stats.estimate(stats.log_ratios(*sums), confidence).change() if all(sums) else None
    new_kernels, base_kernels = (", ".join(call.kernel for call in calls) for calls in (new, base))
    return Layer(" + ".join([*titles[:_MAX_TITLES], *more]), new_kernels, base_kernels, new_ms, base_ms, change)


def median_ms(rounds: Sequence[Sequence[int]]) -> float:
    """Return the median of the rounds' medians, in ms of their ns."""
    return float(np.median([np.median(samples) for samples in rounds])) / 1e6


def _calls(model: str, release: WatchedRelease, backend: Backend) -> list[_Call]:
    """Return the calls of kernels in order, and all others as one."""
    first = release.rounds[0].calls
    if any([call.name for call in watched.calls] != [call.name for call in first] for watched in release.rounds):
        raise InputError(
            f"{model} calls other kernels in each process, so its layers cannot be compared",
            hint="`toolchain gate` compares whole runs",
        )
    calls: list[_Call] = []
    nodes = iter(nodes_in_order([call for call in first if is_kernel(call)], release.kernels))
    for index, call in enumerate(first):
        if not is_kernel(call):
            continue
        kernel = release.kernels.get(call.name)
        operator_name = operator(call.name, kernel, backend)
        shapes = [shape for _, shape in kernel.buffers] if kernel and kernel.buffers else [(0,)]
        node = node_text(next(nodes))
        title = f"{len(calls) + 1} {operator_name} {_shape(shapes[0])} -> {_shape(shapes[-1])}{node and f' ({node})'}"
        key = (operator_name, math.prod(shapes[0]), math.prod(shapes[-1]))
        calls.append(_Call(key, title, call.name, tuple(watched.calls[index].own_ns for watched in release.rounds)))
    others = [index for index, call in enumerate(first) if not is_kernel(call)]
    if others:
        sums = tuple(
            tuple(map(sum, zip(*(watched.calls[index].own_ns for index in others), strict=True)))
            for watched in release.rounds
        )
        calls.append(_Call((MACHINE, 0, 0), MACHINE, "", sums))
    return calls


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"
