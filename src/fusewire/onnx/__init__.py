"""ONNX models: read, written, and how each op is said in both directions."""
