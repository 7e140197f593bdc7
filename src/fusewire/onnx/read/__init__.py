"""ONNX models read: a file is checked as a stranger's, then imported as a graph."""
