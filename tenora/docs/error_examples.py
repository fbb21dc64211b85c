"""Examples of messages, each with plausible values, for error codes whose text in the source would say little alone.

docs/reference/errors.md shows them. A test compares each with the messages in the source; see ``reference.py``.
"""

from typing import Final

EXAMPLES: Final = {
    "adapter_cache_failed": "the adapter cache's disk failed for sha256:9f2c: No space left on device; check the "
    "disk of TENORA_CACHE_DIR",
    "adapter_download_stopped": "the download of sha256:9f2c was stopped; retry if you still need it",
    "adapter_exists": "name: you already have an adapter 'shop-voice'. Add a revision to it.",
    "adapter_failed": "the engine lost the adapter before the first token; retry the request",
    "adapter_loading": "The adapter is being loaded; try again in 2 s.",
    "adapter_of_other_base_model": "the adapter is for qwen2.5-0.5b; this engine serves smollm2-135m-instruct",
    "adapter_quota_exceeded": 'adapters: plan "starter" allows 4. Delete one or change the plan.',
    "adapter_revoked": "adapter 01J9ZK was revoked",
    "adapter_type_not_supported": 'task_type is "SEQ_CLS"; only "CAUSAL_LM" is served: train a causal language model',
    "adapter_unusable": "the engine cannot load adapter 01J9ZK; see the engine's log",
    "alias_quota_exceeded": "alias: an adapter may have at most 20 aliases. Remove an unused one.",
    "answer_too_large": "The answer is larger than 33554432 bytes; ask for fewer tokens, choices or logprobs, or "
    "stream it. What was generated is billed.",
    "archive_not_allowed": "archives are not unpacked; upload adapter_config.json and adapter_model.safetensors "
    "themselves",
    "artifact_size_mismatch": "adapter_model.safetensors: 1048576 bytes were uploaded, 2097152 were announced. "
    "Upload the file again.",
    "base_model_exists": "id: 'smollm2-135m-instruct' is registered with another spec, and adapters may depend on "
    "it. Choose a new id.",
    "base_model_invalid": "models/smollm2/config.json is missing; a base model is a directory in Hugging Face's "
    "checkpoint format",
    "base_model_mismatch": 'base_model_name_or_path is "gpt2", but this adapter is for smollm2-135m-instruct; if it '
    "was trained on HuggingFaceTB/SmolLM2-135M-Instruct or a quantized copy of it, write that name there",
    "base_model_not_found": "base_model: 'llama' not found. GET /v1/models at the gateway lists the base models.",
    "billing_busy": "another change holds the close of the billing period; try again in a few seconds.",
    "canary_failed": "3 canary runs were not answered; upload the adapter again, or contact the operator",
    "canary_failed_to_load": "The adapter cannot be loaded: the engine cannot load adapter 01J9ZK; see the engine's "
    "log",
    "canary_no_effect": "The adapter has no effect: its log-probabilities differ from the base model's by 0.0001 "
    "nats; two runs of the base model differ by 0.0002. Check that training ran and that its weights were saved.",
    "checksum_mismatch": "is not the file that was declared (size or SHA-256); create a new revision and upload the "
    "file unchanged",
    "concurrent_requests_exceeded": "The plan allows 8 concurrent requests",
    "config_field_not_allowed": 'auto_mapping is "my_code.Model"; set it to null',
    "config_invalid": "must be a JSON object; write it again with PEFT's save_pretrained",
    "config_too_large": "has more than the 65536 bytes that are allowed; write it again with PEFT's save_pretrained",
    "conflict": "The plan already has prices from 2026-12-01 on; choose another effective_from.",
    "context_length_exceeded": "This model's maximum context length is 2048 tokens. However, your messages resulted "
    "in 2300 tokens. Please reduce the length of the messages.",
    "dtype_not_allowed": 'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight has dtype "F4"; save it as '
    "F32, F16 or BF16",
    "encoding_not_allowed": "content-encoding is gzip. Send the JSON uncompressed.",
    "engine_refused": "GET /tenora/v1/adapters: invalid answer of the engine: Expected `array`, got `object`",
    "engine_worker_unreachable": "the engine's worker closed the connection",
    "file_deleted": "The input file does not exist any more. Upload it again.",
    "file_empty": "is empty; upload it again",
    "file_missing": "is missing; a PEFT adapter is adapter_config.json and adapter_model.safetensors",
    "format_not_allowed": "is a pickle; save the adapter as safetensors",
    "header_invalid": "has a header that does not begin with '{'; save the file again",
    "header_too_large": "declares a header of 2097152 bytes; 262144 are allowed: save LoRA tensors only",
    "header_truncated": "ends inside its header of 4096 bytes; upload it again",
    "headers_too_large": "At most 100 headers and 65536 bytes of them are accepted.",
    "insufficient_quota": "The plan allows 1000000 tokens per month; 120 are left and this request may use 512",
    "internal_error": "Internal error. Quote the request_id when you report it.",
    "invalid_api_key": "This API key is unknown or was revoked; create another key.",
    "invalid_json": "The body is not valid JSON: nested too deeply or not UTF-8.",
    "invalid_value": "`temperature` must be a number from 0 to 2.",
    "invalid_webhook_address": "address: this is no URL of a webhook: begin it with https://.",
    "kv_pages_exceeded": "The plan allows 256 KV pages in use; this request may use 300",
    "method_not_allowed": "This path accepts only POST.",
    "missing_field": "name: this field is required.",
    "model_not_found": "The model `shop-voice` does not exist or you do not have access to it.",
    "module_not_allowed": "base_model.model.lm_head.lora_A.weight changes a module that is not one of q_proj, "
    "k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj; train without it",
    "module_unknown": "has no LoRA weight for any module of the base model; save the adapter again",
    "name_taken": "id: a tenant has an adapter with the name 'shop-voice'. Choose another id.",
    "no_replica": "No replica of `smollm2-135m-instruct` for adapters of rank 64 is ready.",
    "notification_endpoint_quota_exceeded": "notification_endpoints: a tenant may have at most 20. Delete one that "
    "is no longer used.",
    "notification_messages_exceeded": "notification_endpoints: a tenant may request 10 messages per hour. Try again "
    "later.",
    "notification_secret_unreadable": "the signing secret of nep_01J9ZK does not open: set "
    "TENORA_NOTIFICATIONS_KEY_PREVIOUS to the key before the rotation, or rotate the endpoint's secret.",
    "object_damaged": "adapters/9f2c/adapter_model.safetensors has SHA-256 41d0, not 9f2c",
    "object_missing": "there is no adapters/9f2c/adapter_model.safetensors",
    "offsets_invalid": "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight has the offsets [0]; two "
    "whole numbers are needed; save the file again",
    "payment_queue_exists": "test_clock: the tenant has a customer at Stripe already, and its clock cannot change; use "
    "a new tenant.",
    "payment_queue_full": "100 payment operations of this tenant wait already. Try again later, or contact "
    "the platform's operator.",
    "pin_quota_exceeded": 'pinned: plan "starter" keeps 2 adapters in memory. Unpin another one or change the plan.',
    "plan_exists": "name: a plan 'starter' exists. Add a version with POST to its /versions.",
    "plan_not_found": "Plan 'starter' not found.",
    "rank_mismatch": "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight has rank 16, "
    "adapter_config.json says r is 8: upload files of one save",
    "rank_too_large": 'r is 128; plan "starter" allows 64: train with r at most 64',
    "rate_limit_exceeded": "The plan allows 60 requests per minute",
    "repeated_parameter": "search: given more than once. Send it once.",
    "replica_failed": "The replica failed before its first token.",
    "request_ended": "A request with this id ended; its answer is not stored.",
    "request_exceeds_replica": "The request may take 300 KV pages, and the largest replica has 256; lower max_tokens "
    "or n, or shorten the prompt.",
    "request_not_run": "No answer to this line is stored.",
    "request_settled": "A request with this id ended; its answer is not stored.",
    "request_timeout": "The body did not arrive within 30 s.",
    "request_too_large": "The body is larger than 1048576 bytes.",
    "revision_not_found": "revision: 'shop-voice' has no revision '01J9ZK'. List its revisions with GET "
    "/api/v1/adapters/shop-voice/revisions.",
    "revision_not_ready": "revision: '01J9ZK' is validating, not ready. Use a ready revision, or wait for the verdict.",
    "revision_quota_exceeded": "revisions: an adapter may have at most 500. Create a new adapter.",
    "revocation_lifted": "the revocation of adapter 01J9ZK was lifted; its unload has stopped",
    "schema_invalid": "`response_format.json_schema.schema` is not a usable JSON Schema: it must be an object.",
    "schema_rate_limited": "At most 30 new schemas per minute are compiled. Reuse schemas that you sent before, or "
    "retry later.",
    "schema_too_complex": "`response_format.json_schema.schema` is too complex: an enum has more than 128 values.",
    "scope_missing": "scopes: the calling key lacks adapters:write and cannot grant it.",
    "shape_mismatch": "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight has shape [8, 512]; the base "
    "model needs [8, 576]; upload the adapter for the base model that it was trained on",
    "special_token": "The messages contain <|im_end|>, which is a special token of this model; remove it.",
    "store_timeout": "another process is still downloading sha256:9f2c",
    "stripe_event_not_retryable": "The event is stored. Only ignored and failed events are handled again.",
    "stripe_keys_used_up": "pop_01J9ZK: 3 keys were used without an effect",
    "tensor_missing": "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight is missing; save the adapter "
    "again",
    "tensor_name_invalid": "has a tensor named \"a/b\"; names are letters, digits, '_', '-' and '.', at most 256 "
    "characters: save the file again",
    "token_limit_exceeded": "The lines may take about 250000 tokens; the plan allows 200000 in batches that have not "
    "ended, and 150000 are left. Wait until a batch has ended, or split this one.",
    "tokenizer_unavailable": "The tokenizer of `smollm2-135m-instruct` is not available; try again in 2 s.",
    "too_many_lines": "The file has more than 50000 lines. Split it into several batches.",
    "too_many_long_requests": "The gateway queues at most 16 long requests of one tenant. Retry in 1 s.",
    "too_many_open_uploads": "revisions: 10 uploads are open, the limit is 10. Complete them, or wait until they "
    "expire.",
    "too_many_refusals": "A tenant may send 20 rejected, token-count or list requests per second. Fix the rejected "
    "requests and poll less often.",
    "too_many_tensors": "has 9000 tensors; 4096 are allowed: save LoRA only",
    "too_many_unread_requests": "The gateway prepares at most 16 requests of one tenant at a time. Retry in 1 s.",
    "tools_unsupported": "The chat template of `tiny-chat` does not show tools to the model. Remove tools and calls of "
    "tools, or choose a model with `capabilities.tools` in /v1/models.",
    "unavailable": "The database does not answer. Try again in a few seconds.",
    "unknown_field": "color: unknown field. Remove it.",
    "unknown_parameter": "`best_off` is not a parameter of this endpoint; remove it.",
    "unknown_url": "No route matches the path /v1/chat.",
    "unprocessable": "The file admin.key exists. Name a new file.",
    "unsupported_content": "`messages[0].content[1]` is image: images, documents, thinking and server tools are not "
    "supported here.",
    "unsupported_media_type": "content-type is text/plain. Send application/json.",
    "unsupported_parameter": "`tools[0].type` must be `custom`: tools that run on a server are not offered here.",
    "upload_expired": "the upload was not completed within 24 hours; create a new revision",
    "upload_too_large": 'the files have 73400320 bytes in all; plan "starter" allows 67108864: train with a lower '
    "rank or on fewer modules, or change the plan",
    "validation_failed": "the files could not be validated within the limits; save the adapter again with a current "
    "PEFT",
    "validation_timeout": "validation took longer than 180 s; upload a smaller adapter",
    "webhook_address_not_public": "address: the host hooks.example.com has an address that is not public. Use a host "
    "on the internet.",
    "webhook_host_not_found": "address: the host hooks.example.com has no IP address. Check its name, and try again.",
    "weights_not_finite": "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight holds NaN, infinity or a "
    "value above bfloat16; train with a lower learning rate",
    "weights_out_of_range": "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight holds 3e+05; weights up "
    "to 10000 are allowed; train with a lower learning rate",
}
