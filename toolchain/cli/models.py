"""The `model` commands: list the predefined networks, and inspect a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, helptext
from toolchain.cli.console import Result
from toolchain.report import Table

if TYPE_CHECKING:
    from toolchain.models.inspection import Inspection, Output


@click.group("model", cls=helptext.Group)
def model() -> None:
    """List the predefined networks; inspect a model."""


@model.command("list")
@common.json_flag
def model_list(*, as_json: bool) -> Result:
    """List the predefined networks.

    Their weights are random numbers from a seed.
    """
    from toolchain.models import zoo

    networks = [{"name": name, "description": zoo.describe(name)} for name in zoo.NAMES]
    return Result(Table([(item["name"], item["description"]) for item in networks]), networks, as_json)


@model.command("inspect")
@common.model_argument
@common.shapes
@common.fixed
@common.json_flag
def model_inspect(source: str, shapes: tuple[str, ...], fixed: tuple[str, ...], *, as_json: bool) -> Result:
    """Show a model's inputs, outputs, size, work and operators.

    Operators are listed as in the file and as imported; those that cannot be imported are named.
    """
    from toolchain.models import inspection
    from toolchain.models import source as models

    inspected = inspection.inspect(models.load(source, common.parse_shapes(shapes), fixed=common.parse_fixed(fixed)))
    return Result(_inspection_table(inspected), inspected, as_json)


def _inspection_table(inspected: Inspection) -> Table:
    rows = [
        ("model", f"{inspected.name}, opset {inspected.opset}"),
        *(("input", str(spec)) for spec in inspected.inputs),
        *(("output", _describe_output(spec)) for spec in inspected.outputs),
        ("parameters", f"{inspected.parameters / 1e6:.2f} million"),
        ("work", "unknown: a shape is open" if inspected.gflops is None else f"{inspected.gflops:.3f} GFLOPs a run"),
        ("operators", _format_counts(inspected.operators)),
        *([("as imported", _format_counts(inspected.imported))] if inspected.imported != inspected.operators else []),
        *(("note", line) for line in inspected.guessed),
        *(("not importable", str(node)) for node in inspected.unsupported),
    ]
    return Table(rows)


def _describe_output(output: Output) -> str:
    """Describe an output; a size of 0 depends on the data."""
    if output.shape is None:
        return f"{output.name} of unknown shape {output.dtype}"
    sizes = "x".join(str(size or "?") for size in output.shape) or "scalar"
    return f"{output.name} {sizes} {output.dtype}"


def _format_counts(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in operators.items())
