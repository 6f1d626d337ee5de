"""A device for a test session: the first free one of several, locked for the session, with a release on it."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain import temporary, tensors
from toolchain.board import Board
from toolchain.bundle.manifest import Manifest
from toolchain.compile.request import BuildRequest
from toolchain.device import sampling
from toolchain.device.bench import Latency
from toolchain.device.connected import ConnectedDevice, Connection
from toolchain.device.deploy import Settings
from toolchain.device.installed import DeviceRelease
from toolchain.device.lock import Lease, Owner
from toolchain.device.waiting import Patience, Waited
from toolchain.devices import Device, find_device
from toolchain.errors import BusyError, DeviceError, InputError
from toolchain.models.request import Model
from toolchain.models.series import Series
from toolchain.pipeline import ab, preflight
from toolchain.pipeline import gate as gating
from toolchain.pipeline.deploy import deploy_bundle, obtain_with_runner
from toolchain.pipeline.gate import Gate, GateSettings
from toolchain.pipeline.report import Report
from toolchain.pipeline.source import BundleSource
from toolchain.progress import Progress, Stages
from toolchain.registry import Access
from toolchain.shell import SshOptions

_ORDER = random.SystemRandom()  # so that sessions that begin together do not all ask the same device first
# A device out of reach is tried again after ten times the seconds that the attempt took, so that others get their turn.
_MIN_REST_S, _REST_FACTOR = 5.0, 10.0


@dataclass(frozen=True, repr=False)
class Rig(ConnectedDevice):
    """A locked device."""

    lease: Lease | None = None
    waited: tuple[Waited, ...] = ()  # who was at work on all of the devices before, and how long they were waited for

    def __repr__(self) -> str:
        return f"<{self.board.name} at {self.shell.name}>"

    def check(self) -> None:
        """Check that the device is still ours.

        Raises:
            DeviceError: The lock or the device is lost.
        """
        if self.lease:
            self.lease.confirm()


def candidates(board: Board, hosts: Sequence[str], devices: Mapping[str, Device]) -> tuple[Device, ...]:
    """List the devices that can be used: the named ones, or all of the lab's devices of a board type.

    Raises:
        InputError: There is no such device, or a named one is of another type.
    """
    if hosts:
        return tuple(find_device(board, host, devices) for host in dict.fromkeys(hosts))
    fitting = tuple(device for device in devices.values() if device.board == board.name)
    return fitting if fitting and board.connection != "local" else (find_device(board, None, devices),)


@contextlib.contextmanager
def hold_free(
    board: Board, devices: Sequence[Device], ssh: SshOptions, owner: Owner, patience: Patience
) -> Iterator[Rig]:
    """Lock the first free device during a block.

    Raises:
        BusyError: All reachable devices are in use.
        DeviceError: No device can be reached.
    """
    attempts = [_Candidate(Connection(board, device, ssh), owner) for device in _ORDER.sample(devices, len(devices))]

    def take() -> tuple[_Candidate, ConnectedDevice, Lease]:
        faults: list[DeviceError] = []
        for candidate in attempts:
            try:
                return candidate, *candidate.take()
            except DeviceError as fault:
                faults.append(fault)
        raise _combine(faults)

    with contextlib.ExitStack() as stack:
        for candidate in attempts:
            stack.callback(candidate.close)
        chosen, device, lease = patience.get(take)
        for candidate in attempts:
            if candidate is not chosen:
                candidate.close()
        yield Rig(device.board, device.entry, device.shell, device.store, lease, patience.waited)


class _Candidate:
    """A device that stays connected while it is busy; after a failed connection, it is not tried again for a while."""

    def __init__(self, connection: Connection, owner: Owner) -> None:
        self._connection, self._owner = connection, owner
        self._stack = contextlib.ExitStack()
        self._device: ConnectedDevice | None = None
        self._fault: DeviceError | None = None
        self._not_before = 0.0

    def take(self) -> tuple[ConnectedDevice, Lease]:
        """Lock it.

        Raises:
            BusyError: Somebody else is using it.
            DeviceError: It cannot be reached, or could not be a moment ago.
        """
        if self._fault and time.monotonic() < self._not_before:
            raise self._fault
        began = time.monotonic()
        try:
            if self._device is None:
                self._device = self._stack.enter_context(self._connection.open())
            return self._device, self._stack.enter_context(self._device.store.lock(self._owner))
        except BusyError:
            raise
        except DeviceError as fault:
            self.close()
            self._fault, now = fault, time.monotonic()
            self._not_before = now + max(_MIN_REST_S, _REST_FACTOR * (now - began))
            raise

    def close(self) -> None:
        """Unlock it, and end the connection."""
        self._device = None
        self._stack.close()


def _combine(faults: Sequence[DeviceError]) -> DeviceError:
    # A busy device is worth waiting for, so one of them decides the class of the error.
    busy = [fault for fault in faults if isinstance(fault, BusyError)]
    if len(faults) == 1 or not busy:
        return faults[0]
    owners = "; ".join(dict.fromkeys(fault.owner for fault in busy))
    details = "\n".join(fault.message for fault in faults)
    message = f"none of {len(faults)} devices is free: {owners}"
    return BusyError(message, details=details, hint=busy[0].hint, owner=owners)


@dataclass(frozen=True, repr=False)
class Release:
    """A release that was deployed, checked and measured."""

    rig: Rig  # the locked device
    report: Report
    release: DeviceRelease
    folder: Path  # its bundle, on this machine
    progress: Progress

    def __repr__(self) -> str:
        return f"<{self.report.model} {self.report.bundle_digest[:16]} on {self.rig!r}>"

    @property
    def digest(self) -> str:
        return f"sha256:{self.report.bundle_digest}"

    @property
    def manifest(self) -> Manifest:
        """The release's manifest, with the model's inputs and outputs."""
        return self.release.manifest

    @property
    def latency(self) -> Latency:
        """Milliseconds of a run: `median`, `min`, `samples` and so on."""
        return self.report.measurement.latency

    @property
    def emulated(self) -> bool:
        """Whether its times are an emulator's, which say nothing about a board."""
        return self.report.emulated

    def run(self, values: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run it once on arrays by name, and return its outputs by name; a model with a state begins with zeros.

        Of several variants, the one that has the shapes of the arrays runs.

        Raises:
            InputError: The arrays do not have the model's shapes and types.
            DeviceError: The device, or its lock, is lost; or the model does not run.
        """
        self.rig.check()
        arrays = {name: np.asarray(value) for name, value in values.items()}
        name = self.manifest.select(arrays, "these") if self.manifest.variants else ""
        release = self.release.of_variant(name)
        if faults := tensors.check_signature(arrays, release.manifest.step_inputs):
            raise InputError("the arrays do not fit the model's inputs", details="\n".join(faults))
        series = Series(1, lambda _: {name: value[None] for name, value in arrays.items()}, single=True)
        outputs = sampling.run_all(release, series).outputs
        return tensors.cut({name: value[0] for name, value in outputs.items()}, release.manifest.outputs)

    def gate(self, base: str, settings: GateSettings) -> Gate:
        """Gate it against another release, in turns.

        `base` is a package, a bundle's folder, a file with a digest, or a release that the device keeps.

        Raises:
            ToolchainError: As `toolchain gate`, except for the verdict, which is returned.
        """
        self.rig.check()
        request = ab.Request(
            names=(str(self.folder), base),
            board=self.rig.board,
            connect=lambda: contextlib.nullcontext(self.rig),
            progress=self.progress,
            access=Access(),
        )
        return gating.gate(request, settings, emulated=self.rig.emulated)


@contextlib.contextmanager
def deploy_release(rig: Rig, model: Model, settings: Settings, progress: Progress) -> Iterator[Release]:
    """Deploy a package, a bundle or a model, check its outputs and measure it.

    Raises:
        ToolchainError: As `deploy`.
    """
    stages = Stages(progress)
    bundle_source = BundleSource(BuildRequest(model, rig.board, progress), stages, samples=settings.samples)
    with temporary.folder() as work:
        folder = Path(work) / "bundle"
        checks = preflight.before_deploy(bundle_source, folder, lambda: contextlib.nullcontext(rig))
        bundle, runner = obtain_with_runner(bundle_source, folder, checks.subject, checks.triple)
        report = deploy_bundle(bundle, runner, rig, settings, stages, bundle_source.own_inputs)
        release = DeviceRelease.of_device(bundle.manifest, bundle.digest, runner, rig, settings.threads)
        yield Release(rig, replace(report, waited=rig.waited), release, bundle.folder, progress)
