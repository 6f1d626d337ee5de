"""What a strict reader of JUnit XML takes: the schema of Jenkins' xUnit plug-in (xunit2 of pytest), as a table."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass

_NUMBER = re.compile(r"[0-9]+")
_TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]{0,3})?")
_TEXT = re.compile(r"[\s\S]*")


@dataclass(frozen=True)
class Kind:
    """An element: its attributes, those that it must have, and what it may hold."""

    attributes: dict[str, re.Pattern[str]]
    required: frozenset[str] = frozenset()
    children: frozenset[str] = frozenset()
    least: int = 0


def _texts(*names: str) -> dict[str, re.Pattern[str]]:
    return dict.fromkeys(names, _TEXT)


_COUNTS = {**dict.fromkeys(("tests", "failures", "errors", "skipped", "disabled"), _NUMBER), "time": _TIME}
_FAULT = Kind(_texts("type", "message"))
_OUTCOMES = frozenset({"skipped", "error", "failure", "system-out", "system-err"})
KINDS = {
    "testsuites": Kind({**_texts("name"), **_COUNTS}, children=frozenset({"testsuite"})),
    "testsuite": Kind(
        {**_texts("name", "timestamp", "hostname", "id", "package", "file", "log", "url", "version"), **_COUNTS},
        frozenset({"name", "tests"}),
        frozenset({"testsuite", "properties", "testcase", "system-out", "system-err"}),
    ),
    "properties": Kind({}, children=frozenset({"property"}), least=1),
    "property": Kind(_texts("name", "value"), frozenset({"name", "value"})),
    "testcase": Kind({**_texts("name", "classname", "group"), "time": _TIME}, frozenset({"name"}), _OUTCOMES),
    "error": _FAULT,
    "failure": _FAULT,
    "skipped": _FAULT,
    "system-out": Kind({}),
    "system-err": Kind({}),
}


def faults(element: ET.Element, where: str = "") -> list[str]:
    """List what the schema has against a document."""
    path = f"{where}/{element.tag}"
    kind = KINDS.get(element.tag)
    if kind is None:
        return [f"{path}: there is no such element"]
    problems = [f"{path}: has no attribute {name!r}" for name in sorted(kind.required - set(element.keys()))]
    for name, value in element.items():
        if name not in kind.attributes:
            problems.append(f"{path}: may have no attribute {name!r}")
        elif not kind.attributes[name].fullmatch(value):
            problems.append(f"{path}: {name}={value!r}")
    problems += [f"{path}: may not hold {child.tag!r}" for child in element if child.tag not in kind.children]
    problems += [f"{path}: is empty"] if len(element) < kind.least else []
    return [*problems, *(fault for child in element if child.tag in kind.children for fault in faults(child, path))]


def properties(element: ET.Element) -> dict[str, list[str]]:
    """Return the properties of a document's suites: the values of each name."""
    values: dict[str, list[str]] = {}
    for item in element.iter("property"):
        values.setdefault(item.get("name", ""), []).append(item.get("value", ""))
    return values
