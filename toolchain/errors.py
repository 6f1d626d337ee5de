"""The exception tree: one class per exit code, each with details and a hint that names the next command."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import ClassVar


class ToolchainError(Exception):
    """A failure that a user can act on.

    Args:
        message: One sentence.
        details: The evidence: a compiler's output, the offending line, the list of faults.
        hint: The next command or edit that helps.
    """

    exit_code: ClassVar[int] = 70

    def __init__(self, message: str, *, details: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.hint = hint


class InputError(ToolchainError):
    """The command line, a board file or a model is wrong."""

    exit_code = 2


class BuildError(ToolchainError):
    """Compiling, linking or tuning failed."""

    exit_code = 3


class EngineError(BuildError):
    """The Docker engine cannot be used, or has no such image."""


class DeviceError(ToolchainError):
    """A device cannot be reached, or a command failed there."""

    exit_code = 4


class BusyError(DeviceError):
    """Somebody else uses a device; the same command can succeed later. `owner` is the process that uses it."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h, as 70 is its EX_SOFTWARE

    def __init__(self, message: str, *, details: str = "", hint: str = "", owner: str = "") -> None:
        super().__init__(message, details=details, hint=hint)
        self.owner = owner or message


class UnreachableError(DeviceError):
    """A device does not answer, refuses the login, or was lost."""


class FullError(DeviceError):
    """A device has no space for an upload."""


class RegistryError(ToolchainError):
    """A registry cannot be reached, or refuses a request."""

    exit_code = 4


class BuildersError(ToolchainError):
    """Remote builders cannot be reached, or there are none."""

    exit_code = 4


class VerificationError(ToolchainError):
    """A digest, signature, host key, version or output is wrong."""

    exit_code = 5


class HostKeyError(VerificationError):
    """A device's host key is unknown, changed or revoked."""


class MismatchError(VerificationError):
    """A device has another machine, C library or CPU than the release needs."""


class OutputError(VerificationError):
    """The outputs of a device differ from the reference."""


class UnhealthyError(VerificationError):
    """A device's application is not well on a release."""


class RegressionError(ToolchainError):
    """A release is slower or larger than its base by more than is allowed, with certainty."""

    exit_code = 6


class InconclusiveError(ToolchainError):
    """The measurement can neither show nor rule out a regression."""

    exit_code = 7


EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the known word that is most similar to a mistyped one; empty if none is."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""


_OBJECT = re.compile(r"<[^<>]* at 0x[0-9a-f]+>:? ?")
_REPRESENTATION = re.compile(r"^\w+\((.*)\)$", re.DOTALL)


def reason(fault: BaseException) -> str:
    """Return why a network or file operation failed: its innermost cause, without Python's representations of objects.

    Libraries wrap the cause several times, and each repeats the others as `HTTPSConnectionPool(...)`.
    """
    causes = list(_causes(fault))
    for cause in reversed(causes):
        if message := getattr(cause, "verify_message", ""):
            return f"the certificate is not accepted: {message}"
        if isinstance(cause, OSError) and cause.errno is not None and cause.strerror:
            return f"{cause.filename}: {cause.strerror}" if cause.filename else str(cause.strerror)
        if isinstance(cause, TimeoutError):
            return "no answer in time"
    texts = (_REPRESENTATION.sub(r"\1", _OBJECT.sub("", str(cause)).strip()) for cause in reversed(causes))
    return next(filter(None, texts), type(fault).__name__)


def _causes(fault: BaseException) -> Iterator[BaseException]:
    """Yield a fault and all faults that it was raised from or contains, the outermost first."""
    waiting, visited = [fault], set[int]()
    while waiting:
        cause = waiting.pop(0)
        if id(cause) in visited:
            continue
        visited.add(id(cause))
        yield cause
        inner = (cause.__cause__ or cause.__context__, getattr(cause, "reason", None), *cause.args)
        waiting += [candidate for candidate in inner if isinstance(candidate, BaseException)]
