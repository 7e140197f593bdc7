"""Ten model classes of transformers, unmodified: random weights, small configurations.

``cases()`` gives them as the collection in `benchmarks/modules` gives its own. They return what
transformers returns, a ``ModelOutput``; decoders are called without a cache (``use_cache=False``),
and `benchmarks/decoder.py` calls one with a cache.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.modules.case import Arguments, ModuleCase

SMALL = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
WORDS = 500


def _transformers() -> Any:
    import transformers

    return transformers


def _text(size: int) -> Arguments:
    ids = torch.randint(3, WORDS, (size, 24))
    mask = (torch.arange(24) < torch.randint(12, 25, (size, 1))).long()
    return (), {"input_ids": ids, "attention_mask": mask}


def _prompt(size: int) -> Arguments:
    return (), {"input_ids": torch.randint(3, WORDS, (size, 24)), "use_cache": False}


def _pixels(size: int) -> Arguments:
    return (), {"pixel_values": torch.randn(size, 3, 64, 64)}


def _both(size: int) -> Arguments:
    ids = torch.randint(3, WORDS - 1, (size, 16))
    ids[:, -1] = WORDS - 1
    mask = torch.ones_like(ids)
    pixels = torch.randn(size, 3, 64, 64)
    return (), {"input_ids": ids, "attention_mask": mask, "pixel_values": pixels}


def _sound(size: int) -> Arguments:
    features, ids = torch.randn(size, 80, 100), torch.randint(3, WORDS, (size, 8))
    return (), {"input_features": features, "decoder_input_ids": ids, "use_cache": False}


def _translation(size: int) -> Arguments:
    source, target = torch.randint(3, WORDS, (size, 20)), torch.randint(3, WORDS, (size, 12))
    return (), {"input_ids": source, "decoder_input_ids": target, "use_cache": False}


def _bert() -> Any:
    library = _transformers()
    return library.BertModel(library.BertConfig(**SMALL, vocab_size=WORDS, intermediate_size=256))


def _roberta() -> Any:
    library = _transformers()
    config = library.RobertaConfig(**SMALL, vocab_size=WORDS, intermediate_size=256)
    return library.RobertaModel(config)


def _distilbert() -> Any:
    library = _transformers()
    config = library.DistilBertConfig(
        vocab_size=WORDS, dim=128, n_layers=3, n_heads=4, hidden_dim=256
    )
    return library.DistilBertModel(config)


def _gpt2() -> Any:
    library = _transformers()
    return library.GPT2LMHeadModel(
        library.GPT2Config(vocab_size=WORDS, n_embd=128, n_layer=3, n_head=4)
    )


def _llama() -> Any:
    library = _transformers()
    config = library.LlamaConfig(
        **SMALL, vocab_size=WORDS, intermediate_size=256, num_key_value_heads=2
    )
    return library.LlamaForCausalLM(config)


def _qwen() -> Any:
    library = _transformers()
    config = library.Qwen2Config(
        **SMALL, vocab_size=WORDS, intermediate_size=256, num_key_value_heads=2
    )
    return library.Qwen2ForCausalLM(config)


def _vit() -> Any:
    library = _transformers()
    config = library.ViTConfig(**SMALL, image_size=64, patch_size=16, intermediate_size=256)
    return library.ViTForImageClassification(config)


def _clip() -> Any:
    library = _transformers()
    text = {**SMALL, "vocab_size": WORDS, "intermediate_size": 256, "max_position_embeddings": 32}
    text |= {"eos_token_id": WORDS - 1}
    vision = {**SMALL, "image_size": 64, "patch_size": 16, "intermediate_size": 256}
    return library.CLIPModel(
        library.CLIPConfig(text_config=text, vision_config=vision, projection_dim=64)
    )


def _whisper() -> Any:
    library = _transformers()
    config = library.WhisperConfig(
        vocab_size=WORDS,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_source_positions=50,
        max_target_positions=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return library.WhisperForConditionalGeneration(config)


def _t5() -> Any:
    library = _transformers()
    config = library.T5Config(
        vocab_size=WORDS, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4
    )
    return library.T5ForConditionalGeneration(config)


def cases() -> dict[str, ModuleCase]:
    """Collect the ten classes as cases by name."""
    rows = (
        ("BertModel", _bert, _text),
        ("RobertaModel", _roberta, _text),
        ("DistilBertModel", _distilbert, _text),
        ("GPT2LMHeadModel", _gpt2, _prompt),
        ("LlamaForCausalLM", _llama, _prompt),
        ("Qwen2ForCausalLM", _qwen, _prompt),
        ("ViTForImageClassification", _vit, _pixels),
        ("CLIPModel", _clip, _both),
        ("WhisperForConditionalGeneration", _whisper, _sound),
        ("T5ForConditionalGeneration", _t5, _translation),
    )
    return {
        name: ModuleCase(name, make, arguments, sizes=(2, 3, 5), is_network=True)
        for name, make, arguments in rows
    }
