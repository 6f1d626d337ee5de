"""The page of a roll-out."""

from __future__ import annotations

from toolchain.pipeline.pages import common
from toolchain.pipeline.rollout.result import Rollout
from toolchain.pipeline.rollout.texts import digest_text, failure_details, failure_text, state_text
from toolchain.report import Cell, Facts, Headline, Notes, Page, Section, Table, Tone, number

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
    for index, counts in rollout.groups():
        size = counts.total()
        groups.append(
            [str(index), str(size), *(Cell(str(counts[state]), share=counts[state] / size) for state in _STATES)]
        )
    sections = [
        Section("Groups", [Table(groups, _GROUPS_HEAD, range(1, len(_GROUPS_HEAD)), name="groups")]),
        Section("Failures", [Notes(failures, "bad")]),
        Section("Devices", [_devices(rollout)]),
        Section("How it was done", [Facts(facts)]),
        common.provenance([("package", f"sha256:{plan.package}"), ("fleet", f"sha256:{plan.fleet}")]),
    ]
    title = f"{plan.model} rolled out to {len(rollout.devices)} {plan.board}"
    verdict = Headline(rollout.sentence, "bad" if rollout.fault() else "good")
    return Page(title, "rollout", verdict, sections, common.marks(emulated=rollout.emulated)).html()


def _devices(rollout: Rollout) -> Table:
    head = ("Device", "Host", "Group", "State", "Before", "Now", "Latency (ms)", "Seconds", "Failure")
    rows = [
        (
            name,
            rollout.hosts[name].host,
            str(record.group),
            Cell(state_text(record), tone=_TONES.get(record.state, "plain")),
            digest_text(record.before),
            digest_text(record.after),
            number(record.latency_ms),
            number(record.seconds or None),
            record.kind,
        )
        for name, record in rollout.devices.items()
    ]
    return Table(rows, head, (2, 6, 7), name="devices")
