"""The kinds of failures that a roll-out tells apart, by the class of the error."""

from __future__ import annotations

from toolchain import errors
from toolchain.errors import ToolchainError
from toolchain.pipeline.rollout.crew import LateError

SLOW = "slow"
_KINDS: dict[type[BaseException], str] = {
    errors.BusyError: "busy",
    errors.UnreachableError: "unreachable",
    errors.FullError: "full",
    LateError: "timeout",
    errors.HostKeyError: "host key",
    errors.MismatchError: "wrong machine",
    errors.OutputError: "wrong output",
    errors.UnhealthyError: "unhealthy",
    errors.RegressionError: SLOW,
    errors.VerificationError: "verification",
    errors.DeviceError: "device",
    errors.InputError: "input",
    ToolchainError: "other",
}
"""A class comes before those that it is one of."""
_CODES: dict[int, type[ToolchainError]] = {
    kind.exit_code: kind
    for kind in (
        errors.BusyError,
        errors.InputError,
        errors.BuildError,
        errors.DeviceError,
        ToolchainError,
        errors.RegressionError,
        errors.VerificationError,
    )
}
"""The class of each exit code, the gravest one last: that a device is wrong counts for more than that one is off."""


def kind_of(fault: BaseException) -> str:
    """Name the kind of a failure."""
    return next((name for kind, name in _KINDS.items() if isinstance(fault, kind)), "internal")


def gravest(codes: set[int]) -> type[ToolchainError]:
    """Return the class of errors that a roll-out ends with whose devices failed with these exit codes."""
    return next((_CODES[code] for code in reversed(_CODES) if code in codes), ToolchainError)
