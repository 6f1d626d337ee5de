"""One client on one case, and the table of all results."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance import client_keygen, client_python, client_runner
from tests.conformance.cases import Case, Setting
from toolchain import files

Client = Callable[[Sequence[str]], tuple[int, str]]
"""Calls a client with its arguments; returns its exit code, and what it printed."""

_CLIENT_S = 60
_FEW = "ssh-keygen"


def _here(main: Callable[[Sequence[str]], int]) -> Client:
    """Return a client of this project, called without a process of its own: Python takes a second to start."""

    def call(argv: Sequence[str]) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
            return main(argv), out.getvalue()

    return call


def program(command: Sequence[str]) -> Client:
    """Return a client that is a program."""

    def call(argv: Sequence[str]) -> tuple[int, str]:
        completed = subprocess.run([*command, *argv], capture_output=True, text=True, check=False, timeout=_CLIENT_S)
        return completed.returncode, completed.stdout

    return call


OURS = {"runner": _here(client_runner.main), "Python": _here(client_python.main), _FEW: _here(client_keygen.main)}


@dataclass(frozen=True)
class Result:
    """What a client did: `accepted`, `refused`, or its fault; and whether that is what it must do."""

    text: str
    ok: bool


def result(client: Client, case: Case, setting: Setting, title: str) -> Result:
    """Call a client with all three commands; the case has been made."""
    target = setting.folder / f"by {title}" / "installed"
    target.parent.mkdir()
    arguments = ["--trust", str(setting.trust), str(setting.release)]
    verified, _ = client(["verify", *arguments])
    installed, _ = client(["install", *arguments, str(target)])
    listed, listing = client(["list", *arguments])
    accepted = {code == 0 for code in (verified, installed, listed)}
    if len(accepted) != 1:
        return Result("differs from command to command", ok=False)
    (is_accepted,) = accepted
    if not is_accepted:
        remaining = [path.name for path in target.parent.iterdir()]
        return Result("left files", ok=False) if remaining else Result("refused", ok=not case.accepted)
    if fault := _fault(target, listing):
        return Result(fault, ok=False)
    shutil.rmtree(target)
    return Result("accepted", ok=case.accepted)


def _fault(target: Path, listing: str) -> str:
    """Say what is wrong with what a client has installed, by what it lists."""
    rows = dict(reversed(line.split("  ", 1)) for line in listing.splitlines())
    if sorted(rows) != list(rows):
        return "lists files in another order"
    digests = {path.name: files.sha256_file(path) for path in target.iterdir()}
    return "" if rows.items() <= digests.items() and rows else "installs other files than it lists"


def is_excused(title: str, case: Case) -> bool:
    """Whether a client need not know: a check of signatures and digests alone."""
    return title == _FEW and case.own


def table(results: Sequence[tuple[Case, Mapping[str, Result]]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; what a client must not do is in capitals."""
    titles = list(results[0][1])
    yield f"| release | must be | {' | '.join(titles)} |"
    yield f"|---|---|{'---|' * len(titles)}"
    for case, row in results:
        cells = [_cell(title, case, row[title]) for title in titles]
        yield f"| {case.name} | {'accepted' if case.accepted else 'refused'} | {' | '.join(cells)} |"


def _cell(title: str, case: Case, result: Result) -> str:
    if result.ok:
        return result.text
    return "not its task" if is_excused(title, case) else result.text.upper()
