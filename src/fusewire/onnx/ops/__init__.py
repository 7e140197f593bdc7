"""How each op is read from ONNX and written to it, by family."""
