"""Which commands there are: adding one is a line here, and a function of its name in the module that the line names."""

from __future__ import annotations

COMMANDS = {
    "boards": {
        "board": "List the board types; check a board file; add a device to the lab's list.",
        "boards": "List the board types; check a board file; add a device to the lab's list.",
        "doctor": "Say what this machine, or a device with --host, has and lacks for each board.",
    },
    "build": {
        "build": "Compile MODEL (a zoo name or an .onnx file) for a board into a bundle.",
        "package": "Pack the bundle in FOLDER as one OCI image-layout archive.",
    },
    "compare": {
        "compare": "Run MODEL untuned and tuned in turns on a device, and tell how much faster the tuned one is.",
    },
    "completion": {
        "completion": "Print what makes a shell complete commands, boards, hosts and models; its first lines say how "
        "to use it."
    },
    "containers": {"containers": "Build, list and check the images that hold the cross compilers."},
    "device": {
        "bench": "Measure the release that a device runs.",
        "deploy": "Build a model (or take a package or a bundle), deploy it, check its outputs there and measure it.",
        "releases": "List the releases that a device keeps, the current one marked.",
        "rollback": "Make the release before the current one current again.",
        "status": "Show what a device is and which release it runs.",
    },
    "export": {"export": "Write PACKAGE (or a bundle's folder) as an update that a device applies without a network."},
    "farm": {"farm": "Serve the lab's devices for tuning over RPC; make virtual boards to test on."},
    "gate": {"gate": "Run NEW and its base in turns on a device: is NEW slower, wrong, or neither?"},
    "inventory": {
        "inventory": "Say what is in PACKAGE (or a bundle's folder) and what it was made with; --json is CycloneDX."
    },
    "mali": {
        "mali-cost": "Say what the kernels of models, packages or files of OpenCL C cost on Mali GPUs, by their "
        "machine code."
    },
    "models": {"model": "List the predefined networks; look into a model."},
    "profile": {
        "profile": "Show what each kernel of PACKAGE, or of the release that a device runs, takes there, in order."
    },
    "quantize": {
        "quantize": "Quantize the convolutions of MODEL (a zoo name or an .onnx file) to int8, with powers of two as "
        "scales."
    },
    "records": {"records": "Look at tuning records; keep the best, merge them, export them, or forget some."},
    "registry": {
        "pull": "Bring the package at ADDRESS, such as oci://HOST/REPOSITORY:TAG, into a folder as a bundle.",
        "push": "Bring PACKAGE (a bundle's folder or a package) to a registry at ADDRESS: oci://HOST/REPOSITORY:TAG.",
    },
    "rollout": {"rollout": "Deploy PACKAGE to the devices of a fleet, group by group, and stop where too many fail."},
    "run": {"run": "Run the release of a device on your own inputs, and write its outputs to a file."},
    "sdk": {"sdk": "Write what an application needs to run releases: a C library for the board, examples, Python."},
    "signing": {
        "floor": "Have a device take no release of its current one's model below SEQUENCE any more.",
        "sign": "Sign PACKAGE (or a bundle's folder) as a release: it stays what it is, and is signed beside that.",
        "verify": "See that PACKAGE (or a bundle's folder) is whole, and that those who are trusted have signed it.",
    },
    "survey": {
        "survey": "Try everything on one device with a few NETWORKS, and write a report to send: it names no host and "
        "no person."
    },
    "tuning": {
        "hardware": "Show what boards say of their hardware over RPC, held against the board file.",
        "python-runtime": "Build what TVM lacks to use a board's kind of accelerator in Python here.",
        "tasks": "List the kernels of MODEL that can be tuned: shape, operator, weight, work.",
        "tune": "Tune the kernels of MODEL on boards of one type; an interrupted run goes on where it was.",
    },
    "vta": {"vta": "Look into programs of the VTA accelerator."},
}
"""The commands of each module here, with the first sentence of each one's help."""
