"""Parses the output of the probe script."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from toolchain import process
from toolchain.errors import DeviceError
from toolchain.printable import printable

MAX_OUTPUT = 1 << 20  # bytes of an answer
_LONGEST = 300  # characters of a value
_LONGEST_EXACT = 4096  # characters of a path
_LONGEST_LIST = 8000  # characters of a list of CPU flags
_MOST_LINES = 40_000
_MOST_VALUES = 128  # of one key
_MOST_CPUS = 1024
_LINE = re.compile(r"([a-z][a-z_]{0,30})(\.[a-z0-9]{1,12})?=(.*)")
_CPU_LINE = re.compile(r"cpu ([A-Za-z_ ]{1,20})=(.*)")
_NUMBER = re.compile(r"[0-9]{1,15}")
_LISTS = {"Features", "flags"}


class Answer:
    """The answer of a device by key. The device is not trusted: each value is checked, and everything is bounded.

    Args:
        output: The device's output.
        token: The line `begin=TOKEN` begins the answer and `end=TOKEN` ends it.
        name: The device's name.

    Raises:
        DeviceError: One of these lines is missing.
    """

    def __init__(self, output: str, token: str, name: str) -> None:
        self._values: dict[str, list[str]] = {}
        self.cpus: list[dict[str, str]] = []
        lines = output.split("\n")[:_MOST_LINES]
        begin, end = f"begin={token}", f"end={token}"
        if begin not in lines or end not in lines:
            raise DeviceError(
                f"{name} ended the connection while it described itself",
                details=printable(process.tail(output))[-_LONGEST:],
                hint="run the same command again; if it breaks off again, log in and look what ends a script there",
            )
        for line in lines[lines.index(begin) + 1 : lines.index(end)]:
            if match := _CPU_LINE.fullmatch(line):
                # A line of /proc/cpuinfo, which has a block for each CPU, and in old kernels one for all of them.
                key, value = match.groups()
                if key == "processor" and _NUMBER.fullmatch(value.strip()):
                    if len(self.cpus) < _MOST_CPUS:
                        self.cpus.append({key: value.strip()})
                else:
                    if not self.cpus:  # an old kernel for one CPU does not number it
                        self.cpus.append({"processor": "0"})
                    self.cpus[-1].setdefault(key, _clean(value, _LONGEST_LIST if key in _LISTS else _LONGEST))
            elif match := _LINE.fullmatch(line):
                values = self._values.setdefault(match[1] + (match[2] or ""), [])
                if len(values) < _MOST_VALUES:
                    values.append(match[3][:_LONGEST_EXACT])

    def text(self, key: str) -> str:
        """Return the first value of a key that is not empty, or an empty text."""
        return next(iter(self.texts(key)), "")

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(filter(None, map(_clean, self._values.get(key, ()))))

    def exact(self, key: str) -> str:
        """Return the first value of a key exactly as the device sent it: a path there, which is not for messages."""
        return next(iter(self._values.get(key, ())), "")

    def number(self, key: str, limit: int = 10**15) -> int:
        """Return a whole number; 0 if it is missing or greater than `limit`."""
        return number(self.text(key), limit)

    def has(self, key: str) -> bool:
        """Whether the answer has a key, even with an empty value."""
        return key in self._values

    def by_cpu(self, key: str) -> Iterator[tuple[int, Sequence[str]]]:
        for name, values in self._values.items():
            start, _, cpu = name.partition(".")
            if start == key and _NUMBER.fullmatch(cpu) and int(cpu) < _MOST_CPUS:
                yield int(cpu), tuple(map(_clean, values))


def _clean(value: str, limit: int = _LONGEST) -> str:
    return printable(value.strip()[:limit]).strip()


def number(text: str, limit: int = 10**15) -> int:
    """Parse a whole number; 0 if it is not one, or is greater than `limit`."""
    value = int(text) if _NUMBER.fullmatch(text) else 0
    return value if value <= limit else 0
