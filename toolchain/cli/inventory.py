"""What a package says is in it, and how it was made."""

from __future__ import annotations

from pathlib import Path

import click

from toolchain.cli import common, helptext
from toolchain.cli.console import Result
from toolchain.tables import Table

_HEAD = ("NAME", "VERSION", "KIND", "USED FOR")


@click.command("inventory", cls=helptext.Command)
@click.argument("package", type=common.PATH)
@helptext.option(
    "--provenance", is_flag=True, help="Show how it was built, as an in-toto statement with SLSA provenance."
)
@common.json_flag
def inventory(package: Path, *, provenance: bool, as_json: bool) -> Result:
    """List what a package contains and what built it.

    PACKAGE is a package or the folder of a bundle. --json prints CycloneDX.
    """
    from toolchain import bundle as bundles
    from toolchain import files
    from toolchain.bundle import inventories

    with bundles.at_hand(package) as bundle:
        document = inventories.document(bundle, bundles.PROVENANCE if provenance else bundles.BILL)
        if provenance:
            return Result(files.canonical_json(document).decode(), document, as_json)
        rows = [
            (component.name, component.version, component.kind, _part(required=component.required))
            for component in inventories.components(bundle)
        ]
    return Result(Table(rows, _HEAD, spare=(2,)), document, as_json)


def _part(*, required: bool) -> str:
    return "runtime" if required else "build only"
