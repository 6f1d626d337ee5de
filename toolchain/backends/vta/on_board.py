"""What a board says of its accelerator over RPC."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import tvm
from pydantic import TypeAdapter, ValidationError

from toolchain import remote
from toolchain.errors import DeviceError, VerificationError
from toolchain.tuning._measure_session import visiting, words
from toolchain.tuning.measure import Place

_FUNCTION = "edge_toolchain.vta.self_test"
_OPEN_S, _ANSWER_S = 30.0, 60.0  # programming an FPGA takes seconds


@dataclass(frozen=True)
class SelfTest:
    """What a self-test found.

    Attributes:
        device: What runs instructions there.
        configuration: Its configuration, by the name of the bitstream.
        revision: Revision of its instructions, 1 or 2.
        passed: What was tried and was right.
    """

    device: str
    configuration: str
    revision: int
    passed: tuple[str, ...]


_READER: TypeAdapter[SelfTest] = TypeAdapter(SelfTest)


def self_test(place: Place, device: str) -> SelfTest:
    """Let a board try its accelerator.

    Args:
        place: The board.
        device: What the program there calls the accelerator.

    Raises:
        DeviceError: The board does not answer, or its accelerator fails.
        VerificationError: It says what nobody understands.
    """
    session = place.open(_OPEN_S, _OPEN_S + _ANSWER_S, threading.Event())
    with remote.deadline(session, _ANSWER_S), visiting(session) as visit:
        function = visit.function(_FUNCTION)
        if function is None:
            raise DeviceError(
                f"the server of {place.name} knows no VTA", hint="serve the board with `toolchain farm up`, not by TVM"
            )
        try:
            text = str(function(device))
        except tvm.error.RPCError as fault:
            raise DeviceError(
                f"the accelerator of {place.name} fails", details=words(fault), hint="see docs/vta-checklist.md"
            ) from fault
    try:
        return _READER.validate_json(text)
    except ValidationError as wrong:
        raise VerificationError(f"{place.name} says what nobody understands of its self-test", details=text) from wrong
