"""What kernels cost: their machine code's statistics, and the cycles of one work-item with every turn of its loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolchain.backends.mali import images
from toolchain.backends.mali.cost import compiler, sources
from toolchain.backends.mali.cost.compiler import DEFAULT_OPTIONS, Gpu, cached_outcomes
from toolchain.backends.mali.cost.root import Root
from toolchain.backends.mali.cost.shaderdb import LOAD_STORE, Outcome, Statistics
from toolchain.backends.mali.cost.sources import Kernel, Loop

CYCLES = "cycles"
_SHOWN = ["instructions", "cycles", "registers", "threads", "loops", "spills", "fills", "work_group", "local_bytes"]


@dataclass(frozen=True)
class KernelCost:
    """What one kernel costs on one GPU, as Mesa's compiler says; nothing of it is measured.

    Attributes:
        name: The kernel.
        gpu: The GPU's short name.
        statistics: Of its machine code, where a loop's body counts once; None if it was not compiled.
        item: Cycles of one work-item by unit, all turns of loops counted, spills among them.
        open_loops: Loops whose number of turns is unknown: they count once in `item` too.
        fault: Why there are no statistics.
        answered: Whether the compiler finished for the kernel and for the sources that its loops are counted by; if
            not, another run may give a result, and `fault` says why there is none now.
    """

    name: str
    gpu: str
    statistics: Statistics | None
    item: Mapping[str, float] = field(default_factory=dict)
    open_loops: int = 0
    fault: str = ""
    answered: bool = True

    @property
    def by_unit(self) -> bool:
        """Whether the compiler reports cycles by unit, which that for Midgard does not."""
        return LOAD_STORE in self.item

    @property
    def load_store(self) -> float:
        """Cycles of load and store of a work-item."""
        return self.item.get(LOAD_STORE, 0.0)

    @property
    def spills(self) -> int:
        """Values that the machine code writes to memory for lack of registers."""
        return self.statistics.spills if self.statistics else 0

    def document(self) -> dict[str, Any]:
        statistics = self.statistics
        if statistics is None:
            return {"name": self.name, "gpu": self.gpu, "fault": self.fault}
        return {
            "name": self.name,
            "gpu": self.gpu,
            **{name: getattr(statistics, name) for name in _SHOWN},
            "units": dict(statistics.units),
            "item": {name: round(value, 4) for name, value in self.item.items()},
            "open_loops": self.open_loops,
        }


@dataclass(frozen=True)
class Compiler:
    """Mesa's compiler for one GPU, behind a cache.

    Attributes:
        root: The unpacked compiler.
        gpu: The GPU.
        options: Its options beside those of the runtime on boards, such as `-cl-fast-relaxed-math`.
        tell: Gets lines about the progress, if there is much to compile.
    """

    root: Root
    gpu: Gpu
    options: tuple[str, ...] = ()
    tell: Callable[[str], None] = field(default=lambda _line: None, compare=False)

    @property
    def words(self) -> tuple[str, ...]:
        return (*DEFAULT_OPTIONS, *self.options)

    @property
    def identity(self) -> str:
        """What tells it apart from others, its version first."""
        return f"Mesa {self.root.version}, {self.root.key[:8]}, {' '.join(self.words)}"

    @property
    def stamp(self) -> str:
        """What every figure of it is marked with."""
        return f"{self.root.stamp} with {' '.join(self.words)}"

    def outcomes(self, texts: Sequence[str]) -> list[Outcome]:
        """Compile sources of one kernel each, but for those that are known.

        What may be read as an image is, where the runtime would do so on this GPU.
        """
        imaged = f"#define {images.SWITCH}\n"
        return cached_outcomes(
            self.root.key,
            self.gpu,
            self.words,
            [imaged + text if self.gpu.images and images.SWITCH in text else text for text in texts],
            lambda missing, keep: compiler.compile_kernels(
                self.root, self.gpu, missing, self.words, tell=self.tell, keep=keep
            ),
        )


def costs(mesa: Compiler, kernels: Sequence[Kernel], *, spilling: bool = True) -> tuple[KernelCost, ...]:
    """Return what kernels cost.

    Args:
        spilling: Whether to count the turns of loops in kernels that spill, too. That is most of the work; without it,
            each loop of such a kernel counts once.

    Raises:
        BuildError: The compiler does not work here. A kernel that it refuses has a cost with a fault instead.
    """
    plain = mesa.outcomes([kernel.source for kernel in kernels])
    turning = [
        _turning(kernel, outcome) if spilling or not (outcome.statistics and outcome.statistics.spills) else ()
        for kernel, outcome in zip(kernels, plain, strict=True)
    ]
    pairs = [
        (number, loop, sources.double_body(kernels[number].source, loop))
        for number, loops in enumerate(turning)
        for loop in loops
    ]
    # All loops of all kernels in one request, so that they compile in parallel.
    twice = mesa.outcomes([source for _, _, source in pairs])
    steps: list[dict[Loop, Mapping[str, float] | None]] = [{} for _ in kernels]
    silent = {number: outcome.fault for number, outcome in enumerate(plain) if not outcome.answered}
    for (number, loop, _), outcome in zip(pairs, twice, strict=True):
        steps[number][loop] = _step(plain[number].statistics, outcome.statistics)
        silent |= {} if outcome.answered else {number: outcome.fault}
    results = [_cost(kernels[number], mesa.gpu, plain[number], steps[number]) for number in range(len(kernels))]
    return tuple(
        replace(cost, fault=silent[number], answered=False) if number in silent else cost
        for number, cost in enumerate(results)
    )


def _turning(kernel: Kernel, outcome: Outcome) -> tuple[Loop, ...]:
    """Name the loops of a kernel's machine code."""
    loops = sources.loops(kernel.source)
    remaining = outcome.statistics.loops if outcome.statistics else 0
    return sources.remaining_loops(loops.bounded, max(0, remaining - loops.unbounded))


def _units(statistics: Statistics) -> dict[str, float]:
    return {**statistics.units, CYCLES: statistics.cycles}


def _step(once: Statistics | None, twice: Statistics | None) -> Mapping[str, float] | None:
    """Return what one more turn of a loop costs: never more than the whole kernel, whose code has one.

    Two bodies in a row may lack registers where one does not: what only they spill is not part of a turn. The cost is
    unknown if the kernel with the body twice does not compile, as with a label in it.
    """
    if once is None or twice is None:
        return None
    before, after = _units(once), _units(twice)
    if not once.spills:  # each spill and fill of the other is one access
        accesses = max(0.0, twice.unit(LOAD_STORE) - twice.spills - twice.fills)
        units = {**twice.units, LOAD_STORE: accesses}
        after = {**units, CYCLES: max(units.values())}
    return {name: min(max(after.get(name, value) - value, 0.0), value) for name, value in before.items()}


def _cost(
    kernel: Kernel, gpu: Gpu, outcome: Outcome, per_turn: Mapping[Loop, Mapping[str, float] | None]
) -> KernelCost:
    if outcome.statistics is None:
        return KernelCost(kernel.name, gpu.name, None, fault=outcome.fault)
    steps = {loop: step for loop, step in per_turn.items() if step is not None}
    total = _units(outcome.statistics)
    for loop, step in steps.items():
        turns = sources.total_trips(loop, list(steps)) - 1
        # A turn of a loop contains one turn of each loop directly within it, which is counted there.
        within = [other for other in steps if loop.holds(other)]
        inner = [other for other in within if not any(middle.holds(other) for middle in within if middle != other)]
        for name, value in step.items():
            cycles = max(0.0, value - sum(steps[other].get(name, 0.0) for other in inner))
            total[name] += turns * cycles
    unknown = sources.loops(kernel.source).unbounded + len(per_turn) - len(steps)
    return KernelCost(kernel.name, gpu.name, outcome.statistics, total, unknown)
