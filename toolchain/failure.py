"""A failed command, as text, JSON and JUnit. This module imports little, so that it is available for any failure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from toolchain import files
from toolchain.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, ToolchainError, VerificationError

if TYPE_CHECKING:
    from collections.abc import Mapping


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
        from toolchain.report.junit import Case, Suite  # noqa: PLC0415 - the help needs none of this

        outcome: Literal["failure", "error"] = "failure" if self.exit_code == VerificationError.exit_code else "error"
        details = "\n".join(filter(None, (self.details, self.hint and f"hint: {self.hint}")))
        case = Case(name, outcome, self.message, details=details, seconds=seconds)
        return Suite(suite, classname, [case], properties or {}).xml()


# a report's content from the start of a run until its end
NOT_ENDED = Failure("the run has not finished", "it is still running, or it was killed", exit_code=None)
