"""What runs on a board's CPU: cross compilers, the linker, ELF files, and the device programs."""
