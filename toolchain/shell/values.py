"""The values of ssh_config(5): comments, times, tokens and variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_TIME = re.compile(r"(?i:([0-9]{1,9})([smhdw]?))")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_VARIABLE = re.compile(r"\$\{([^}]*)\}")


def without_comment(value: str) -> str:
    """Return a value without its comment: a word that begins with `#`, outside of quotes."""
    quote = ""
    for index, letter in enumerate(value):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "#" and (index == 0 or value[index - 1].isspace()):
            return value[:index].rstrip()
    return value


def seconds(text: str) -> float:
    """Read a time such as `10`, `1m` or `1h30m`, or raise a ValueError."""
    matches = _TIME.findall(text)
    if not matches or "".join(number + unit for number, unit in matches) != text:
        raise ValueError(f"{text!r} is not a valid time: write seconds, or for example 1m30s")
    return float(sum(int(number) * _UNITS[unit.lower()] for number, unit in matches))


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """Replace each `%` and a letter, or raise a ValueError if it has no meaning here."""

    def meaning(token: re.Match[str]) -> str:
        if token[1] not in {"%", *tokens}:
            raise ValueError(f"{text!r} has {token[0]}, which is not a valid token there")
        return tokens.get(token[1], "%")

    return re.sub("%(.?)", meaning, text)


def path(text: str, tokens: Mapping[str, str]) -> Path:
    """Parse a file name with tokens, environment variables as `${HOME}`, and `~`, or raise a ValueError."""

    def value(variable: re.Match[str]) -> str:
        if variable[1] not in os.environ:
            raise ValueError(f"{text!r} has {variable[0]}, and this variable is not set")
        return os.environ[variable[1]]

    return Path(_VARIABLE.sub(value, expand(text, tokens))).expanduser()
