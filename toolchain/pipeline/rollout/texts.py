"""A roll-out for people and for CI: what a terminal shows, and JUnit XML."""

from __future__ import annotations

from toolchain.errors import RegressionError, VerificationError
from toolchain.pipeline.rollout.result import Rollout
from toolchain.pipeline.rollout.state import Record
from toolchain.report import Table
from toolchain.report.junit import Case, Suite

_FAILURE_CODES = {VerificationError.exit_code, RegressionError.exit_code}


def render_text(rollout: Rollout) -> list[str | Table]:
    """Return a table of the devices, and one of the groups."""
    rows = [
        (
            name,
            rollout.hosts[name].host,
            str(record.group),
            state_text(record),
            digest_text(record.before),
            digest_text(record.after),
            ""
            if record.latency_ms is None
            else f"{record.latency_ms:.3g}" + (" (emulated)" if record.emulated else ""),
            f"{record.seconds:.1f}" if record.seconds else "",
            failure_text(record),
        )
        for name, record in rollout.devices.items()
    ]
    head = ("DEVICE", "HOST", "GROUP", "STATE", "BEFORE", "NOW", "MS", "S", "FAILURE")
    groups = [
        (str(number), str(counts.total()), *(str(counts[name]) for name in ("done", "failed", "returned", "waiting")))
        for number, counts in rollout.groups()
    ]
    return [
        Table(rows, head, numbers=(2, 6, 7), spare=(7, 4, 1, 5)),
        "",
        Table(groups, ("GROUP", "DEVICES", "DONE", "FAILED", "ROLLED BACK", "WAITING"), numbers=range(1, 6)),
        *(["", rollout.sentence] if rollout.fault() is None else []),  # or the error says it
    ]


def state_text(record: Record) -> str:
    names = {"failed": "FAILED", "returning": "to be rolled back", "returned": "rolled back", "running": "in flight"}
    return names.get(record.state, record.state)


def digest_text(digest: str | None) -> str:
    """Abbreviate the release that a device runs; a question mark if it is unknown."""
    return "?" if digest is None else digest[:12] or "none"


def failure_text(record: Record) -> str:
    return f"{record.kind} ({record.exit_code}): {record.error}" if record.kind else ""


def failure_details(record: Record) -> list[str]:
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
                "\n".join(failure_details(record)),
                seconds=record.seconds,
            )
        elif record.state != "done":
            case = Case(name, "skipped", state_text(record), seconds=record.seconds)
        cases.append(case)
    properties = {
        "board": rollout.plan.board,
        "release": f"sha256:{rollout.plan.package}",
        "emulated": str(rollout.emulated).lower(),
        "stopped": rollout.stopped,
    }
    return Suite("toolchain rollout", f"{rollout.plan.board}.{rollout.plan.model}", cases, properties).xml()
