"""Two boards that cost nothing: this machine behind two SSH servers, with a store of its own each."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tests.support import sshd
from tests.support.paths import ROOT
from tests.support.sshd import Server
from toolchain.board import Board
from toolchain.device.store import Store
from toolchain.errors import BusyError
from toolchain.shell import LocalShell

KIND = "bench"
NAMES = ("a", "b")
_FREE_S = 30.0
_INSTALLED = any(
    entry_point.value == "toolchain.pytest_plugin" for entry_point in metadata.entry_points(group="pytest11")
)
PLUGIN = "edge_toolchain" if _INSTALLED else "toolchain.pytest_plugin"
"""How `pytest -p` names our plug-in; it may not be loaded under two names."""
_PLUGINS = ("toolchain.pytest_plugin", "xdist.plugin", "pytest_timeout", "no:cacheprovider")


@dataclass(frozen=True)
class Boards:
    """The boards.

    Attributes:
        folder: Where their stores, their board type and the devices.toml lie.
        servers: The SSH server of each by its name.
    """

    folder: Path
    servers: Mapping[str, Server]

    @property
    def devices(self) -> Path:
        return self.folder / "devices.toml"

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "TOOLCHAIN_BOARDS": str(self.folder),
            "TOOLCHAIN_DEVICES": str(self.devices),
            "PYTHONPATH": str(ROOT),
            "PYTEST_ADDOPTS": "",
        }

    def store(self, name: str) -> Store:
        """Return a board's store, as one who has logged in there sees it."""
        return Store(LocalShell(), str(self.folder / f"store-{name}"))

    def is_free(self, name: str) -> bool:
        try:
            self.store(name).check_free()
        except BusyError:
            return False
        return True

    def await_free(self) -> float:
        """Return how many seconds it takes until nobody holds a board."""
        began = time.monotonic()
        while not all(map(self.is_free, NAMES)):
            assert time.monotonic() < began + _FREE_S, "a board is not free after 30 s"
            time.sleep(0.05)
        return time.monotonic() - began

    def pytest(self, folder: Path, *arguments: object) -> subprocess.Popen[str]:
        """Start a session of pytest on the tests of a folder.

        It loads no other plug-ins than these: those of Hypothesis and labgrid take three seconds of each process.
        """
        plugins = [argument for name in _PLUGINS for argument in ("-p", name)]
        argv = [sys.executable, "-m", "pytest", *plugins, "--board", KIND]
        environment = {**self.environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(
            [*argv, *map(str, arguments)], env=environment, cwd=folder, text=True, start_new_session=True, **pipes
        )


@contextlib.contextmanager
def running(folder: Path, native: Board) -> Iterator[Boards]:
    """Start the boards in a folder; they end with the block."""
    (folder / f"{KIND}.toml").write_text(
        f'description = "this machine, over SSH"\nconnection = "ssh"\nmachine = "{native.machine}"\n'
        f'triple = "{native.triple}"\ntoolchain = "host"\ncores = 1\n[target]\nmcpu = "generic"\n'
    )
    (folder / "devices.toml").write_text(
        "\n".join(
            f'[devices.{name}]\nboard = "{KIND}"\nhost = "board"\nssh_config = "{name}/ssh_config"\nemulated = true\n'
            f'root = "{folder}/store-{name}"\n'
            for name in NAMES
        )
    )
    with contextlib.ExitStack() as stack:
        yield Boards(folder, {name: stack.enter_context(sshd.running(folder / name)) for name in NAMES})
