"""The backend test suite of ONNX, run on any backend: `python -m fusewire.testing.onnx_suite xla`.

The cases, their data and the comparison are those of the onnx package. A case passes, fails, or is
excluded for a reason in exclusions.txt; a case that did not run does not count as passed.
"""
