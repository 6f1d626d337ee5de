"""The command line, called in this process exactly as the console script calls it."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sys
from dataclasses import dataclass
from typing import Any

from toolchain import cli, interrupts


@dataclass(frozen=True)
class Outcome:
    """What a person and a script see of one command."""

    code: int
    out: str
    err: str


def toolchain(*arguments: object) -> Outcome:
    """Run `toolchain WORDS...`."""
    out, err = io.StringIO(), io.StringIO()
    before, hook = sys.argv, sys.unraisablehook
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    sys.argv = ["toolchain", *map(str, arguments)]
    code: object = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
        for number, handler in handlers.items():
            signal.signal(number, handler)
        interrupts._requests.clear()
        sys.unraisablehook = hook
    assert isinstance(code, int), code
    return Outcome(code, out.getvalue(), err.getvalue())


def done(*arguments: object) -> Outcome:
    """Run a command that succeeds."""
    outcome = toolchain(*arguments)
    assert outcome.code == 0, outcome.err
    return outcome


def parsed(*arguments: object) -> Any:
    """Run a command that succeeds, and read its JSON."""
    return json.loads(done(*arguments, "--json").out)
