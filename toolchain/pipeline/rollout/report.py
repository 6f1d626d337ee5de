"""A roll-out for people and for CI: a page, and JUnit XML."""

from __future__ import annotations

from toolchain.errors import RegressionError, VerificationError
from toolchain.pipeline.pages import common
from toolchain.pipeline.rollout.result import Rollout
from toolchain.pipeline.rollout.state import Record
from toolchain.report import Cell, Facts, Headline, Notes, Page, Section, Table, Tone, number
from toolchain.report.junit import Case, Suite

_FAILURE_CODES = {VerificationError.exit_code, RegressionError.exit_code}
_TONES: dict[str, Tone] = {"done": "good", "failed": "bad", "returning": "bad", "returned": "doubt", "running": "doubt"}
_STATES = ("done", "failed", "returned", "returning", "running", "waiting")
_GROUPS_HEAD = ("Group", "Devices", "Done", "Failed", "Rolled back", "To be rolled back", "In flight", "Waiting")
_DEVICES_HEAD = ("Device", "Host", "Group", "State", "Before", "Now", "ms", "s", "Failure")


def page(rollout: Rollout) -> Page:
    plan = rollout.plan
    failures = [
        "\n".join([f"{name}: {_failure_text(record)}", *_failure_details(record)])
        for name, record in rollout.failures.items()
    ]
    facts = [
        ("waves", ",".join(plan.waves)),
        ("error threshold", str(rollout.thresholds.error)),
        ("success threshold", f"{rollout.thresholds.success:g}%" if rollout.thresholds.success else ""),
        ("devices of other types", str(rollout.left_out) if rollout.left_out else ""),
        ("supported until", rollout.supported_until),
        ("this run took", f"{rollout.seconds:.1f} s"),
        ("state", str(rollout.state)),
    ]
    devices = [_device_row(name, rollout.hosts[name].host, record) for name, record in rollout.devices.items()]
    groups: list[list[str | Cell]] = []
    for index, counts in rollout.groups():
        size = counts.total()
        shares = [Cell(str(counts[state]), share=counts[state] / size) for state in _STATES]
        groups.append([str(index), str(size), *shares])
    sections = [
        Section("Failures", [Notes(failures, "bad")]),
        Section("Devices", [Table(devices, _DEVICES_HEAD, (2, 6, 7), (7, 4, 1, 5), name="devices")], on_terminal=True),
        Section("Groups", [Table(groups, _GROUPS_HEAD, range(1, 8), (6, 5), name="groups")], on_terminal=True),
        Section("How it was done", [Facts(facts)]),
        common.provenance([("package", f"sha256:{plan.package}"), ("fleet", f"sha256:{plan.fleet}")]),
    ]
    title = f"{plan.model} rolled out to {len(rollout.devices)} {plan.board}"
    headline = Headline(rollout.sentence, "bad" if rollout.fault() else "good")
    return Page(title, "rollout", headline, sections, common.marks(emulated=rollout.emulated))


def _device_row(name: str, host: str, record: Record) -> tuple[str | Cell, ...]:
    latency = "" if record.latency_ms is None else number(record.latency_ms)
    return (
        name,
        host,
        str(record.group),
        Cell(_state_text(record), tone=_TONES.get(record.state, "plain")),
        _digest_text(record.before),
        _digest_text(record.after),
        latency + (" (emulated)" if latency and record.emulated else ""),
        number(record.seconds) if record.seconds else "",
        Cell(record.kind, brief=_failure_text(record)),
    )


def render_text(rollout: Rollout) -> list[str | Table]:
    # The error of a roll-out that stopped says the sentence.
    return [*page(rollout).printed(), *(["", rollout.sentence] if rollout.fault() is None else [])]


def _state_text(record: Record) -> str:
    names = {"failed": "FAILED", "returning": "to be rolled back", "returned": "rolled back", "running": "in flight"}
    return names.get(record.state, record.state)


def _digest_text(digest: str | None) -> str:
    """Abbreviate the release that a device runs; a question mark if it is unknown."""
    return "?" if digest is None else digest[:12] or "none"


def _failure_text(record: Record) -> str:
    return f"{record.kind} ({record.exit_code}): {record.error}" if record.kind else ""


def _failure_details(record: Record) -> list[str]:
    return [text for text in (record.details, record.hint and f"hint: {record.hint}") if text]


def junit(rollout: Rollout) -> bytes:
    """Render a case for each device: `failure` for wrong results or a slow-down, `error` for any other fault."""
    cases = []
    for name, record in rollout.devices.items():
        case = Case(name, seconds=record.seconds)
        if record.exit_code:
            case = Case(
                name,
                "failure" if record.exit_code in _FAILURE_CODES else "error",
                record.error,
                record.kind,
                "\n".join(_failure_details(record)),
                seconds=record.seconds,
            )
        elif record.state != "done":
            case = Case(name, "skipped", _state_text(record), seconds=record.seconds)
        cases.append(case)
    properties = {
        "board": rollout.plan.board,
        "release": f"sha256:{rollout.plan.package}",
        "emulated": str(rollout.emulated).lower(),
        "stopped": rollout.stopped,
    }
    return Suite("toolchain rollout", f"{rollout.plan.board}.{rollout.plan.model}", cases, properties).xml()
