"""Models on boards from Python: build, deploy, run and gate, in a notebook, a script or a test.

docs/api.md has examples. Errors are those of `toolchain.errors`: each has a message, details, a hint, and the exit code
that the command line would end with.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from toolchain import board as boards
from toolchain.adoption import selection
from toolchain.board import Board
from toolchain.bundle import Bundle
from toolchain.compile.request import BuildRequest
from toolchain.device.deploy import Settings
from toolchain.device.lock import Owner
from toolchain.device.waiting import Patience
from toolchain.devices import Device, load_devices
from toolchain.models.inputs import Source as Inputs
from toolchain.models.request import Model, Range, VariantShapes
from toolchain.models.variants import with_range
from toolchain.pipeline import preflight, rig
from toolchain.pipeline.gate import Gate, GateSettings
from toolchain.pipeline.rig import Release, Rig
from toolchain.pipeline.source import BundleSource
from toolchain.progress import Progress, Stages
from toolchain.shell import SshOptions, open_shell

__all__ = [
    "Board",
    "Bundle",
    "Gate",
    "GateSettings",
    "Inputs",
    "Model",
    "Range",
    "Release",
    "Rig",
    "Settings",
    "VariantShapes",
    "build",
    "connect",
    "deploy",
    "load_board",
    "with_range",
]


def _silent(_line: str) -> None:
    """Show no progress."""


def load_board(
    name: str = "local", *, float16: bool = False, bfloat16: bool = False, weights: Literal["", "int8", "int4"] = ""
) -> Board:
    """Load a board type by its name, or from a board file (.toml).

    Args:
        name: The board type.
        float16: Whether layers compute in half precision.
        bfloat16: Whether they multiply in bfloat16, instead.
        weights: What the weights of large fully connected layers are rounded to, instead.
    """
    return boards.load(name).resolved().with_precision(float16=float16, bfloat16=bfloat16, weights=weights)


def build(
    model: str | Path | Model,
    board: Board | str = "local",
    folder: Path | None = None,
    *,
    records: Path | None = None,
    samples: int = 1,
    progress: Progress = _silent,
) -> Bundle:
    """Compile a model for a board type, with the outputs of the reference to compare with.

    Args:
        model: An .onnx file, a model of the zoo, or a `Model` with shapes, sizes of dimensions and inputs.
        board: The board type.
        folder: Where the bundle goes; build/MODEL-BOARD by default. An earlier bundle there is replaced.
        records: File of tuning records; None for those of the board type.
        samples: For how many inputs the reference computes outputs.
        progress: Called with a line for each stage.

    Raises:
        InputError: The model cannot be read, or has something that is not supported.
        BuildError: It cannot be compiled.
    """
    board = load_board(board) if isinstance(board, str) else board
    request = BuildRequest(_as_model(model), board, progress, records=records)
    source = BundleSource(request, Stages(progress), samples=samples)
    return source.build(folder, preflight.before_compile(source))


def _as_model(model: str | Path | Model) -> Model:
    return model if isinstance(model, Model) else Model(str(model))


def connect(
    host: str | Sequence[str] = (),
    board: Board | str | None = None,
    *,
    devices: Path | None = None,
    wait_s: float = 0.0,
    owner: str = "a Python program",
    progress: Progress = _silent,
) -> AbstractContextManager[Rig]:
    """Reserve a device for the time of a block: nobody else deploys to it or measures on it meanwhile.

    Args:
        host: user@address[:port], adb:SERIAL, or a name in devices.toml; of several the first that is free. Without one
            it is this machine, or any device of the board type in devices.toml.
        board: The board type; by default that of the device's entry in devices.toml, or the one that a probe chooses.
        devices: The devices.toml; None for the project's and the user's.
        wait_s: Seconds to wait while all devices are in use.
        owner: What others are shown while it is reserved.
        progress: Called with a line when something is waited for or chosen.

    Raises:
        InputError: There is no such board type or device.
        BusyError: Others use all devices that can be reached.
        DeviceError: None can be reached.
    """
    hosts = [host] if isinstance(host, str) else list(host)
    if isinstance(board, str):
        board = load_board(board)
    ssh = ssh_options()
    board, candidates = find_devices(hosts, board, devices, ssh, progress)
    return rig.hold_free(board, candidates, ssh, Owner.here(owner), Patience(wait_s, progress))


def ssh_options() -> SshOptions:
    """Return how devices are reached: as ~/.ssh/config says, with the password of TOOLCHAIN_SSH_PASSWORD, if any."""
    return SshOptions(password=os.environ.get("TOOLCHAIN_SSH_PASSWORD"))


def find_devices(
    hosts: Sequence[str], board: Board | None, devices: Path | None, ssh: SshOptions, progress: Progress
) -> tuple[Board, tuple[Device, ...]]:
    """Return a board type and its devices that can be used: those named, or all in devices.toml; see `connect`."""
    if board is None and not hosts:
        board = load_board()
    lab = {} if board and board.connection == "local" else load_devices(devices)
    board = board or board_of(hosts[0], hosts[0], lab, ssh, progress)
    return board, rig.candidates(board, hosts, lab)


def board_of(name: str, address: str, lab: Mapping[str, Device], ssh: SshOptions, progress: Progress) -> Board:
    """Return the board type of a device: that of its entry, or the one that a probe chooses, which is reported."""
    if board := selection.listed(name, lab):
        return board.resolved()
    with open_shell(address, config=ssh) as shell:
        selected = selection.select(shell)
    progress(selected.sentence(address))
    return selected.board.resolved()


@contextlib.contextmanager
def deploy(
    device: Rig,
    source: str | Path | Model | Bundle,
    settings: Settings | None = None,
    *,
    progress: Progress = _silent,
) -> Iterator[Release]:
    """Deploy a model, a bundle or a package to a reserved device, verify its outputs there, and measure it.

    The release stays on the device after the block, in which it can be run and gated.

    Raises:
        ToolchainError: With its cause; the device keeps the release that it had, unless only the measurement failed.
    """
    model = _as_model(str(source.folder) if isinstance(source, Bundle) else source)
    with rig.deploy_release(device, model, settings or Settings(), progress) as release:
        yield release
