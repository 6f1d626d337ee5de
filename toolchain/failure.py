"""A failed command, as text, JSON and JUnit. This module imports little, so that it is available for any failure."""

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

    message: str
    details: str = ""
    hint: str = ""
    exit_code: int | None = EXIT_INTERNAL  # None if the command has not ended

    @classmethod
    def of(cls, fault: BaseException) -> Failure:
        """Describe an exception that ended a command; other exceptions than ours and signals are internal errors."""
        known_error = fault if isinstance(fault, ToolchainError) else files.refused(fault)
        if known_error:
            return cls(known_error.message, known_error.details, known_error.hint, known_error.exit_code)
        if isinstance(fault, KeyboardInterrupt):
            cause = fault.__cause__
            details = cause.message if isinstance(cause, ToolchainError) else ""
            return cls(" by ".join(["interrupted", *filter(None, fault.args)]), details, exit_code=EXIT_INTERRUPTED)
        text = f"internal error: {type(fault).__name__}: {fault}"
        return cls(text, hint="run it again with --debug and report what it prints")

    def document(self) -> dict[str, Any]:
        return {"error": asdict(self)}

    def junit(
        self, suite: str, classname: str, name: str, seconds: float = 0.0, properties: Mapping[str, str] | None = None
    ) -> bytes:
        """Return JUnit XML with one case: a failure if the model did not pass, else an error."""
        import xml.etree.ElementTree as ET  # noqa: PLC0415 - the help needs none of this

        kind = "failure" if self.exit_code == VerificationError.exit_code else "error"
        counts = {"failures": str(int(kind == "failure")), "errors": str(int(kind == "error"))}
        root = ET.Element("testsuite", {"name": suite, "tests": "1", **counts})
        if properties:
            table = ET.SubElement(root, "properties")
            for key, value in properties.items():
                ET.SubElement(table, "property", name=key, value=value)
        case = ET.SubElement(root, "testcase", classname=classname, name=name, time=f"{seconds:.3f}")
        lines = filter(None, (self.details, self.hint and f"hint: {self.hint}"))
        ET.SubElement(case, kind, message=self.message).text = "\n".join(lines)
        return encoded(root)


# a report's content from the start of a run until its end
NOT_ENDED = Failure("the run has not finished", "it is still running, or it was killed", exit_code=None)


def encoded(suite: ET.Element) -> bytes:
    """Encode XML, without characters that it cannot contain, such as those of a compiler's colours."""
    import xml.etree.ElementTree as ET  # noqa: PLC0415 - as above

    ET.indent(suite)
    text: str = ET.tostring(suite, encoding="unicode")
    return f"<?xml version='1.0' encoding='utf-8'?>\n{_NO_XML.sub('', text)}\n".encode()
