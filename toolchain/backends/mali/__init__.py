"""Mali GPUs through OpenCL: kernels as OpenCL C, which the driver compiles on the board, and host code through LLVM."""
