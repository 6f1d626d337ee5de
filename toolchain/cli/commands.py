"""The commands: their names, modules and summaries, which stand only here, and the new names of commands of the past.

To add a command, add a line here and a function of its name in the module that the line names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A command.

    Attributes:
        module: Its module in this package.
        line: The first sentence of its help.
        others: Modules that add commands to it, if it is a group.
    """

    module: str
    line: str
    others: tuple[str, ...] = ()


SECTIONS = {
    "Deploy": {
        "deploy": Entry("device", "Build a model, deploy it, check its outputs and measure it."),
        "run": Entry("device", "Run the deployed release on your own inputs."),
        "status": Entry("device", "Show what a device is and which releases it has."),
        "rollback": Entry("device", "Make the previous release current again."),
        "remove": Entry("device", "Remove a slot, with its releases, from a device."),
        "rollout": Entry("rollout", "Deploy a package to many devices, group by group."),
        "sdk": Entry("sdk", "Write the C and Python libraries for your application."),
    },
    "Measure and compare": {
        "bench": Entry("bench", "Measure the release that a device runs."),
        "profile": Entry("profile", "Show the time of each kernel of a release on its device."),
        "compare": Entry("compare", "Measure how much faster the tuned model is."),
        "gate": Entry("gate", "Check whether a new package is slower or wrong."),
        "evaluate": Entry("evaluate", "Compare a metric of your own data, on a device and in ONNX Runtime."),
        "survey": Entry("survey", "Try everything on one device and write a report."),
    },
    "Tune": {
        "tune": Entry("tuning", "Search for faster kernels of a model on real boards."),
        "tasks": Entry("tuning", "List the kernels of a model that can be tuned."),
        "records": Entry("records", "Show, merge, export or forget tuning records."),
    },
    "Models and packages": {
        "model": Entry("models", "List the predefined networks; make weights zero."),
        "inspect": Entry("inspection", "Show what a model or a package contains.", ("mali",)),
        "quantize": Entry("quantize", "Quantize the convolutions of a model to int8."),
        "build": Entry("build", "Compile a model for a board into a bundle."),
        "package": Entry("package", "Pack a bundle as one archive, or as an update file."),
    },
    "Share and trust": {
        "push": Entry("registry", "Upload a package to a registry."),
        "pull": Entry("registry", "Download a package from a registry."),
        "trust": Entry("signing", "Sign packages, check signatures, refuse old releases."),
        "affected": Entry("affected", "Find releases and devices with a vulnerable component."),
    },
    "Devices and lab": {
        "board": Entry("boards", "List board types; check a board file; add a device."),
        "farm": Entry("farm", "Serve the lab's devices for tuning; start virtual boards."),
        "hardware": Entry("tuning", "Compare a device's hardware with its board file."),
        "vta": Entry("vta", "Inspect programs of the VTA accelerator."),
    },
    "This machine": {
        "doctor": Entry("boards", "Show what this machine or a device lacks for a board."),
        "containers": Entry("containers", "Build, list and check the cross-compiler images."),
        "python-runtime": Entry("tuning", "Build what Python needs to use an accelerator here."),
        "completion": Entry("completion", "Print the completion script of a shell."),
    },
}
"""The commands by subject, in the order of the help."""
ENTRIES = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


@dataclass(frozen=True)
class Renamed:
    """The command that replaces one of the past.

    Attributes:
        name: Its name.
        option: The option that it needs to do the same, unless the user names that option.
    """

    name: str
    option: str = ""

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command, to be followed by the arguments of the user."""
        option = self.option.split()
        return ["toolchain", *self.name.split(), *([] if set(option[:1]) & set(arguments) else option)]


RENAMED = {
    "boards": Renamed("board list"),
    "boards add": Renamed("board add"),
    "boards check": Renamed("board check"),
    "boards schema": Renamed("board schema"),
    "export": Renamed("package", "--as offline"),
    "floor": Renamed("trust floor"),
    "inventory": Renamed("inspect package"),
    "mali-cost": Renamed("inspect kernels"),
    "model inspect": Renamed("inspect model"),
    "releases": Renamed("status", "--releases"),
    "sign": Renamed("trust sign"),
    "verify": Renamed("trust verify"),
}
"""Commands that had another name: it is refused with the new one until the next version."""
