"""What a person sees, on real terminals of several widths, and where there is none."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import struct
import termios
import threading

import pytest

from toolchain import progress
from toolchain.cli import terminal as _terminal
from toolchain.progress import Step
from toolchain.report import Table

WORD = "unbreakable"
WIDE = Table(
    [("local", f"{WORD} " * 9, "12", "x" * 30), ("rk3399-cpu", "short", "3", "y" * 30)],
    ("BOARD", "WHAT IS SAID", "RUNS", "SPARE"),
    numbers=[2],
    spare=[3],
)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """A pseudo terminal of some size, and what was written to it."""

    def __init__(self, columns: int, lines: int) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.stream = open(slave, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - a descriptor, closed by `text`
        self._read: list[bytes] = []
        self._reader = threading.Thread(target=self._follow)
        self._reader.start()

    def _follow(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while piece := os.read(self._master, 65536):
                self._read.append(piece)

    def text(self) -> str:
        """Close it, and return all that was written."""
        self.stream.close()
        self._reader.join()
        os.close(self._master)
        return b"".join(self._read).decode().replace("\r\n", "\n")


@pytest.fixture
def terminal(monkeypatch):
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return lambda columns=80, lines=24: Terminal(columns, lines)


def shown(tty: Terminal, content) -> str:
    _terminal.show(content, tty.stream)
    return tty.text()


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_a_table_fits_and_breaks_no_word(terminal, width):
    lines = COLOUR.sub("", shown(terminal(width), WIDE)).splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.count(WORD) for line in lines) == 9
    assert any("rk3399-cpu" in line for line in lines)
    assert any("y" * 30 in line for line in lines) == (width >= 80), "the spare column, where there is room"
    assert (lines[-1] == f"not shown in {width} columns: SPARE") == (width < 80), "and that it is left out is said"


def test_what_has_no_room_at_all_is_shown_a_cell_a_line(terminal):
    table = Table([tuple("abcdefgh" for _ in range(9))], tuple(f"HEAD{column}" for column in range(9)))
    lines = COLOUR.sub("", shown(terminal(40), table)).splitlines()
    assert [line.split() for line in lines] == [[f"HEAD{column}", "abcdefgh"] for column in range(9)]


def test_more_room_is_used(terminal):
    assert len(shown(terminal(120), WIDE).splitlines()) < len(shown(terminal(60), WIDE).splitlines())


def test_the_stream_that_is_written_to_says_how_wide_it_is(terminal):
    """And not the terminal of somebody's standard input."""
    narrow, wide = terminal(50), terminal(150)
    assert max(map(len, COLOUR.sub("", shown(narrow, WIDE)).splitlines())) <= 50
    assert max(map(len, COLOUR.sub("", shown(wide, WIDE)).splitlines())) > 50


def test_colours_are_for_terminals_that_want_them(terminal, monkeypatch):
    lines = "error: it is gone\nhint: do this"
    assert "\x1b[1;31merror:" in shown(terminal(), lines)
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(terminal(), lines) == lines + "\n"


def test_a_warning_is_seen(terminal):
    assert "\x1b[33mwarning" in shown(terminal(), "warning: it is hot")
    assert "33mwarning" in shown(terminal(), Table([("runs", "3"), ("warning", "it is hot")]))


def test_a_line_that_is_copied_has_no_end_of_line_within(terminal):
    command = "toolchain deploy " + "--option value " * 20
    assert shown(terminal(60), command).splitlines() == [command]


def test_elsewhere_there_is_neither_colour_nor_width():
    stream = io.StringIO()
    _terminal.show(["error: none", WIDE], stream)
    assert stream.getvalue() == f"error: none\n{WIDE}\n"


# --- progress --------------------------------------------------------------------------------------------------


def test_a_bar_says_how_far(terminal):
    tty = terminal()
    screen = _terminal.Screen(lambda: tty.stream)
    for sent in (0, 7_000_000, 21_000_000):
        screen.say(Step("sending", sent, 21_000_000, "MB"))
    screen.say("measuring")
    text = COLOUR.sub("", tty.text())
    assert "21.0/21.0 MB" in text
    assert text.splitlines()[-1].endswith("\x1b[?25hmeasuring"), "below the bar, and the cursor is seen again"


def test_a_bar_counts_objects(terminal):
    tty = terminal()
    screen = _terminal.Screen(lambda: tty.stream)
    screen.say(Step("compiling", 3, 40, "objects"))
    screen.close()
    assert "3/40" in COLOUR.sub("", tty.text())


def test_a_stage_shows_that_it_goes_on_and_leaves_its_name(terminal):
    tty = terminal()
    screen = _terminal.Screen(lambda: tty.stream)
    screen.say(progress.stage("importing"))
    screen.say(progress.stage("compiling"))
    screen.say("3 records applied")
    screen.close()
    text = COLOUR.sub("", tty.text())
    assert "compiling ⠋ 0:00:00" in text
    assert re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]|\r", "", text).splitlines()[-1] == "compiling"
    assert "3 records applied" in text


def test_where_there_is_no_terminal_a_stage_is_a_line():
    stream = io.StringIO()
    screen = _terminal.Screen(lambda: stream)
    screen.say(progress.stage("importing"))
    screen.say("3 records applied")
    assert stream.getvalue() == "importing\n3 records applied\n"


def test_where_there_is_no_terminal_a_step_is_a_line_now_and_then(monkeypatch):
    stream, now = io.StringIO(), [100.0]
    monkeypatch.setattr(_terminal.time, "monotonic", lambda: now[0])
    screen = _terminal.Screen(lambda: stream)
    for compiled in range(0, 41, 4):
        screen.say(Step("compiling", compiled, 40, "objects"))
        now[0] += 2
    assert stream.getvalue().splitlines() == [
        "compiling: 12 of 40 objects, 14 s left",
        "compiling: 24 of 40 objects, 8 s left",
        "compiling: 36 of 40 objects, 2 s left",
    ]


TABLE = (Table([(str(number), "x" * 90) for number in range(30)], ("ID", "Task")), "Trials: 1/2  " + "y " * 40)


def test_a_table_that_changes_stays_within_its_terminal(terminal):
    tty = terminal(60, 10)
    screen = _terminal.Screen(lambda: tty.stream)
    screen.redraw(TABLE)
    screen.redraw(TABLE)
    screen.say("a board is lost")
    states = COLOUR.sub("", tty.text()).split("Trials: 1/2")
    assert len(states) - 1 == 3, "twice as it changed, and once as it stays"
    assert all(state.count("\n") <= 10 for state in states)
    assert states[-1].rstrip().endswith("a board is lost")


def test_where_there_is_no_terminal_a_table_is_one_line_now_and_then():
    stream = io.StringIO()
    screen = _terminal.Screen(lambda: stream)
    screen.redraw(TABLE)
    screen.redraw(TABLE)
    assert stream.getvalue() == TABLE[-1] + "\n"


# --- words of devices --------------------------------------------------------------------------------------------

EVIL = "\x1b]0;pwned\x07\x9b2J\u202e"


def test_no_word_of_a_device_steers_a_terminal(terminal):
    """Whatever it is shown by: what rich writes itself is all that may begin with an escape."""
    tty = terminal()
    screen = _terminal.Screen(lambda: tty.stream)
    screen.say(progress.stage(f"deploying to {EVIL}"))
    screen.say(f"device says {EVIL}")
    screen.say(Step(f"sending {EVIL}", 1, 2, "objects"))
    screen.redraw([Table([(EVIL, "1")], ("NAME", "RUNS"))])
    screen.close()
    _terminal.show(["last", EVIL, Table([(EVIL, "1")])], tty.stream)
    text = tty.text()
    assert text.count("x1b]0;pwned") >= 5
    assert not any(letter in text for letter in "\x07\x9b\u202e")
    assert "\x1b]" not in text


def test_nor_where_there_is_none():
    stream = io.StringIO()
    screen = _terminal.Screen(lambda: stream)
    screen.say(progress.stage(EVIL))
    screen.say(EVIL)
    _terminal.show([EVIL, Table([(EVIL, "1")])], stream)
    screen._told = -1e9
    screen.redraw([Table([(EVIL, "1")])])
    assert stream.getvalue().count("pwned") == 5
    assert not any(letter in stream.getvalue() for letter in EVIL[0] + "\x07\x9b\u202e")
