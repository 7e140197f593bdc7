"""Read and write ONNX models; both directions of an op are in one file."""
