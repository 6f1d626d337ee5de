"""The page of a roll-out."""

from __future__ import annotations

from toolchain import page
from toolchain.page import Cell, Tone
from toolchain.pipeline.pages import common
from toolchain.pipeline.rollout.result import Rollout
from toolchain.pipeline.rollout.state import Record
from toolchain.pipeline.rollout.texts import digest_text, failure_text, state_text

_TONES: dict[str, Tone] = {"done": "good", "failed": "bad", "returning": "bad", "returned": "doubt", "running": "doubt"}
_COLUMNS = ("done", "failed", "returned", "returning", "running", "waiting")


def html(found: Rollout) -> str:
    """Render a roll-out."""
    sections = [
        page.Section("Groups", [_groups(found)]),
        page.Section("Failures", [page.Notes([_told(*pair) for pair in found.failures.items()], "bad")]),
        page.Section("Devices", [_devices(found)]),
        page.Section("How it was done", [page.Facts(_facts(found))]),
        common.provenance([("package", f"sha256:{found.plan.package}"), ("fleet", f"sha256:{found.plan.fleet}")]),
    ]
    title = f"{found.plan.model} rolled out to {len(found.devices)} {found.plan.board}"
    return page.Page(title, "rollout", _verdict(found), sections, common.marks(emulated=found.emulated)).html()


def _verdict(found: Rollout) -> page.Verdict:
    return page.Verdict(found.sentence, "bad" if found.fault() else "good")


def _groups(found: Rollout) -> page.Table:
    rows: list[list[str | Cell]] = [
        [str(number), str(counts.total()), *(_share(counts[name], counts.total()) for name in _COLUMNS)]
        for number, counts in found.groups()
    ]
    head = ("Group", "Devices", "Done", "Failed", "Rolled back", "To be rolled back", "In flight", "Waiting")
    return page.Table(head, rows, range(1, len(head)), "groups")


def _share(count: int, size: int) -> Cell:
    return Cell(str(count), share=count / size)


def _told(name: str, one: Record) -> str:
    lines = [f"{name}: {failure_text(one)}", one.details, one.hint and f"hint: {one.hint}"]
    return "\n".join(line for line in lines if line)


def _devices(found: Rollout) -> page.Table:
    head = ("Device", "Host", "Group", "State", "Before", "Now", "Latency (ms)", "Seconds", "Failure")
    rows = [
        (
            name,
            found.hosts[name].host,
            str(one.group),
            Cell(state_text(one), tone=_TONES.get(one.state, "plain")),
            digest_text(one.before),
            digest_text(one.after),
            page.number(one.latency_ms),
            page.number(one.seconds or None),
            one.kind,
        )
        for name, one in found.devices.items()
    ]
    return page.Table(head, rows, (2, 6, 7), "devices")


def _facts(found: Rollout) -> list[tuple[str, str]]:
    return [
        ("waves", ",".join(found.plan.waves)),
        ("error threshold", str(found.thresholds.error)),
        ("success threshold", f"{found.thresholds.success:g}%" if found.thresholds.success else ""),
        ("devices of other types", str(found.left_out) if found.left_out else ""),
        ("this run took", f"{found.seconds:.1f} s"),
        ("state", str(found.state)),
    ]
