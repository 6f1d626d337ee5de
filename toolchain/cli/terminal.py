"""Output on a terminal: tables as wide as the screen, colours and progress bars; plain lines elsewhere.

Rich takes a while to import, so it is imported only if there is a terminal.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from toolchain.printable import printable
from toolchain.progress import MEGABYTES, Step
from toolchain.report import Shown, Table, parts, plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_GAP = 2  # spaces between columns
_FALLBACK = os.terminal_size((80, 24))
_EVERY_S = 5.0  # without a terminal: between two lines about one step
_TABLE_EVERY_S = 30.0  # without a terminal: between two lines about one table
_STYLES = {
    "good": "green",
    "bad": "bold red",
    "warning": "yellow",
    "hint": "cyan",
    "name": "bold",
}
_WORDS = (
    r"(?P<bad>^(internal )?error:|\b(MISSING|FAILED|DIFFER FROM|lost|broken)\b)",
    r"(?P<warning>^warning:?(?=\s|$)|\b(outdated|missing|emulated|stopped|quarantined)\b)",
    r"(?P<hint>^(hint|next):)",
    r"(?P<good>\bmatch(?= onnxruntime)|^(ready|running)$)",
)


def show(output: Shown, stream: IO[str]) -> None:
    """Print tables and lines, fitted to the width of a terminal; in full into a file or a pipe."""
    if not stream.isatty():
        click.echo(plain(output), file=stream)
        return
    console = _console(stream)
    _print(output, console)
    if left_out := _omitted_columns(output, console.width):
        console.print(f"not shown in {console.width} columns: {', '.join(left_out)}", soft_wrap=True)


def _print(output: Shown, console: Console) -> None:
    for item in parts(output):
        if isinstance(item, Table):
            console.print(_fit(item, console.width))
        else:
            console.print(item, soft_wrap=True)  # a line break would be copied with a command


def _console(stream: IO[str]) -> Console:
    from rich.console import Console
    from rich.highlighter import RegexHighlighter
    from rich.theme import Theme

    class Words(RegexHighlighter):
        highlights = _WORDS

    width, height = _size(stream)
    return Console(
        file=stream,
        width=width,
        height=height,
        theme=Theme(_STYLES),
        highlighter=Words(),
        markup=False,
        emoji=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",  # Rich's own NO_COLOR keeps bold
    )


def _size(stream: IO[str]) -> tuple[int, int]:
    """Return the size of this stream's terminal, which may differ from that of stdin; COLUMNS and LINES overrule it."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):  # not a real terminal
        size = os.terminal_size((0, 0))
    width, height = (os.environ.get(name, "") for name in ("COLUMNS", "LINES"))
    return (
        int(width) if width.isdecimal() else size.columns or _FALLBACK.columns,
        int(height) if height.isdecimal() else size.lines or _FALLBACK.lines,
    )


# --- tables ----------------------------------------------------------------------------------------------------


def _fit(table: Table, width: int) -> RenderableType:
    """Fit a table into a width without breaking words: wrap cells, omit spare columns, or put each cell on a line."""
    while _minimum_width(table) > width and table.spare:
        table = table.without(table.spare[0])
    if _minimum_width(table) > width and table.head:
        return _stack_rows(table, width)
    return _rich_table(table, _widths(table, width))


def _omitted_columns(output: Shown, width: int) -> list[str]:
    """Return the names of the columns that are omitted in this width."""
    names: list[str] = []
    for table in parts(output):
        while isinstance(table, Table) and _minimum_width(table) > width and table.spare:
            names += [table.head[table.spare[0]]] if table.head else []
            table = table.without(table.spare[0])  # noqa: PLW2901 - the narrower table
    return list(dict.fromkeys(names))


def _columns(table: Table) -> list[tuple[str, ...]]:
    return list(zip(*table.lines, strict=True))


def _longest_word(column: Sequence[str]) -> int:
    return max((len(word) for cell in column for word in cell.split()), default=0)


def _minimum_width(table: Table) -> int:
    columns = _columns(table)
    return sum(map(_longest_word, columns)) + _GAP * (len(columns) - 1)


def _widths(table: Table, width: int) -> list[int]:
    """Give each column the width of its longest word, and share the remaining room equally among those that wrap."""
    columns = _columns(table)
    widths, ideal = [_longest_word(column) for column in columns], [max(map(len, column)) for column in columns]
    room = width - _GAP * (len(columns) - 1) - sum(widths)
    for served, position in enumerate(sorted(range(len(columns)), key=lambda index: ideal[index] - widths[index])):
        more = min(max(room, 0) // (len(columns) - served), ideal[position] - widths[position])
        widths[position], room = widths[position] + more, room - more
    if room < 0:  # a word is wider than the screen: the last column is folded
        widths[-1] = max(1, widths[-1] + room)
    return widths


def _rich_table(table: Table, widths: Sequence[int]) -> RenderableType:
    from rich.table import Table as RichTable

    rich_table = RichTable(
        box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_header=bool(table.head), highlight=True
    )
    for column, width in enumerate(widths):
        name = table.head[column] if table.head else ""
        justify: Any = "right" if column in table.numbers else "left"
        rich_table.add_column(name, width=width, justify=justify, style="name" if column == 0 else "", overflow="fold")
    for row in table.rows:
        rich_table.add_row(*map(str, row))
    return rich_table


def _stack_rows(table: Table, width: int) -> RenderableType:
    """Show each row as a block, with each cell that is not empty on a line."""
    from rich.console import Group

    blocks: list[RenderableType] = []
    for row in table.rows:
        cells = [pair for pair in zip(table.head, row, strict=True) if pair[1]]
        block = Table(cells)
        blocks += [*([""] if blocks else []), _rich_table(block, _widths(block, width))]
    return Group(*blocks)


# --- progress --------------------------------------------------------------------------------------------------


class Screen:
    """Progress on standard error: lines, a bar for a step that is counted, and a table that changes.

    Without a terminal, a bar becomes a line now and then, and a table its last line.

    Args:
        stream: Returns the stream; called each time, since tests and pipes replace it.
    """

    def __init__(self, stream: Callable[[], IO[str]]) -> None:
        self._stream = stream
        self._bar: _Bar | None = None
        self._live: Live | None = None
        self._steps: dict[str, tuple[float, float]] = {}  # of each step the start, and the time of its last line
        self._shown_at = -_TABLE_EVERY_S

    def say(self, text: str) -> None:
        """Print a line about progress, or move the bar of a step; the bar of a stage stays below the lines."""
        if isinstance(text, Step):
            step = Step(printable(text), text.done, text.total, text.unit)
            if not self._stream().isatty():
                self._print_step(step)
                return
            if self._bar is None or self._bar.step != step:
                self.close()
                self._bar = _Bar(_console(self._stream()), step)
            self._bar.move(step)
            return
        if self._bar and not self._bar.step.is_counted:  # the spinner of a stage keeps its line below
            self._bar.say(printable(text))
            return
        self.close()
        show(text, self._stream())

    def _print_step(self, step: Step) -> None:
        """Print the progress of a step, unless the last line is a moment ago."""
        if not step.is_counted:
            click.echo(str(step), file=self._stream())
            return
        now = time.monotonic()
        began, last = self._steps.setdefault(str(step), (now, now))
        if now - last >= _EVERY_S:
            self._steps[str(step)] = (began, now)
            remaining_s = (now - began) / step.done * (step.total - step.done) if step.done else 0.0
            click.echo(
                f"{step}: {step.amount}" + (f", {remaining_s:.0f} s left" if remaining_s >= 1 else ""),
                file=self._stream(),
            )

    def redraw(self, output: Shown) -> None:
        """Show a table in place of the last one."""
        stream = self._stream()
        if not stream.isatty():
            if time.monotonic() - self._shown_at >= _TABLE_EVERY_S:
                self._shown_at = time.monotonic()
                click.echo(str(parts(output)[-1]), file=stream)
            return
        if self._live is None:
            self.close()
            self._live = _start_live(_console(stream))
        self._live.update(_crop(output, _console(stream)), refresh=True)

    def close(self) -> None:
        """End the bar or the table; the next output is printed below it."""
        for display in (self._bar, self._live):
            if display:
                display.stop()
        self._bar = self._live = None


class _Bar:
    """A progress bar with the amount and the remaining time; for a stage, a spinner with the elapsed time."""

    def __init__(self, console: Console, step: Step) -> None:
        from rich import progress

        amount = progress.DownloadColumn() if step.unit == MEGABYTES else progress.MofNCompleteColumn()
        how_far = (progress.BarColumn(20), amount, progress.TimeRemainingColumn(compact=True))
        columns = how_far if step.is_counted else (progress.SpinnerColumn(), progress.TimeElapsedColumn())
        self.step = step
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            *columns,
            console=console,
            transient=not step.is_counted,
            redirect_stdout=False,  # results must stay on standard output
            redirect_stderr=False,
        )
        self._task = self._progress.add_task(str(step), total=step.total if step.is_counted else None)
        self._progress.start()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(text, soft_wrap=True)

    def move(self, step: Step) -> None:
        if step.is_counted:
            self._progress.update(self._task, completed=step.done, total=step.total)

    def stop(self) -> None:
        self._progress.stop()
        if not self.step.is_counted:
            self._progress.console.print(str(self.step), soft_wrap=True)


def _start_live(console: Console) -> Live:
    from rich.live import Live

    live = Live(
        console=console, auto_refresh=False, vertical_overflow="crop", redirect_stdout=False, redirect_stderr=False
    )
    live.start()
    return live


def _crop(output: Shown, console: Console) -> RenderableType:
    """Cut the first rows of a table that is higher than the screen, so that the lines below it can be seen.

    Args:
        output: The table, and the lines below it.
        console: Renders them; the console of a live table would also render that.
    """
    from rich.text import Text

    with console.capture() as capture:
        _print(output, console)
    return Text("\n").join(Text.from_ansi(capture.get()).split("\n")[-(console.height - 1) :])
