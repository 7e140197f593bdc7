"""Read ONNX models: check an untrusted file, then import it as a graph."""
