"""The `inspect` commands: show what a model or a package contains."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, declare, helptext
from toolchain.cli.console import Result
from toolchain.report import Table

if TYPE_CHECKING:
    from toolchain.models.inspection import Inspection, Output
    from toolchain.models.sparsity import Sparsity


@declare.group()
def inspect() -> None:
    pass


@inspect.command("model")
@common.model_argument
@common.shapes
@common.dims
@common.fixed
@declare.json_flag
def inspect_model(
    source: str, shapes: tuple[str, ...], dims: tuple[str, ...], fixed: tuple[str, ...], *, as_json: bool
) -> Result:
    """Show a model's inputs, outputs, size, work and operators.

    Operators are listed as in the file and as imported; those that cannot be imported are named.
    """
    from toolchain.models import inspection, variants
    from toolchain.models import source as models

    model = common.ModelOptions(shapes, dims, fixed).model(source)
    if not model.variants:
        inspected = inspection.inspect(models.load_request(model))
        return Result(_inspection_table(inspected), inspected, as_json)
    of_variants = {
        variant.name: inspection.inspect(models.load_request(model.of_variant(variant))) for variant in model.variants
    }
    variants.check_distinct({name: each.inputs for name, each in of_variants.items()})
    first = next(iter(of_variants.values()))
    document = {**dataclasses.asdict(first), "variants": [_variant(*item) for item in of_variants.items()]}
    return Result([_variants_table(of_variants), "", _inspection_table(first)], document, as_json)


def _variant(name: str, inspected: Inspection) -> dict[str, object]:
    """Return what differs between the variants of a model."""
    return {"name": name, "inputs": inspected.inputs, "outputs": inspected.outputs, "gflops": inspected.gflops}


def _variants_table(of_variants: Mapping[str, Inspection]) -> Table:
    rows = [
        (
            name,
            ", ".join(map(str, inspected.inputs)),
            ", ".join(map(_describe_output, inspected.outputs)),
            "unknown" if inspected.gflops is None else f"{inspected.gflops:.3f}",
        )
        for name, inspected in of_variants.items()
    ]
    return Table(rows, ("VARIANT", "INPUTS", "OUTPUTS", "GFLOPS"), (3,))


def _inspection_table(inspected: Inspection) -> Table:
    rows = [
        ("model", f"{inspected.name}, opset {inspected.opset}"),
        *(("input", str(spec)) for spec in inspected.inputs),
        *(("output", _describe_output(spec)) for spec in inspected.outputs),
        ("parameters", f"{inspected.parameters / 1e6:.2f} million"),
        ("work", "unknown: a shape is open" if inspected.gflops is None else f"{inspected.gflops:.3f} GFLOPs a run"),
        *([("zero weights", _describe_zeros(inspected.sparsity))] if inspected.sparsity else []),
        *([("weights", str(inspected.few_bits))] if inspected.few_bits else []),
        ("operators", _format_counts(inspected.operators)),
        *([("as imported", _format_counts(inspected.imported))] if inspected.imported != inspected.operators else []),
        *(("note", line) for line in inspected.guessed),
        *(("not importable", str(node)) for node in inspected.unsupported),
    ]
    return Table(rows)


def _describe_zeros(sparsity: Sparsity) -> str:
    blocks = ", ".join(f"{share:.0%} of {block}" for block, share in sparsity.blocks.items())
    return f"{sparsity.zeros:.0%}; of the blocks {blocks}"


def _describe_output(output: Output) -> str:
    """Describe an output; a size of 0 depends on the data."""
    if output.shape is None:
        return f"{output.name} of unknown shape {output.dtype}"
    sizes = "x".join(str(size or "?") for size in output.shape) or "scalar"
    return f"{output.name} {sizes} {output.dtype}"


def _format_counts(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in operators.items())


@inspect.command("package")
@click.argument("package", type=common.PATH)
@helptext.option(
    "--provenance", is_flag=True, help="Show how it was built, as an in-toto statement with SLSA provenance."
)
@declare.json_flag
def inspect_package(package: Path, *, provenance: bool, as_json: bool) -> Result:
    """List what a package contains and what built it.

    PACKAGE is a package or the folder of a bundle. --json prints CycloneDX.
    """
    from toolchain import bundle as bundles
    from toolchain import files
    from toolchain.bundle import inventories

    with bundles.at_hand(package) as bundle:
        document = inventories.document(
            bundle.folder, bundle.manifest, bundles.PROVENANCE if provenance else bundles.BILL
        )
        if provenance:
            return Result(files.canonical_json(document).decode(), document, as_json)
        rows = [
            (component.name, component.version, component.kind, "runtime" if component.required else "build only")
            for component in inventories.components(bundle.folder, bundle.manifest)
        ]
        support = bundle.manifest.supported_until
        pairs = [(str(pair), "in place" if pair.in_place else "two buffers") for pair in bundle.manifest.states]
    parts: list[str | Table] = [Table(rows, ("NAME", "VERSION", "KIND", "USED FOR"), spare=(2,))]
    parts += ["", Table(pairs, ("STATE", "WRITTEN"))] if pairs else []
    parts += ["", f"its publisher supports it until {support}"] if support else []
    return Result(parts, document, as_json)
