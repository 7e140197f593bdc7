"""The manifests of examples/kubernetes are what the schemas of Kubernetes allow."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fusewire.ray.tuning import KIND
from fusewire.serve.ray import configs_of
from fusewire.store.signing import AllowedSigners

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
# The version of Kubernetes whose schemas are asked.
VERSION = "1.31"


def manifests(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def problem(manifest: dict[str, Any]) -> str:
    """Say what a schema refuses; empty if nothing."""
    validate = pytest.importorskip("kubernetes_validate")
    try:
        validate.validate(manifest, VERSION, strict=True)
    except validate.ValidationError as error:
        return str(error.message)
    return ""


def test_server_is_valid() -> None:
    found = manifests(FOLDER / "server.yaml")
    assert [one["kind"] for one in found] == [
        "ConfigMap",
        "Deployment",
        "Service",
        "PodDisruptionBudget",
    ]
    assert [problem(one) for one in found] == [""] * 4


def test_misspelt_field_is_refused() -> None:
    deployment = manifests(FOLDER / "server.yaml")[1]
    deployment["spec"]["replica"] = 3
    assert "replica" in problem(deployment)


def test_pods_of_the_ray_service_are_valid() -> None:
    (service,) = manifests(FOLDER / "rayservice.yaml")
    cluster = service["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    pods = [{"apiVersion": "v1", "kind": "Pod", **group["template"]} for group in groups]
    for pod in pods:
        pod.setdefault("metadata", {"name": "pod"})
    assert [problem(pod) for pod in pods] == ["", ""]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_manifest_says_that_it_was_never_run(path: Path) -> None:
    assert "never run" in " ".join(path.read_text().replace("#", " ").split())


def test_arguments_and_kinds_of_the_ray_service_are_what_the_code_reads() -> None:
    (service,) = manifests(FOLDER / "rayservice.yaml")
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    (config,) = configs_of(application["args"])
    assert config.name == "model"
    (group,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    resources = json.loads(json.loads(group["rayStartParams"]["resources"]))
    assert all(name.startswith(KIND) for name in resources)


def test_example_of_a_signer_is_one_that_a_list_may_have() -> None:
    signers = manifests(FOLDER / "server.yaml")[0]["data"]["allowed_signers"]
    assert AllowedSigners.parse(signers).signers[0].name == "builder"
