#!/usr/bin/env bash
# TRL's GRPOTrainer scores a padded prompt of GPT-2 at other positions than those at which generate() sampled behind it.
#
# Expected: the log-probs of a completion do not depend on how many padding tokens stand to the left of its prompt,
# since prompts of a batch are padded there and sampling counts positions from the first real token.
# Seen: the trainer passes input_ids and attention_mask alone. GPT-2 has learned absolute positions and, without
# position_ids, counts them from the padding, so the scores of one and the same completion move by nats with the length
# of its neighbours in the batch. A Llama, whose positions are relative, gives the same scores up to rounding. The ratio
# of new to old log-probs hides it, because both are wrong alike; a reference model, importance weights against an
# engine, and any comparison with the sampler see it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'torch==2.13.0' 'transformers==5.23.0' 'trl==1.16.0'
cat > "$folder/score.py" <<'PY'
import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

words = ["<pad>", "<end>", *"the tide comes in twice a day and goes out again".split()]
vocab = {word: number for number, word in enumerate(dict.fromkeys(words))}
core = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
core.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<end>")
sizes = {"vocab_size": len(vocab), "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
configs = {
    "gpt2": GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **sizes),
    "llama": LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64, **sizes
    ),
}
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(configs[sys.argv[1]]).eval()
for weight in model.parameters():
    if weight.ndim > 1:
        torch.nn.init.normal_(weight, std=0.3)
trainer = GRPOTrainer(
    model,
    reward_funcs=lambda completions, **_: [0.0] * len(completions),
    args=GRPOConfig(sys.argv[2], use_cpu=True, bf16=False, report_to="none", num_generations=2, per_device_train_batch_size=2),
    train_dataset=Dataset.from_list([{"prompt": "the tide"}]),
    processing_class=tokenizer,
)
row = torch.tensor([tokenizer.encode("the tide comes in twice a day", add_special_tokens=False)])
padding = torch.zeros(1, 4, dtype=torch.long)
with torch.no_grad():
    alone, padded = (
        trainer._get_per_token_logps_and_entropies(model, ids, mask, logits_to_keep=3)[0]
        for ids, mask in (
            (row, torch.ones_like(row)),
            (torch.cat([padding, row], 1), torch.cat([padding, torch.ones_like(row)], 1)),
        )
    )
print(f"{sys.argv[1]}: {'moves' if (alone - padded).abs().max() > 0.1 else 'stays'}", f"{(alone - padded).abs().max():.1g} nats")
PY
"$folder/venv/bin/python" -c 'import transformers, trl; print("transformers", transformers.__version__, "trl", trl.__version__)'
for family in gpt2 llama; do
    "$folder/venv/bin/python" "$folder/score.py" "$family" "$folder/out" 2>/dev/null | tee "$folder/$family"
done
grep -q '^gpt2: moves' "$folder/gpt2" || { echo "changed: GPT-2's scores do not depend on the padding"; exit 1; }
grep -q '^llama: stays' "$folder/llama" || { echo "changed: a Llama's scores depend on the padding"; exit 1; }
echo "as described: four padding tokens move the scores of a GPT-2, and leave those of a Llama"
