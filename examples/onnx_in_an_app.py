"""Run an ONNX file in an application: a search over help pages, by a text embedding.

    python examples/onnx_in_an_app.py

The script first writes the model with the ``onnx`` package, as an exporter would. Its weights are
random, so it finds pages that share words with the question; a trained model is used in the
same way.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import numpy_helper, parser

import fusewire as fw

WORDS, WIDTH = 4096, 64
MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
embed (int64[texts, tokens] input_ids, int64[texts, tokens] attention_mask)
    => (float[texts, W] embedding, float[texts, O] length)
<float[V, W] table>
{
    last = Constant <value_ints = [-1]> ()
    tokens_axis = Constant <value_ints = [1]> ()
    vectors = Gather (table, input_ids)
    mask = Cast <to = 1> (attention_mask)
    weights = Unsqueeze (mask, last)
    counted = Mul (vectors, weights)
    total = ReduceSum <keepdims = 0> (counted, tokens_axis)
    length = ReduceL2 <keepdims = 1> (total, last)
    embedding = Div (total, length)
}
"""
PAGES = [
    "Change the password of your account",
    "Pay an invoice by card or by bank transfer",
    "Connect the printer to a wireless network",
    "Cancel or change an order before it is sent",
    "Close your account and delete your data",
]


def write_model(path: Path) -> None:
    """Write an embedding of words, summed over the words of a text and scaled to length 1."""
    model = parser.parse_model(MODEL.replace("V,", f"{WORDS},").replace("W]", f"{WIDTH}]"))
    table = np.random.default_rng(0).standard_normal((WORDS, WIDTH)).astype(np.float32)
    del model.graph.initializer[:]
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    onnx.save(model, path)


def tokenize(texts: list[str]) -> dict[str, np.ndarray]:
    """Number the words of each text, and pad all texts to the same length."""
    rows = [[zlib.crc32(word.encode()) % WORDS for word in text.lower().split()] for text in texts]
    length = max(map(len, rows))
    return {
        "input_ids": np.array([row + [0] * (length - len(row)) for row in rows]),
        "attention_mask": np.array([[1] * len(row) + [0] * (length - len(row)) for row in rows]),
    }


def main() -> None:
    """Load the model once, embed the pages, and answer questions."""
    with TemporaryDirectory() as folder:
        write_model(Path(folder) / "embed.onnx")
        # The first call is answered at once; the engines are compared behind it.
        program = fw.compile(str(Path(folder) / "embed.onnx"))
        pages = program.run(**tokenize(PAGES)).by_name["embedding"]
        print("inputs: ", ", ".join(map(str, program.inputs)))
        print("outputs:", ", ".join(map(str, program.outputs)))
        for question in ("delete my account", "pay by card", "printer without a network"):
            tokens = tokenize([question])
            # Inputs go by the names that the file gives them. Other sizes need no new program.
            embedding, _ = program(
                input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]
            )
            best = int(np.argmax(pages @ embedding[0]))
            print(f"{question!r}: {PAGES[best]}")
        program.close()


if __name__ == "__main__":
    main()
