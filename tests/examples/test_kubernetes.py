"""The manifests of examples/kubernetes are what the schemas of Kubernetes allow."""

from pathlib import Path
from typing import Any

import pytest
import yaml

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
