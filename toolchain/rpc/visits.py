"""What is asked of a board in the process that holds its session; each gets the session as a `Visit`."""

from __future__ import annotations

from typing import Any

from toolchain.rpc.child import Visit


def accelerator(visit: Visit, kind: str) -> dict[str, Any]:
    """Return what a board says of what computes there, by the names of `hardware.Accelerator`."""
    device = visit.rpc.device(kind, 0)
    float16 = visit.function(f"edge_toolchain.{kind}.float16")
    return {
        "name": str(device.device_name),
        "units": int(device.multi_processor_count),
        "max_threads_per_block": int(device.max_threads_per_block),
        "max_shared_memory_per_block": int(device.max_shared_memory_per_block),
        "driver": str(device.driver_version or ""),
        "float16": float16 is not None and bool(float16(0)),
    }
