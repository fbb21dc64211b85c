"""Price cards as answers show them: each price in nanodollars, and beside it in dollars, as text."""

import msgspec

from billing.prices.card import ModelCardPrices, PriceCard, PriceTier, TieredPrice
from control_plane.dollars import with_dollars


class ModelPricesView(ModelCardPrices, frozen=True, kw_only=True, omit_defaults=True):
    """The unit prices of one base model, or of one of its rank classes."""

    input_usd_per_million: str
    cached_input_usd_per_million: str
    output_usd_per_million: str
    kv_page_second_usd: str
    adapter_storage_gb_hour_usd: str | None = None
    pinned_slot_hour_usd: str | None = None
    cold_load_usd: str | None = None


class PriceTierView(PriceTier, frozen=True, kw_only=True):
    """The unit price up to and including ``up_to`` units."""

    unit_price_usd_per_million: str


class TieredPriceView(TieredPrice, frozen=True, kw_only=True, omit_defaults=True):
    """A price that depends on how much of the quantity is used in a period."""

    tiers: tuple[PriceTierView, ...] = ()
    package_usd: str | None = None


class PriceCardView(PriceCard, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that one version of a plan charges. It can be sent back as it is."""

    models: tuple[ModelPricesView, ...] = ()
    tiers: tuple[TieredPriceView, ...] = ()
    input_usd_per_million: str
    cached_input_usd_per_million: str
    output_usd_per_million: str
    kv_page_second_usd: str
    base_fee_usd: str = "0"
    commitment_usd: str = "0"
    adapter_storage_gb_hour_usd: str = "0"
    pinned_slot_hour_usd: str = "0"
    cold_load_usd: str = "0"


def shown(card: PriceCard) -> PriceCardView:
    """The card with dollars."""
    return msgspec.convert(with_dollars(msgspec.to_builtins(card)), PriceCardView)
