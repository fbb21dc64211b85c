"""Alerts on what callers notice: the failure modes of serving, the error budgets, and the parts of the data plane."""

from typing import Final

from tenora.observe.alert import AlertRule

_P95: Final = "pool:tenora_gateway_phase_seconds:p95_5m"

FAILURE_MODES: Final = (
    AlertRule(
        name="LongGenerations",
        title="Long generations",
        expr=f'{_P95}{{phase="decode"}} > 120',
        wait="10m",
        see="One stream in twenty of a pool generates for more than two minutes. Others wait longer for a place.",
        why="A long answer holds its KV pages and its place in the batch to its end. A tenant may send such "
        "requests, or an adapter may never end its answers.",
        do="`GET /api/v1/admin/tenants/{id}/requests?sort=slowest` shows whose they are, with their tokens and "
        "finish reasons. Where the reason is `length`, lower the plan's `output_tokens` or the base model's "
        "`max_tokens`. Give such tenants a pool of their own, or let them send flex requests. If ITL has risen too, "
        "the batch is too large: add a replica.",
    ),
    AlertRule(
        name="KvExhaustion",
        title="KV exhaustion",
        expr="(pool:tenora_kv_used:ratio > 0.95 and on () sum(tenora_gateway_waiting_requests) > 0)"
        " or pool:tenora_replica_preemptions:rate5m > 0.1",
        wait="2m",
        severity="page",
        see="The KV pages of a pool are used up while requests wait, or its engines set running requests back.",
        why="More tokens are in flight than the KV cache holds: longer prompts, longer answers, or more callers.",
        do="Raise the pool's `replicas_max`, or add a replica by hand. Where the autoscaler should have done so, "
        "`tenora fleet explain POOL` says why not. Lower `kv_pages` of the plan whose tenants hold most pages. "
        "Preemptions without full pages mean that engines promise more than they have: compare the pool's engine "
        "settings.",
    ),
    AlertRule(
        name="PrefillStall",
        title="Prefill stall",
        expr=f'{_P95}{{phase="prefill"}} > 5',
        wait="5m",
        severity="page",
        see="One stream in twenty of a pool waits five seconds on its replica before its first token. Where ITL "
        "rises too, prefills also stop the streams that run.",
        why="Prompts are prefilled slower than they arrive. Long prompts without a cached prefix fill each step, or "
        "the engine's own queue has grown.",
        do="Look at prompt tokens per second and prefix hits. If hits have fallen, a tenant has changed the "
        "beginning of its prompts. If the prompts grew, add a replica, or lower `input_tokens_per_minute` of the "
        "tenant. If ITL rises with the prefills, lower the engine's tokens per step in the pool's engine settings.",
    ),
    AlertRule(
        name="QueueRunaway",
        title="Queue runaway",
        expr='sum(rate(tenora_gateway_queue_refusals_total{reason!="tenant"}[5m])) > 0.1',
        wait="2m",
        severity="page",
        see="Gateways refuse requests with `overloaded`, because the wait queue is full or drains too slowly.",
        why="More arrives than the replicas serve. Callers that try again at once add to it.",
        do="See first whether replicas are missing: [cold start](#cold-start), [replicas that do not "
        "start](#replicas-do-not-start). Otherwise add replicas. If one tenant sends it all, lower its "
        "`requests_per_minute`. Do not make the queue longer: those requests would only wait longer before they are "
        "refused.",
    ),
    AlertRule(
        name="ColdStart",
        title="Cold start",
        expr='max by (pool) (tenora_fleet_wanted_replicas) > max by (pool) (tenora_fleet_replicas{state="ready"})',
        wait="10m",
        severity="page",
        see="A pool has had fewer ready replicas than it should have for longer than a start takes. Requests for an "
        "empty pool wait, and then get 503 with the expected time.",
        why="Replicas start slowly or not at all: base weights are downloaded, no node is free, or the engine fails.",
        do="`tenora fleet list` shows each replica's state and reason, and the placer's log what it could not place. "
        "If weights are downloaded at each start, give the nodes a cache that survives restarts. Raise "
        "`replicas_min`, so that the pool never starts from zero. If adapters are what loads slowly, pin them, or "
        "give replicas more host memory.",
    ),
)

_BURN: Final = "sli:tenora_error_budget_burn:rate"
_SLI: Final = (
    "The label `sli` says which: `availability` (answers with 5xx) or `first_token` (first tokens after 2.5 s). The "
    "objectives are in `tenora/observe/recording_rules.py`."
)
_FLEET: Final = (
    AlertRule(
        name="ErrorBudgetBurnsFast",
        title="The error budget burns fast",
        expr=f"{_BURN}5m > 14.4 and {_BURN}1h > 14.4",
        severity="page",
        see=f"A month's error budget lasts less than two days. {_SLI}",
        why="A large share of requests fails or is late, now.",
        do="Look at the dashboard of the fleet: refusals by code, then the failure mode whose alert fires with this "
        "one.",
    ),
    AlertRule(
        name="ErrorBudgetBurnsSlowly",
        title="The error budget burns slowly",
        expr=f"{_BURN}30m > 6 and {_BURN}6h > 6",
        see=f"A month's error budget lasts less than five days. {_SLI}",
        why="A small share of requests has failed or has been late for hours.",
        do="Find the pool and the phase in the dashboard of the fleet, and the requests in the request log.",
    ),
    AlertRule(
        name="ReplicasDoNotStart",
        title="Replicas do not start",
        expr='max by (pool) (tenora_fleet_replicas{state="failed"}) > 0',
        wait="5m",
        see="Replicas of a pool have failed. The others go on.",
        why="The engine does not start, or the replica would run other weights or settings than its revision has.",
        do="`tenora fleet list` has the reason. Correct the revision, or go back to the one before with `tenora "
        "pools use`.",
    ),
    AlertRule(
        name="ReplicaFails",
        title="A replica fails",
        expr="increase(tenora_gateway_replica_failures_total[5m]) > 5",
        see="Requests are retried on other replicas.",
        why="A replica refuses requests or breaks connections before its first byte.",
        do="See the log of the replica, and cordon it with `tenora fleet cordon` if it does not recover.",
    ),
    AlertRule(
        name="PoolsKeepTheirSize",
        title="Pools keep their size",
        expr="increase(tenora_fleet_missing_signals_total[5m]) > 60",
        see="A pool neither grows nor shrinks.",
        why="A gateway serves without reporting its demand, or no replica of the pool reports.",
        do="The fleet process logs the pool; see the gateways' logs for `demand not reported`.",
    ),
    AlertRule(
        name="ChangesNotPublished",
        title="Changes are not published",
        expr="tenora_control_outbox_age_seconds > 10",
        wait="30s",
        severity="page",
        see="Gateways still accept keys that were revoked meanwhile, and the API answers 202 with `acknowledged: "
        "false`.",
        why="The control plane's worker is down or stuck. The web process measures the outbox, so that this alert "
        "fires although the worker is down.",
        do="Start the worker again, and see its log for the change that it cannot publish.",
    ),
    AlertRule(
        name="ConfigurationForged",
        title="Redis has forged configuration",
        expr="increase(tenora_gateway_snapshots_forged_total[5m]) > 0",
        wait="60s",
        severity="page",
        see="Gateways refuse published configuration and go on with what they had.",
        why="Somebody wrote into Redis, or it lost data and the worker is down.",
        do="Find out who could write, then run `python -m control_plane publish`.",
    ),
    AlertRule(
        name="PromptsCountedDifferently",
        title="Prompts are counted differently",
        expr="increase(tenora_gateway_prompt_count_differences_total[5m]) > 0",
        see="The engine's count of a prompt, which is billed, is not the gateway's.",
        why="A gateway and an engine have different tokenizers.",
        do="Compare the digests of the base model's tokenizer, and register the base model again.",
    ),
    AlertRule(
        name="CascadesEscalate",
        title="Cascades escalate too often",
        expr='sum(rate(tenora_gateway_routed_requests_total{reason="bounded"}[15m])) > 0',
        wait="15m",
        see="Groups of the rule `cascade` use their last member alone, because too many first answers were replaced. "
        "Their answers have `x-route-reason: bounded`.",
        why="Requests became harder, the first member changed or fails, or `threshold_percent` asks too much of it.",
        do="`tenora_gateway_escalations_total` has the causes, and the request log has the groups (`route_reason` is "
        "`escalated`). Lower the group's `threshold_percent`, train its first member, or call the last one alone: a "
        "cascade that replaces most answers costs more than its last member.",
    ),
    AlertRule(
        name="RequestLogLate",
        title="The request log is late",
        expr="tenora_control_request_log_lag_seconds > 60 or increase(tenora_control_request_log_lost_total[5m]) > 0",
        wait="5m",
        see="Recent requests are missing in `GET /api/v1/requests`. Requests themselves are served.",
        why="The control plane's worker is too slow or has no S3, or the log's stream dropped entries that were not "
        "yet read.",
        do="See the worker's log. Run a second worker, or raise `TENORA_REQUEST_LOG_ENTRIES_MAX`.",
    ),
)
FLEET_ALERTS: Final = (*FAILURE_MODES, *_FLEET)
