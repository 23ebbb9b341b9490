"""What is shipped to run gpuwatch: it parses, is what the design promises, and says nothing that the code does not know."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from gpuwatch.agent.roles import HOST_IP, NODE_PORT, in_role
from gpuwatch.config import check_rules, host_port, parse
from gpuwatch.rules import load_rules
from gpuwatch.sources.gpu.ownership.clues import own_pod
from gpuwatch.sources.gpu.ownership.holder import Holder
from gpuwatch.sources.gpu.ownership.kubelet import SOCKET

DEPLOY = Path(__file__).parents[2] / "deploy"
SIDECAR, NODE = DEPLOY / "kubernetes" / "engine-sidecar.yaml", DEPLOY / "kubernetes" / "node-daemonset.yaml"
MANIFESTS = sorted(DEPLOY.rglob("*.yaml"))


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def of_kind(path, kind):
    (found,) = [document for document in documents(path) if document["kind"] == kind]
    return found


def pod_of(path):
    return of_kind(path, "Deployment" if path == SIDECAR else "DaemonSet")["spec"]["template"]["spec"]


def agent_of(path):
    return next(c for c in pod_of(path)["containers"] if c["name"] == "gpuwatch")


def config_of(path):
    """The configuration as the agent loads it in its role, strict."""
    text = path.read_text() if path.suffix == ".toml" else of_kind(path, "ConfigMap")["data"]["gpuwatch.toml"]
    config = parse(tomllib.loads(text), path.name)
    check_rules(config, load_rules())
    return in_role(config, None, {HOST_IP: "10.0.0.1", "POD_NAME": "chat-0"})


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.relative_to(DEPLOY).as_posix())
def test_every_file_is_yaml_and_every_object_has_a_name(path):
    for document in documents(path):
        if "apiVersion" in document and document["kind"] != "Kustomization":
            assert document["metadata"]["name"]


@pytest.mark.parametrize("path", [SIDECAR, NODE, DEPLOY / "compose" / "gpuwatch.toml"], ids=lambda p: p.name)
def test_the_configuration_in_it_is_one(path):
    """Every key exists, and the ports are those of the contract."""
    config = config_of(path)
    assert host_port(config.listen)[1] == NODE_PORT == 9400
    assert host_port(config.otlp_listen) == ("127.0.0.1", 4318), "spans come from the same pod"
    assert config.api_token_file == "", "the API is for the loopback"
    assert config.bounds.journal_bytes <= 128 * 1024 * 1024


@pytest.mark.parametrize("path", [SIDECAR, NODE], ids=lambda p: p.stem)
def test_the_agents_container_has_no_right_that_it_does_not_need(path):
    context, pod = agent_of(path)["securityContext"], pod_of(path)
    assert context["allowPrivilegeEscalation"] is False
    assert context["privileged"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    profile = context.get("seccompProfile") or pod["securityContext"]["seccompProfile"]
    assert profile["type"] == "RuntimeDefault"
    assert pod["automountServiceAccountToken"] is False
    limits = agent_of(path)["resources"]["limits"]
    assert {"cpu", "memory"} == set(limits), "no device among them"
    writable = [m["mountPath"] for m in agent_of(path)["volumeMounts"] if not m.get("readOnly")]
    assert writable == [config_of(path).state_dir]


def test_the_sidecar_cannot_take_the_engine_down():
    """By readiness, by start order, by shutdown, by eviction, by memory, or by what they share."""
    agent, pod = agent_of(SIDECAR), pod_of(SIDECAR)
    assert not {"readinessProbe", "startupProbe", "lifecycle"} & set(agent)
    assert not {"initContainers", "shareProcessNamespace", "hostPID", "hostNetwork", "hostIPC"} & set(pod)
    assert agent["resources"]["limits"] == agent["resources"]["requests"], "a pod of class Guaranteed stays one"
    assert agent["securityContext"]["runAsNonRoot"] is True
    engine = next(c for c in pod["containers"] if c["name"] == "engine")
    shared = {m["name"] for m in engine["volumeMounts"]} & {m["name"] for m in agent["volumeMounts"]}
    assert shared == {"ring"}
    volumes = {v["name"]: v for v in pod["volumes"]}
    assert "sizeLimit" not in volumes["gpuwatch-state"]["emptyDir"], "exceeding it would evict the pod"
    assert not any("hostPath" in v for v in pod["volumes"])


def test_the_sidecar_is_told_where_it_is_and_finds_its_engine_its_ring_and_its_node():
    config, agent = config_of(SIDECAR), agent_of(SIDECAR)
    told = {e["name"]: e.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") for e in agent["env"]}
    assert (told["POD_NAME"], told["POD_NAMESPACE"], told["POD_UID"]) == (
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
    )
    assert told[HOST_IP] == "status.hostIP"
    assert own_pod({"POD_NAME": "chat-0", "POD_NAMESPACE": "llm", "POD_UID": "u"}) == Holder(
        "llm", "chat-0", pod_uid="u"
    )
    (engine,) = config.engines
    assert (engine.name, engine.gpu_url) == ("chat-0", "http://10.0.0.1:9400/gpu/metrics")
    container = next(c for c in pod_of(SIDECAR)["containers"] if c["name"] == "engine")
    assert engine.url.endswith(f":{container['ports'][0]['containerPort']}")
    ring = {e["name"]: e.get("value") for e in container["env"]}["GPUWATCH_RING_DIR"]
    assert ring == config.ring_dir == next(m["mountPath"] for m in container["volumeMounts"] if m["name"] == "ring")
    assert config.machine.podinfo in [m["mountPath"] for m in agent["volumeMounts"]]


def test_the_nodes_agent_is_where_the_sidecars_look_and_reads_what_it_needs():
    agent, pod = agent_of(NODE), pod_of(NODE)
    assert agent["ports"] == [{"name": "metrics", "containerPort": NODE_PORT, "hostPort": NODE_PORT}]
    mounted = {m["mountPath"]: m for m in agent["volumeMounts"]}
    assert mounted[str(SOCKET.parent)]["readOnly"] is True
    assert pod["hostPID"] is True
    assert not {"hostNetwork", "hostIPC"} & set(pod)
    assert {e["name"]: e["value"] for e in agent["env"]}["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert config_of(NODE).role == "node"


def test_the_agents_have_no_rights_in_the_cluster_and_the_nodes_port_is_not_for_everybody():
    kinds = [document["kind"] for path in MANIFESTS for document in documents(path) if "kind" in document]
    assert not {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"} & set(kinds)
    policy = of_kind(DEPLOY / "kubernetes" / "rbac.yaml", "NetworkPolicy")["spec"]
    labels = of_kind(NODE, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": NODE_PORT}]
    sidecars = of_kind(SIDECAR, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert rule["from"][0]["podSelector"]["matchLabels"].items() <= sidecars.items()
    account = of_kind(DEPLOY / "kubernetes" / "rbac.yaml", "ServiceAccount")
    assert account["metadata"]["name"] == pod_of(NODE)["serviceAccountName"]


def test_compose_gives_the_agent_no_more_than_kubernetes_does():
    services = documents(DEPLOY / "compose" / "compose.yaml")[0]["services"]
    agent = services["gpuwatch"]
    assert (agent["read_only"], agent["cap_drop"], agent["network_mode"]) == (True, ["ALL"], "service:engine")
    assert "no-new-privileges:true" in agent["security_opt"]
    assert {"mem_limit", "cpus", "pids_limit"} <= set(agent)
    assert "depends_on" not in services["engine"]
    assert [v for v in agent["volumes"] if not v.endswith(":ro")] == ["state:/var/lib/gpuwatch"]
    assert (DEPLOY / "compose" / "gpuwatch.toml").exists()


def test_the_exporters_values_use_the_file_that_is_shipped():
    values = documents(DEPLOY / "dcgm-exporter" / "values.yaml")[0]
    (generated,) = documents(DEPLOY / "dcgm-exporter" / "kustomization.yaml")[0]["configMapGenerator"]
    assert generated["name"] == values["extraConfigMapVolumes"][0]["configMap"]["name"]
    assert (DEPLOY / "dcgm-exporter" / generated["files"][0]).exists()
    path = values["arguments"][1]
    assert path == f"{values['extraVolumeMounts'][0]['mountPath']}/{generated['files'][0]}"
    assert int(values["arguments"][values["arguments"].index("--collect-interval") + 1]) <= 5000


def test_the_image_is_built_from_what_is_here_and_does_not_run_as_root():
    text = (DEPLOY / "Dockerfile").read_text()
    root = DEPLOY.parent
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for name in (name for names in copied for name in names):
        assert (root / name).exists(), name
        assert f"!{name}" in ignored, f"{name} would not reach the build"
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE)[-1] == "65532:65532"
    shipped = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*shipped["packages"], *shipped["force-include"]}
    assert needed <= {name for names in copied for name in names}


def test_the_nodes_agent_brings_its_namespace_and_says_the_level_it_needs():
    """Without it a first `kubectl apply` fails; hostPID and hostPath need the level privileged."""
    first = documents(NODE)[0]
    assert (first["kind"], first["metadata"]["name"]) == (
        "Namespace",
        of_kind(NODE, "DaemonSet")["metadata"]["namespace"],
    )
    assert first["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
