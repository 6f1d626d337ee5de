"""What a roll-out does on one device: the deploy that `toolchain deploy` runs, its type's bounds, and the way back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from toolchain.board import Board
from toolchain.bundle import Bundle
from toolchain.device.connected import ConnectedDevice, Connection
from toolchain.device.deploy import Settings
from toolchain.device.lock import Owner
from toolchain.device.rollback import roll_back
from toolchain.device.stages import Stages
from toolchain.device.waiting import Patience
from toolchain.devices import Device
from toolchain.errors import DeviceError, RegressionError, ToolchainError
from toolchain.native.programs import Program
from toolchain.pipeline.deploy import deploy_bundle
from toolchain.pipeline.report import Report
from toolchain.pipeline.rollout.crew import Outcome, Visit
from toolchain.shell import SshOptions


@dataclass(frozen=True)
class DeviceWork:
    """What is done on the devices of a fleet.

    Attributes:
        made: The package.
        program: The runner of its board type.
        board: The board type, resolved.
        devices: The devices by name.
        ssh: How they are reached.
        settings: How outputs are checked, and latency is measured.
        latency_ms: A device whose median is above it fails; None without such a bound.
        wait_s: Seconds that others may be at work on a device.
    """

    made: Bundle
    program: Program
    board: Board
    devices: Mapping[str, Device]
    ssh: SshOptions
    settings: Settings
    latency_ms: float | None = None
    wait_s: float = 0.0

    def deploy(self, visit: Visit) -> Outcome:
        """Deploy to a device, and hold it against the bounds of its type, under one lock.

        Raises:
            VerificationError: As `deploy_bundle`; the device keeps the release that it had.
            RegressionError: It is too slow there, and the release before is current again.
            DeviceError: It is lost, busy or full.
        """
        with self._opened(visit) as device:
            before = self._current(device)
            visit.found(before)
            try:
                # Lines of eight devices at once would tell nothing.
                report = deploy_bundle(self.made, self.program, device, self.settings, Stages())
                self._judge(report, device, before)
            except ToolchainError:
                with contextlib.suppress(DeviceError):  # a device that is lost says nothing
                    visit.after = self._current(device)
                raise
            return Outcome(self.made.digest, report.measurement.latency.median, report.emulated)

    def take_back(self, visit: Visit, before: str) -> Outcome:
        """Go back to the release before, unless the device runs another one than ours anyway.

        Raises:
            DeviceError: The device is lost, or keeps another release before ours.
            VerificationError: It does not take that one any more, or its application is not well on it.
        """
        with self._opened(visit) as device:
            current = self._current(device)
            if current != self.made.digest:
                return Outcome(current, note=f"it already ran {current[:16] or 'no release'}")
            return Outcome(self._back(device, before))

    @contextlib.contextmanager
    def _opened(self, visit: Visit) -> Iterator[ConnectedDevice]:
        entry, patience = self.devices[visit.name], Patience(self.wait_s)
        with (
            Connection(self.board, entry, self.ssh, patience=patience).open() as device,
            visit.using(device.shell),
            device.store.lock(Owner.here(f"rollout {self.made.manifest.name}")),
        ):
            yield device

    @staticmethod
    def _current(device: ConnectedDevice) -> str:
        generation = device.store.current()
        return generation.digest if generation else ""

    def _judge(self, report: Report, device: ConnectedDevice, before: str) -> None:
        """Compare a device with the latency limit of its type; an emulator's latency is not compared."""
        median, bound = report.measurement.latency.median, self.latency_ms
        if bound is None or report.emulated or median <= bound:
            return
        kept = "it had this release or none before, and keeps this one"
        if before not in {"", self.made.digest}:
            self._back(device, before)
            kept = f"release {before[:16]} is current again"
        raise RegressionError(
            f"{device.name} takes {median:.4g} ms, but a {self.board.name} may take at most {bound:g} ms; {kept}",
            details="; ".join(report.measurement.warnings),
            hint="compare both releases with `toolchain gate`, or find the slow layers with `toolchain profile`",
        )

    @staticmethod
    def _back(device: ConnectedDevice, before: str) -> str:
        """Make the release before current again, if it is the one that the device would go back to."""
        generations = device.store.generations()
        number = next(number for number, generation in enumerate(generations) if generation.current)
        previous = generations[number - 1].digest if number else ""
        if previous != before:
            raise DeviceError(
                f"the previous release on {device.name} is {previous[:16] or 'missing'}, not {before[:16]}",
                hint="`toolchain releases` lists its releases; something else changed them, or it keeps too few",
            )
        return roll_back(device, lambda _line: None)[0].digest
