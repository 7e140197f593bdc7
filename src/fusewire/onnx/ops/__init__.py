"""How each op is read from ONNX and written to it, by the families in which ops are declared."""
