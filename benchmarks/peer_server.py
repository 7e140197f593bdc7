"""LitServe with ONNX Runtime, as its documentation writes a server: the peer of serving.py.

    python benchmarks/peer_server.py MODEL.onnx --port 8000 --batch 32 --delay 2 --threads 1

It takes tensors as JSON, which is what LitServe reads: {"inputs": {name: nested list}}.
"""

import argparse
from typing import Any

import litserve
import numpy as np
import onnxruntime

DTYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64}


class Api(litserve.LitAPI):  # type: ignore[misc] # litserve is not read by mypy
    """Joins requests along their first axis."""

    def __init__(self, model: str, threads: int, **batching: Any) -> None:
        super().__init__(**batching)
        self.model, self.threads = model, threads

    def setup(self, device: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        self.session = onnxruntime.InferenceSession(self.model, options)
        self.types = {x.name: DTYPES[x.type] for x in self.session.get_inputs()}

    # Without types: LitServe takes the type of the argument for the form of the request.
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        return {name: np.array(x, self.types[name]) for name, x in request["inputs"].items()}

    def batch(self, inputs: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return {name: np.concatenate([x[name] for x in inputs]) for name in inputs[0]}

    def predict(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        found: list[np.ndarray] = self.session.run(None, inputs)
        return found

    def unbatch(self, outputs: list[np.ndarray]) -> list[list[np.ndarray]]:
        return [list(rows) for rows in zip(*outputs, strict=True)]

    def encode_response(self, output: list[np.ndarray]) -> dict[str, Any]:
        return {"outputs": [x.tolist() for x in output]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--delay", type=float, default=2.0, help="milliseconds")
    parser.add_argument("--threads", type=int, default=1)
    # Given to all servers; LitServe speaks no gRPC.
    parser.add_argument("--grpc-port", type=int)
    given = parser.parse_args()
    api = Api(
        given.model, given.threads, max_batch_size=given.batch, batch_timeout=given.delay / 1000
    )
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=120)
    server.run(host="127.0.0.1", port=given.port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
