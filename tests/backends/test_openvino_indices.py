"""OpenVINO's executables without the guards of a plan: an index from anywhere stays in its tensor.

In a process of its own, which a write to other memory would end.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import itertools
import numpy as np
import fusewire as fw
from fusewire.contract.region import build, first_device
from fusewire.registry import REGISTRY

backend = REGISTRY.backends.get("openvino")
device = first_device(backend)
rng = np.random.default_rng(0)
NEAR = [-17, -16, -1, 0, 15, 16, 17]
FAR = [-(2**31), 1 - 2**31, -(2**30), -(2**16), *NEAR, 2**16, 2**30, 2**31 - 1]
WIDE = [-(2**63), -(2**40), -(2**32) - 1, 2**32 + 1, 2**40, 2**63 - 1]


def numbers(of, shape):
    every = FAR + WIDE if of == "int64" else [n for n in FAR if n >= 0] if of == "uint32" else FAR
    return rng.choice(np.array(every, np.int64), shape).astype(of)


BOXES = np.array([[0, 0, 3, 3]] * 8, np.float32)
W, R = (rng.standard_normal((1, 8, n), np.float32) for n in (4, 2))
BLOCK, ROW = np.full((8, 4), 7, np.float32), np.full(32, 7, np.float32)
o = fw.ops
OPS = {
    "gather": ((16, 4), (32,), lambda x, i: o.gather(x, i, axis=0)),
    "embedding": ((16, 4), (32,), lambda x, i: o.embedding(x, i)),
    "gather_elements": ((16, 4), (16, 4), lambda x, i: o.gather_elements(x, i, axis=1)),
    "gather_nd": ((16, 4), (32, 2), lambda x, i: o.gather_nd(x, i)),
    "gather_nd, batches": ((4, 16), (4, 8, 1), lambda x, i: o.gather_nd(x, i, batch_dims=1)),
    "scatter_elements": ((16, 4), (8, 4), lambda x, i: o.scatter_elements(x, i, BLOCK, axis=0)),
    "added": (
        (16, 4),
        (8, 4),
        lambda x, i: o.scatter_elements(x, i, BLOCK, axis=0, reduction="add"),
    ),
    "scatter_nd": ((16, 4), (32, 2), lambda x, i: o.scatter_nd(x, i, ROW)),
    "roi_align": ((4, 1, 8, 8), (8,), lambda x, i: o.roi_align(x, BOXES, i, sizes=(2, 2))),
    "lstm": ((5, 3, 4), (3,), lambda x, i: o.lstm(x, W, R, None, i)[0]),
    "dynamic_top_k": ((16, 4), (), lambda x, i: o.dynamic_top_k(x, i)[0]),
}
DTYPES = ("int32", "int64", "uint32")
for (name, (data, places, function)), of in itertools.product(OPS.items(), DTYPES):
    if name == "lstm" and of != "int32":
        continue
    for shape in (data, tuple("nmkl"[axis] for axis in range(len(data)))):
        if name in ("roi_align", "lstm") and shape is not data:
            continue
        graph = fw.trace(function, fw.Spec(shape, "float32"), fw.Spec(places, of))
        executable = build(backend, graph, device)
        x = np.full(data, 7, np.float32)
        for turn in range(20):
            (made,) = executable.run([x, numbers(of, places)])
            if name != "lstm" and not np.isin(made, np.arange(0, 7 * 40, 7)).all():
                print(name, of, shape, made)
                break
print("done")
"""
# What freed memory holds is 5.
EMPTY = """
import numpy as np
import fusewire as fw
from fusewire.contract.region import build, first_device
from fusewire.registry import REGISTRY

backend = REGISTRY.backends.get("openvino")
device = first_device(backend)
o = fw.ops
BOXES = np.array([[0, 0, 3, 3]] * 2, np.float32)
OPS = {
    "gather": ((0, 4), (9,), lambda x, i: o.gather(x, i, axis=0)),
    "embedding": ((0, 4), (9,), lambda x, i: o.embedding(x, i)),
    "gather_elements": ((0, 4), (9, 4), lambda x, i: o.gather_elements(x, i, axis=0)),
    "gather_nd": ((0, 4), (9, 1), lambda x, i: o.gather_nd(x, i)),
    "gather_nd, batches": ((2, 0, 3), (2, 1), lambda x, i: o.gather_nd(x, i, batch_dims=1)),
    "roi_align": ((0, 1, 8, 8), (2,), lambda x, i: o.roi_align(x, BOXES, i, sizes=(2, 2))),
    "dynamic_top_k": ((4, 0), (), lambda x, i: o.dynamic_top_k(x, i)[0]),
}
for name, (data, places, function) in OPS.items():
    for of in ("float32", "int32", "int64", "bool"):
        if of != "float32" and name == "roi_align":
            continue
        for shape in (data, tuple("nmkl"[axis] for axis in range(len(data)))):
            graph = fw.trace(function, fw.Spec(shape, of), fw.Spec(places, "int64"))
            executable = build(backend, graph, device)
            for turn in range(3):
                used = [np.full(99, 5, of) for _ in range(200)]
                del used
                at = np.full(places, name == "dynamic_top_k", np.int64)
                (made,) = executable.run([np.zeros(data, of), at])
                if made.any():
                    print(name, of, shape, made)
                    break
print("done")
"""


@pytest.mark.parametrize("script", [SCRIPT, EMPTY], ids=["from anywhere", "into nothing"])
def test_index_stays_in_its_tensor(script: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
