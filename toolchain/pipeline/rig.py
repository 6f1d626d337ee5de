"""A device for the time of a test session: one of several that is free, held for the session, with a release on it."""

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
from toolchain.compile.request import BuildRequest, Tell
from toolchain.device import sampling
from toolchain.device.bench import Latency
from toolchain.device.connected import ConnectedDevice, Connection
from toolchain.device.deploy import Settings
from toolchain.device.installed import DeviceRelease
from toolchain.device.lock import Lease, Owner
from toolchain.device.stages import Stages
from toolchain.device.waiting import Patience, Waited
from toolchain.devices import Device, find_device
from toolchain.errors import BusyError, DeviceError, InputError
from toolchain.models import inputs
from toolchain.models.request import Model
from toolchain.models.series import Series
from toolchain.pipeline import device_programs, preflight
from toolchain.pipeline import gate as gating
from toolchain.pipeline.deploy import deploy_bundle
from toolchain.pipeline.gate import Gate, GateSettings
from toolchain.pipeline.report import Report
from toolchain.pipeline.source import BundleSource
from toolchain.registry import Access
from toolchain.shell import SshOptions

_ORDER = random.SystemRandom()  # sessions that begin together shall not all ask the same device first
_LEAST_REST_S, _REST = 5.0, 10.0
"""How long a device that was not reached is left alone: so many times as long as it took, for others to be asked."""


@dataclass(frozen=True, repr=False)
class Rig(ConnectedDevice):
    """A device whose lock is held.

    Attributes:
        lease: The lock.
        waited: Who was at work on all of the devices before, and how long they were waited for.
    """

    lease: Lease | None = None
    waited: tuple[Waited, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.board.name} at {self.shell.name}>"

    def check(self) -> None:
        """See that the device is still ours.

        Raises:
            DeviceError: Its lock is lost, or the device is.
        """
        if self.lease:
            self.lease.confirm()


def candidates(kind: Board, hosts: Sequence[str], devices: Mapping[str, Device]) -> tuple[Device, ...]:
    """List the devices that will do.

    Args:
        kind: The board type, resolved.
        hosts: Addresses, or names of devices; without any, all of the lab's devices of that type.
        devices: The lab's devices.

    Raises:
        InputError: There is none, or a named one is of another type.
    """
    if hosts:
        return tuple(find_device(kind, host, devices) for host in dict.fromkeys(hosts))
    fitting = tuple(device for device in devices.values() if device.board == kind.name)
    return fitting if fitting and kind.connection != "local" else (find_device(kind, None, devices),)


@contextlib.contextmanager
def held(kind: Board, devices: Sequence[Device], ssh: SshOptions, owner: Owner, patience: Patience) -> Iterator[Rig]:
    """Hold the first of some devices that is free, for the time of a block.

    Args:
        kind: Their board type, resolved.
        devices: The devices.
        ssh: How they are reached, besides what their entries say.
        owner: Who wants it; others are told.
        patience: How long all of them may be busy.

    Raises:
        BusyError: Others are at work on all that can be reached.
        DeviceError: None can be reached.
    """
    tried = [_Candidate(kind, device, ssh, owner) for device in _ORDER.sample(devices, len(devices))]

    def take() -> tuple[_Candidate, ConnectedDevice, Lease]:
        faults: list[DeviceError] = []
        for candidate in tried:
            try:
                return candidate, *candidate.take()
            except DeviceError as fault:
                faults.append(fault)
        raise _none_free(faults)

    with contextlib.ExitStack() as stack:
        for candidate in tried:
            stack.callback(candidate.close)
        chosen, device, lease = patience.get(take)
        for candidate in tried:
            if candidate is not chosen:
                candidate.close()
        yield Rig(device.board, device.entry, device.shell, device.store, lease, patience.waited)


class _Candidate:
    """A device that may be taken: connected while it is busy, and left alone for a while after it was not reached.

    Args:
        kind: Its board type, resolved.
        device: The device.
        ssh: How it is reached.
        owner: Who wants it.
    """

    def __init__(self, kind: Board, device: Device, ssh: SshOptions, owner: Owner) -> None:
        self._connection = Connection(kind, device, ssh)
        self._owner = owner
        self._stack = contextlib.ExitStack()
        self._device: ConnectedDevice | None = None
        self._fault: DeviceError | None = None
        self._not_before = 0.0

    def take(self) -> tuple[ConnectedDevice, Lease]:
        """Lock it.

        Raises:
            BusyError: Somebody else has it.
            DeviceError: It cannot be reached, or was not just now.
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
            self._not_before = now + max(_LEAST_REST_S, _REST * (now - began))
            raise

    def close(self) -> None:
        """Give it back, and end the connection."""
        self._device = None
        self._stack.close()


def _none_free(faults: Sequence[DeviceError]) -> DeviceError:
    """Return the one fault, or all in one: somebody's work ends, so that one is worth to be waited for."""
    busy = [fault for fault in faults if isinstance(fault, BusyError)]
    if len(faults) == 1 or not busy:
        return faults[0]
    owners = "; ".join(dict.fromkeys(fault.owner for fault in busy))
    details = "\n".join(fault.message for fault in faults)
    message = f"none of {len(faults)} devices is free: {owners}"
    return BusyError(message, details=details, hint=busy[0].hint, owner=owners)


@dataclass(frozen=True, repr=False)
class Release:
    """A release that was deployed, checked and measured.

    Attributes:
        rig: The device, which is held.
        report: What a deploy reports.
        release: The release there, and what runs it.
        folder: Its bundle, on this machine.
        tell: Called with lines about progress.
    """

    rig: Rig
    report: Report
    release: DeviceRelease
    folder: Path
    tell: Tell

    def __repr__(self) -> str:
        return f"<{self.report.model} {self.report.bundle_digest[:16]} on {self.rig!r}>"

    @property
    def digest(self) -> str:
        """Its digest, as the package has it."""
        return f"sha256:{self.report.bundle_digest}"

    @property
    def latency(self) -> Latency:
        """How long a run takes, in milliseconds: `median`, `min`, `samples` and so on."""
        return self.report.measurement.latency

    @property
    def emulated(self) -> bool:
        """Whether its times are an emulator's, and so mean nothing."""
        return self.report.emulated

    def run(self, fed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run it once.

        Args:
            fed: Arrays by name, of the model's shapes and types.

        Returns:
            Its outputs by name.

        Raises:
            InputError: The inputs are not the model's.
            DeviceError: The device, or its lock, is lost; or the model does not run.
        """
        self.rig.check()
        manifest = self.release.manifest
        given = {name: np.asarray(value) for name, value in fed.items()}
        if faults := tensors.check_signature(given, manifest.inputs):
            raise InputError("the arrays do not fit the model's inputs", details="\n".join(faults))
        series = Series(1, lambda _: {name: value[None] for name, value in given.items()}, single=True)
        found = sampling.run_all(self.release, series).outputs
        return tensors.cut({name: value[0] for name, value in found.items()}, manifest.outputs)

    def gated(self, base: str, settings: GateSettings) -> Gate:
        """Hold it against another release, in turns.

        Args:
            base: A package, a bundle's folder, a file with a digest, or a release that the device keeps.
            settings: How to gate.

        Raises:
            ToolchainError: As `toolchain gate`, but for what the gate finds, which is returned.
        """
        self.rig.check()
        gating.check_emulated(self.rig.emulated, self.rig.board.name, settings)
        words = (str(self.folder), base)
        with temporary.folder() as work:
            finding = gating.Finding(Path(work), Access(), self.tell)
            new, old = (
                finding.here(word, other) or gating.on_device(word, self.rig.store)
                for word, other in (words, words[::-1])
            )
            return gating.run(new, old, self.release.program, self.rig, settings, self.tell)


@contextlib.contextmanager
def released(rig: Rig, source: str, settings: Settings, tell: Tell) -> Iterator[Release]:
    """Deploy a package or a bundle, or what is built of a model, check its outputs and measure it.

    Args:
        rig: The device.
        source: A package, a bundle's folder, or a model.
        settings: How to check and to measure.
        tell: Called with lines about progress.

    Raises:
        ToolchainError: As `deploy`.
    """
    stages = Stages(tell)
    model = Model(source, {}, inputs.Source(None, None, 0))
    bundle_source = BundleSource(BuildRequest(model, rig.board, tell), stages, samples=settings.samples)
    with temporary.folder() as work:
        folder = Path(work) / "bundle"
        checked = preflight.before_deploy(bundle_source, folder, lambda: contextlib.nullcontext(rig))
        bundle = bundle_source.obtain(folder, checked)
        runner = device_programs.runner(rig.board, stages)
        report = deploy_bundle(bundle, runner, rig, settings, stages, bundle_source.own_inputs)
        release = DeviceRelease.of_device(bundle.manifest, bundle.digest, runner, rig, settings.threads)
        yield Release(rig, replace(report, waited=rig.waited), release, bundle.folder, tell)
