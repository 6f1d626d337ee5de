# For boards that compute with OpenCL: its loader, and PoCL, which runs kernels on the CPU.
ocl-icd-libopencl1 pocl-opencl-icd
