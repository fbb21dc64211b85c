"""Restores the month's tokens and the spending of tenants and limited keys from Postgres into a Redis that lost them.

Safe while gateways run: gateways only add to these counts, and the rebuild adds the difference at one instant. Fails
closed: while too much usage is unread, or no snapshot is published, it changes nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple, cast

import msgspec
import redis as redis_client
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.limits import spend_limits
from billing.limits.views import SpendLimitView
from billing.prices import price_book
from billing.prices.price_book import PriceBook
from billing.subscriptions.billed_until import lock_subscriptions
from billing.usage import recording
from billing.usage.models import UsageMonth
from billing.usage.stream import decode_event
from core import clock, redis_keys
from core.contracts.grants import KeyGrant, TenantGrant
from core.contracts.usage import UsageEvent
from core.db import database_now, unit_of_work
from core.errors import NotFound, Unavailable
from core.periods import Period, month_start
from core.periods import month as month_period
from core.rating import rate

TENANTS_AT_ONCE_MAX: Final = 200
UNREAD_EVENTS_MAX: Final = 100_000
PRICE_AGE_MAX: Final = timedelta(days=1)  # the default of TENORA_BILLING_PRICE_AGE_S_MAX
_COUNTS: Final = ("month_used", "month_spent_nanos", "spent_nanos", "month_gpu_us")
_ROUNDING_NANOS_MAX: Final = 1_000  # an estimate and its rest are rounded separately
_TENANT: Final = msgspec.json.Decoder(TenantGrant)
_KEY: Final = msgspec.json.Decoder(KeyGrant)

# Sets at least what was charged before the month, as reserve.lua does, so that no reservation does it in between.
_FLOOR: Final = """
if (tonumber(redis.call('HGET', KEYS[1], 'spent_nanos')) or 0) < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'spent_nanos', ARGV[1])
end
"""
# If the month has changed meanwhile, it started at zero: only the total spending still needs a correction.
_ADD: Final = """
local month = redis.call('HGET', KEYS[1], 'month')
if not month or month < ARGV[1] then
  redis.call('HSET', KEYS[1], 'month', ARGV[1], 'month_used', 0, 'month_spent_nanos', 0, 'month_gpu_us', 0)
  month = ARGV[1]
end
if month == ARGV[1] then
  redis.call('HINCRBY', KEYS[1], 'month_used', ARGV[2])
  redis.call('HINCRBY', KEYS[1], 'month_spent_nanos', ARGV[3])
  redis.call('HINCRBY', KEYS[1], 'month_gpu_us', ARGV[5])
end
redis.call('HINCRBY', KEYS[1], 'spent_nanos', ARGV[4])
"""


class Rebuilt(NamedTuple):
    """How many tenants and keys were checked, and how many of their counts were corrected."""

    tenants: int
    limited_keys: int
    corrected: int


class Drift(NamedTuple):
    """How much a quota's month, and its total spending, exceed the ledger's; negative when they are less."""

    tokens: int
    nanos: int
    total_nanos: int = 0
    gpu_us: int = 0


class _Window(NamedTuple):
    """The window of a tenant's own limit, and what the ledger says was spent in it."""

    tenant_id: str
    period: Period
    spent_nanos: int


class _Seen(NamedTuple):
    """Redis at one instant: the month by its clock, its counts by level, and the events that wait for billing."""

    month: str
    counts: Mapping[str, Counter[str]]
    events: Sequence[UsageEvent]


class _Counted(NamedTuple):
    """What counts towards the month's limits on tokens and GPU time."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    gpu_us: int = 0


class _Unrecorded(NamedTuple):
    """A request that waits for billing, and what it will cost."""

    event: UsageEvent
    nanos: int


def rebuild(
    engine: sa.Engine,
    redis: redis_client.Redis,
    tenant_id: str | None = None,
    *,
    price_age_max: timedelta = PRICE_AGE_MAX,
) -> Rebuilt:
    """Rebuild one tenant, or all published tenants. Raises NotFound and Unavailable; completed tenants stay rebuilt."""
    run_id = _run_id(redis)
    tenants = _tenants(redis, tenant_id)
    limited: dict[str, list[str]] = defaultdict(list)
    for value in cast("list[bytes]", redis.hvals(redis_keys.snapshot("keys"))):
        grant = _KEY.decode(value)
        if grant.limits is not None and grant.tenant_id in tenants:
            limited[grant.tenant_id].append(grant.key_id)
    corrected = sum(_rebuild(engine, redis, part, limited, price_age_max) for part in _parts(tenants))
    if tenant_id is None:
        redis.set(redis_keys.QUOTAS_REBUILT, run_id)
    return Rebuilt(len(tenants), sum(map(len, limited.values())), corrected)


def is_due(engine: sa.Engine, redis: redis_client.Redis) -> bool:
    """Whether Redis may lack usage: no rebuild has run since this server started (perhaps from an old copy) or was
    emptied. When nothing was ever recorded, no rebuild is needed, and that is marked too.
    """
    run_id = _run_id(redis)
    if redis.get(redis_keys.QUOTAS_REBUILT) == run_id:
        return False
    with unit_of_work(engine) as session:
        recorded = session.exec(select(UsageMonth.tenant_id).limit(1)).first() is not None
    if not recorded:
        redis.set(redis_keys.QUOTAS_REBUILT, run_id)
    return recorded


def tenants_of_month(session: Session) -> list[str]:
    """The tenants that have used anything in the current UTC month, by the database's clock."""
    this_month = col(UsageMonth.month) == month_start(database_now(session))
    return list(session.exec(select(UsageMonth.tenant_id).where(this_month).distinct()))


def drift(
    engine: sa.Engine,
    redis: redis_client.Redis,
    tenant_ids: Collection[str],
    *,
    price_age_max: timedelta = PRICE_AGE_MAX,
    only_month: bool = True,
) -> dict[str, Drift]:
    """The difference between Redis's month and the ledger's, for those of the tenants that differ; also that of the
    total spending, unless ``only_month``. Nothing is locked, so the result may be wrong while another worker records,
    and at the turn of a month.
    """
    ids = list(tenant_ids)
    grants = cast("list[bytes | None]", redis.hmget(redis_keys.snapshot("tenants"), ids)) if ids else []
    tenants = {each: _TENANT.decode(value) for each, value in zip(ids, grants, strict=True) if value is not None}
    quotas = {redis_keys.tenant_quota(tenant_id): tenant_id for tenant_id in tenants}
    seen = _look(redis, list(quotas), tenants)
    with unit_of_work(engine) as session:
        truth = _recorded(session, tenants, seen.month, only_month=only_month)
        _add_unrecorded(truth, tenants, seen.month, _unrecorded(session, seen, price_age_max))
    found = {}
    for quota, tenant_id in quotas.items():
        has, should_have = seen.counts[quota], truth[tenant_id, ""]
        one = Drift(*(has[name] - should_have[name] for name in _COUNTS))
        one = one._replace(total_nanos=0) if only_month else one
        if one.tokens != 0 or one.gpu_us != 0 or max(abs(one.nanos), abs(one.total_nanos)) >= _ROUNDING_NANOS_MAX:
            found[tenant_id] = one
    return found


def _run_id(redis: redis_client.Redis) -> bytes:
    """Identifies the run of the server: another run may have started from an older copy."""
    return str(redis.info("server")["run_id"]).encode()


def _tenants(redis: redis_client.Redis, tenant_id: str | None) -> dict[str, TenantGrant]:
    values = cast("dict[bytes, bytes]", redis.hgetall(redis_keys.snapshot("tenants")))
    if not values and not redis.exists(redis_keys.SNAPSHOT_META):
        raise Unavailable("Redis has no snapshot; run `python -m control_plane publish` first.")
    tenants = {field.decode(): _TENANT.decode(value) for field, value in values.items()}
    if tenant_id is not None and tenant_id not in tenants:
        raise NotFound(f"tenant: none with the id {tenant_id!r} is published.", code="tenant_not_found")
    return tenants if tenant_id is None else {tenant_id: tenants[tenant_id]}


def _parts(tenants: Mapping[str, TenantGrant]) -> Iterator[dict[str, TenantGrant]]:
    remaining = iter(tenants.items())
    while part := dict(islice(remaining, TENANTS_AT_ONCE_MAX)):
        yield part


def _rebuild(
    engine: sa.Engine,
    redis: redis_client.Redis,
    tenants: Mapping[str, TenantGrant],
    limited: Mapping[str, Sequence[str]],
    price_age_max: timedelta,
) -> int:
    levels = {redis_keys.tenant_quota(tenant_id): (tenant_id, "") for tenant_id in tenants}
    for tenant_id in tenants:
        levels |= {
            redis_keys.key_quota(tenant_id, key_id): (tenant_id, key_id) for key_id in limited.get(tenant_id, ())
        }
    for tenant_id, grant in tenants.items():
        redis.eval(_FLOOR, 1, redis_keys.tenant_quota(tenant_id), grant.charged_nanos)
    limiting = [tenant_id for tenant_id, grant in tenants.items() if grant.spend_limits]
    _raise_windows(engine, redis, limiting)
    with unit_of_work(engine) as session:
        # Until this transaction ends, billing records nothing of these tenants: what it has and what waits for it is
        # then the whole. It is the one place that asks Redis within a transaction; billing, not a gateway, waits for
        # the answer. No other rebuild looks at them either: two that saw the same difference would both add it.
        lock_subscriptions(session, tenants)
        windows = _windows(session, limiting)
        seen = _look(redis, [*levels, *windows], tenants)
        truth = _recorded(session, tenants, seen.month)
        unrecorded = _unrecorded(session, seen, price_age_max)
        _add_unrecorded(truth, tenants, seen.month, unrecorded)
        corrected = 0
        for quota, owner in levels.items():
            missing = {name: truth[owner][name] - seen.counts[quota][name] for name in _COUNTS}
            if any(missing.values()):
                redis.eval(_ADD, 1, quota, seen.month, *missing.values())
                corrected += 1
        for quota, window in windows.items():
            nanos = _spent_in(window, unrecorded) - seen.counts[quota]["spent_nanos"]
            if nanos:
                redis.hincrby(quota, "spent_nanos", nanos)
                corrected += 1
    return corrected


def _windows(session: Session, tenant_ids: Iterable[str]) -> dict[str, _Window]:
    """The windows of now of limits on everything that these tenants spend, by their quotas."""
    return {
        _window_quota(tenant_id, limit): _Window(
            tenant_id, Period(limit.window_start, limit.window_end), limit.spent_nanos
        )
        for tenant_id in tenant_ids
        for limit in spend_limits.list_limits(session, tenant_id)
        if limit.scope == "tenant"
    }


def _window_quota(tenant_id: str, limit: SpendLimitView) -> str:
    start_ms = clock.to_ms(limit.window_start)
    return redis_keys.spend_window_quota(tenant_id, limit.scope, limit.subject_id, limit.window, start_ms)


def _spent_in(window: _Window, unrecorded: Iterable[_Unrecorded]) -> int:
    start, end = window.period
    return window.spent_nanos + sum(
        nanos
        for event, nanos in unrecorded
        if event.tenant_id == window.tenant_id and start <= clock.from_ms(event.settled_at_ms) < end
    )


def _raise_windows(engine: sa.Engine, redis: redis_client.Redis, tenant_ids: Collection[str]) -> None:
    """Set at least what the ledger says was spent in the windows of keys and adapters, at the highest price. What waits
    for billing is missing until the limits are published again.
    """
    for tenant_id in tenant_ids:
        with unit_of_work(engine) as session:
            limits = spend_limits.list_limits(session, tenant_id)
        for limit in limits:
            if limit.scope != "tenant":
                redis.eval(_FLOOR, 1, _window_quota(tenant_id, limit), limit.spent_nanos)


def _look(redis: redis_client.Redis, quotas: Sequence[str], tenants: Mapping[str, TenantGrant]) -> _Seen:
    """Read one instant, by MULTI. A settlement counts and reports to billing in one step, so it is in both or in
    neither.
    """
    with redis.pipeline(transaction=True) as pipe:
        pipe.time()
        pipe.xrange(redis_keys.USAGE_DEAD_LETTERS, count=UNREAD_EVENTS_MAX + 1)
        pipe.xrange(redis_keys.USAGE_STREAM, count=UNREAD_EVENTS_MAX + 1)
        for quota in quotas:
            pipe.hmget(quota, ["month", *_COUNTS])
        (seconds, _), dead_letters, waiting, *stored = pipe.execute()
    if max(len(dead_letters), len(waiting)) > UNREAD_EVENTS_MAX:
        raise Unavailable(
            f"More than {UNREAD_EVENTS_MAX} usage events wait; let `python -m billing worker` record them first, "
            "or put dead letters back with `python -m billing redrive`."
        )
    month = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m")
    counts = {}
    for quota, (at, *values) in zip(quotas, stored, strict=True):
        numbers = Counter({name: int(value or 0) for name, value in zip(_COUNTS, values, strict=True)})
        if at != month.encode():
            numbers["month_used"] = numbers["month_spent_nanos"] = numbers["month_gpu_us"] = 0
        counts[quota] = numbers
    decoded = (decode_event(fields.get(b"event")) for _, fields in (*dead_letters, *waiting))
    events = [event for event in decoded if isinstance(event, UsageEvent) and event.tenant_id in tenants]
    return _Seen(month, counts, events)


def _recorded(
    session: Session, tenants: Mapping[str, TenantGrant], month: str, *, only_month: bool = False
) -> defaultdict[tuple[str, str], Counter[str]]:
    """What the monthly sums say, by (tenant, key), and by (tenant, "") for the tenant's total. With ``only_month`` the
    total spending is left out.
    """
    within = col(UsageMonth.month) == month_period(month).start
    columns = (
        col(UsageMonth.input_tokens), col(UsageMonth.cached_tokens), col(UsageMonth.output_tokens),
        col(UsageMonth.gpu_us), col(UsageMonth.amount_nanos),
    )  # fmt: skip
    statement = (
        sa.select(
            col(UsageMonth.tenant_id),
            col(UsageMonth.key_id),
            *(sa.func.coalesce(sa.func.sum(column).filter(within), 0) for column in columns),
            sa.func.sum(col(UsageMonth.amount_nanos)),
        )
        .where(col(UsageMonth.tenant_id).in_(tenants), within if only_month else sa.true())
        .group_by(col(UsageMonth.tenant_id), col(UsageMonth.key_id))
    )
    truth: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for tenant_id, key_id, *sums in session.connection().execute(statement):
        *counted, month_nanos, nanos = map(int, sums)
        _add(truth, tenants[tenant_id], key_id, _Counted(*counted), month_nanos, nanos)
    return truth


def _unrecorded(session: Session, seen: _Seen, price_age_max: timedelta) -> list[_Unrecorded]:
    """What billing has not recorded yet, each request once, at the price that billing will use."""
    book = price_book.load(session, {event.tenant_id for event in seen.events})
    return [
        _Unrecorded(event, _cost(event, book, price_age_max)) for event in recording.unrecorded(session, seen.events)
    ]


def _add_unrecorded(
    truth: defaultdict[tuple[str, str], Counter[str]],
    tenants: Mapping[str, TenantGrant],
    month: str,
    unrecorded: Iterable[_Unrecorded],
) -> None:
    period = month_period(month)
    for event, nanos in unrecorded:
        now = period.start <= clock.from_ms(event.settled_at_ms) < period.end
        counted = _Counted(event.input_tokens, event.cached_tokens, event.output_tokens, event.gpu_us)
        _add(
            truth,
            tenants[event.tenant_id],
            event.key_id,
            counted if now else _Counted(),
            nanos if now else 0,
            nanos,
        )


def _cost(event: UsageEvent, book: PriceBook, price_age_max: timedelta) -> int:
    version = book.of(event, age_max=price_age_max)
    if version is None:
        return 0
    return rate(event, version.card.highest_prices(event.base_model, event.rank_class, event.service_tier)).amount_nanos


def _add(
    truth: defaultdict[tuple[str, str], Counter[str]],
    tenant: TenantGrant,
    key_id: str,
    counted: _Counted,
    month_nanos: int,
    nanos: int,
) -> None:
    uncounted = 0 if tenant.limits.count_cached_tokens else counted.cached_tokens
    tokens = counted.input_tokens + counted.output_tokens - uncounted
    for owner in {key_id, ""}:  # an adjustment belongs to no key
        truth[tenant.tenant_id, owner].update(
            {
                "month_used": tokens,
                "month_spent_nanos": month_nanos,
                "spent_nanos": nanos,
                "month_gpu_us": counted.gpu_us,
            }
        )
