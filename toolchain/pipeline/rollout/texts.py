"""A roll-out for people and for CI: what a terminal shows, and JUnit XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from toolchain.errors import RegressionError, VerificationError
from toolchain.failure import encoded
from toolchain.pipeline.rollout.result import Rollout
from toolchain.pipeline.rollout.state import Record
from toolchain.tables import Table

_SUITE = "toolchain rollout"
_WRONG = {VerificationError.exit_code, RegressionError.exit_code}


def shown(found: Rollout) -> list[str | Table]:
    """Return what a person is shown: every device, and below how each group stands."""
    rows = [(name, found.hosts[name].host, str(one.group), *_cells(one)) for name, one in found.devices.items()]
    head = ("DEVICE", "HOST", "GROUP", "STATE", "BEFORE", "NOW", "MS", "S", "FAILURE")
    groups = [
        (str(number), str(counts.total()), *(str(counts[name]) for name in ("done", "failed", "returned", "waiting")))
        for number, counts in found.groups()
    ]
    return [
        Table(rows, head, numbers=(2, 6, 7), spare=(7, 4, 1, 5)),
        "",
        Table(groups, ("GROUP", "DEVICES", "DONE", "FAILED", "ROLLED BACK", "WAITING"), numbers=range(1, 6)),
        *(["", found.sentence] if found.fault() is None else []),  # or the error says it
    ]


def _cells(one: Record) -> tuple[str, ...]:
    latency = "" if one.latency_ms is None else f"{one.latency_ms:.3g}" + (" (emulated)" if one.emulated else "")
    seconds = f"{one.seconds:.1f}" if one.seconds else ""
    return (state_text(one), digest_text(one.before), digest_text(one.after), latency, seconds, failure_text(one))


def state_text(one: Record) -> str:
    """Say how a device stands."""
    words = {"failed": "FAILED", "returning": "to be rolled back", "returned": "rolled back", "running": "in flight"}
    return words.get(one.state, one.state)


def digest_text(digest: str | None) -> str:
    """Write a release that a device runs; a question mark where that is not known."""
    return "?" if digest is None else digest[:12] or "none"


def failure_text(one: Record) -> str:
    """Say what failed on a device; empty if nothing did."""
    return f"{one.kind} ({one.exit_code}): {one.error}" if one.kind else ""


def junit(found: Rollout) -> bytes:
    """Render it as JUnit XML with a case for each device: a failure if it is wrong, an error if that is not known."""
    failed = sum(one.exit_code in _WRONG for one in found.devices.values())
    counts = {
        "tests": len(found.devices),
        "failures": failed,
        "errors": len(found.failures) - failed,
        "skipped": sum(_is_left(one) for one in found.devices.values()),
    }
    suite = ET.Element("testsuite", {"name": _SUITE, **{name: str(count) for name, count in counts.items()}})
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(found).items():
        ET.SubElement(properties, "property", name=name, value=value)
    for name, one in found.devices.items():
        _case(suite, f"{found.plan.board}.{found.plan.model}", name, one)
    return encoded(suite)


def _is_left(one: Record) -> bool:
    return one.state != "done" and not one.exit_code


def _case(suite: ET.Element, classname: str, name: str, one: Record) -> None:
    case = ET.SubElement(suite, "testcase", classname=classname, name=name, time=f"{one.seconds:.3f}")
    if one.exit_code:
        word = "failure" if one.exit_code in _WRONG else "error"
        why = ET.SubElement(case, word, type=one.kind, message=one.error)
        why.text = "\n".join(text for text in (one.details, one.hint and f"hint: {one.hint}") if text)
    elif _is_left(one):
        ET.SubElement(case, "skipped", message=state_text(one))


def _properties(found: Rollout) -> dict[str, str]:
    return {
        "board": found.plan.board,
        "release": f"sha256:{found.plan.package}",
        "emulated": str(found.emulated).lower(),
        "stopped": found.stopped,
    }
