"""Templates for processors with a matrix unit (AMX), which multiplies tiles of bfloat16 and of bytes."""
