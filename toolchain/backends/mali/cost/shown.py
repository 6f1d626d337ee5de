"""Costs as tables, for the command line and for pages."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain import page
from toolchain.backends.mali.cost.kernel_cost import KernelCost
from toolchain.backends.mali.cost.network import Costs, Row
from toolchain.errors import BuildError
from toolchain.tables import Table

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
    cost, launch, found = row.cost, row.launch, row.cost.statistics
    called = (_NOTHING, _NOTHING) if launch is None else (str(launch.calls), str(launch.groups * launch.group))
    if found is None:
        return (cost.name, *called, "refused" if cost.answered else "no answer", *([_NOTHING] * 7))
    mark = "+" if cost.open_loops else ""
    spills = f"{found.spills}:{found.fills}" if found.spills else "0"
    ms = _NOTHING if row.ms is None else f"{row.ms:.3f}"
    limits = (str(found.registers), str(found.work_group), spills, ms)
    return (cost.name, *called, str(found.instructions), *(f"{one}{mark}" for one in _cycles(cost)), *limits)


def _cycles(cost: KernelCost) -> tuple[str, ...]:
    """Return cycles by unit: arithmetic, loads and stores, textures."""
    if not cost.by_unit:
        return (_NOTHING,) * 3
    arithmetic = max(cost.item.get(name, 0.0) for name in _ARITHMETIC)
    return tuple(f"{one:.1f}" for one in (arithmetic, cost.load_store, cost.item.get("texture", 0.0)))


def _brief(number: float) -> str:
    """Return three digits: networks take from microseconds to seconds."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"  # noqa: PLR2004 - three digits before the point


def _ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: -(row.ms or 0.0))


def summary(found: Costs) -> str:
    """Say in a line what all kernels cost, and by what that is known."""
    parts = [f"{found.name} on {found.gpu.name}: {len(found.rows)} kernels", f"{found.spilling} of them spill"]
    parts += [f"{found.failed} are refused"] if found.failed else []
    if found.load_store is not None:
        parts.append(f"{_brief(found.load_store / 1e6)} million load and store cycles per run")
    if found.ms is not None and found.board is not None:
        parts.append(f"estimated {_brief(found.ms)} ms on {found.board.cores} cores at {found.board.clock_mhz} MHz")
    if not found.gpu.judged:
        parts.append("spills are not reliable there, because Mesa's compiler for it is weak")
    return ", ".join(parts) + f"; {found.stamp}"


def table(found: Costs) -> Table:
    """Return the table of the kernels, what takes longest first."""
    return Table([_cells(row) for row in _ordered(found.rows)], _HEAD, numbers=range(1, len(_HEAD)), spare=[1, 7, 8])


def faults(found: Costs) -> list[str]:
    """Say which kernels the compiler refuses, and why."""
    return [f"{row.cost.name}: {row.cost.fault}" for row in found.rows if row.cost.statistics is None]


def refusal(every: Sequence[Costs]) -> BuildError | None:
    """Return what a command ends with that has costed kernels which the compiler refuses; None if it refuses none."""
    count = sum(found.failed for found in every)
    if not count:
        return None
    return BuildError(
        f"Mesa's compiler refuses {count} of {sum(len(found.rows) for found in every)} kernels",
        details="\n".join(dict.fromkeys(fault for found in every for fault in faults(found))),
        hint="correct them, or leave out options that it does not support",
    )


def lines(every: Sequence[Costs]) -> list[str | Table]:
    """Return what is printed."""
    parts: list[str | Table] = []
    for found in every:
        parts += [table(found), summary(found)]
    return [*parts, _WHAT]


def section(found: Costs, *, summed: bool = False) -> page.Section:
    """Return a page's section about the kernels of a network.

    Args:
        found: They.
        summed: Whether it says, too, what all of them cost, where no verdict does.
    """
    return page.Section(
        f"{found.name} on {found.gpu.name}",
        [
            page.Text(f"{summary(found)}. {_WHAT}." if summed else ""),
            page.Facts([("Refused", "\n".join(faults(found)))]),
            page.Table(_HEAD, [_cells(row) for row in _ordered(found.rows)], range(1, len(_HEAD)), "kernels"),
        ],
    )


def html(every: Sequence[Costs]) -> str:
    """Render costs as one page that needs no other file."""
    sections = [section(found) for found in every]
    verdict = page.Verdict("\n".join(map(summary, every)), "doubt")
    title = ", ".join(dict.fromkeys(found.name for found in every))
    return page.Page(f"{title}: modelled costs", "mali-cost", verdict, sections, [page.MODELLED]).html()
