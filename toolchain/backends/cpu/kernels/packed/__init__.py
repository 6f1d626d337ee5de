"""Templates for float32 products with weights that stay packed in memory: a few bits each, and scales."""
