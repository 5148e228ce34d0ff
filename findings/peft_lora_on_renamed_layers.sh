#!/usr/bin/env bash
# A LoRA adapter on the shared experts of Laguna is written whole and read back without them: only a warning tells.
#
# Expected: PeftModel.from_pretrained restores what save_pretrained of the same model has written, or raises.
# Seen: transformers keeps Laguna's files under the names of its first release (shared_expert) and renames them on
# loading (shared_experts). peft 0.21.0 writes an adapter under the names that the loaded model has, yet on reading
# applies the renaming of the base's files to them: no weight of the adapter has the name that results, so all LoRA
# matrices on these layers stay at their start, B = 0. Training and evaluation go on with part of what was learned.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'torch==2.13.0' 'transformers==5.23.0' 'peft==0.21.0' numpy
cat > "$folder/adapter.py" <<'PY'
import sys
import warnings

import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from transformers import LagunaConfig, LagunaForCausalLM

folder = sys.argv[1]
torch.manual_seed(3)
sizes = {"vocab_size": 48, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "head_dim": 8}
experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}
config = LagunaConfig(**sizes, **experts, num_attention_heads=4, num_key_value_heads=2, num_attention_heads_per_layer=[4, 4])
LagunaForCausalLM(config).save_pretrained(f"{folder}/base")


def base():
    return LagunaForCausalLM.from_pretrained(f"{folder}/base")


adapted = get_peft_model(base(), LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")).eval()
for name, weight in adapted.named_parameters():
    if ".lora_B." in name:
        torch.nn.init.normal_(weight)
adapted.save_pretrained(f"{folder}/adapter")
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    again = PeftModel.from_pretrained(base(), f"{folder}/adapter").eval()
with safe_open(f"{folder}/adapter/adapter_model.safetensors", "pt") as file:
    written = sum("shared_experts" in name for name in file.keys())
lost = sum(name.count("lora_B") and not weight.any() for name, weight in again.named_parameters())
row = torch.tensor([[4, 8, 15, 16, 23, 42]])
with torch.no_grad():
    apart = float((adapted(row).logits - again(row).logits).abs().max())
missing = sum("Found missing adapter keys" in str(warning.message) for warning in told)
print("peft", peft.__version__, "transformers", transformers.__version__)
print("matrices of shared experts in the file:", written, "| B at zero once read:", lost, "| warnings:", missing)
print("logits differ:", apart > 0.1)
assert (written, lost, missing) == (6, 3, 1) and apart > 0.1, "the behaviour has changed"
PY
"$folder/venv/bin/python" "$folder/adapter.py" "$folder" 2> "$folder/err" || { cat "$folder/err"; exit 1; }
# Output seen:
#   peft 0.21.0 transformers 5.23.0
#   matrices of shared experts in the file: 6 | B at zero once read: 3 | warnings: 1
#   logits differ: True
