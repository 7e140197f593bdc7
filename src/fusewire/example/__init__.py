"""A small trained model for ``fusewire bench --example``, so that a first try needs no file.

``mnist.onnx`` recognises handwritten digits: two convolutions and one matrix product, with 5,994
parameters and a test error of 1.1%. It is mnist-8 of the ONNX Model Zoo, which Microsoft trained
with CNTK (tutorial 103D); its page there gives the licence as MIT (NOTICE has its text).
"""

from __future__ import annotations

from pathlib import Path

MODEL = Path(__file__).with_name("mnist.onnx")
