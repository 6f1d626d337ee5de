"""Models: read, checked and described; the predefined networks; inputs, and what ONNX Runtime computes from them."""
