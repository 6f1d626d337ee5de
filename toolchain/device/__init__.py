"""A device: its store of releases and its lock, what is pushed there, run there and measured there."""
