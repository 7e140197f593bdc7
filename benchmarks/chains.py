"""Eight chains as applications run them, for splits.py: parts that suit different engines.

What they are and how large was written down before any of them was timed. Two join trained models
of the zoo in one file; six are written in the kit of workloads.py, with weights drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import fusewire as fw
from benchmarks.workloads import (
    Array,
    Draw,
    Workload,
    conv_unit,
    encode,
    encoder_weights,
    layer_weights,
    unit_weights,
)


def stem_and_layers(k: Any, w: Any, x: Any) -> Any:
    """Cut an image of 224x224 into 196 patches by convolutions, attend 4 times, and classify."""
    stem, layers, head = w
    for unit in stem:
        x = k.relu(conv_unit(k, unit, x, 2))
    batch, channels, high, wide = x.shape
    x = x.reshape(batch, channels, high * wide).transpose(0, 2, 1)
    x = encode(k, layers, x, heads=6)
    return k.np.mean(x, axis=1) @ head[0] + head[1]


def stem_weights(draw: Draw) -> Any:
    sizes = (3, 48, 96, 192, 384)
    stem = [unit_weights(draw, b, a, 3, 3) for a, b in pairwise(sizes)]
    return [stem, encoder_weights(draw, 384)[:4], draw.linear(384, 1000)]


def depthwise_and_gru(k: Any, w: Any, x: Any) -> Any:
    """Filter 100 frames of 40 bands channel by channel, then read them with a GRU."""
    units, recurrent, head = w
    for depth, point in units:
        x = k.relu(conv_unit(k, depth, x, groups=depth[0].shape[0]))
        x = k.relu(conv_unit(k, point, x))
    x = k.np.mean(x, axis=3).transpose(2, 0, 1)
    y = k.gru(x, *recurrent)[:, 0]
    return k.softmax(y @ head[0] + head[1])


def depthwise_weights(draw: Draw) -> Any:
    units = [
        [unit_weights(draw, 256, 1, 3, 3), unit_weights(draw, 256, 256, 1, 1)] for _ in range(3)
    ]
    return [units, layer_weights(draw, 3), draw.linear(256, 40)]


def embed_and_pool(k: Any, w: Any, ids: Any) -> Any:
    """Look 128 words up, encode them 6 times, and pool with 12 norms of each row in a row."""
    table, layers, norms = w
    x = encode(k, layers, k.take(table, ids), heads=6)
    for norm in norms:
        x = k.layer_norm(x + k.np.tanh(x), *norm)
    return k.np.mean(x, axis=1)


def embed_weights(draw: Draw) -> Any:
    layers = encoder_weights(draw, 384)
    return [draw.normal(30_000, 384), layers, [draw.norm(384) for _ in range(12)]]


def unet(k: Any, w: Any, x: Any) -> Any:
    """Halve an image of 256x256 twice and bring it back; then the class of every pixel."""
    down, up, head = w
    kept = []
    for unit in down:
        x = k.relu(conv_unit(k, unit, x))
        kept.append(x)
        x = k.max_pool(x)
    for unit, side in zip(up, reversed(kept), strict=True):
        x = k.np.repeat(k.np.repeat(x, 2, axis=2), 2, axis=3)
        x = k.relu(conv_unit(k, unit, k.np.concatenate([x, side], axis=1)))
    x = conv_unit(k, head, x)
    return k.np.argmax(x, axis=1)


def unet_weights(draw: Draw) -> Any:
    down = [unit_weights(draw, 32, 3, 3, 3), unit_weights(draw, 64, 32, 3, 3)]
    up = [unit_weights(draw, 64, 128, 3, 3), unit_weights(draw, 32, 96, 3, 3)]
    return [down, up, unit_weights(draw, 21, 32, 1, 1)]


def tagger(k: Any, w: Any, x: Any) -> Any:
    """Read 64 words forwards, and give each a distribution over 30,000 tags."""
    recurrent, head = w
    y = k.lstm(x, *recurrent)[:, 0]
    return k.softmax(y @ head[0] + head[1])


def pipeline(k: Any, w: Any, x: Any) -> Any:
    """Normalise a table of 4096x1024, multiply, and bring rows together, step by step."""
    np = k.np
    centred = (x - np.mean(x, axis=0)) / np.sqrt(np.mean(np.square(x), axis=0) + 1e-5)
    y = np.tanh(centred * 1.5 + 0.25) @ w
    y = np.exp(-np.square(y)) * np.sqrt(np.abs(y) + 1.0)
    return np.sum(y, axis=0), np.max(y, axis=1), np.mean(np.abs(y), axis=1)


def _normal(*shape: int) -> Callable[[Draw], list[Array]]:
    return lambda draw: [draw.normal(*shape)]


def _tagger_weights(draw: Draw) -> Any:
    return [layer_weights(draw, 4), draw.linear(256, 30_000)]


WRITTEN: Mapping[str, Workload] = {
    "conv stem + 4 transformer layers + head": Workload(
        stem_and_layers, stem_weights, _normal(1, 3, 224, 224)
    ),
    "depthwise convs + GRU + softmax": Workload(
        depthwise_and_gru, depthwise_weights, _normal(1, 256, 100, 40)
    ),
    "embedding + encoder + layer-norm pooling": Workload(
        embed_and_pool, embed_weights, lambda d: [d.rng.integers(0, 30_000, (1, 128))]
    ),
    "conv U-Net + argmax": Workload(unet, unet_weights, _normal(1, 3, 256, 256)),
    "LSTM tagger + softmax over 30,000": Workload(tagger, _tagger_weights, _normal(64, 1, 256)),
    "elementwise and reductions around a matmul": Workload(
        pipeline, lambda d: d.weight(1024, 1024), _normal(4096, 1024)
    ),
}
# Samples of 8 s, of which the second model reads 800 frames; an image, and the height of a line.
_SAMPLES, _FRAMES, _IMAGE, _LINE = 128_000, 800, 320, 48


def _mel_and_turn(zoo: Any, path: Path) -> dict[str, Array]:
    """Join the spectrogram of Whisper and the encoder that tells whether a speaker is done."""
    import onnx
    from onnx import helper

    names = ("whisper-mel-conv", "smart-turn-int8")
    zoo.fetch(list(names))
    mel, turn = (onnx.load(zoo.path(name)) for name in names)
    turn = _at_opset(turn, 18)
    cut = _model(
        [helper.make_node("Slice", ["x", "start", "end", "axis"], ["y"])],
        [("x", ["b", 80, "t"])],
        [("y", ["b", 80, _FRAMES])],
        {"start": [0], "end": [_FRAMES], "axis": [2]},
        18,
    )
    first = _joined(_at_opset(mel, 18), cut, {"features": "x"})
    onnx.save(_joined(first, turn, {"cut/y": "input_features"}), path)
    wave = zoo.inputs(names[0])["waveforms"].reshape(-1)[:_SAMPLES].reshape(1, -1)
    return {"first/waveforms": wave, "first/waveforms_lens": np.array([_SAMPLES])}


def _detector_and_reader(zoo: Any, path: Path) -> dict[str, Array]:
    """Join a text detector and a reader, which reads the middle line where the detector sees text.

    An application crops the boxes that it finds in the map: how many there are depends on the
    image, so that a file of fixed parts takes one crop, weighted by the map.
    """
    import onnx
    from onnx import helper

    names = ("ppocr-det", "ppocr-rec")
    zoo.fetch(list(names))
    find, read = (onnx.load(zoo.path(name)) for name in names)
    low = (_IMAGE - _LINE) // 2
    crop = _model(
        [
            helper.make_node("Slice", ["x", "start", "end", "axis"], ["line"]),
            helper.make_node("Slice", ["map", "start", "end", "axis"], ["seen"]),
            helper.make_node("Mul", ["line", "seen"], ["y"]),
        ],
        [("x", [1, 3, _IMAGE, _IMAGE]), ("map", [1, 1, _IMAGE, _IMAGE])],
        [("y", [1, 3, _LINE, _IMAGE])],
        {"start": [low], "end": [low + _LINE], "axis": [2]},
        11,
    )
    first = _joined(find, crop, {"fetch_name_0": "map"})
    whole = _joined(first, read, {"cut/y": "x"})
    # Both parts see the same image.
    for node in whole.graph.node:
        node.input[:] = ["first/x" if name == "cut/x" else name for name in node.input]
    kept = [x for x in whole.graph.input if x.name != "cut/x"]
    del whole.graph.input[:]
    whole.graph.input.extend(kept)
    onnx.save(whole, path)
    return {"first/x": zoo.inputs(names[0])["x"]}


def _at_opset(model: Any, version: int) -> Any:
    import onnx

    found = next(x.version for x in model.opset_import if not x.domain)
    used = {node.domain for node in model.graph.node}
    if found != version:
        model = onnx.version_converter.convert_version(model, version)
    kept = [x for x in model.opset_import if x.domain in ("", *used)]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    return model


def _model(nodes: Any, inputs: Any, outputs: Any, constants: Any, opset: int) -> Any:
    from onnx import TensorProto, helper

    def told(edges: Any) -> list[Any]:
        return [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n, dims in edges]

    held = [
        helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
        for name, values in constants.items()
    ]
    graph = helper.make_graph(nodes, "cut", told(inputs), told(outputs), held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _joined(first: Any, second: Any, pairs: Mapping[str, str]) -> Any:
    """Connect outputs of one model to inputs of another; names get the part in front."""
    from onnx import compose

    is_begun = first.graph.name == "joined"
    back = "cut/" if second.graph.name == "cut" else "end/"
    return compose.merge_models(
        first,
        second,
        io_map=list(pairs.items()),
        prefix1=None if is_begun else "first/",
        prefix2=back,
        name="joined",
    )


JOINED: Mapping[str, Callable[[Any, Path], dict[str, Array]]] = {
    "mel front end + turn detector": _mel_and_turn,
    "text detector + crop + reader": _detector_and_reader,
}
CHAINS = (*JOINED, *WRITTEN)


def save(name: str, path: Path) -> dict[str, Array]:
    """Write the file of a chain, and give its inputs by name."""
    if name in JOINED:
        return JOINED[name](import_module("zoo"), path)
    arrays = WRITTEN[name].save(path)
    names = [str(x.name) for x in fw.load(path).inputs]
    return dict(zip(names, arrays, strict=True))
