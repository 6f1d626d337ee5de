"""The VTA accelerator: convolutions of int8 as streams of its instructions, made ahead of time; the rest on the CPU."""
