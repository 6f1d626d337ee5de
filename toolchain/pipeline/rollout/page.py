"""The page of a roll-out."""

from __future__ import annotations

from toolchain import page
from toolchain.page import Cell, Tone
from toolchain.pipeline.pages import common
from toolchain.pipeline.rollout.result import Rollout
from toolchain.pipeline.rollout.texts import digest_text, failure_details, failure_text, state_text

_TONES: dict[str, Tone] = {"done": "good", "failed": "bad", "returning": "bad", "returned": "doubt", "running": "doubt"}
_STATES = ("done", "failed", "returned", "returning", "running", "waiting")
_GROUPS_HEAD = ("Group", "Devices", "Done", "Failed", "Rolled back", "To be rolled back", "In flight", "Waiting")


def html(rollout: Rollout) -> str:
    plan = rollout.plan
    failures = [
        "\n".join([f"{name}: {failure_text(record)}", *failure_details(record)])
        for name, record in rollout.failures.items()
    ]
    facts = [
        ("waves", ",".join(plan.waves)),
        ("error threshold", str(rollout.thresholds.error)),
        ("success threshold", f"{rollout.thresholds.success:g}%" if rollout.thresholds.success else ""),
        ("devices of other types", str(rollout.left_out) if rollout.left_out else ""),
        ("this run took", f"{rollout.seconds:.1f} s"),
        ("state", str(rollout.state)),
    ]
    groups: list[list[str | Cell]] = []
    for number, counts in rollout.groups():
        size = counts.total()
        groups.append(
            [str(number), str(size), *(Cell(str(counts[state]), share=counts[state] / size) for state in _STATES)]
        )
    sections = [
        page.Section("Groups", [page.Table(_GROUPS_HEAD, groups, range(1, len(_GROUPS_HEAD)), "groups")]),
        page.Section("Failures", [page.Notes(failures, "bad")]),
        page.Section("Devices", [_devices(rollout)]),
        page.Section("How it was done", [page.Facts(facts)]),
        common.provenance([("package", f"sha256:{plan.package}"), ("fleet", f"sha256:{plan.fleet}")]),
    ]
    title = f"{plan.model} rolled out to {len(rollout.devices)} {plan.board}"
    verdict = page.Verdict(rollout.sentence, "bad" if rollout.fault() else "good")
    return page.Page(title, "rollout", verdict, sections, common.marks(emulated=rollout.emulated)).html()


def _devices(rollout: Rollout) -> page.Table:
    head = ("Device", "Host", "Group", "State", "Before", "Now", "Latency (ms)", "Seconds", "Failure")
    rows = [
        (
            name,
            rollout.hosts[name].host,
            str(record.group),
            Cell(state_text(record), tone=_TONES.get(record.state, "plain")),
            digest_text(record.before),
            digest_text(record.after),
            page.number(record.latency_ms),
            page.number(record.seconds or None),
            record.kind,
        )
        for name, record in rollout.devices.items()
    ]
    return page.Table(head, rows, (2, 6, 7), "devices")
