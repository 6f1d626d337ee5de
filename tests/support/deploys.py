"""Deploys to this machine by the product's own steps, without a command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

from toolchain import board
from toolchain.bundle import Bundle
from toolchain.device import deploy as product
from toolchain.device.connected import ConnectedDevice
from toolchain.device.deploy import Deployment, Settings
from toolchain.device.installed import Installed
from toolchain.device.lock import Owner
from toolchain.device.shipment import Sent
from toolchain.device.store import Store
from toolchain.devices import Application, Device
from toolchain.native.programs import Program
from toolchain.progress import Stages
from toolchain.shell import LocalShell, Shell


def connected(shell: Shell, store: Store, *, keep: int = 3, application: Application | None = None) -> ConnectedDevice:
    """Return this machine as a device that keeps so many releases, with an application that runs them."""
    local = dataclasses.replace(board.load("local").resolved(), keep=keep)
    return ConnectedDevice(local, Device(local.name, "local", run=application), shell, store)


def installed(folders: Mapping[str, str], root: Path, release: object = "any", shell: Shell | None = None) -> Installed:
    """Return a release that is ready to run on this machine, on one thread.

    Args:
        folders: Folders with the runner and the inputs.
        root: The store.
        release: The folder of the release.
        shell: The device, if it is not this machine.
    """
    device = SimpleNamespace(shell=shell or LocalShell(), store=SimpleNamespace(root=str(root)))
    return Installed(
        SimpleNamespace(device=device, threads=1, variant=""), {**folders, "releases": str(release)}, Sent(0, 0, 0.0)
    )


def deploy(
    bundle: Bundle,
    program: Program,
    shell: Shell,
    store: Store,
    *,
    keep: int = 3,
    application: Application | None = None,
    library: Program | None = None,
    tell: Callable[[str], None] = lambda _line: None,
    stages: Stages | None = None,
    **settings: object,
) -> Deployment:
    """Deploy a bundle; `settings` are those of the product, on one thread by default."""
    device = connected(shell, store, keep=keep, application=application)
    resolved = Settings(**{"threads": 1, **settings})
    with store.lock(Owner.here("deploy")):
        return product.deploy(bundle, program, device, resolved, stages or Stages(tell), library)
