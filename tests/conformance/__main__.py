"""Runs clients on all cases, and prints a table: `python -m tests.conformance [CLIENT...]`; see README.md."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.conformance import run
from tests.conformance.cases import CASES, Case, Setting
from tests.support import bundles, signers


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance")
    parser.add_argument("client", nargs="*", help="command of a client; by default those of this project")
    parser.add_argument(
        "--write", type=Path, metavar="FOLDER", help="write the cases to a new folder, and run no client"
    )
    options = parser.parse_args()
    if options.write:
        write(options.write)
        return 0
    programs = {Path(shlex.split(text)[0]).name: run.program(shlex.split(text)) for text in options.client}
    clients = programs or run.OURS
    with tempfile.TemporaryDirectory() as folder:
        results = [
            (case, {title: run.result(client, case, setting, title) for title, client in clients.items()})
            for case, setting in _made(Path(folder))
        ]
    print("\n".join(run.table(results)))  # noqa: T201 - its output
    wrong = [
        title
        for case, row in results
        for title, result in row.items()
        if not (result.ok or run.is_excused(title, case))
    ]
    return int(bool(wrong))


def write(folder: Path) -> None:
    """Write the cases as data."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:  # a rename keeps sparse files sparse
        rows = []
        for number, (case, setting) in enumerate(_made(Path(scratch))):
            target = folder / f"{number:02}"
            (target / "releases").mkdir(parents=True)
            setting.release.rename(target / "releases" / setting.release.name)
            setting.trust.rename(target / "trust")
            release = f"{target.name}/releases/{setting.release.name}"
            row = {"name": case.name, "folder": target.name, "release": release}
            rows.append({**row, "accepted": case.accepted, "whole": case.own})
    (folder / "cases.json").write_text(json.dumps({"cases": rows}, indent=2) + "\n")


def _made(folder: Path) -> Iterator[tuple[Case, Setting]]:
    base = bundles.build(folder, rows=8, columns=4)
    pairs = [signers.pair(folder, signer) for signer in ("alice", "bob")]
    for number, case in enumerate(CASES):
        (folder / str(number)).mkdir()
        setting = Setting(*pairs, base, folder / str(number))
        case.make(setting)
        yield case, setting


if __name__ == "__main__":
    sys.exit(main())
