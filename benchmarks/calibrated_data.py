"""Real inputs of five models, made on this machine, and the metrics of their tasks.

Handwritten digits of scikit-learn for mnist, files of this machine for magika, sentences of
installed documentation for minilm-l3, the same rendered with Debian's fonts for page-orientation
and ppocr-rec. Nothing is downloaded. Each input is made once, so that those for calibration and
those for testing are apart. Needs scikit-learn, Pillow, and fonts: ``apt install fonts-dejavu
fonts-liberation fonts-freefont-ttf``.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fusewire.numerics.metrics import cosine, top1

DOCUMENTS = Path("/usr/share")
FONTS = Path("/usr/share/fonts/truetype")
FAMILIES = ("dejavu", "liberation", "freefont")
WORDS = 32
LINES = 10

Sample = dict[str, Any]
Outputs = Sequence[Any]


def _shuffled(items: Sequence[Any], count: int) -> list[Any]:
    if len(items) < count:
        raise SystemExit(f"This machine has {len(items):,} of {count:,} inputs.")
    order = np.random.default_rng(0).permutation(len(items))[:count]
    return [items[i] for i in order]


# Inputs. The second value of a pair is the right answer where it is known, else None.

Labelled = tuple[Sample, Any]


def digits(count: int) -> list[Labelled]:
    """Handwritten digits, made as large as the model's, in its range."""
    found = import_module("sklearn.datasets").load_digits()
    at = (np.arange(20) + 0.5) * 8 / 20 - 0.5
    low = np.clip(np.floor(at).astype(int), 0, 7)
    high, share = np.clip(low + 1, 0, 7), (at - np.floor(at))[:, None]

    def larger(image: Any) -> Any:
        rows = image[low] * (1 - share) + image[high] * share
        columns = rows[:, low] * (1 - share.T) + rows[:, high] * share.T
        return np.pad(columns, 4).astype(np.float32)[None, None]

    images = found.images.astype(np.float32) * (255 / 16)
    pairs = zip(images, found.target.tolist(), strict=True)
    return _shuffled([({"Input3": larger(image)}, label) for image, label in pairs], count)


def _texts() -> Iterator[str]:
    """Yield sentences of what Debian installs, each once, in the same order on every run."""
    seen: set[str] = set()
    for path in sorted([*DOCUMENTS.rglob("*.txt"), *DOCUMENTS.rglob("copyright")]):
        text = path.read_text("utf-8", "ignore") if path.is_file() else ""
        for found in re.findall(r"[A-Z][a-z][^.\n]{30,150}\.", re.sub(r"[ \t]+", " ", text)):
            # A licence is in many files, in lines of other lengths.
            key = found[:40].lower()
            if found.isascii() and key not in seen:
                seen.add(key)
                yield found


def sentences(count: int) -> list[Labelled]:
    """Sentences as numbers of words: a hash of each, since the wheel has no vocabulary."""
    rows: list[Labelled] = []
    for text in _shuffled(list(_texts()), count):
        words = re.findall(r"\w+|[^\w\s]", text.lower())[: WORDS - 2]
        numbers = [101, *(1000 + zlib.crc32(word.encode()) % 28000 for word in words), 102]
        padded = np.zeros((1, WORDS), np.int64)
        padded[0, : len(numbers)] = numbers
        mask = (padded > 0).astype(np.int64)
        rows.append(({"input_ids": padded, "attention_mask": mask}, None))
    return rows


def files(count: int) -> list[Labelled]:
    """The first and the last bytes of files, of as many endings as there are."""
    by_ending: dict[str, list[Path]] = {}
    for path in sorted(Path("/usr").rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size > 64:
            by_ending.setdefault(path.suffix.lower(), []).append(path)
    groups = [_shuffled(paths, min(len(paths), 24)) for paths in by_ending.values()]
    paths = _shuffled([path for group in groups for path in group], count)
    return [({"bytes": _ends(path.read_bytes())}, None) for path in paths]


def _ends(data: bytes) -> Any:
    """Give 1,024 bytes of either end, filled with 256, as the model's package does."""
    row = np.full((1, 2048), 256, np.int32)
    first, last = data[:4096].lstrip()[:1024], data[-4096:].rstrip()[-1024:]
    row[0, : len(first)] = np.frombuffer(first, np.uint8)
    row[0, 2048 - len(last) :] = np.frombuffer(last, np.uint8)
    return row


@cache
def _fonts() -> list[Path]:
    found = [path for name in FAMILIES for path in sorted((FONTS / name).glob("*.ttf"))]
    # Those of symbols and of mathematics have no letters that anybody writes.
    letters = [path for path in found if not re.search("Math|Symbol|Dings", path.name)]
    if not letters:
        raise SystemExit("There are no fonts: apt install fonts-dejavu fonts-liberation.")
    return letters


def _picture(size: tuple[int, int], lines: Sequence[str], number: int, points: int) -> Any:
    image_of, draw_on, fonts = (
        import_module(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont")
    )
    rng, known = np.random.default_rng(number), _fonts()
    image = image_of.new("RGB", size, tuple(int(x) for x in rng.integers(200, 256, 3)))
    font = fonts.truetype(str(known[number % len(known)]), points)
    ink = tuple(int(x) for x in rng.integers(0, 90, 3))
    left = int(rng.integers(4, 12))
    drawing = draw_on.Draw(image)
    for place, line in enumerate(lines):
        drawing.text((left, 4 + place * (points + 6)), line, ink, font)
    return np.asarray(image)


def pages(count: int) -> list[Labelled]:
    """Pages of text, turned by a quarter none to three times, as the model's package scales."""
    texts = _shuffled(list(_texts()), LINES * count)
    mean, spread = np.array([0.485, 0.456, 0.406], "f4"), np.array([0.229, 0.224, 0.225], "f4")
    found: list[Labelled] = []
    for number in range(count):
        lines = [text[:40] for text in texts[LINES * number : LINES * (number + 1)]]
        turns = int(np.random.default_rng(number).integers(4))
        image = np.rot90(_picture((224, 224), lines, number, 14), turns)
        scaled = (image.astype(np.float32) / 255 - mean) / spread
        found.append(({"x": np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])}, turns))
    return found


def lines(count: int) -> list[Labelled]:
    """Lines of text, as the model's package scales them."""
    found: list[Labelled] = []
    for number, text in enumerate(_shuffled(list(_texts()), count)):
        shown = text[:22].strip()
        image = _picture((320, 48), [shown], number, 22)
        scaled = (image.astype(np.float32) / 255 - 0.5) / 0.5
        found.append(({"x": np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])}, shown))
    return found


# Metrics. 1 is the answer of the model in float32.


def sentence_cosine(right: Outputs, outputs: Outputs) -> float:
    """Return the cosine between the embeddings of a sentence: the last output."""
    return cosine(right[-1:], outputs[-1:])


def same_text(right: Outputs, outputs: Outputs) -> float:
    """Tell whether the text that CTC reads is the same."""
    return float(read_text(right[0]) == read_text(outputs[0]))


def read_text(scores: Any) -> list[int]:
    """Read the numbers of characters: the best of each place, without blanks and repetitions."""
    best = np.asarray(scores).argmax(-1).reshape(-1).tolist()
    return [x for x, before in zip(best, [None, *best], strict=False) if x and x != before]


# Whether an answer in float32 is the right one.


def _is_class(outputs: Outputs, label: Any, path: Path) -> bool:
    return bool(np.argmax(outputs[0]) == label)


def _is_turned(outputs: Outputs, label: Any, path: Path) -> bool:
    """The model's classes are turns by a quarter, clockwise; ours are counter-clockwise."""
    return bool(np.argmax(outputs[0]) == -label % 4)


@cache
def _characters(path: Path) -> list[str]:
    import onnx

    data = onnx.load(str(path)).metadata_props
    known: str = next(x.value for x in data if x.key == "character")
    return known.split("\n")


def _is_text(outputs: Outputs, label: Any, path: Path) -> bool:
    """The file has its characters, one to a line; 0 is the blank, and the last is the space."""
    known = _characters(path)
    text = "".join(known[x - 1] if x <= len(known) else " " for x in read_text(outputs[0]))
    return text == str(label)


@dataclass(frozen=True)
class Task:
    """A model, its inputs, how many of them are for calibration, and what is asked of it.

    ``read`` is the place of the output that the metric reads, and ``is_right`` tells whether the
    model knows the answer, where that is known.
    """

    samples: Callable[[int], list[Labelled]]
    calibrating: int
    metric: Callable[[Outputs, Outputs], float]
    least: float
    inputs: str
    read: int = 0
    is_right: Callable[[Outputs, Any, Path], bool] | None = None


TASKS: Mapping[str, Task] = {
    "mnist": Task(digits, 1152, top1, 0.99, "digits of scikit-learn, made larger", 0, _is_class),
    "magika": Task(files, 1152, top1, 0.97, "files of this machine"),
    "page-orientation": Task(pages, 736, top1, 0.98, "rendered pages, turned", 0, _is_turned),
    "minilm-l3": Task(
        sentences, 1152, sentence_cosine, 0.98, "sentences of installed documentation", -1
    ),
    "ppocr-rec": Task(lines, 384, same_text, 0.9, "rendered lines of text", 0, _is_text),
}
