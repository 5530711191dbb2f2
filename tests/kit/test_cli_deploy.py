"""`outlast deploy`: what it renders is valid, names its secrets only, and overwrites nothing unseen."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]
from check_jsonschema.builtin_schemas import get_builtin_schema  # type: ignore[import-untyped]

from outlast.cli.rendering import Choices, Framework, render

TOML = """[agent]
name = "Desk"
target = "runtime.main:app"
drain_timeout = "120s"

[deploy]
workers = 3
secrets = ["OPENAI_API_KEY", "MAIL_KEY"]
"""
FILES = {"compose": ["compose.yaml"], "kubernetes": ["deploy/kubernetes/agent.yaml", "deploy/kubernetes/postgres.yaml"]}
Outlast = Callable[..., Any]
platforms = pytest.mark.parametrize("to", FILES)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "agent.toml").write_text(TOML)
    for name in ("OUTLAST_CONFIG", "OUTLAST_DRAIN_TIMEOUT", "OUTLAST_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {"agent.toml"}


def test_compose_is_valid_and_gives_a_worker_its_drain(project: Path, outlast: Outlast) -> None:
    outlast("deploy", "--to", "compose")
    text = (project / "compose.yaml").read_text()
    found = yaml.safe_load(text)

    jsonschema.validate(found, get_builtin_schema("vendor.compose-spec"))
    agent = found["services"]["agent"]
    assert agent["command"][:2] == ["outlast", "serve"] and agent["command"][-2:] == ["--workers", "3"]
    assert agent["stop_grace_period"] == "135s"
    assert {"OUTLAST_STORE", "PGPASSWORD", "OPENAI_API_KEY", "MAIL_KEY"} == set(agent["environment"])
    assert "MY_" not in text and "my-agent" not in text and "sk-secret" not in text


def test_kubernetes_is_valid_and_gives_a_worker_its_drain(project: Path, outlast: Outlast) -> None:
    outlast("deploy", "--to", "kubernetes")
    found = {}
    for name in FILES["kubernetes"]:
        text = (project / name).read_text()
        assert "MY_" not in text and "my-agent" not in text and "sk-secret" not in text
        for one in yaml.safe_load_all(text):
            kubernetes_validate.validate(one, "1.32", strict=True)
            found[one["kind"]] = one
    spec = found["Deployment"]["spec"]
    assert spec["replicas"] == 3
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 140
    secrets = [one["valueFrom"] for one in spec["template"]["spec"]["containers"][0]["env"] if "valueFrom" in one]
    keys = [one["secretKeyRef"]["key"] for one in secrets]
    assert keys == ["POSTGRES_PASSWORD", "OPENAI_API_KEY", "MAIL_KEY"]


@platforms
def test_again_changes_nothing_and_another_setting_is_a_difference_that_needs_a_yes(
    project: Path, outlast: Outlast, to: str
) -> None:
    outlast("deploy", "--to", to)
    assert written(project) == set(FILES[to])
    assert "nothing changes" in outlast("deploy", "--to", to).out
    first = project / FILES[to][0]
    before = first.read_text()
    (project / "agent.toml").write_text(TOML.replace("workers = 3", "workers = 4"))
    done = outlast("deploy", "--to", to, code=2)
    assert "4" in next(line for line in done.out.splitlines() if line.startswith("+ "))
    assert "add --yes" in done.err and first.read_text() == before
    changes = [json.loads(line)["change"] for line in outlast("deploy", "--to", to, "--yes", "--json").out.splitlines()]
    assert changes == ["changed", "same"][: len(FILES[to])]
    assert first.read_text() != before and written(project) == set(FILES[to])


def test_what_cannot_be_written_leaves_everything_as_it_was(project: Path, outlast: Outlast) -> None:
    (project / "deploy").touch()
    done = outlast("deploy", "--to", "kubernetes", code=1)
    assert "Not a directory" in done.err or "File exists" in done.err
    assert written(project) == {"deploy"}


def test_the_image_of_a_new_project_runs_as_whom_kubernetes_says(tmp_path: Path, outlast: Outlast) -> None:
    render(Choices("desk", Framework.NATIVE), tmp_path)
    dockerfile = (tmp_path / "Dockerfile").read_text()
    assert "--uid 10001 agent" in dockerfile and "USER 10001" in dockerfile and ".[postgres]" in dockerfile
    hadolint = shutil.which("hadolint", path=Path(sys.executable).parent)
    assert hadolint is not None
    # DL3013: what is installed is the project, which pins by itself.
    subprocess.run([hadolint, "--ignore", "DL3013", tmp_path / "Dockerfile"], check=True)
