"""Virtual boards: emulated devices, each with an SSH server."""
