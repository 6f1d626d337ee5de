"""What the commands that live outside cli.py hand back to it: it alone prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolchain.errors import ToolchainError


@dataclass(frozen=True)
class Console:
    """How a command tells about its progress; every command finds it in its click context, as `obj`.

    Attributes:
        say: Takes a line about progress.
        redraw: Takes a table that stands in place of the one before; a terminal shows it at once, anything else gets
            one now and then.
    """

    say: Callable[[str], None]
    redraw: Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """What a command found out: cli.py prints one of the two.

    Attributes:
        text: For people.
        document: For programs; dataclasses are fine.
        as_json: Whether a program asked.
        fault: What is raised once the result was printed; None if all is well.
    """

    text: str
    document: Any
    as_json: bool = False
    fault: ToolchainError | None = None
