"""ONNX Runtime on the CPU, given the models that the ONNX writer makes."""
