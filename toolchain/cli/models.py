"""The `model` commands: list the predefined networks, and make weights of a model zero."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from toolchain.cli import common, declare
from toolchain.cli.console import Result
from toolchain.cli.gathering import gather, option, record
from toolchain.errors import InputError
from toolchain.report import Table

_MARK = "toolchain.pruned"  # the entry of a model's metadata by which an earlier result is recognized


@declare.group()
def model() -> None:
    pass


@model.command("list")
@declare.json_flag
def model_list(*, as_json: bool) -> Result:
    """List the predefined networks.

    Their weights are random numbers from a seed.
    """
    from toolchain.models import zoo

    networks = [{"name": name, "description": zoo.describe(name)} for name in zoo.NAMES]
    return Result(Table([(item["name"], item["description"]) for item in networks]), networks, as_json)


@dataclass(frozen=True)
class PruneOptions:
    """The options of `model prune`."""

    sparsity: float = option(
        "--sparsity",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        required=True,
        metavar="SHARE",
        help="Share of the blocks of each layer that become zero, such as 0.8.",
    )
    block: str = option(
        "--block",
        default="16x1",
        show_default=True,
        metavar="OUTPUTSxINPUTS",
        help="Shape of a block of weights. Kernels use Nx1, where N floats fill a vector register of the CPU.",
    )
    random: bool = option("--random", is_flag=True, help="Choose random blocks, not those with the smallest weights.")
    output: Path | None = option(
        "-o", "--output", type=common.PATH, help="Where to write the model. Default: MODEL-sparse.onnx."
    )
    model: common.ModelOptions = record(common.ModelOptions)


@model.command("prune")
@common.model_argument
@gather("options", PruneOptions)
@declare.json_flag
def model_prune(source: str, options: PruneOptions, *, as_json: bool) -> Result:
    """Make blocks of a model's weights zero, to try sparse kernels.

    The model is not trained again, so its outputs change. MODEL is a predefined network or an .onnx file. Layers with
    groups of channels or few inputs stay as they are.
    """
    from toolchain import files, outputs
    from toolchain.models import source as models
    from toolchain.models import sparsity

    block = sparsity.parse_block(options.block)
    loaded = models.load_request(options.model.model(source))
    output = options.output or Path(f"{loaded.name}-sparse.onnx")
    if output.exists() and Path(source).exists() and output.samefile(source):
        raise InputError(f"{output} is the model itself and is not overwritten", hint="name another file with -o")
    outputs.check_file(output, "a pruned model", _foreign)
    layers = sparsity.prune(loaded.proto, options.sparsity, block, options.model.seed if options.random else None)
    proto = models.as_declared(loaded)
    proto.metadata_props.add(key=_MARK, value=f"{options.sparsity:g} of the blocks {block}")
    content = proto.SerializeToString(deterministic=True)
    with files.atomic_path(output) as path:
        path.write_bytes(content)
    document = {
        "file": str(output),
        "sha256": files.sha256_bytes(content),
        "layers": [{"name": layer.name, "operator": layer.operator, "zeros": layer.zeros} for layer in layers],
        "sparsity": sparsity.measure(proto.graph),
    }
    rows = [(layer.name, layer.operator, "x".join(map(str, layer.shape)), f"{layer.zeros:.0%}") for layer in layers]
    table = Table(rows, ("LAYER", "OPERATOR", "WEIGHTS", "ZERO"), numbers=(3,), spare=(0,))
    return Result([table, f"{output}: sha256:{document['sha256']}"], document, as_json)


def _foreign(path: Path) -> str:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        proto = onnx.load_model(path, format="protobuf", load_external_data=False)
    except (DecodeError, OSError, ValueError):
        return "it is not an ONNX model"
    pruned = any(entry.key == _MARK for entry in proto.metadata_props)
    return "" if pruned else "it is a model that `model prune` did not write"
