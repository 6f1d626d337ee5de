"""JUnit XML for CI."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Case:
    """A test case; without an outcome, it passed."""

    name: str
    outcome: Literal["", "failure", "error", "skipped"] = ""
    message: str = ""  # why it has this outcome
    kind: str = ""  # type of its failure
    details: str = ""
    output: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class Suite:
    name: str
    classname: str  # of all cases
    cases: Sequence[Case]
    properties: Mapping[str, str]

    def xml(self) -> bytes:
        """Encode it, without characters that XML cannot contain, such as those of a compiler's colours."""
        counts = {"tests": str(len(self.cases))}
        for name, outcome in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            counts[name] = str(sum(case.outcome == outcome for case in self.cases))
        suite = ET.Element("testsuite", {"name": self.name, **counts})
        properties = ET.SubElement(suite, "properties") if self.properties else suite
        for key, value in self.properties.items():
            ET.SubElement(properties, "property", name=key, value=value)
        for case in self.cases:
            element = ET.SubElement(suite, "testcase", classname=self.classname, name=case.name)
            if case.seconds is not None:
                element.set("time", f"{case.seconds:.3f}")
            if case.outcome:
                attributes = {"type": case.kind} if case.kind else {}
                why = ET.SubElement(element, case.outcome, {**attributes, "message": case.message})
                why.text = case.details or None
            if case.output:
                ET.SubElement(element, "system-out").text = case.output
        ET.indent(suite)
        text = ET.tostring(suite, encoding="unicode")
        return f"<?xml version='1.0' encoding='utf-8'?>\n{_NO_XML.sub('', text)}\n".encode()
