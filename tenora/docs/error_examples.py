"""Examples of messages, each with plausible values, for error codes whose text in the source would say little alone.

docs/reference/errors.md shows them. A test compares each with the messages in the source; see ``reference.py``.
"""

from typing import Final

EXAMPLES: Final = {
    "archive_not_allowed": "archives are not unpacked; upload adapter_config.json and adapter_model.safetensors "
    "themselves",
    "base_model_mismatch": 'base_model_name_or_path is "gpt2", but this adapter is for smollm2-135m-instruct; if it '
    "was trained on HuggingFaceTB/SmolLM2-135M-Instruct, write that name there",
    "canary_failed": "3 canary runs were not answered; upload the adapter again, or contact the operator",
    "canary_no_effect": "The adapter has no effect: its log-probabilities differ from the base model's by 0.0001 nats; "
    "two runs of the base model differ by 0.0002. Check that training ran and that its weights were saved.",
    "checksum_mismatch": "is not the file that was declared (size or SHA-256); create a new revision and upload the "
    "file unchanged",
    "config_field_not_allowed": 'auto_mapping is "my_code.Model"; set it to null',
    "file_empty": "is empty; upload it again",
    "file_missing": "is missing; a PEFT adapter is adapter_config.json and adapter_model.safetensors",
    "format_not_allowed": "is a pickle; save the adapter as safetensors",
    "rank_mismatch": "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight has rank 16, adapter_config.json "
    "says r is 8: upload files of one save",
    "rank_too_large": 'r is 128; plan "starter" allows 64: train with r at most 64',
    "upload_expired": "the upload was not completed within 24 hours; create a new revision",
    "upload_too_large": 'the files have 73400320 bytes in all; plan "starter" allows 67108864',
    "validation_failed": "the files could not be validated within the limits; save the adapter again with a current "
    "PEFT",
    "validation_timeout": "validation took longer than 180 s; upload a smaller adapter",
    "weights_not_finite": "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight holds NaN, infinity or a "
    "value above bfloat16; train with a lower learning rate",
    "weights_out_of_range": "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight holds 3e+05; weights up to "
    "10000 are allowed; train with a lower learning rate",
    "adapter_exists": "name: you already have an adapter 'shop-voice'. Add a revision to it.",
    "adapter_quota_exceeded": 'adapters: plan "starter" allows 4. Delete one or change the plan.',
    "adapter_type_not_supported": 'task_type is "SEQ_CLS"; only "CAUSAL_LM" is served',
    "alias_quota_exceeded": "alias: an adapter may have at most 20 aliases. Remove an unused one.",
    "base_model_not_found": "base_model: 'llama' not found. GET /v1/models at the gateway lists the base models.",
    "context_length_exceeded": "The context is limited to 2048 tokens, and this request asks for 2300.",
    "encoding_not_allowed": "content-encoding is gzip. Send the JSON uncompressed.",
    "header_truncated": "ends inside its header of 4096 bytes; upload it again",
    "missing_field": "name: this field is required.",
    "pin_quota_exceeded": 'pinned: plan "starter" keeps 2 adapters in memory. Unpin another one or change the plan.',
    "plan_exists": "name: a plan 'starter' exists. Add a version with POST to its /versions.",
    "revision_quota_exceeded": "revisions: an adapter may have at most 500. Create a new adapter.",
    "special_token": "The messages contain <|im_end|>, which is a special token of this model; remove it.",
    "too_many_tensors": "has 9000 tensors; 8192 are allowed: save LoRA only",
    "unknown_field": "color: unknown field. Remove it.",
    "unknown_parameter": "`best_off` is not a parameter of this endpoint; remove it.",
    "unknown_url": "No route matches the path /v1/chat.",
    "unsupported_media_type": "content-type is text/plain. Send application/json.",
    "config_too_large": "has more than the 65536 bytes that are allowed; write it again with PEFT's save_pretrained",
    "config_invalid": "must be a JSON object; write it again with PEFT's save_pretrained",
}
