"""ONNX Runtime on the CPU, through models that the ONNX writer makes."""
