"""Graphs written as ONNX models, for files and for engines."""
