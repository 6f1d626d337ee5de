"""Which releases and devices contain a vulnerable component, from packages, bundles and bills of materials here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from toolchain import board as boards
from toolchain.bundle import is_archive
from toolchain.bundle.archive import read_bill
from toolchain.device.connected import Connection
from toolchain.devices import Device
from toolchain.errors import InputError, ToolchainError
from toolchain.files import read_limited
from toolchain.inventory.affected import LARGEST_BILL, Advisory, Product, examine
from toolchain.shell import SshOptions

_BILL_SUFFIX = ".cdx.json"
_PARALLEL = 16

Tell = Callable[[str], None]
"""Called with a line about progress."""


@dataclass(frozen=True)
class Release:
    """A release that contains a component which an advisory names."""

    path: str  # of its package or its bill of materials
    product: Product


@dataclass(frozen=True)
class DeviceState:
    """Whether a release that a device has is affected."""

    name: str
    state: str  # `affected`, `unclear`, `not affected`, `unknown` (no bill of its release is here) or `unreachable`
    digest: str = ""  # of the affected release, or of the current one
    current: bool = True  # whether that is the release that runs; a rollback would make another one run again
    reason: str = ""


@dataclass(frozen=True)
class Answer:
    advisory: Advisory
    searched: int  # number of bills
    releases: tuple[Release, ...]
    devices: tuple[DeviceState, ...]


@dataclass(frozen=True)
class Fleet:
    """The devices to ask for their releases."""

    devices: Mapping[str, Device]
    ssh: SshOptions


def search(advisory: Advisory, paths: Sequence[Path], fleet: Fleet | None, progress: Tell) -> Answer:
    """Search packages, bundles and bills, and compare the releases of devices with them.

    Args:
        advisory: What to look for.
        paths: Files, and folders that are searched with all folders in them.
        fleet: Devices to connect to; None for none.
        progress: Called with each device that was asked.

    Raises:
        InputError: A path does not exist or is something else, or there is no bill at all.
        VerificationError: A package or a bill is damaged.
    """
    products = []
    for path, data in _bills(paths):
        product = examine(advisory, data, str(path), quick=fleet is None)
        products.append(Release(str(path), product) if product else None)
    if not products:
        raise InputError(
            f"there is no bill of materials in {', '.join(map(str, paths))}",
            hint="name packages, bundles, *.cdx.json files, or folders of them",
        )
    by_digest = {release.product.digest: release.product for release in products if release}
    devices = _ask_devices(fleet, by_digest, progress) if fleet else ()
    affected = tuple(release for release in products if release and release.product.matches)
    return Answer(advisory, len(products), affected, devices)


def _bills(paths: Sequence[Path]) -> Iterator[tuple[Path, bytes]]:
    for path in paths:
        if path.is_dir():
            for folder, _folders, names in os.walk(path):
                for name in sorted(names):
                    file = Path(folder, name)
                    if name.endswith(_BILL_SUFFIX):
                        yield file, read_limited(file, LARGEST_BILL)
                    elif name.endswith(".tar") and is_archive(file):
                        yield file, read_bill(file)
        elif not path.is_file():
            raise InputError(f"there is no {path}", hint="name packages, bundles, *.cdx.json files, or folders of them")
        elif path.suffix == ".json":
            yield path, read_limited(path, LARGEST_BILL)
        else:
            yield path, read_bill(path)


def _ask_devices(fleet: Fleet, products: Mapping[str, Product], progress: Tell) -> tuple[DeviceState, ...]:
    def ask(name: str, device: Device) -> DeviceState:
        try:
            with Connection(boards.load(device.board).resolved(), device, fleet.ssh).open() as connected:
                slots = connected.store.releases.in_each_slot()
        except ToolchainError as fault:
            return DeviceState(name, "unreachable", reason=fault.message)
        # An earlier release is one `rollback` away.
        generations = [generation for slot in slots.values() for generation in slot]
        states = [_state(name, products, entry.digest, current=entry.current) for entry in generations]
        ranks = ("affected", "unclear", "unknown", "not affected")
        return min(states, key=lambda state: (ranks.index(state.state), not state.current), default=_nothing(name))

    with ThreadPoolExecutor(_PARALLEL) as pool:
        running = [pool.submit(ask, name, device) for name, device in fleet.devices.items()]
        states = []
        for future in running:
            states.append(future.result())
            progress(f"{states[-1].name}: {states[-1].state}")
    return tuple(states)


def _nothing(name: str) -> DeviceState:
    return DeviceState(name, "not affected", reason="nothing was deployed to it")


def _state(name: str, products: Mapping[str, Product], digest: str, *, current: bool) -> DeviceState:
    if digest not in products:
        return DeviceState(name, "unknown", digest, current, "there is no bill of that release among the files")
    return DeviceState(name, products[digest].certainty or "not affected", digest, current)
