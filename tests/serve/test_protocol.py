"""Clients that are not ours, unmodified, and the pages of the server."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import fusewire as fw

# gevent, under the HTTP client of Triton, warns of its own imports.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def page(served: Any, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}{path}") as answer:
        return answer.read()


def asked(client: Any, rows: np.ndarray, **options: Any) -> Any:
    given = client.InferInput("x", list(rows.shape), "FP32")
    given.set_data_from_numpy(rows, **options)
    return [given]


@pytest.fixture(scope="session")
def program(mlp: Path) -> Any:
    return fw.compile(str(mlp), backend="reference")


def test_rest_client_of_triton_works_unmodified(served: Any, rows: Any, program: Any) -> None:
    import tritonclient.http as http

    with http.InferenceServerClient(f"127.0.0.1:{served.port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("mlp")
        assert client.get_server_metadata()["name"] == "fusewire"
        described = client.get_model_metadata("mlp")
        assert described["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 256]}]
        assert client.get_model_config("mlp")["max_batch_size"] == 8
        assert client.get_model_repository_index()[0]["state"] == "READY"
        found = client.infer("mlp", asked(http, rows)).as_numpy("output")
        np.testing.assert_allclose(found, program(rows), rtol=1e-4, atol=1e-5)
        plain = client.infer(
            "mlp",
            asked(http, rows, binary_data=False),
            outputs=[http.InferRequestedOutput("output", binary_data=False)],
            request_id="seven",
            timeout=5_000_000,
        )
        assert plain.get_response()["id"] == "seven"
        np.testing.assert_array_equal(plain.as_numpy("output"), found)
        packed = client.infer("mlp", asked(http, rows), request_compression_algorithm="gzip")
        np.testing.assert_array_equal(packed.as_numpy("output"), found)


def test_half_a_pair_of_surrogates_comes_back_as_it_was_sent(served: Any, program: Any) -> None:
    rows = np.linspace(-1, 1, 256, dtype=np.float32).reshape(1, 256)
    given = {"name": "x", "datatype": "FP32", "shape": [1, 256], "data": rows.tolist()}
    request = urllib.request.Request(
        f"http://127.0.0.1:{served.port}/v2/models/mlp/infer",
        json.dumps({"id": "\ud800", "inputs": [given]}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        found = json.loads(answer.read())
    assert found["id"] == "\ud800"
    listed = np.array(found["outputs"][0]["data"], np.float32).reshape(1, -1)
    np.testing.assert_allclose(listed, program(rows), rtol=1e-4, atol=1e-5)


def test_grpc_client_of_triton_works_unmodified(served: Any, rows: Any, program: Any) -> None:
    import tritonclient.grpc as grpc

    with grpc.InferenceServerClient(f"127.0.0.1:{served.grpc_port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("mlp")
        assert client.get_server_metadata().name == "fusewire"
        assert client.get_model_metadata("mlp").inputs[0].datatype == "FP32"
        found = client.infer("mlp", asked(grpc, rows), request_id="seven")
        assert found.get_response().id == "seven"
        np.testing.assert_allclose(found.as_numpy("output"), program(rows), rtol=1e-4, atol=1e-5)
        with pytest.raises(grpc.InferenceServerException, match="There is no model 'none'"):
            client.infer("none", asked(grpc, rows))
        with pytest.raises(grpc.InferenceServerException, match="INVALID_ARGUMENT"):
            client.infer("mlp", asked(grpc, rows[:, :3]))


def test_requests_at_once_share_batches_and_get_their_own_rows(served: Any, program: Any) -> None:
    import tritonclient.grpc as grpc

    rng = np.random.default_rng(1)
    sent = [rng.standard_normal((1 + n % 3, 256)).astype(np.float32) for n in range(40)]
    with grpc.InferenceServerClient(f"127.0.0.1:{served.grpc_port}") as client:
        calls = [_started(client, asked(grpc, x)) for x in sent]
        for x, call in zip(sent, calls, strict=True):
            found = call.get_result().as_numpy("output")
            np.testing.assert_allclose(found, program(x), rtol=1e-4, atol=1e-5)
    families = text_string_to_metric_families(page(served, "/metrics").decode())
    samples = {s.name: s for f in families for s in f.samples if f.name == "fusewire_batch_rows"}
    batches, rows = samples["fusewire_batch_rows_count"], samples["fusewire_batch_rows_sum"]
    assert rows.value > batches.value


def _started(client: Any, inputs: Any) -> Any:
    from concurrent.futures import Future

    future: Future[Any] = Future()

    def done(result: Any, error: Any) -> None:
        future.set_exception(error) if error else future.set_result(result)

    client.async_infer("mlp", inputs, done)

    class Call:
        def get_result(self) -> Any:
            return future.result(30)

    return Call()


def test_metrics_parse_and_count_what_was_asked(served: Any) -> None:
    families = list(text_string_to_metric_families(page(served, "/metrics").decode()))
    names = {family.name for family in families}
    assert {"fusewire_requests", "fusewire_request_seconds", "fusewire_replica_deaths"} <= names
    assert json.loads(page(served, "/v2"))["name"] == "fusewire"


def test_messages_are_those_of_the_protocol() -> None:
    from tritonclient.grpc import service_pb2

    from fusewire.serve.messages import METHODS, messages

    own = messages()
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    for name, (request, response) in METHODS.items():
        method = service.methods_by_name[name]
        _check_same(getattr(own, request).DESCRIPTOR, method.input_type)
        _check_same(getattr(own, response).DESCRIPTOR, method.output_type)


def _check_same(own: Any, public: Any) -> None:
    assert own.full_name == public.full_name
    for field in own.fields:
        other = public.fields_by_name[field.name]
        kinds = field.number, field.type, field.is_repeated
        assert kinds == (other.number, other.type, other.is_repeated)
        if field.message_type is not None:
            _check_same(field.message_type, other.message_type)
