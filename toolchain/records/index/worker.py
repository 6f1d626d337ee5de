"""A process that reads chunks of a file of records: `python -m toolchain.records.index.worker FILE`.

It reads from standard input where each chunk begins and ends, and answers on standard output with its rows, or with an
empty list if a line is damaged: the parent then reads the chunk itself, and reports the error with
the number of the line. The process ends when its input does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from toolchain import worker
from toolchain.errors import InputError
from toolchain.records.index.source import Source
from toolchain.records.tables import Row


def main(path: Path) -> None:
    jobs, answers = worker.streams()
    worker.end_with_input(jobs)
    source = Source(path)
    while (job := worker.receive(jobs)) is not None:
        worker.send(answers, _answer(source, *job))


def _answer(source: Source, start: int, stop: int) -> list[Row]:
    try:
        return source.rows(start, stop, 1)
    except InputError:
        return []


if __name__ == "__main__":
    main(Path(sys.argv[1]))
