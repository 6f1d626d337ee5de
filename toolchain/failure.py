"""A command that failed, as people, programs and CI are told of it. Light: it is there before anything can fail."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from toolchain import files
from toolchain.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, ToolchainError, VerificationError

if TYPE_CHECKING:
    import xml.etree.ElementTree as ET
    from collections.abc import Mapping

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Failure:
    """Why a command did not succeed."""

    message: str  # one sentence
    details: str = ""  # what was seen
    hint: str = ""  # what to do next
    exit_code: int | None = EXIT_INTERNAL  # what the command ended with; None if it has not ended

    @classmethod
    def of(cls, fault: BaseException) -> Failure:
        """Describe what ended a command; what is no error of ours, nor a signal, is an internal one."""
        told = fault if isinstance(fault, ToolchainError) else files.refused(fault)
        if told:
            return cls(told.message, told.details, told.hint, told.exit_code)
        if isinstance(fault, KeyboardInterrupt):
            cause = fault.__cause__
            details = cause.message if isinstance(cause, ToolchainError) else ""
            return cls(" by ".join(["interrupted", *filter(None, fault.args)]), details, exit_code=EXIT_INTERRUPTED)
        text = f"internal error: {type(fault).__name__}: {fault}"
        return cls(text, hint="run it again with --debug and report what it prints")

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {"error": asdict(self)}

    def junit(
        self, suite: str, classname: str, name: str, seconds: float = 0.0, properties: Mapping[str, str] | None = None
    ) -> bytes:
        """Render it as JUnit XML with one case: a failure if the model did not pass, an error if that is not known.

        Args:
            suite: The suite's name.
            classname: What the case is of.
            name: The case's name.
            seconds: How long it took.
            properties: What is known of the run.
        """
        import xml.etree.ElementTree as ET  # noqa: PLC0415 - the help needs none of this

        kind = "failure" if self.exit_code == VerificationError.exit_code else "error"
        counts = {"failures": str(int(kind == "failure")), "errors": str(int(kind == "error"))}
        root = ET.Element("testsuite", {"name": suite, "tests": "1", **counts})
        if properties:
            known = ET.SubElement(root, "properties")
            for key, value in properties.items():
                ET.SubElement(known, "property", name=key, value=value)
        case = ET.SubElement(root, "testcase", classname=classname, name=name, time=f"{seconds:.3f}")
        told = "\n".join(text for text in (self.details, self.hint and f"hint: {self.hint}") if text)
        ET.SubElement(case, kind, message=self.message).text = told
        return encoded(root)


# what a report says from the start of a run until its end
NOT_ENDED = Failure("the run has not finished", "it is still running, or it was killed", exit_code=None)


def encoded(suite: ET.Element) -> bytes:
    """Encode XML without the characters that it cannot hold at all, such as those of a compiler's colours."""
    import xml.etree.ElementTree as ET  # noqa: PLC0415 - as above

    ET.indent(suite)
    text: str = ET.tostring(suite, encoding="unicode")
    return f"<?xml version='1.0' encoding='utf-8'?>\n{_NO_XML.sub('', text)}\n".encode()
