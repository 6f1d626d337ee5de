"""A model on its whole way: built for a board, deployed to this machine and compared with its reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.support import deploys
from toolchain.board import Board
from toolchain.compile.request import BuildRequest
from toolchain.device.deploy import Deployment
from toolchain.device.store import Store
from toolchain.models import inputs
from toolchain.models.request import Model
from toolchain.native.programs import Program
from toolchain.pipeline.source import BundleSource
from toolchain.shell import LocalShell

NINE = (
    *("mlp", "mobilenet", "mobilenet_v2", "squeezenet_v1.1", "resnet-18", "resnet-34", "resnet-50", "resnet-18-v2"),
    "resnet3d-18",
)
"""What each kind of emulated board runs; docs/virtual-boards.md has the differences."""


def deployed(model: str | Model, kind: Board, program: Program, folder: Path) -> Deployment:
    """Build a model and deploy it to this machine, without the benchmark."""
    named = Model(model, {}, inputs.Source()) if isinstance(model, str) else model
    made = BundleSource(BuildRequest(named, kind)).build(folder / "bundle")
    with LocalShell() as shell:
        store = Store(shell, str(folder / "device"))
        return deploys.deploy(made, program, shell, store, keep=1, threads=0)


def fed(path: Path, given: Mapping[str, np.ndarray]) -> inputs.Source:
    """Write what a model is run with to a file, as a user would give it."""
    np.savez(path, **given)
    return inputs.Source(npz=path)
