"""A price card: everything that one version of a plan charges. Pure: no database.

Requests are reserved and recorded at the highest unit price that the card can reach (``PriceCard.highest_prices``), so
a limit on spending is never passed. What tiers then save is posted as an adjustment (``billing.charges.period``).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from billing.prices.quantities import QUANTITIES, RESOURCES, ResourceKind, UsageKind
from core import fields
from core.contracts.grants import ModelPrices, Prices, ServiceTier
from core.errors import InvalidRequest
from core.fields import about
from core.money import at_factor

TierMode = Literal["graduated", "volume", "package"]

Nanos = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
ModelId = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
RankClass = Annotated[int, msgspec.Meta(gt=0, le=512)]
Units = Annotated[int, msgspec.Meta(gt=0, le=1_000_000_000_000)]
PackageNanos = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000_000)]
FeeNanos = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000_000_000)]
ResourceNanos = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000_000)]
FactorPermille = Annotated[int, msgspec.Meta(gt=0, le=1_000)]

MODELS_MAX: Final = 256
TIERS_MAX: Final = 32
FULL_PERMILLE: Final = 1_000


class ModelCardPrices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The unit prices of one base model, and of one of its rank classes if ``rank_class`` is set. A resource without a
    price here has that of all models.
    """

    base_model: Annotated[ModelId, fields.BASE_MODEL]
    input_nanos: Annotated[Nanos, fields.INPUT_NANOS]
    cached_input_nanos: Annotated[Nanos, fields.CACHED_INPUT_NANOS]
    output_nanos: Annotated[Nanos, fields.OUTPUT_NANOS]
    kv_page_second_nanos: Annotated[Nanos, fields.KV_PAGE_SECOND_NANOS]
    rank_class: Annotated[RankClass | None, about("Rank class that has these prices; null for all others.")] = None
    adapter_storage_gb_hour_nanos: Annotated[ResourceNanos | None, fields.ADAPTER_STORAGE_GB_HOUR_NANOS] = None
    pinned_slot_hour_nanos: Annotated[ResourceNanos | None, fields.PINNED_SLOT_HOUR_NANOS] = None
    cold_load_nanos: Annotated[ResourceNanos | None, fields.COLD_LOAD_NANOS] = None


class PriceTier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The unit price of the units up to and including ``up_to``; None in the last tier."""

    unit_price_nanos: Annotated[Nanos, fields.UNIT_PRICE_NANOS]
    up_to: Annotated[Units | None, about("Last unit of the tier; null in the last tier.")]


class TieredPrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A price of one quantity that depends on how much of it the tenant uses in a period, over all keys and adapters.

    ``graduated``: each unit has the price of its tier. ``volume``: all units have the price of the tier that the total
    reaches. ``package``: each begun package of ``package_units`` costs ``package_nanos``. Without ``base_model`` the
    quantity is added up over all models.
    """

    quantity: Annotated[UsageKind, about("What is counted.")]
    mode: Annotated[TierMode, fields.MODE]
    base_model: Annotated[ModelId | None, fields.BASE_MODEL] = None
    tiers: Annotated[
        tuple[PriceTier, ...],
        msgspec.Meta(max_length=TIERS_MAX),
        about("The tiers in ascending order; none for packages."),
    ] = ()
    package_units: Annotated[Units | None, fields.PACKAGE_UNITS] = None
    package_nanos: Annotated[PackageNanos | None, fields.PACKAGE_NANOS] = None

    @property
    def package(self) -> tuple[int, int]:
        """The units of a package and its price."""
        assert self.package_units is not None, "checked by ``check``"
        assert self.package_nanos is not None, "checked by ``check``"
        return self.package_units, self.package_nanos

    def highest_unit_nanos(self, factor_permille: int) -> int:
        """The highest price of a unit at a factor; that of a package is rounded up."""
        if self.mode == "package":
            units, nanos = self.package
            return -(-at_factor(nanos, factor_permille) // units)
        return at_factor(max(tier.unit_price_nanos for tier in self.tiers), factor_permille)


class IncludedUsage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Units of a quantity that a whole billing period includes, over all keys and adapters. Without ``base_model`` they
    are of any model. With ``rollover``, what is left at the end of a period is added to the next one, and lapses there.
    """

    quantity: Annotated[UsageKind, about("What is included.")]
    units: Annotated[Units, about("Units in a whole billing period.")]
    base_model: Annotated[ModelId | None, fields.BASE_MODEL] = None
    rollover: Annotated[bool, about("Whether units that are left are added to the next period.")] = False


class GrantPrices(NamedTuple):
    """The prices of a card as gateways know them. ``flex_prices`` is None without a flex tier."""

    prices: Prices
    flex_prices: Prices | None
    model_prices: tuple[ModelPrices, ...]


class GeneralPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The prices of a rank class that has none of its own on a card: those of its ``base_model``, or of all models."""

    base_model: Annotated[str, fields.BASE_MODEL]
    rank_class: Annotated[int, about("Rank class without prices of its own.")]
    price_of: Annotated[
        Literal["base_model", "all_models"],
        about("Whose prices it has: base_model for the model's own, all_models for the card's."),
    ]
    prices: Annotated[Prices, about("What it costs.")]


class PriceCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a plan version charges, in nanodollars: at most one dollar a token or page-second. Zero is a valid price.

    The four prices at the top hold for every model and rank class without an entry of its own in ``models``, so no
    model is ever without a price. ``base_fee_nanos`` is for a whole billing period. ``commitment_nanos`` is the least
    that all charges of a billing period, or of twelve months, come to.

    Flex requests pay ``batch_factor_permille`` of each price of usage, cut below one nanodollar; None means that there
    is no flex tier. It holds for all models, since tiers add up the usage of models.
    """

    input_nanos: Annotated[Nanos, fields.INPUT_NANOS]
    cached_input_nanos: Annotated[Nanos, fields.CACHED_INPUT_NANOS]
    output_nanos: Annotated[Nanos, fields.OUTPUT_NANOS]
    kv_page_second_nanos: Annotated[Nanos, fields.KV_PAGE_SECOND_NANOS]
    models: Annotated[
        tuple[ModelCardPrices, ...],
        msgspec.Meta(max_length=MODELS_MAX),
        about("Prices of single base models and rank classes."),
    ] = ()
    tiers: Annotated[
        tuple[TieredPrice, ...],
        msgspec.Meta(max_length=TIERS_MAX),
        about("Prices that depend on the quantity of the whole period."),
    ] = ()
    included: Annotated[
        tuple[IncludedUsage, ...],
        msgspec.Meta(max_length=TIERS_MAX),
        about("Units that a billing period includes at no charge."),
    ] = ()
    base_fee_nanos: Annotated[FeeNanos, about("Fee for a whole billing period, in nanodollars.")] = 0
    base_fee_when: Annotated[
        Literal["advance", "arrears"],
        about("advance: the invoice before the period has the fee; arrears: its own invoice has it."),
    ] = "arrears"
    commitment_nanos: Annotated[FeeNanos, about("Least that all charges come to, in nanodollars.")] = 0
    commitment_interval: Annotated[
        Literal["period", "year"], about("period: of each billing period; year: of twelve months.")
    ] = "period"
    adapter_storage_gb_hour_nanos: Annotated[ResourceNanos, fields.ADAPTER_STORAGE_GB_HOUR_NANOS] = 0
    pinned_slot_hour_nanos: Annotated[ResourceNanos, fields.PINNED_SLOT_HOUR_NANOS] = 0
    cold_load_nanos: Annotated[ResourceNanos, fields.COLD_LOAD_NANOS] = 0
    batch_factor_permille: Annotated[
        FactorPermille | None,
        about("Part of the price of usage that flex requests pay, in permille; null for no flex tier."),
    ] = None

    @classmethod
    def of_all_models(cls, prices: Prices) -> "PriceCard":
        """A card with the same prices for every model."""
        return cls(**msgspec.structs.asdict(prices))

    @property
    def default(self) -> Prices:
        """The prices of models without an entry, before tiers."""
        return msgspec.convert(self, Prices, from_attributes=True)

    def factor_permille(self, service_tier: ServiceTier) -> int:
        """The part of the price that usage in a service tier costs."""
        factor = None if service_tier == "default" else self.batch_factor_permille
        return FULL_PERMILLE if factor is None else factor

    def listed(self, base_model: str, rank_class: int | None) -> Prices:
        """The unit prices of a model, before tiers: those of its rank class, else of the model, else of all models."""
        of_model = None
        for entry in self.models:
            if entry.base_model == base_model:
                if entry.rank_class == rank_class:
                    return msgspec.convert(entry, Prices, from_attributes=True)
                if entry.rank_class is None:
                    of_model = entry
        return self.default if of_model is None else msgspec.convert(of_model, Prices, from_attributes=True)

    def general_prices(self, classes: Mapping[str, Sequence[int]]) -> list[GeneralPrice]:
        """What the rank classes without prices of their own cost. ``classes`` are those of each base model."""
        own = {(entry.base_model, entry.rank_class) for entry in self.models}
        return [
            GeneralPrice(
                base_model=base_model,
                rank_class=rank_class,
                price_of="base_model" if (base_model, None) in own else "all_models",
                prices=self.listed(base_model, rank_class),
            )
            for base_model in sorted(classes)
            for rank_class in classes[base_model]
            if (base_model, rank_class) not in own
        ]

    def resource_nanos(self, kind: ResourceKind, base_model: str, rank_class: int | None) -> int:
        """The price of a GB-hour, a slot-hour or a load: that of the rank class, else of the model, else of all."""
        name = RESOURCES[kind].price
        own = {entry.rank_class: getattr(entry, name) for entry in self.models if entry.base_model == base_model}
        prices: tuple[int | None, ...] = (own.get(rank_class), own.get(None), getattr(self, name))
        return next(price for price in prices if price is not None)

    @property
    def has_resource_prices(self) -> bool:
        """Whether storage, pinned slots or cold loads cost anything."""
        return any(getattr(prices, each.price) for prices in (self, *self.models) for each in RESOURCES.values())

    def tier_of(self, quantity: UsageKind, base_model: str) -> TieredPrice | None:
        """The tiered price of a quantity: the model's own, else that of all models."""
        of_all = None
        for tiered in self.tiers:
            if tiered.quantity == quantity and tiered.base_model == base_model:
                return tiered
            if tiered.quantity == quantity and tiered.base_model is None:
                of_all = tiered
        return of_all

    def highest_prices(self, base_model: str, rank_class: int | None, service_tier: ServiceTier = "default") -> Prices:
        """The highest unit prices that a request to this model can have in a service tier."""
        return self._highest(self.listed(base_model, rank_class), base_model, service_tier)

    def grant_prices(self) -> GrantPrices:
        """The highest prices as gateways know them: of all models, and of models that differ."""
        named = {(entry.base_model, entry.rank_class) for entry in self.models}
        named |= {(tiered.base_model, None) for tiered in self.tiers if tiered.base_model is not None}
        has_flex = self.batch_factor_permille is not None
        entries = tuple(
            ModelPrices(
                base_model=base_model,
                rank_class=rank_class,
                prices=self.highest_prices(base_model, rank_class),
                flex_prices=self.highest_prices(base_model, rank_class, "flex") if has_flex else None,
            )
            for base_model, rank_class in sorted(named, key=lambda each: (each[0], each[1] or 0))
        )
        return GrantPrices(
            prices=self._highest(self.default, "", "default"),
            flex_prices=self._highest(self.default, "", "flex") if has_flex else None,
            model_prices=entries,
        )

    def _highest(self, listed: Prices, base_model: str, service_tier: ServiceTier) -> Prices:
        factor = self.factor_permille(service_tier)
        highest = {}
        for kind, quantity in QUANTITIES.items():
            tiered = self.tier_of(kind, base_model)
            highest[quantity.price] = (
                at_factor(getattr(listed, quantity.price), factor)
                if tiered is None
                else tiered.highest_unit_nanos(factor)
            )
        return Prices(**highest)


def check(card: PriceCard, *, base_models: Iterable[str] | None = None) -> None:
    """Raise InvalidRequest, naming field and fix, for a card that contradicts itself or, with ``base_models``, names a
    model that does not exist.
    """
    try:
        msgspec.convert(msgspec.to_builtins(card), PriceCard)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        param = f"prices.{path.rstrip('`')}"
        raise InvalidRequest(f"{param}: {problem}.", code="invalid_price_card", param=param) from error
    for param, problem in _problems(card, None if base_models is None else set(base_models)):
        raise InvalidRequest(f"{param}: {problem}", code="invalid_price_card", param=param)


def _problems(card: PriceCard, base_models: set[str] | None) -> Iterator[tuple[str, str]]:
    seen: set[tuple[str, int | None]] = set()
    for index, entry in enumerate(card.models):
        if (entry.base_model, entry.rank_class) in seen:
            yield f"prices.models[{index}]", f"{entry.base_model} has an entry for this rank class already; remove one."
        seen.add((entry.base_model, entry.rank_class))
        if base_models is not None and entry.base_model not in base_models:
            yield f"prices.models[{index}].base_model", f"there is no base model {entry.base_model!r}."
    tiered: set[tuple[str, str | None]] = set()
    included: set[tuple[str, str | None]] = set()
    for index, pool in enumerate(card.included):
        if (pool.quantity, pool.base_model) in included:
            yield f"prices.included[{index}]", f"{pool.quantity} is included for this model already; remove one."
        included.add((pool.quantity, pool.base_model))
        if base_models is not None and pool.base_model is not None and pool.base_model not in base_models:
            yield f"prices.included[{index}].base_model", f"there is no base model {pool.base_model!r}."
    for index, price in enumerate(card.tiers):
        where = f"prices.tiers[{index}]"
        if (price.quantity, price.base_model) in tiered:
            yield where, f"{price.quantity} has tiers for this model already; remove one."
        tiered.add((price.quantity, price.base_model))
        if base_models is not None and price.base_model is not None and price.base_model not in base_models:
            yield f"{where}.base_model", f"there is no base model {price.base_model!r}."
        yield from _tier_problems(price, where)
    yield from _factor_problems(card)


def _factor_problems(card: PriceCard) -> Iterator[tuple[str, str]]:
    """Prices that the batch factor would make free."""
    names = [quantity.price for quantity in QUANTITIES.values()]
    prices = [(f"prices.{name}", getattr(card, name)) for name in names]
    for index, entry in enumerate(card.models):
        prices += [(f"prices.models[{index}].{name}", getattr(entry, name)) for name in names]
    for index, price in enumerate(card.tiers):
        where = f"prices.tiers[{index}]"
        prices.append((f"{where}.package_nanos", price.package_nanos or 0))
        prices += [
            (f"{where}.tiers[{number}].unit_price_nanos", tier.unit_price_nanos)
            for number, tier in enumerate(price.tiers)
        ]
    factor = card.factor_permille("flex")
    for param, nanos in prices:
        if nanos and at_factor(nanos, factor) == 0:
            problem = f"{factor} permille of {param}, {nanos}, is less than a nanodollar; raise one of them."
            yield "prices.batch_factor_permille", problem


def _tier_problems(price: TieredPrice, where: str) -> Iterator[tuple[str, str]]:
    if price.mode == "package":
        if price.package_units is None or price.package_nanos is None:
            yield f"{where}.package_units", "a package price needs package_units and package_nanos."
        if price.tiers:
            yield f"{where}.tiers", "a package price has no tiers; remove them."
        return
    if price.package_units is not None or price.package_nanos is not None:
        yield f"{where}.package_units", f"belongs to the mode package, not to {price.mode}; remove it."
    if not price.tiers:
        yield f"{where}.tiers", "is empty; give at least one tier, the last with up_to null."
        return
    for number, tier in enumerate(price.tiers):
        last = number == len(price.tiers) - 1
        if (tier.up_to is None) != last:
            yield f"{where}.tiers[{number}].up_to", "is null in the last tier, and only there."
            return
        if number and tier.up_to is not None and tier.up_to <= (price.tiers[number - 1].up_to or 0):
            yield f"{where}.tiers[{number}].up_to", "must be larger than in the tier before; tiers may not overlap."
