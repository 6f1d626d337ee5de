"""Templates for products of numbers in bfloat16, whose sums are in float32."""
