"""A network as a user embeds it: `toolchain build` and `toolchain sdk` in one folder, which `_peers.Ours` opens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from benchmarks._peers_networks import Network

BUNDLE, SDK = "bundle", "sdk"


def is_built(folder: Path) -> bool:
    """Whether `build` has finished in a folder: the SDK comes last."""
    return (folder / SDK).exists()


def build(
    network: Network,
    folder: Path,
    options: Sequence[str | Path] = (),
    programs: Path | None = None,
    board: str = "local",
) -> None:
    """Write the bundle and the SDK.

    Args:
        network: What to build.
        folder: Where they go.
        options: Further ones for `toolchain build`.
        programs: The folder of another checkout's `toolchain`.
        board: A board type whose code this machine can run.

    Raises:
        RuntimeError: The toolchain fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    input_file = folder / "input.npz"
    np.savez(input_file, **network.samples(1)[0])
    arguments = [network.build, "--board", board, "-o", folder / BUNDLE, "--input", input_file, *options]
    for key, shape in network.shapes.items():
        if key not in network.fixed and shape:
            arguments += ["--shape", f"{key}:{','.join(map(str, shape))}"]
    arguments += [argument for key, value in network.fixed.items() for argument in ("--fix", f"{key}={value}")]
    program = (programs or Path(sys.executable).parent) / "toolchain"
    for command in (["build", *arguments], ["sdk", "-o", folder / SDK]):
        completed = subprocess.run([program, *command], check=False, capture_output=True, text=True)
        if completed.returncode:
            raise RuntimeError(f"toolchain {command[0]} failed: {completed.stderr.strip()[-500:]}")
