"""Runs clients on all cases, and prints a table: `python -m tests.conformance [CLIENT...]`."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path

from tests.conformance import cases, run
from tests.support import bundles, signers


def main() -> int:
    named = {Path(shlex.split(text)[0]).name: run.program(shlex.split(text)) for text in sys.argv[1:]}
    clients = named or run.OURS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = bundles.build(folder, rows=8, columns=4)
        pairs = [signers.pair(folder, signer) for signer in ("alice", "bob")]
        results = []
        for number, case in enumerate(cases.CASES):
            (folder / str(number)).mkdir()
            setting = cases.Setting(*pairs, base, folder / str(number))
            case.make(setting)
            results.append(
                (case, {title: run.result(client, case, setting, title) for title, client in clients.items()})
            )
    print("\n".join(run.table(results)))  # noqa: T201 - its output
    wrong = [
        title for case, row in results for title, found in row.items() if not (found.ok or run.is_excused(title, case))
    ]
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
