"""The list of commands: to add one, add a line here and a function of its name in the module that the line names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A command in the list of commands.

    Attributes:
        module: Its module in this package.
        line: The first sentence of its help.
        hidden: Whether the list omits it, as a second name of another command.
    """

    module: str
    line: str
    hidden: bool = False


_BOARDS = "List board types; check a board file; add a device."

SECTIONS = {
    "Deploy": {
        "deploy": Entry("device", "Build a model, deploy it, check its outputs and measure it."),
        "run": Entry("device", "Run the deployed release on your own inputs."),
        "status": Entry("device", "Show what a device is and which release it runs."),
        "releases": Entry("device", "List the releases that a device keeps."),
        "rollback": Entry("device", "Make the previous release current again."),
        "rollout": Entry("rollout", "Deploy a package to many devices, group by group."),
        "export": Entry("export", "Write an update file for devices without a network."),
        "sdk": Entry("export", "Write the C and Python libraries for your application."),
    },
    "Measure and compare": {
        "bench": Entry("device", "Measure the release that a device runs."),
        "profile": Entry("profile", "Show the time of each kernel of a release on its device."),
        "compare": Entry("compare", "Measure how much faster the tuned model is."),
        "gate": Entry("gate", "Check whether a new package is slower or wrong."),
        "mali-cost": Entry("mali", "Estimate the cost of kernels on Mali GPUs."),
        "survey": Entry("survey", "Try everything on one device and write a report."),
    },
    "Tune": {
        "tune": Entry("tuning", "Search for faster kernels of a model on real boards."),
        "tasks": Entry("tuning", "List the kernels of a model that can be tuned."),
        "records": Entry("records", "Show, merge, export or forget tuning records."),
    },
    "Models and packages": {
        "model": Entry("models", "List the predefined networks; inspect a model."),
        "quantize": Entry("quantize", "Quantize the convolutions of a model to int8."),
        "build": Entry("build", "Compile a model for a board into a bundle."),
        "package": Entry("build", "Pack a bundle as one archive."),
        "inventory": Entry("build", "List what a package contains and what built it."),
    },
    "Share and trust": {
        "push": Entry("registry", "Upload a package to a registry."),
        "pull": Entry("registry", "Download a package from a registry."),
        "sign": Entry("signing", "Sign a package."),
        "verify": Entry("signing", "Check a package's integrity and its signatures."),
        "floor": Entry("signing", "Set the lowest release number that a device accepts."),
    },
    "Devices and lab": {
        "board": Entry("boards", _BOARDS),
        "boards": Entry("boards", _BOARDS, hidden=True),
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
"""The commands by subject, in the order of the help, each with the first sentence of its help."""
