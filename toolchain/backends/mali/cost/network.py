"""What a whole network costs: the launches of its kernels, what each of their work-items costs, and that as tables."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from toolchain.backends.mali import gpu as means
from toolchain.backends.mali.cost import kernel_cost
from toolchain.backends.mali.cost.compiler import Gpu
from toolchain.backends.mali.cost.kernel_cost import Compiler, KernelCost
from toolchain.backends.mali.cost.shaderdb import LOAD_STORE
from toolchain.backends.mali.cost.sources import Kernel, kernels
from toolchain.board import Gpu as BoardGpu
from toolchain.errors import BuildError
from toolchain.report import MODELLED, Facts, Headline, Page, Section, Table, Text

_ARITHMETIC = ("fma", "convert", "special", "arithmetic")
# The compiler counts a cycle for each access of a work-item. One of 16 bytes is the widest, and a core's cache gives
# 64 bytes a cycle: that makes four. No board has confirmed it.
_ACCESSES_A_CYCLE = 4.0
FORMULA = 3
"""Number of the way from machine code to milliseconds: estimates of another one are told apart by it."""

_BLOCK, _THREAD = "blockIdx.", "threadIdx."
_CALLS = {"relax.call_tir", "relax.call_tir_inplace"}


@dataclass(frozen=True)
class Launch:
    """A kernel as a network calls it.

    Attributes:
        kernel: Its source.
        groups: Work-groups of a launch; 0 if the network does not fix them.
        group: Work-items of one.
        calls: How many times a run launches it.
    """

    kernel: Kernel
    groups: int
    group: int
    calls: int

    @property
    def items(self) -> int:
        """Work-items of all launches of a run."""
        return self.groups * self.group * self.calls


def launches(module: tvm.IRModule, target: tvm.target.Target) -> tuple[Launch, ...]:
    """List the kernels of a network, in the order of its functions.

    Args:
        module: A scheduled Relax module, before its main function is lowered.
        target: The board's.
    """
    functions = {g: f for g, f in module.functions_items() if isinstance(f, tirx.PrimFunc)}
    by_symbol = {g: f.with_attr("global_symbol", g.name_hint) for g, f in functions.items()}
    calls = _calls(module)
    result: list[Launch] = []
    # Each by itself: a function may become several kernels, which are called as often as it is.
    for variable, function in by_symbol.items():
        count = calls[str(variable.name_hint)]
        result += _of_function(tvm.IRModule({variable: function}), target, count) if count else []
    return tuple(result)


def kernels_of(function: tirx.PrimFunc, target: tvm.target.Target) -> tuple[Launch, ...]:
    """List the kernels that one scheduled function becomes, each called once."""
    return tuple(_of_function(tvm.IRModule({"main": function}), target, 1))


def _calls(module: tvm.IRModule) -> Counter[str]:
    counted: Counter[str] = Counter()

    def visit(expression: Any) -> None:
        if isinstance(expression, relax.Call) and getattr(expression.op, "name", "") in _CALLS:
            counted[str(expression.args[0].name_hint)] += 1

    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return counted


def _of_function(module: tvm.IRModule, target: tvm.target.Target, calls: int) -> list[Launch]:
    builder = importlib.import_module("tvm.tirx.build")  # the package has a function of the same name
    pipeline, _, finalized = tirx.get_default_tir_pipeline(target)
    split = builder.split_host_device_mods(pipeline(tirx.transform.BindTarget(target)(module)))
    launched = []
    for kind, device_module in split[1].items():
        lowered = finalized()(device_module)
        sources = {kernel.name: kernel for kernel in kernels(builder.codegen_build(lowered, kind).inspect_source())}
        for variable, function in lowered.functions_items():
            extents = _extents(function)
            groups, group = (
                math.prod(extent for name, extent in extents.items() if name.startswith(prefix))
                for prefix in (_BLOCK, _THREAD)
            )
            launched.append(Launch(sources[str(variable.name_hint)], groups, group, calls))
    return launched


def _extents(function: tirx.PrimFunc) -> Mapping[str, int]:
    extents: dict[str, int] = {}

    def visit(node: Any) -> None:
        if isinstance(node, tirx.AttrStmt) and node.attr_key == "thread_extent":
            extents[str(node.node.thread_tag)] = int(node.value) if isinstance(node.value, tirx.IntImm) else 0

    tvm_ffi.structural_walk(function.body, visit)
    return extents


@dataclass(frozen=True)
class Row:
    """A kernel of a network: how it is launched, what it costs.

    Attributes:
        launch: How a network calls it; None for a kernel of a file, which no network calls.
        cost: What a work-item costs.
        ms: Estimated milliseconds of a run, all launches; None where too little is known.
    """

    launch: Launch | None
    cost: KernelCost
    ms: float | None = None

    @property
    def load_store(self) -> float | None:
        """Load and store cycles of a run, by the compiler's count; None if it is not known."""
        return None if self.launch is None or not self.cost.by_unit else self.cost.load_store * self.launch.items

    def document(self) -> dict[str, Any]:
        launch = self.launch
        about = {} if launch is None else {"groups": launch.groups, "group": launch.group, "calls": launch.calls}
        return {**self.cost.document(), **about, "run_load_store": self.load_store, "estimated_ms": self.ms}


@dataclass(frozen=True)
class Costs:
    """All kernels of a network or of files, on one GPU.

    Attributes:
        name: The network, or the files.
        gpu: The GPU.
        stamp: What all figures are marked with.
        rows: The kernels.
        board: The GPU as a board has it; None without a board.
    """

    name: str
    gpu: Gpu
    stamp: str
    rows: tuple[Row, ...]
    board: BoardGpu | None = None

    @property
    def spilling(self) -> int:
        """How many kernels spill."""
        return sum(row.cost.spills > 0 for row in self.rows)

    @property
    def failed(self) -> int:
        """How many kernels the compiler refuses."""
        return sum(row.cost.statistics is None for row in self.rows)

    @property
    def load_store(self) -> float | None:
        """Load and store cycles of a run; None if they are known of no kernel, as the compiler for T860 counts none."""
        values = [row.load_store for row in self.rows if row.load_store is not None]
        return sum(values) if values else None

    @property
    def ms(self) -> float | None:
        """Estimated milliseconds of a run; None if those of a kernel are not known, or there is none."""
        times = [row.ms for row in self.rows if row.ms is not None]
        return sum(times) if times and len(times) == len(self.rows) else None

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "gpu": self.gpu.name,
            "stamp": self.stamp,
            "judged": self.gpu.judged,
            "kernels": [row.document() for row in self.rows],
            "spilling": self.spilling,
            "failed": self.failed,
            "run_load_store": self.load_store,
            "estimated_ms": self.ms,
        }


def network(name: str, launched: Sequence[Launch], mesa: Compiler, board: BoardGpu | None = None) -> Costs:
    """Return what a network costs.

    Args:
        board: The GPU's cores and clock; without them there is no estimate of milliseconds.
    """
    costs = kernel_cost.costs(mesa, [launch.kernel for launch in launched])
    rows = [
        Row(launch, cost, estimated_ms(launch, cost, mesa.gpu, board))
        for launch, cost in zip(launched, costs, strict=True)
    ]
    return Costs(name, mesa.gpu, mesa.stamp, tuple(rows), board)


def files(name: str, texts: Sequence[str], mesa: Compiler) -> Costs:
    """Return what one work-item of each kernel of OpenCL C costs: their number is unknown."""
    file_kernels = [kernel for text in texts for kernel in kernels(text)]
    rows = [Row(None, cost) for cost in kernel_cost.costs(mesa, file_kernels)]
    return Costs(name, mesa.gpu, mesa.stamp, tuple(rows))


def estimated_ms(launch: Launch, cost: KernelCost, gpu: Gpu, board: BoardGpu | None) -> float | None:
    """Estimate what all launches take: the busiest unit of the busiest core, at the board's clock.

    A core with few work-items waits for what they load, and no others are there to compute meanwhile: they take as long
    as those that would keep it busy.
    """
    if board is None or not launch.items or not cost.item or not gpu.judged or cost.open_loops:
        return None
    arithmetic = max(cost.item.get(name, 0.0) for name in _ARITHMETIC) * gpu.arithmetic
    busiest = max(arithmetic, cost.item.get(LOAD_STORE, 0.0) / _ACCESSES_A_CYCLE, cost.item.get("texture", 0.0))
    lanes = -(-launch.group // gpu.lanes) * gpu.lanes  # those of a warp that are left over compute nothing
    items = max(-(-launch.groups // board.cores) * lanes, means.ITEMS_A_CORE)
    return busiest * items * launch.calls / board.clock_mhz / 1e3


# --- tables ----------------------------------------------------------------------------------------------------------

# Costs as tables, for the command line and for pages.

_NOTHING = "-"
_HEAD = (
    *("KERNEL", "CALLS", "WORK-ITEMS", "INSTR", "ARITH", "L/S", "TEX", "REGISTERS", "WORK-GROUP", "SPILLS", "EST. MS"),
)
_WHAT = (
    "ARITH, L/S and TEX are cycles of one work-item with all iterations of its loops, counted by Mesa's compiler; its "
    "code differs from that of Arm's driver, and no board has confirmed it"
)


def _cells(row: Row) -> tuple[str, ...]:
    cost, launch, statistics = row.cost, row.launch, row.cost.statistics
    called = (_NOTHING, _NOTHING) if launch is None else (str(launch.calls), str(launch.groups * launch.group))
    if statistics is None:
        return (cost.name, *called, "refused" if cost.answered else "no answer", *([_NOTHING] * 7))
    mark = "+" if cost.open_loops else ""
    spills = f"{statistics.spills}:{statistics.fills}" if statistics.spills else "0"
    ms = _NOTHING if row.ms is None else f"{row.ms:.3f}"
    limits = (str(statistics.registers), str(statistics.work_group), spills, ms)
    return (cost.name, *called, str(statistics.instructions), *(f"{cycles}{mark}" for cycles in _cycles(cost)), *limits)


def _cycles(cost: KernelCost) -> tuple[str, ...]:
    """Return cycles by unit: arithmetic, loads and stores, textures."""
    if not cost.by_unit:
        return (_NOTHING,) * 3
    arithmetic = max(cost.item.get(name, 0.0) for name in _ARITHMETIC)
    return tuple(f"{cycles:.1f}" for cycles in (arithmetic, cost.load_store, cost.item.get("texture", 0.0)))


def _brief(number: float) -> str:
    """Return three digits: networks take from microseconds to seconds."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"  # noqa: PLR2004 - three digits before the point


def _ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: -(row.ms or 0.0))


def summary(costs: Costs) -> str:
    """Say in a line what all kernels cost, and the source of the figures."""
    phrases = [f"{costs.name} on {costs.gpu.name}: {len(costs.rows)} kernels", f"{costs.spilling} of them spill"]
    phrases += [f"{costs.failed} are refused"] if costs.failed else []
    if costs.load_store is not None:
        phrases.append(f"{_brief(costs.load_store / 1e6)} million load and store cycles per run")
    if costs.ms is not None and costs.board is not None:
        phrases.append(f"estimated {_brief(costs.ms)} ms on {costs.board.cores} cores at {costs.board.clock_mhz} MHz")
    if not costs.gpu.judged:
        phrases.append("spills are not reliable there, because Mesa's compiler for it is weak")
    return ", ".join(phrases) + f"; {costs.stamp}"


def table(costs: Costs) -> Table:
    """Return the table of the kernels, what takes longest first."""
    return Table([_cells(row) for row in _ordered(costs.rows)], _HEAD, numbers=range(1, len(_HEAD)), spare=[1, 7, 8])


def faults(costs: Costs) -> list[str]:
    """Say which kernels the compiler refuses, and why."""
    return [f"{row.cost.name}: {row.cost.fault}" for row in costs.rows if row.cost.statistics is None]


def refusal(every: Sequence[Costs]) -> BuildError | None:
    """Return what a command ends with that has costed kernels which the compiler refuses; None if it refuses none."""
    count = sum(costs.failed for costs in every)
    if not count:
        return None
    return BuildError(
        f"Mesa's compiler refuses {count} of {sum(len(costs.rows) for costs in every)} kernels",
        details="\n".join(dict.fromkeys(fault for costs in every for fault in faults(costs))),
        hint="correct them, or leave out options that it does not support",
    )


def lines(every: Sequence[Costs]) -> list[str | Table]:
    """Return what is printed."""
    blocks: list[str | Table] = []
    for costs in every:
        blocks += [table(costs), summary(costs)]
    return [*blocks, _WHAT]


def section(costs: Costs, *, summed: bool = False) -> Section:
    """Return a page's section about the kernels of a network.

    Args:
        costs: Its kernels.
        summed: Whether it says, too, what all of them cost, where no verdict does.
    """
    return Section(
        f"{costs.name} on {costs.gpu.name}",
        [
            Text(f"{summary(costs)}. {_WHAT}." if summed else ""),
            Facts([("Refused", "\n".join(faults(costs)))]),
            Table([_cells(row) for row in _ordered(costs.rows)], _HEAD, range(1, len(_HEAD)), name="kernels"),
        ],
    )


def html(every: Sequence[Costs]) -> str:
    """Render costs as one page that needs no other file."""
    sections = [section(costs) for costs in every]
    verdict = Headline("\n".join(map(summary, every)), "doubt")
    title = ", ".join(dict.fromkeys(costs.name for costs in every))
    return Page(f"{title}: modelled costs", "inspect kernels", verdict, sections, [MODELLED]).html()
