"""The `rollout` command: deploy a package to many devices, group by group."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain import temporary
from toolchain.cli import common, declare, helptext, values
from toolchain.cli.connection import AddressOptions
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, record, same
from toolchain.cli.registry import RegistryOptions
from toolchain.cli.reports import JUNIT, PAGE, json_kind, write_reports
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.board import Board
    from toolchain.bundle import Bundle
    from toolchain.pipeline.rollout import DeviceWork, Rollout, Rules, Thresholds
    from toolchain.pipeline.rollout.fleet import Fleet
    from toolchain.shell import SshOptions

_STATE = Path("rollout.json")
_DAY_S = 86400.0
_ENOUGH = 2  # releases on a device: the current one and one to go back to
_WAIT_S = 45.0  # a lock whose client was killed is free after 30


@dataclass(frozen=True)
class FleetOptions:
    """The devices of the fleet, and how to reach them."""

    fleet: Path | None = option(
        "--fleet",
        type=common.PATH,
        help="The devices, and limits for each board type: a fleet.toml or a devices.toml.",
    )
    inventory: Path | None = option(
        "--inventory", type=common.PATH, help="The devices, as `ansible-inventory --list` prints them."
    )
    board_variable: str = option(
        "--board-var",
        default="edge_board",
        show_default=True,
        metavar="NAME",
        help="Variable of the inventory that names the board type of a host.",
    )
    identity: Path | None = same(AddressOptions, "identity")
    ssh_config: Path | None = same(AddressOptions, "ssh_config")
    known_hosts: tuple[Path, ...] = same(AddressOptions, "known_hosts")

    def read(self) -> Fleet:
        """Read the devices.

        Raises:
            InputError: No devices are named, or a file of them or the SSH key is not valid.
        """
        from toolchain.pipeline.rollout import fleet

        if self.identity and not self.identity.is_file():
            raise InputError(f"there is no key file {self.identity}")
        if not self.fleet and not self.inventory:
            raise InputError(
                "no devices are named",
                hint="add --fleet fleet.toml, or --inventory FILE of Ansible (see docs/rollout.md)",
            )
        return fleet.read(self.fleet, self.inventory, self.board_variable)

    def ssh(self) -> SshOptions:
        """Return the SSH options of the command line and the environment."""
        from toolchain.shell import SshOptions

        password = os.environ.get("TOOLCHAIN_SSH_PASSWORD")
        return SshOptions(self.ssh_config, self.known_hosts, self.identity, password)


@dataclass(frozen=True)
class RuleOptions:
    """The rules of a roll-out: how many devices at a time, and when to stop."""

    parallel: int = option(
        "--parallel",
        default=8,
        show_default=True,
        type=click.IntRange(1, 256),
        help="Number of devices to deploy to at the same time.",
    )
    stop_after: str = option(
        "--stop-after",
        default="1",
        show_default=True,
        metavar="N|N%",
        help="Stop when this number or share of a group's devices has failed.",
    )
    success: float = option(
        "--success-threshold",
        metavar="PERCENT",
        default=0.0,
        type=values.Limit(min=0.0, max=100.0),
        help="Start the next group only if at least PERCENT of this one succeeded. Default: 0.",
    )
    roll_back: bool = option(
        "--roll-back", is_flag=True, help="When the roll-out stops, return that group to the previous release."
    )
    wait_s: float = option(
        "--wait",
        subject=helptext.ROLLOUT,
        metavar="SECONDS",
        default=_WAIT_S,
        show_default=True,
        type=values.Limit(min=0.0, max=_DAY_S),
        help="Wait up to SECONDS for a device that is in use.",
    )
    limit_s: float = option(
        "--timeout",
        subject=helptext.ROLLOUT,
        metavar="SECONDS",
        default=1800.0,
        show_default=True,
        type=values.Limit(min=1.0, max=_DAY_S),
        help="Give up on a device after SECONDS.",
    )

    @property
    def thresholds(self) -> Thresholds:
        """The limits at which the roll-out stops.

        Raises:
            InputError: --stop-after is not a number or a percentage.
        """
        from toolchain.pipeline.rollout import Share, Thresholds

        error = Share.read(self.stop_after)
        if error is None:
            raise InputError(
                f"--stop-after {self.stop_after} is not a number of devices or a percentage",
                hint="write for example 5 or 10%",
            )
        return Thresholds(error, self.success)

    def rules(self) -> Rules:
        """Return the rules."""
        from toolchain.pipeline.rollout import Rules

        return Rules(self.parallel, self.thresholds, self.roll_back, self.limit_s)


@dataclass(frozen=True)
class RolloutOptions:
    """The options of `rollout`."""

    fleet: FleetOptions = record(FleetOptions)
    waves: str = option(
        "--waves",
        default="1,10%,100%",
        show_default=True,
        metavar="GROUPS",
        help="Groups of devices: the total number or share of devices that each one reaches, or a tag.",
    )
    slot: str = option(
        "--slot",
        subject=helptext.ROLLOUT,
        metavar="NAME",
        default="",
        help="Slot of the devices to deploy to. Default: the release without a slot.",
    )
    rules: RuleOptions = record(RuleOptions)
    state: Path = option(
        "--state", type=common.PATH, default=_STATE, show_default=True, help="File with the progress of the roll-out."
    )
    fresh: bool = option("--fresh", is_flag=True, subject=helptext.ROLLOUT, help="Ignore that file and start again.")
    budget: float = common.budget(2.0, "the release on each device")
    json_path: Path | None = same(common.ReportOptions, "json_path")
    junit_path: Path | None = same(common.ReportOptions, "junit_path")
    html_path: Path | None = common.html()
    registry: RegistryOptions = record(RegistryOptions)

    def check(self, source: str) -> None:
        """Refuse wrong options before any file is read.

        Raises:
            InputError: The source is not a package, or a report would replace the state file.
        """
        from toolchain.devices import check_slot
        from toolchain.pipeline.source import is_built

        self.registry.check(source)
        if self.slot:
            check_slot(self.slot)
        if not is_built(source):
            raise InputError(
                f"{source!r} is not a package; a roll-out deploys one package to every device",
                hint="make one with `toolchain build` and `toolchain package`",
            )
        reports = {path.resolve() for path in (self.json_path, self.junit_path, self.html_path) if path}
        if self.state.resolve() in reports:
            raise InputError(
                f"{self.state} is the state file of the roll-out, which a report would replace",
                hint="name another file",
            )

    def write(self, outcome: Rollout) -> Result:
        """Write the reports; return what to print, with the error of a roll-out that stopped."""
        from toolchain.pipeline.rollout.report import junit, page, render_text

        others = {self.junit_path: lambda: junit(outcome), self.html_path: lambda: page(outcome).html().encode()}
        result = Result(render_text(outcome), outcome.document(), fault=outcome.fault())
        return write_reports(result, self.json_path, others)


@contextlib.contextmanager
def _open_package(source: str, options: RolloutOptions, console: Console) -> Iterator[Bundle]:
    """Open a package in a temporary folder for the time of a block."""
    from toolchain import bundle as bundles
    from toolchain import registry

    with temporary.folder() as scratch:
        folder = Path(scratch) / "bundle"
        if registry.is_address(source):
            yield registry.pull(registry.parse(source), folder, options.registry.access(), console.say)
        else:
            yield bundles.open_bundle(Path(source), folder)


def _device_work(bundle: Bundle, board: Board, fleet: Fleet, options: RolloutOptions, console: Console) -> DeviceWork:
    from toolchain.device.deploy import Settings
    from toolchain.pipeline import device_programs, preflight
    from toolchain.pipeline.rollout import DeviceWork
    from toolchain.progress import Stages

    limits = fleet.limits(board.name, options.slot)
    bound = limits.latency_ms
    if board.keep < _ENOUGH and (bound or limits.p999_ms or options.rules.roll_back):
        raise InputError(
            f"board {board.name} keeps {board.keep} release(s), so devices cannot go back",
            hint="--roll-back, latency_ms and p999_ms need `keep = 2` or more in the board file",
        )
    preflight.check_host()
    device_programs.runner(board.triple, Stages(console.say))  # once, before the threads of the devices need it
    settings = Settings(budget_s=options.budget, rate=limits.rate())
    ssh, wait_s = options.fleet.ssh(), options.rules.wait_s
    return DeviceWork(bundle, board, fleet.devices, ssh, settings, bound, wait_s, options.slot)


REPORTS = {"--json": json_kind("a roll-out's report", "schema_version", "groups"), "--junit": JUNIT, "--html": PAGE}


@declare.command(REPORTS)
@click.argument("source", metavar="PACKAGE")
@gather("options", RolloutOptions)
@click.pass_obj
def rollout(console: Console, /, source: str, options: RolloutOptions) -> Result:
    """The roll-out stops when too many devices fail. The same command resumes it: devices that are done are skipped,
    and those that were in progress are checked.
    """
    from toolchain import board as board_files
    from toolchain import bundle as bundles
    from toolchain.device import verification
    from toolchain.pipeline.rollout import Loop, Rollout, groups, state

    began = time.monotonic()
    options.check(source)
    rules, full_fleet = options.rules.rules(), options.fleet.read()
    with _open_package(source, options, console) as bundle:
        board = board_files.load(bundle.manifest.board).resolved()
        bundles.check_board(bundle.manifest, board)
        verification.check_referenced(bundle, unchecked=False)
        fleet = full_fleet.for_board(board.name, options.slot)
        waves = groups.parse_waves(options.waves)
        plan = state.Plan(bundle.digest, bundle.manifest.name, bundle.manifest.board, fleet.digest, waves, options.slot)
        assignment = groups.assign(plan.waves, fleet.devices)
        left_out = len(full_fleet.devices) - len(fleet.devices) + full_fleet.unnamed
        if left_out:
            console.say(f"{left_out} device(s) of the fleet are not {board.name} and are left out")
        support = bundle.manifest.supported_until
        if support:
            console.say(f"the publisher of {bundle.manifest.name} supports it until {support}")
        with state.lock_state(options.state):
            saved = state.load_state(options.state, plan, assignment, fresh=options.fresh)
            work = _device_work(bundle, board, fleet, options, console)
            stopped = Loop(saved, work, rules, console.say).run()
    seconds = time.monotonic() - began
    devices, thresholds = fleet.devices, rules.thresholds
    outcome = Rollout(plan, saved.devices, devices, thresholds, stopped, options.state, seconds, left_out, support)
    return options.write(outcome)
