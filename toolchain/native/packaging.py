"""Writes the device programs that a wheel brings; see `prebuilt`. Called by hatch_build.py."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from toolchain import architecture, files
from toolchain.native import programs
from toolchain.native.prebuilt import MANIFEST
from toolchain.native.programs import Tell

_EXECUTABLE = 0o755


def write(folder: Path, triples: Iterable[str], tell: Tell | None = None) -> None:
    """Write the programs for some triples, and their manifest; the same bytes for the same sources and compiler.

    Args:
        folder: An empty folder.
        triples: Those of `architecture.PROGRAM_TRIPLES`.
        tell: Called with each step.

    Raises:
        BuildError: The compiler refuses the sources.
    """
    entries = {}
    for triple in triples:
        origin = programs.origin(triple)
        for name in programs.PROGRAMS:
            program = programs.build(name, triple, architecture.of_programs(triple).machine, tell)
            target = folder / f"{name}-{triple}" / name
            target.parent.mkdir(parents=True)
            shutil.copyfile(program.path, target)
            target.chmod(_EXECUTABLE)
            entries[f"{name}-{triple}"] = {
                "key": origin.key,
                "built_from": origin.parts,
                "sha256": program.sha256,
                "size": target.stat().st_size,
            }
    (folder / MANIFEST).write_bytes(files.canonical_json({"schema_version": 1, "programs": entries}))
