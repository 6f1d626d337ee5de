"""Layers of neural networks: convolutions, pools, normalizations and activations."""
