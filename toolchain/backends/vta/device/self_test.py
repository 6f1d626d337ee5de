"""A board's self-test of its accelerator, over RPC."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from toolchain import resources, rpc
from toolchain.backends.vta.device.devices import Device
from toolchain.errors import DeviceError, VerificationError
from toolchain.rpc import CallError, child, error_text
from toolchain.rpc.places import Place

_FUNCTION = "edge_toolchain.vta.self_test"
_CONFIGURE = "tvm.contrib.vta.reconfig_runtime"
_OPEN_S, _ANSWER_S = 30.0, 60.0  # programming an FPGA takes seconds


@dataclass(frozen=True)
class SelfTest:
    """The result of a self-test.

    Attributes:
        device: What runs instructions there.
        configuration: Its configuration, by the name of the bitstream.
        revision: Revision of its instructions, 1 or 2.
        passed: What was tried and was right.
        memory: Which kind of memory it works in.
        passed_over: The kinds that would have come before it, and why they were not taken; empty if none would.
    """

    device: str
    configuration: str
    revision: int
    passed: tuple[str, ...]
    memory: str = ""
    passed_over: str = ""


_READER: TypeAdapter[SelfTest] = TypeAdapter(SelfTest)


def self_test(place: Place, device: Device) -> SelfTest:
    """Let a board try its accelerator.

    Args:
        place: The board.
        device: Its accelerator.

    Raises:
        DeviceError: The board does not answer, or its accelerator fails.
        VerificationError: Its answer is not a valid result.
    """
    session = place.open(_OPEN_S, _OPEN_S + _ANSWER_S, threading.Event())
    with rpc.deadline(session, _ANSWER_S), session:
        try:
            session.run(child.text, _CONFIGURE, json.dumps(device.config.document()))
            text = session.run(child.text, _FUNCTION, device.name)
        except CallError as fault:
            raise DeviceError(
                f"the accelerator of {place.name} fails",
                details=error_text(fault),
                hint=f"see {resources.manual('vta-checklist')}",
            ) from fault
    if text is None:
        raise DeviceError(
            f"the server of {place.name} does not support VTA",
            hint="serve the board with `toolchain farm up` instead of TVM's server",
        )
    try:
        return _READER.validate_json(text)
    except ValidationError as wrong:
        raise VerificationError(f"{place.name} sent an invalid result of its self-test", details=text) from wrong
