"""What a roll-out does on one device: deploy as `toolchain deploy` does, check the latency limit, and roll back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from toolchain.board import Board
from toolchain.bundle import Bundle
from toolchain.device import tail
from toolchain.device.connected import ConnectedDevice, Connection
from toolchain.device.deploy import Settings, roll_back
from toolchain.device.lock import Owner
from toolchain.device.waiting import Patience
from toolchain.devices import Device
from toolchain.errors import DeviceError, InconclusiveError, RegressionError, ToolchainError
from toolchain.pipeline import device_programs
from toolchain.pipeline.deploy import deploy_bundle
from toolchain.pipeline.report import Report
from toolchain.pipeline.rollout.threads import Outcome, Visit
from toolchain.progress import Stages
from toolchain.shell import SshOptions
from toolchain.stats import Verdict


@dataclass(frozen=True)
class DeviceWork:
    """The work on the devices of a fleet."""

    bundle: Bundle
    board: Board
    devices: Mapping[str, Device]
    ssh: SshOptions
    settings: Settings
    latency_ms: float | None = None  # a device with a larger median fails; None for no limit
    wait_s: float = 0.0  # seconds to wait while others are at work on a device
    slot: str = ""  # the slot of their stores; empty for the stores' own releases

    def deploy(self, visit: Visit) -> Outcome:
        """Deploy to a device and check the latency limit of its type, under one lock.

        Raises:
            VerificationError: As `deploy_bundle`; the device keeps the release that it had.
            RegressionError: It is too slow there, and the previous release is current again.
            InconclusiveError: Whether it is too slow could not be shown; the same.
            DeviceError: It is lost, busy or full.
        """
        with self._locked_device(visit) as device:
            before = visit.report_release(self._current(device))
            try:
                # No progress: the mixed lines of eight devices could not be read.
                runner = device_programs.runner(device.triple, Stages())
                report = deploy_bundle(self.bundle, runner, device, self.settings, Stages())
                self._check_latency(report, device, before)
                self._check_tail(report, device, before)
            except ToolchainError:
                with contextlib.suppress(DeviceError):  # a lost device does not answer
                    visit.after = self._current(device)
                raise
            return Outcome(self.bundle.digest, report.measurement.latency.median, report.emulated)

    def roll_back_device(self, visit: Visit, before: str) -> Outcome:
        """Roll back to the previous release, unless the device runs another release than ours.

        Raises:
            DeviceError: The device is lost, or its previous release is another one.
            VerificationError: It refuses that release now, or its application is not healthy on it.
        """
        with self._locked_device(visit) as device:
            current = self._current(device)
            if current != self.bundle.digest:
                return Outcome(current, note=f"it already ran {current[:16] or 'no release'}")
            return Outcome(self._roll_back(device, before))

    @contextlib.contextmanager
    def _locked_device(self, visit: Visit) -> Iterator[ConnectedDevice]:
        entry, patience = self.devices[visit.name], Patience(self.wait_s)
        with (
            Connection(self.board, entry, self.ssh, patience=patience, slot=self.slot).open() as device,
            visit.closing(device.shell),
            device.store.lock(Owner.here(f"rollout {self.bundle.manifest.name}")),
        ):
            yield device

    @staticmethod
    def _current(device: ConnectedDevice) -> str:
        generation = device.store.releases.current()
        return generation.digest if generation else ""

    def _check_latency(self, report: Report, device: ConnectedDevice, before: str) -> None:
        median, bound = report.measurement.latency.median, self.latency_ms
        if bound is None or report.emulated or median <= bound:  # an emulator's latency says nothing
            return
        raise RegressionError(
            f"{device.name} takes {median:.4g} ms, but a {self.board.name} may take at most {bound:g} ms;"
            f" {self._undo(device, before)}",
            details="; ".join(report.measurement.warnings),
            hint="compare both releases with `toolchain gate`, or find the slow layers with `toolchain profile`",
        )

    def _check_tail(self, report: Report, device: ConnectedDevice, before: str) -> None:
        periodic = report.measurement.run.periodic
        if periodic is None or report.emulated:
            return
        slowest = tail.Tail.of(periodic)
        if slowest.verdict is Verdict.PASS:
            return
        is_slow = slowest.verdict is Verdict.REGRESSION
        raise (RegressionError if is_slow else InconclusiveError)(
            f"{device.name}: {slowest.sentence()}; {self._undo(device, before)}",
            details="; ".join(report.measurement.warnings),
            hint="`toolchain bench --period` shows the slowest runs, and what else the device did meanwhile",
        )

    def _undo(self, device: ConnectedDevice, before: str) -> str:
        """Go back to the previous release if there is one; return a sentence about it."""
        if before in {"", self.bundle.digest}:
            return "it had this release or none before, and keeps this one"
        self._roll_back(device, before)
        return f"release {before[:16]} is current again"

    @staticmethod
    def _roll_back(device: ConnectedDevice, before: str) -> str:
        """Make the previous release current again, if it is the expected one."""
        generations = device.store.releases.generations()
        number = next(number for number, generation in enumerate(generations) if generation.current)
        previous = generations[number - 1].digest if number else ""
        if previous != before:
            raise DeviceError(
                f"the previous release on {device.name} is {previous[:16] or 'missing'}, not {before[:16]}",
                hint="`toolchain status --releases` lists its releases; something changed them, or it keeps too few",
            )
        return roll_back(device, lambda _line: None)[0].digest
