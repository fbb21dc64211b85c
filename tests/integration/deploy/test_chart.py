"""The Helm chart, rendered and held against Kubernetes' schemas and against the settings of the processes.

No cluster runs it here. The kinds of KEDA and KubeRay have no schema in a registry's package, so their fields are
compared one by one.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest

from core.settings import RedisSettings
from data_plane.engine.settings import REPLICA_PARTS
from data_plane.gateway.settings import GatewaySettings
from tenora.docs.settings_page import PROCESSES

pytestmark = pytest.mark.deploy
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "DEPLOY.md"
PYTHON = ROOT / ".deploy" / "bin" / "python"
IMAGES = {"images": {name: f"registry.example.com/tenora-{name}:1" for name in ("gateway", "control", "engine")}}


def rendered(values: dict, *files: str) -> dict:
    result = subprocess.run(
        (PYTHON, ROOT / "tests" / "fixtures" / "deploy" / "chart_tool.py", *files),
        input=json.dumps({**IMAGES, **values}),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(result.stdout)


def pool(**changes: object) -> dict:
    env = {"TENORA_POOL": "chat", "TENORA_POOL_REVISION": "a" * 64, "TENORA_BASE_MODEL": "llama"}
    return {"pools": {"chat": {"env": env, "resources": {}, **changes}}}


def find(chart: dict, kind: str, name: str) -> dict:
    (found,) = (each for each in chart["objects"] if (each["kind"], each["metadata"]["name"]) == (kind, f"t-{name}"))
    return found


def pods(chart: dict) -> dict[str, dict]:
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in chart["objects"]
        if "template" in each["spec"]
    }


def variables(pod: dict) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in pod["containers"][0]["env"]}


@pytest.fixture(scope="module")
def keda() -> dict:
    return rendered({}, "values-keda.yaml")


@pytest.mark.parametrize(
    ("values", "files"),
    [
        ({}, ()),
        ({}, ("values-keda.yaml",)),
        ({**pool(replicas=3), "gateway": {"autoscaling": {"enabled": False}}}, ()),
        ({}, ("values-kuberay.yaml",)),
        ({"networkPolicies": False, "imagePullSecrets": [{"name": "registry"}]}, ()),
    ],
    ids=["control-plane-and-gateways", "keda", "fixed-counts", "kuberay", "no-policies"],
)
def test_kubernetes_accepts_every_object(values, files):
    chart = rendered(values, *files)
    assert chart["lint"] == []
    assert chart["invalid"] == []
    assert {each["kind"] for each in chart["unknown"]} <= {"ScaledObject", "RayCluster"}


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"gatway": {}}, "gatway"),
        (pool(replicas=-1), "replicas"),
        (pool(), "set pools.chat.replicas"),
        (pool(env={"TENORA_POOL": "chat"}), "TENORA_POOL_REVISION"),
        (pool(replicas=1, env={"TENORA_POOL": 7}), "TENORA_POOL"),
        ({**pool(minReplicas=1, maxReplicas=3), "keda": {"enabled": True}}, "keda.prometheusAddress"),
        ({"images": {"gateway": "", "control": "c"}}, "images.gateway"),
        ({"images": {"ray": "r"}, "ray": {"enabled": True}}, "ray.redisAddress"),
        ({"ray": {"resources": {"GPU": 0}}}, "resources"),
        ({"metrics": {"from": []}}, "/metrics/from"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(values, where):
    assert where in rendered(values)["refused"]


def test_no_pod_runs_as_root_or_can_write_its_image(keda):
    for pod in pods(keda).values():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["automountServiceAccountToken"] is False
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip


def test_a_service_sets_no_variable_of_a_process(keda):
    """Kubernetes' links of a Service tenora-gateway would be TENORA_GATEWAY_PORT=tcp://…"""
    assert [pod["enableServiceLinks"] for pod in pods(keda).values()] == [False] * len(pods(keda))


def test_every_variable_that_the_chart_sets_is_a_setting_of_a_process(keda):
    known = {
        f"TENORA_{name.upper()}" for process in PROCESSES for part in process.settings for name in part.model_fields
    }
    written = {name for pod in pods(keda).values() for name in variables(pod)}
    assert {name for name in written if name.startswith("TENORA_")} <= known


def test_kubernetes_is_more_patient_than_a_drain():
    settings = {"gateway": {"drainSeconds": 700, "drainNoticeSeconds": 20, "settings": {"TENORA_GATEWAY_DRAIN_S": "1"}}}
    chart = rendered({**settings, **pool(replicas=1, drainSeconds=900)})
    gateway, replica = pods(chart)["t-gateway"], pods(chart)["t-pool-chat"]
    assert variables(gateway)["TENORA_GATEWAY_DRAIN_S"] == "700"
    assert variables(gateway)["TENORA_GATEWAY_DRAIN_NOTICE_S"] == "20"
    assert gateway["terminationGracePeriodSeconds"] == 750
    assert variables(replica)["TENORA_DRAIN_S"] == "900"
    assert replica["terminationGracePeriodSeconds"] == 930


def test_drains_outlast_a_request_by_default(keda):
    requests_s = GatewaySettings.model_fields["request_s"].default
    assert float(variables(pods(keda)["t-gateway"])["TENORA_GATEWAY_DRAIN_S"]) > requests_s
    assert float(variables(pods(keda)["t-pool-chat"])["TENORA_DRAIN_S"]) > requests_s


def test_the_journal_lies_on_the_volume(keda):
    gateway = pods(keda)["t-gateway"]["containers"][0]
    (journal,) = (mount for mount in gateway["volumeMounts"] if mount["name"] == "journal")
    assert Path(variables(pods(keda)["t-gateway"])["TENORA_JOURNAL_DIR"]).is_relative_to(journal["mountPath"])
    (claim,) = find(keda, "StatefulSet", "gateway")["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "journal"


def test_every_folder_of_a_process_lies_on_a_volume(keda):
    """With a root that cannot be written, a process would fail in any other folder."""
    for pod in pods(keda).values():
        mounts = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
        folders = [value for name, value in variables(pod).items() if name.endswith(("_DIR", "HOME"))]
        assert all(any(Path(folder).is_relative_to(mount) for mount in mounts) for folder in folders)
    replica = variables(pods(keda)["t-pool-chat"])
    paths = {
        f"TENORA_{name.upper()}"
        for part in REPLICA_PARTS
        for name, field in part.model_fields.items()
        if isinstance(field.default, Path)
    }
    assert paths <= replica.keys()


def test_only_gateways_and_the_scraper_reach_a_replica(keda):
    engine, metrics = find(keda, "NetworkPolicy", "replica")["spec"]["ingress"]
    gateway = find(keda, "StatefulSet", "gateway")["spec"]["template"]["metadata"]["labels"]
    replica = find(keda, "Deployment", "pool-chat")["spec"]["template"]["metadata"]["labels"]
    selected = find(keda, "NetworkPolicy", "replica")["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= replica.items()
    assert engine == {"ports": [{"port": 8100}], "from": [{"podSelector": {"matchLabels": gateway}}]}
    assert metrics["ports"] == [{"port": 9090}]
    assert metrics["from"]
    policies = [each for each in keda["objects"] if each["kind"] == "NetworkPolicy"]
    assert len(policies) == 7
    assert all(
        rule.get("from") or rule["ports"][0]["port"] in (8080, 8081)
        for each in policies
        for rule in each["spec"]["ingress"]
    )


def test_gateways_scale_by_load_and_leave_one_at_a_time(keda):
    autoscaler = find(keda, "HorizontalPodAutoscaler", "gateway")["spec"]
    assert autoscaler["scaleTargetRef"]["kind"] == "StatefulSet"
    assert "replicas" not in find(keda, "StatefulSet", "gateway")["spec"]  # an upgrade must not undo the autoscaler
    budget = find(keda, "PodDisruptionBudget", "gateway")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == find(keda, "StatefulSet", "gateway")["spec"]["selector"]


def test_migrations_run_before_the_new_version(keda):
    job = find(keda, "Job", "migrate")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["-m", "control_plane", "migrate"]


def test_each_process_gets_its_own_secret(keda):
    secrets = [pod["containers"][0]["envFrom"][0]["secretRef"]["name"] for pod in pods(keda).values()]
    assert len(secrets) == len(set(secrets)) == 7
    assert not [value for pod in pods(keda).values() for name, value in variables(pod).items() if "REDIS_URL" in name]
    assert "redis_url" in RedisSettings.model_fields


def test_a_pool_follows_the_fleet_process_through_keda(keda):
    (scaled,) = keda["unknown"]
    assert scaled == {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "t-pool-chat"},
        "spec": {
            "scaleTargetRef": {"name": "t-pool-chat"},
            "minReplicaCount": 1,
            "maxReplicaCount": 3,
            "pollingInterval": 10,
            "fallback": {"failureThreshold": 3, "replicas": 3, "behavior": "currentReplicas"},
            "advanced": {
                "horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}
            },
            "triggers": [
                {
                    "type": "prometheus",
                    "metricType": "AverageValue",
                    "metadata": {
                        "serverAddress": "http://prometheus.monitoring:9090",
                        "query": 'max(tenora_fleet_wanted_replicas{pool="chat"})',
                        "threshold": "1",
                        "ignoreNullValues": "false",
                    },
                }
            ],
        },
    }
    assert "replicas" not in find(keda, "Deployment", "pool-chat")["spec"]


def test_a_ray_cluster_has_a_head_without_replicas_its_placer_and_nodes_that_drain():
    chart = rendered({"images": {**IMAGES["images"], "ray": "ray:1"}}, "values-kuberay.yaml")
    (cluster,) = chart["unknown"]
    head, (nodes,) = cluster["spec"].pop("headGroupSpec"), cluster["spec"].pop("workerGroupSpecs")
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    assert cluster["spec"] == {
        "rayVersion": (ROOT / "requirements" / "ray.in").read_text().strip().rpartition("==")[2],
        "enableInTreeAutoscaling": True,
        "authOptions": {"mode": "token"},
        "gcsFaultToleranceOptions": {
            "redisAddress": "redis.stores:6379",
            "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "tenora-ray", "key": "redis-password"}}},
        },
    }
    assert head.pop("rayStartParams") == {"num-cpus": "0", "num-gpus": "0"}
    ray, placer = head.pop("template")["spec"]["containers"]
    assert (ray["name"], placer["command"]) == ("ray-head", ["tenora", "ray-placer"])
    assert placer["envFrom"] == [{"secretRef": {"name": "tenora-ray-placer"}}]
    assert ray["volumeMounts"] == placer["volumeMounts"]
    variables = {each["name"]: each.get("value") for each in placer["env"]}
    assert json.loads(variables["TENORA_RAY_RESOURCES"]) == {"GPU": 1}
    assert variables["RAY_AUTH_MODE"] == "token"
    template = nodes.pop("template")["spec"]
    assert template["terminationGracePeriodSeconds"] == int(variables["TENORA_DRAIN_S"]) + 60
    assert template["containers"][0]["envFrom"] == [{"secretRef": {"name": "tenora-replica"}}]
    counts = {"replicas": 1, "minReplicas": 1, "maxReplicas": 3}
    assert (head, nodes) == ({}, {"groupName": "replicas", "rayStartParams": {}, **counts})


def test_the_values_of_the_page_are_accepted(tmp_path):
    """Those of step 2 and of step 5, which a reader keeps in one file, and the variables of ``--set-json``."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("".join(re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)))
    chart = rendered({"pools": {"chat": {"env": pool()["pools"]["chat"]["env"]}}}, str(mine))
    assert (chart["lint"], chart["invalid"], chart["unknown"]) == ([], [], [])
    assert find(chart, "Deployment", "pool-chat")["spec"]["replicas"] == 3


def test_yaml_outside_of_the_templates_is_clean():
    rules = (
        "{extends: default, rules: {line-length: disable, document-start: disable, braces: disable, brackets: disable}}"
    )
    files = [path for path in (ROOT / "deploy").rglob("*.yaml") if path.parent.name != "templates"]
    result = subprocess.run(
        (PYTHON, "-m", "yamllint", "-s", "-d", rules, *files), capture_output=True, text=True, check=False
    )
    assert len(files) >= 3
    assert (result.stdout, result.returncode) == ("", 0)


def test_the_images_run_what_the_chart_starts(keda):
    text = (ROOT / "deploy" / "Containerfile").read_text()
    assert set(re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE)) == {
        "python",
        "gateway",
        "control",
        "engine",
        "ray",
    }
    copied = {
        name.split("/")[0] for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for name in line.split()
    }
    assert copied == set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    users = {pod["securityContext"]["runAsUser"] for pod in pods(keda).values()}
    targets = re.split(r"^FROM ", text, flags=re.MULTILINE)[2:]  # without what all begin with
    last = {re.findall(r"^USER (\d+)", target, re.MULTILINE)[-1] for target in targets}
    assert last == {str(user) for user in users}
