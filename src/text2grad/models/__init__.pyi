from .adapters import (
    CRITIC_ADAPTER as CRITIC_ADAPTER,
    POLICY_ADAPTER as POLICY_ADAPTER,
    adapter_active as adapter_active,
    adapter_parameters as adapter_parameters,
    base_of as base_of,
    check_adapter as check_adapter,
    enable_checkpointing as enable_checkpointing,
    half_precision as half_precision,
    is_peft as is_peft,
    policy_only as policy_only,
    readable_adapter as readable_adapter,
    same_trainable as same_trainable,
    with_lora as with_lora,
)
from .batch import TokenBatch as TokenBatch, collate as collate
from .chat_template import (
    any_of as any_of,
    messages_of as messages_of,
    prompt_text as prompt_text,
    tools_of as tools_of,
)
from .continuation import (
    CUT as CUT,
    call_end as call_end,
    continue_chat as continue_chat,
    plain_text as plain_text,
    told_more as told_more,
)
from .decoding import Choose as Choose, decode as decode, most_likely as most_likely, steps_are_right as steps_are_right
from .fine_tuning import (
    NO_LOSS as NO_LOSS,
    FineTuning as FineTuning,
    OnStep as OnStep,
    Row as Row,
    conversation_rows as conversation_rows,
    fine_tune as fine_tune,
    row_of_ids as row_of_ids,
    train_on_rows as train_on_rows,
    with_end as with_end,
)
from .kv_cache import Caches as Caches
from .launch import (
    PLAIN as PLAIN,
    asks_for_fsdp as asks_for_fsdp,
    gathered as gathered,
    in_processes as in_processes,
    place as place,
    prepare_processes as prepare_processes,
    shared as shared,
)
from .logprobs import tiles_as_on as tiles_as_on, token_logprobs as token_logprobs
from .measured_run import MERGED as MERGED, MODEL as MODEL, MeasuredRun as MeasuredRun
from .measured_training import (
    check_batch_size as check_batch_size,
    held_out_loss as held_out_loss,
    share_of_process as share_of_process,
)
from .policy import (
    PolicyWithValue as PolicyWithValue,
    Reference as Reference,
    Scores as Scores,
    check_model as check_model,
    head_of as head_of,
    response_logprobs as response_logprobs,
)
from .pretrained import (
    ADAPTER_CONFIG as ADAPTER_CONFIG,
    ADAPTER_WEIGHTS as ADAPTER_WEIGHTS,
    base_named_by as base_named_by,
    best_device as best_device,
    context_of as context_of,
    dtype_to_train as dtype_to_train,
    load_model as load_model,
    load_policy as load_policy,
    load_to_train as load_to_train,
    load_tokenizer as load_tokenizer,
    local_path as local_path,
    on_cpu as on_cpu,
    policy_config as policy_config,
)
from .probing import (
    PROBE_FILE as PROBE_FILE,
    check_probe as check_probe,
    probe as probe,
    refuse_unread as refuse_unread,
    save_model as save_model,
)
from .prompts import (
    answer_end as answer_end,
    check_ids as check_ids,
    encode_prompts as encode_prompts,
    fitting_prompts as fitting_prompts,
    format_of as format_of,
    padding_id as padding_id,
    plain_ids as plain_ids,
    stop_ids as stop_ids,
    with_chat_template as with_chat_template,
)
from .randomness import (
    batch_indices as batch_indices,
    draws_apart as draws_apart,
    random_states as random_states,
    restore_random_states as restore_random_states,
    sample_inverse_cdf as sample_inverse_cdf,
    step_uniforms as step_uniforms,
)
from .sampling import make_rollouts as make_rollouts, sample as sample, texts_of as texts_of
from .shared_prefix import can_share_prompts as can_share_prompts, read_tokens as read_tokens
from .vllm_sampling import VLLMSampler as VLLMSampler, check_engine as check_engine, check_trl as check_trl
