"""The command `models`: list the predefined networks."""

from __future__ import annotations

from toolchain.cli import declare
from toolchain.cli.console import Result
from toolchain.report import Table


@declare.command()
@declare.json_flag
def models(*, as_json: bool) -> Result:
    """Their weights are random numbers from a seed."""
    from toolchain.models import zoo

    networks = [{"name": name, "description": zoo.describe(name)} for name in zoo.NAMES]
    return Result(Table([(item["name"], item["description"]) for item in networks]), networks, as_json)
