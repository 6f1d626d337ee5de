"""What runs instructions: the simulator, the verifier, and a board's self-test."""
