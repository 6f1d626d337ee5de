"""Images: sampled, resized, and what detectors do with regions of them."""
