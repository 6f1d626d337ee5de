"""CPUs through LLVM: x86-64 and Arm."""
