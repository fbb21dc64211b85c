"""The ``expand`` parameter: replaces ids in an answer by the objects that they name."""

from collections.abc import Sequence
from typing import Any, Final

from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.resources import is_expandable
from tenora.stripe_simulator.simulation import Object, Simulation

_DEPTH_MAX: Final = 4
_PATHS_MAX: Final = 20


def expand(sim: Simulation, body: Object, paths: Sequence[str]) -> Object:
    """The answer with each path expanded. Raises ApiError for a path that leads nowhere."""
    if len(paths) > _PATHS_MAX:
        raise ApiError(f"You cannot expand more than {_PATHS_MAX} properties.", param="expand")
    for path in paths:
        steps = path.split(".")
        if len(steps) > _DEPTH_MAX:
            raise ApiError(f"You cannot expand more than {_DEPTH_MAX} levels of a property.", param="expand")
        _expand(sim, body, steps, path)
    return body


def _expand(sim: Simulation, node: Any, steps: Sequence[str], path: str) -> None:
    name, rest = steps[0], steps[1:]
    if isinstance(node, list):
        for each in node:
            _expand(sim, each, steps, path)
        return
    if not isinstance(node, dict):
        return
    if name not in node:
        node[name] = _included(sim, node, name, path)
    value = node[name]
    if isinstance(value, str):
        found = sim.store.load(value)
        if found is None or ("object" in node and not is_expandable(node["object"], name)):
            raise _nowhere(path)
        node[name] = found
    if rest:
        _expand(sim, node[name], rest, path)


def _included(sim: Simulation, node: Object, name: str, path: str) -> Object:
    """Lists that Stripe leaves out unless they are asked for."""
    kind = node.get("object")
    if (kind, name) == ("invoice", "payments"):
        payments = sim.store.select("invoice_payment", invoice=node["id"])
        return sim.page("invoice_payment", "/v1/invoice_payments", {}, found=payments)
    if (kind, name) == ("charge", "refunds"):
        refunds = sim.store.select("refund", charge=node["id"])
        return sim.page("refund", f"/v1/charges/{node['id']}/refunds", {}, found=refunds)
    if (kind, name) == ("checkout.session", "line_items"):
        items = sim.store.hidden(node["id"])["items"]
        return sim.page("item", f"/v1/checkout/sessions/{node['id']}/line_items", {}, found=items)
    raise _nowhere(path)


def _nowhere(path: str) -> ApiError:
    return ApiError(f"This property cannot be expanded ({path}).", param="expand")
