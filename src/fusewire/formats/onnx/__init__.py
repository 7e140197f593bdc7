"""ONNX models: shared by the frontend that reads them and by all that write them."""
