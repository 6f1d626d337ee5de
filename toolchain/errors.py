"""The exception tree: one class per exit code, each with details and a hint that names the next command."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import ClassVar


class ToolchainError(Exception):
    """A failure that a user can act on.

    Args:
        message: One sentence that says what went wrong.
        details: What was seen: the compiler's words, the offending line, the list of faults.
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
    """Somebody else is at work on a device. It is well, and the same command will do later.

    Args:
        message: As above.
        details: As above.
        hint: As above.
        owner: Who that is, and what for, for whoever waits.
    """

    exit_code = 75  # EX_TEMPFAIL of sysexits.h, as 70 is its EX_SOFTWARE

    def __init__(self, message: str, *, details: str = "", hint: str = "", owner: str = "") -> None:
        super().__init__(message, details=details, hint=hint)
        self.owner = owner or message


class UnreachableError(DeviceError):
    """A device does not answer, lets nobody in, or was lost on the way."""


class FullError(DeviceError):
    """A device has no room for what is brought to it."""


class RegistryError(ToolchainError):
    """A registry cannot be reached, or refuses what is asked of it."""

    exit_code = 4


class BuildersError(ToolchainError):
    """Others that are to compile for us cannot be reached, or there are none."""

    exit_code = 4


class VerificationError(ToolchainError):
    """A digest, signature, host key, version or output is not what it must be."""

    exit_code = 5


class HostKeyError(VerificationError):
    """A device's host key is unknown, changed or revoked."""


class MismatchError(VerificationError):
    """A device has another machine, C library or CPU than what is brought to it is made for."""


class OutputError(VerificationError):
    """A device computes something else than the reference."""


class UnhealthyError(VerificationError):
    """A device's application is not well on a release."""


class RegressionError(ToolchainError):
    """A release is slower than its base, or larger, by more than is allowed, and that is sure."""

    exit_code = 6


class InconclusiveError(ToolchainError):
    """What was measured shows neither a regression nor that there is none."""

    exit_code = 7


EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the known word that a mistyped one is closest to; empty if none is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""


_OBJECT = re.compile(r"<[^<>]* at 0x[0-9a-f]+>:? ?")
_REPRESENTATION = re.compile(r"^\w+\((.*)\)$", re.DOTALL)


def reason(fault: BaseException) -> str:
    """Say why a network or a file failed us: the innermost cause as words, without Python's representations of objects.

    Libraries wrap the cause several times, and each of them repeats the others as `HTTPSConnectionPool(...)`.
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
    """Yield a fault and all that it was raised from or holds, the outermost first."""
    waiting, seen = [fault], set[int]()
    while waiting:
        cause = waiting.pop(0)
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        inner = (cause.__cause__ or cause.__context__, getattr(cause, "reason", None), *cause.args)
        waiting += [one for one in inner if isinstance(one, BaseException)]
