"""Templates for tensors and products in float16, of which blocks are added up in float16, and the blocks in float32."""
