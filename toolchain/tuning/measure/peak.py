"""The peak performance of the boards of a run, which their servers measure before it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from toolchain import rpc
from toolchain.device.roofline import Peak, read_peak
from toolchain.errors import DeviceError, VerificationError
from toolchain.rpc import CallError, child, error_text
from toolchain.rpc.places import Place

_FUNCTION = "edge_toolchain.peak"
_CPU = "llvm"
_OPEN_S, _ANSWER_S = 30.0, 60.0
_AT_ONCE = 16


@dataclass(frozen=True)
class BoardPeak:
    """The peak of a run's boards, or why it is unknown."""

    peak: Peak | None
    reason: str = ""


NO_BOARD = BoardPeak(None, "no board measured anything")


def measure(places: Sequence[Place], kind: str, threads: int) -> BoardPeak:
    """Measure the peak of each place that is no emulator; return the highest of them.

    A place that cannot be measured is left out: the run itself reports what is wrong with it.

    Args:
        places: The boards.
        kind: TVM's name of what computes there.
        threads: Threads of the kernels; 0 means every CPU.
    """
    if kind != _CPU:
        return BoardPeak(None, f"the peak is measured on CPUs only, and these kernels run on {kind}")
    real = [place for place in places if not place.emulated]
    if not real:
        return BoardPeak(None, "an emulator has no peak" if places else "no board was there when the run began")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = list(pool.map(lambda place: _measure_place(place, threads), real))
    peaks = [result.peak for result in results if result.peak]
    if not peaks:
        return results[0]
    highest = max(peaks, key=lambda peak: peak.gflops)
    return BoardPeak(replace(highest, gbytes_s=max(peak.gbytes_s for peak in peaks)))


def _measure_place(place: Place, threads: int) -> BoardPeak:
    try:
        session = place.open(_OPEN_S, _OPEN_S + _ANSWER_S, threading.Event())
        with rpc.deadline(session, _ANSWER_S), session:
            text = session.run(child.text, _FUNCTION, threads)
        if text is None:
            return BoardPeak(None, f"the server of {place.name} does not measure it")
        return BoardPeak(read_peak(json.loads(text)))
    except CallError as fault:
        return BoardPeak(None, f"{place.name} did not measure it: {error_text(fault)}")
    except (DeviceError, VerificationError) as fault:
        return BoardPeak(None, f"{place.name} did not measure it: {fault.message}")
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError):
        return BoardPeak(None, f"{place.name} sent an invalid peak")
