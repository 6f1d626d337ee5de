"""The memory that a process needs to run a bundle on a CPU, by part, as it is known before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolchain import architecture
from toolchain.bundle.manifest import LIBRARY, PARAMS, Manifest


def mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


@dataclass(frozen=True)
class Memory:
    """Bytes by part."""

    weights: int  # as packed for the board
    activations: int  # what the compiler's plan keeps, what kernels take for a moment, and the outputs of two runs
    inputs: int
    library: int  # the release's kernels
    program: int  # the runner, without its model

    @property
    def peak(self) -> int:
        return self.weights + self.activations + self.inputs + self.library + self.program

    def __str__(self) -> str:
        parts = {"weights": self.weights, "activations": self.activations, "inputs": self.inputs}
        parts |= {"library": self.library, "program": self.program}
        return f"{mib(self.peak)}: " + ", ".join(f"{name} {mib(size)}" for name, size in parts.items())


def planned(manifest: Manifest) -> Memory | None:
    """Return the memory of a bundle's process; None where the compiler does not plan it, as on GPUs.

    A process keeps the memory of each variant that it has run: of a bundle with several, it is that of all.
    """
    if manifest.dynamic:  # memory is planned for the greatest size
        return planned(manifest.of_variant(manifest.variant_names[-1]))
    if manifest.variants:
        plans = [planned(manifest.of_variant(variant.name)) for variant in manifest.variants]
        known = [plan for plan in plans if plan]
        if len(known) < len(plans):
            return None
        activations, inputs = sum(plan.activations for plan in known), sum(plan.inputs for plan in known)
        return replace(known[0], activations=activations, inputs=inputs)
    if manifest.activations is None:
        return None
    # The library keeps a state beside the inputs of the same names.
    state = sum(spec.bytes for spec in manifest.inputs) - sum(spec.bytes for spec in manifest.step_inputs)
    inputs = sum(spec.bytes for spec in manifest.inputs) + state
    # The machine keeps the outputs of the last run while the next one writes others.
    written = {pair.output for pair in manifest.states if pair.in_place}  # in the state's own memory
    activations = manifest.activations + sum(spec.bytes for spec in manifest.outputs if spec.name not in written)
    weights, library = manifest.files[PARAMS].size, manifest.files[LIBRARY].size
    return Memory(weights, activations, inputs, library, architecture.of_machine(manifest.machine).runner_bytes)
