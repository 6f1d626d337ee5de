"""Costs as tables, for the command line and for pages."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain.backends.mali.cost.kernel_cost import KernelCost
from toolchain.backends.mali.cost.network import Costs, Row
from toolchain.errors import BuildError
from toolchain.report import MODELLED, Facts, Headline, Page, Section, Table, Text

_NOTHING = "-"
_HEAD = (
    *("KERNEL", "CALLS", "WORK-ITEMS", "INSTR", "ARITH", "L/S", "TEX", "REGISTERS", "WORK-GROUP", "SPILLS", "EST. MS"),
)
_WHAT = (
    "ARITH, L/S and TEX are cycles of one work-item with all iterations of its loops, counted by Mesa's compiler; its "
    "code differs from that of Arm's driver, and no board has confirmed it"
)
_ARITHMETIC = ("arithmetic", "fma", "convert", "special")


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
    return Page(f"{title}: modelled costs", "mali-cost", verdict, sections, [MODELLED]).html()
