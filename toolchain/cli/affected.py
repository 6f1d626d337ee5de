"""The `affected` command: which releases and devices contain a vulnerable component."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain import files
from toolchain.cli import common, declare, helptext
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather
from toolchain.cli.rollout import FleetOptions
from toolchain.errors import InputError
from toolchain.report import Table

if TYPE_CHECKING:
    from toolchain.pipeline.affected import Answer

_SHORT_DIGEST = 16


@declare.command()
@click.argument("query", metavar="PURL|FILE")
@helptext.option(
    "--releases",
    type=common.PATH,
    multiple=True,
    required=True,
    help="Packages, bundles or CycloneDX files, or folders of them; repeatable.",
)
@helptext.option(
    "--vex",
    type=common.PATH,
    metavar="FILE",
    help="Also write a VEX document (CycloneDX) for these releases: a draft, which you complete.",
)
@gather("options", FleetOptions)
@declare.json_flag
@click.pass_obj
def affected(
    console: Console,
    /,
    query: str,
    releases: tuple[Path, ...],
    vex: Path | None,
    options: FleetOptions,
    *,
    as_json: bool,
) -> Result:
    """PURL is a package URL, with or without a version; FILE is a CVE record (format 5) or an OSV advisory.

    Bills of materials are read from the releases; nothing is downloaded. With --fleet or --inventory, the devices are
    asked which releases they have. A match is `unclear` where the advisory has only a name, or where other rules for
    versions than Python's decide.
    """
    from toolchain.inventory import vex as vex_documents
    from toolchain.inventory.affected import parse_advisory
    from toolchain.pipeline import affected as pipeline

    if vex and vex.exists():  # a person may have completed it
        raise InputError(f"{vex} exists, and is not replaced", hint="choose a new name, or move the file away")
    advisory = parse_advisory(query)
    fleet = None
    if options.fleet or options.inventory:
        fleet = pipeline.Fleet(options.read().devices, options.ssh())
    answer = pipeline.search(advisory, releases, fleet, console.say)
    if vex:
        concerned = {release.path: release.product for release in answer.releases}
        files.write_atomic(vex, vex_documents.document(advisory.identifier, concerned))
    document: dict[str, object] = {"advisory": advisory.identifier, "searched": answer.searched}
    document |= {"releases": answer.releases, "devices": answer.devices}
    return Result(_tables(answer), document, as_json)


def _tables(answer: Answer) -> list[Table | str]:
    rows = [
        (
            release.product.name,
            release.product.digest[:_SHORT_DIGEST],
            f"{match.component} {match.version}",
            match.certainty,
            "runtime" if match.required else "build only",
            release.path,
        )
        for release in answer.releases
        for match in release.product.matches
    ]
    count = len(answer.releases)
    summary = f"{answer.advisory.identifier}: {count or 'none'} of {answer.searched} releases contain it"
    parts: list[Table | str] = (
        [Table(rows, ("RELEASE", "DIGEST", "COMPONENT", "STATE", "USED FOR", "FILE"))] if rows else []
    )
    if answer.devices:
        devices = [
            (
                device.name,
                device.state,
                device.digest[:_SHORT_DIGEST],
                "" if device.current else "earlier",
                device.reason,
            )
            for device in answer.devices
        ]
        parts.append(Table(devices, ("DEVICE", "STATE", "RELEASE", "", "REASON")))
    return [*parts, summary]
