"""The statement that a signer signs: the bundle, its model and board, and its place in the order of releases."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from toolchain import files
from toolchain.bundle import Manifest
from toolchain.errors import InputError, VerificationError
from toolchain.validation import words

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"  # a model or a board: each is also the name of a file on a device
LARGEST = 2**53 - 1  # the largest number that JSON has everywhere

_Name = Annotated[str, Field(pattern=NAME)]
_Sequence = Annotated[int, Field(ge=1, le=LARGEST)]


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Statement:
    schema: Literal[1]
    bundle: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # SHA-256 of the bundle, 64 hexadecimal digits
    model: _Name
    board: _Name  # board type that it was built for
    # its place among the releases of the model, chosen by the signer; devices may refuse those below one
    sequence: _Sequence
    # the least sequence that devices take from this release on; None leaves that as it is
    minimum: _Sequence | None = None

    def encoded(self) -> bytes:
        return files.canonical_json({key: value for key, value in asdict(self).items() if value is not None})


_READER = TypeAdapter(Statement)


@dataclass(frozen=True)
class Order:
    """The position of a release."""

    sequence: int
    minimum: int | None = None  # the least sequence that devices accept from this release on


def about(manifest: Manifest, digest: str, order: Order) -> Statement:
    """Return the statement about a bundle.

    Raises:
        InputError: The order is contradictory, or the model's name cannot be a file name on a device.
    """
    if order.minimum is not None and order.minimum > order.sequence:
        raise InputError(
            f"--minimum {order.minimum} is above --sequence {order.sequence}: no device would accept this release",
            hint="set --minimum to at most --sequence",
        )
    try:
        return Statement(1, digest, manifest.name, manifest.board, order.sequence, order.minimum)
    except ValidationError as fault:
        raise InputError(
            f"{manifest.name} for {manifest.board} cannot be signed",
            details=words(fault),
            hint="build with another name: letters and digits, and . _ - after the first character",
        ) from fault


def read(data: bytes, where: str) -> Statement:
    """Parse a statement.

    Raises:
        VerificationError: It is not valid, or this toolchain does not know its form.
    """
    try:
        statement = _READER.validate_json(data)
    except ValidationError as fault:
        raise VerificationError(
            f"{where} is not a valid statement about a release", details=words(fault), hint="sign the package again"
        ) from fault
    if not json.loads(data, object_pairs_hook=_has_each_key_once):
        # Readers differ in which of the two values they take, and devices refuse it.
        raise VerificationError(f"{where} has a key twice", hint="sign the package again")
    if statement.minimum is not None and statement.minimum > statement.sequence:
        raise VerificationError(f"{where} has a minimum above its own sequence", hint="sign the package again")
    return statement


def _has_each_key_once(pairs: list[tuple[str, Any]]) -> bool:
    return len(dict(pairs)) == len(pairs)
