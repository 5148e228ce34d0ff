#!/usr/bin/env bash
# Phi-3.5 MoE computes other logits in evaluation with another router_jitter_noise, which is noise nowhere in it.
#
# Expected: a jitter of the router is noise of training, as in Mixtral and Switch Transformers, whose logits in eval()
# mode do not depend on it; set to 0 for reproducible training, or left out of a converted config, it changes nothing.
# Seen: Phi-3.5 MoE's router compares experts whose logits lie within twice that distance, relative to the larger one, and
# weighs the chosen one by a softmax over them, in eval() mode too. At 0 the chosen expert always has the weight 1; at the
# default of 0.01 and above, less where experts are close. The noise of its inputs is another setting, input_jitter_noise.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'torch==2.13.0' 'transformers==5.23.0' numpy
cat > "$folder/jitter.py" <<'PY'
import torch
import transformers
from transformers import MixtralConfig, MixtralForCausalLM, PhimoeConfig, PhimoeForCausalLM

sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
sizes |= {"initializer_range": 0.3}
row = torch.arange(120)[None] * 7 % 40


def logits(kind, config, jitter):
    torch.manual_seed(7)  # equal weights
    with torch.no_grad():
        return kind(config(**sizes, router_jitter_noise=jitter)).eval()(input_ids=row).logits


print("transformers", transformers.__version__)
seen = {}
for kind, config in ((MixtralForCausalLM, MixtralConfig), (PhimoeForCausalLM, PhimoeConfig)):
    apart = (logits(kind, config, 0.01) - logits(kind, config, 0.0)).abs().max()
    seen[kind.__name__] = bool(apart > 1e-3)
    print(kind.__name__, "in evaluation, jitter 0.01 against 0: logits differ:", seen[kind.__name__])
assert seen == {"MixtralForCausalLM": False, "PhimoeForCausalLM": True}, "the behaviour has changed"
PY
"$folder/venv/bin/python" "$folder/jitter.py" 2> "$folder/err" || { cat "$folder/err"; exit 1; }
# Output seen:
#   transformers 5.23.0
#   MixtralForCausalLM in evaluation, jitter 0.01 against 0: logits differ: False
#   PhimoeForCausalLM in evaluation, jitter 0.01 against 0: logits differ: True
