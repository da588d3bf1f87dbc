"""What other systems read: Compose, Kubernetes, Slurm and Prometheus files, checked without those systems."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from source import ROOT

KUBERNETES = "1.31"
MANIFESTS = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
COMPOSE = [ROOT / "docker-compose.yml", ROOT / "examples" / "network" / "long.yml"]
SCRIPTS = [*ROOT.glob("examples/*/*.sh"), *ROOT.glob("*.sh"), ROOT / ".ci" / "run"]


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_what_kubernetes_takes(path: Path) -> None:
    for document in documents(path):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_a_manifest_with_a_mistake_is_found() -> None:
    document = next(each for path in MANIFESTS for each in documents(path) if each["kind"] == "StatefulSet")
    document["spec"]["template"]["spec"]["containers"][0]["comand"] = ["sh"]
    with pytest.raises(kubernetes_validate.ValidationError, match="comand"):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_workers_and_shards_know_as_many_shards_as_there_are() -> None:
    kinds = {each["kind"]: each for each in documents(MANIFESTS[0])}
    shards, workers = kinds["StatefulSet"]["spec"], kinds["Job"]["spec"]["template"]["spec"]
    count, hosts = (
        shards["replicas"],
        [f"glovewire-{shard}.{shards['serviceName']}" for shard in range(shards["replicas"])],
    )
    command = shards["template"]["spec"]["containers"][0]["command"][-1]
    assert f"/{count}" in command
    assert re.findall(r"--peer (\S+)", command) == [f"tcp://{host}:5557" for host in hosts]
    addresses = [word for word in workers["containers"][0]["args"] if word.startswith("--server=")]
    assert addresses == [f"--server=tcp://{host}:5555" for host in hosts]
    assert shards["serviceName"] == kinds["Service"]["metadata"]["name"]


def test_pods_share_no_volume() -> None:
    kinds = {each["kind"]: each for each in documents(MANIFESTS[0])}
    assert kinds.keys() == {"Service", "StatefulSet", "Job"}
    for kind in ("StatefulSet", "Job"):
        sources = [set(volume) - {"name"} for volume in kinds[kind]["spec"]["template"]["spec"]["volumes"]]
        assert all(source in ({"secret"}, {"emptyDir"}) for source in sources)
    assert [claim["spec"]["accessModes"] for claim in kinds["StatefulSet"]["spec"]["volumeClaimTemplates"]] == [
        ["ReadWriteOnce"]
    ]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_clean(path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck")
    done = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_compose_starts_what_the_pages_say() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    services = compose["services"]
    always = {name for name, service in services.items() if "profiles" not in service}
    assert always == {"prepare", "server-0", "server-1", "worker", "monitor", "vectors"}
    assert {service["profiles"][0] for service in services.values() if "profiles" in service} == {
        "wikitext", "study", "monitoring", "isolated",
    }  # fmt: skip
    assert services["worker"]["deploy"]["replicas"] == "${WORKERS:-3}"
    for shard in ("server-0", "server-1"):  # told of as many workers as there are, they wait for a late one
        assert services[shard]["environment"]["GLOVEWIRE_SERVER_WORKERS"] == "${WORKERS:-3}"
    for path in (word.split(":")[0] for service in services.values() for word in service.get("volumes", ())):
        if path.startswith("./"):
            assert (ROOT / path).is_file(), path


def check_compose(*paths: Path) -> subprocess.CompletedProcess[str]:
    """What the schema of the Compose specification, which Compose v2 reads by, says of the files."""
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", *map(str, paths)]
    return subprocess.run(words, capture_output=True, text=True)


def test_compose_files_are_what_the_specification_takes(tmp_path: Path) -> None:
    found = check_compose(*COMPOSE)
    assert found.returncode == 0, found.stdout
    (tmp_path / "wrong.yml").write_text(COMPOSE[0].read_text().replace("healthcheck:", "healthchek:"))
    wrong = check_compose(tmp_path / "wrong.yml")
    assert wrong.returncode == 1
    assert "healthchek" in wrong.stdout


def test_what_compose_gets_for_long_ways_is_for_its_services() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    long = yaml.safe_load((ROOT / "examples" / "network" / "long.yml").read_text())["services"]
    assert set(long) == {"server-0", "server-1", "worker"} <= set(services)
    assert all(set(service) == {"sysctls"} for service in long.values())


def test_prometheus_scrapes_what_the_monitor_serves() -> None:
    scrape = yaml.safe_load((ROOT / "examples" / "monitoring" / "prometheus.yml").read_text())["scrape_configs"][0]
    command = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["monitor"]["command"]
    (target,) = scrape["static_configs"][0]["targets"]
    found = re.search(r"--prometheus (\d+)", command)
    assert found is not None
    assert target == f"monitor:{found[1]}"
    dashboard = json.loads((ROOT / "examples" / "grafana.json").read_text())
    assert dashboard["panels"]
