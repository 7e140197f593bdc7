"""The bare batcher: uvicorn, ONNX Runtime and nothing else. What `fusewire serve` is compared with.

    python benchmarks/bare_server.py MODEL.onnx --port 8000 --grpc-port 8001 --batch 32 --delay 2

It speaks the inference calls of the Open Inference Protocol, REST with binary tensors and gRPC, for
one model. It checks nothing, has one session, and fails with it. Requests of equal shapes share a
batch: the oldest waits at most `--delay` milliseconds, and one batch runs at a time.
"""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import onnxruntime
import uvicorn
import uvloop
from tritonclient.grpc import service_pb2 as messages

DTYPES = {"FP32": np.float32, "INT64": np.int64, "INT32": np.int32, "UINT8": np.uint8}
NAMES = {np.dtype(numpy): name for name, numpy in DTYPES.items()}
Arrays = dict[str, np.ndarray]


class Batcher:
    def __init__(self, path: str, batch: int, delay: float, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self.names = [output.name for output in self.session.get_outputs()]
        self.batch, self.delay = batch, delay
        self.waiting: dict[Any, list[tuple[Arrays, asyncio.Future[list[np.ndarray]]]]] = {}
        self.timers: dict[Any, asyncio.TimerHandle] = {}
        self.executor = ThreadPoolExecutor(1)
        self.tasks: set[asyncio.Task[None]] = set()

    def submit(self, inputs: Arrays) -> asyncio.Future[list[np.ndarray]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[np.ndarray]] = loop.create_future()
        key = tuple([x.shape[1:] for x in inputs.values()])
        queue = self.waiting.setdefault(key, [])
        queue.append((inputs, future))
        if len(queue) >= self.batch:
            self.flush(key)
        elif len(queue) == 1:
            self.timers[key] = loop.call_later(self.delay, self.flush, key)
        return future

    def flush(self, key: Any) -> None:
        if (timer := self.timers.pop(key, None)) is not None:
            timer.cancel()
        queue = self.waiting.pop(key, [])
        if queue:
            task = asyncio.get_running_loop().create_task(self.run(queue))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def run(self, queue: list[tuple[Arrays, asyncio.Future[list[np.ndarray]]]]) -> None:
        loop = asyncio.get_running_loop()
        joined = {k: np.concatenate([x[k] for x, _ in queue]) for k in queue[0][0]}
        outputs = await loop.run_in_executor(self.executor, self.session.run, self.names, joined)
        at = 0
        for inputs, future in queue:
            rows = len(next(iter(inputs.values())))
            if not future.cancelled():
                future.set_result([output[at : at + rows] for output in outputs])
            at += rows


def rest(batcher: Batcher) -> Callable[..., Awaitable[None]]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if not scope["path"].endswith("/infer"):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        length = int(dict(scope["headers"]).get(b"inference-header-content-length", len(body)))
        header, at = json.loads(body[:length]), length
        inputs: Arrays = {}
        for item in header["inputs"]:
            dtype = np.dtype(DTYPES[item["datatype"]])
            size = item["parameters"]["binary_data_size"]
            array = np.frombuffer(body, dtype, size // dtype.itemsize, at)
            inputs[item["name"]] = array.reshape(item["shape"])
            at += size
        outputs = await batcher.submit(inputs)
        rows = [
            {"name": name, "datatype": NAMES[x.dtype], "shape": x.shape,
             "parameters": {"binary_data_size": x.nbytes}}
            for name, x in zip(batcher.names, outputs, strict=True)
        ]  # fmt: skip
        said = json.dumps({"model_name": "model", "outputs": rows}).encode()
        answer = b"".join([said, *(x.tobytes() for x in outputs)])
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"inference-header-content-length", str(len(said)).encode()),
            (b"content-length", str(len(answer)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return app


async def start_grpc(batcher: Batcher, port: int) -> grpc.aio.Server:
    async def infer(request: Any, context: Any) -> Any:
        inputs = {
            item.name: np.frombuffer(raw, DTYPES[item.datatype]).reshape(tuple(item.shape))
            for item, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        outputs = await batcher.submit(inputs)
        answer = messages.ModelInferResponse(model_name="model")
        for name, x in zip(batcher.names, outputs, strict=True):
            answer.outputs.add(name=name, datatype=NAMES[x.dtype], shape=x.shape)
            answer.raw_output_contents.append(x.tobytes())
        return answer

    handler = grpc.unary_unary_rpc_method_handler(
        infer,
        messages.ModelInferRequest.FromString,
        messages.ModelInferResponse.SerializeToString,
    )
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 1 << 28)])
    service = "inference.GRPCInferenceService"
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {"ModelInfer": handler})]
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--delay", type=float, default=2.0, help="milliseconds")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    batcher = Batcher(given.model, given.batch, given.delay / 1000, given.threads)
    server = await start_grpc(batcher, given.grpc_port)
    config = uvicorn.Config(
        rest(batcher), "127.0.0.1", given.port, log_level="warning", access_log=False
    )
    await uvicorn.Server(config).serve()
    await server.stop(1.0)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
