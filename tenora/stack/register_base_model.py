"""Registers this machine's base model with the control plane through the REST API, as an admin would."""

from typing import Final

import msgspec
from pydantic import SecretStr

from adapters.base_model_spec import describe
from data_plane.engine.settings import ReplicaSettings
from tenora.client import Tenora
from tenora.settings import StackSettings
from tenora.stack.base_model import HUB_NAME, MODEL_ID
from tenora.stack.secrets_file import load_secrets
from tenora.stack.status import running_stack

_COPIES: Final = ("unsloth/SmolLM2-135M-Instruct", "unsloth/SmolLM2-135M-Instruct-bnb-4bit")
"""Copies of the base model that trainers use. An adapter that names one of them fits."""


def register(settings: StackSettings) -> None:
    """POST the base model's description, and names of its copies unless an admin has set names. Idempotent. Raises
    TenoraError on any refusal.
    """
    stack = running_stack(settings)
    serves = ReplicaSettings(
        model_path=stack.checkpoint, engine_key=SecretStr(load_secrets(settings.root).engine_key)
    )  # the settings of the stack's replica
    spec = describe(stack.checkpoint, id=MODEL_ID, hub_name=HUB_NAME)
    served = msgspec.structs.replace(
        spec,
        context_tokens=min(spec.context_tokens, serves.engine_context_tokens),
        rank_max=serves.engine_rank_max,
        rank_classes=(serves.engine_rank_max,),
    )
    path = "/api/v1/admin/base-models"
    with Tenora(stack.addresses.control_url, stack.admin_key_file.read_text().strip()) as client:
        registered = client.call("POST", path, msgspec.to_builtins(served)).json()
        if not registered["names"]:
            client.call("PUT", f"{path}/{MODEL_ID}/names", {"names": _COPIES})
