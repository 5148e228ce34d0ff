#!/usr/bin/env bash
# GRPOTrainer of TRL 1.15.0 stops at its first step on a CPU, though `use_cpu=True` is one of its arguments.
#
# Expected: 1.15.0 trains on a CPU as 1.16.0 does; both accept `use_cpu=True`, load the model and sample on the CPU, and
# the package asks for no further library.
# Seen: 1.15.0 computes log-probabilities by kernels that are written for Triton, and has no other way. Where torch is
# its build for CPUs, which comes without Triton, the kernel's class is None, and the error, an AttributeError, names
# neither Triton nor the device. It comes after the model is loaded and the first batch is sampled and scored. 1.16.0 has
# a second way for such machines, and the same script trains there. Tests of reward functions in CI without a GPU need it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'torch==2.13.0' 'transformers==5.23.0' 'trl==1.15.0' numpy
cat > "$folder/step.py" <<'PY'
import sys
from pathlib import Path

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

words = ["<none>", "<stop>", *"which river runs through the old town".split()]
core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<none>"))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
config = LlamaConfig(
    vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    max_position_embeddings=32, bos_token_id=1, eos_token_id=1, pad_token_id=0,
)
judged = []


def length(completions, **_):
    judged.extend(completions)
    return [float(len(text)) for text in completions]


trainer = GRPOTrainer(
    model=LlamaForCausalLM(config),
    reward_funcs=length,
    args=GRPOConfig(
        str(Path(sys.argv[1], "run")), use_cpu=True, bf16=False, report_to="none", max_steps=1, num_generations=4,
        per_device_train_batch_size=4, max_completion_length=5, save_strategy="no", disable_tqdm=True,
    ),
    train_dataset=Dataset.from_list([{"prompt": "which river runs through the old town"}] * 4),
    processing_class=PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<none>", eos_token="<stop>"),
)
try:
    trainer.train()
    outcome = "trained a step"
except Exception as error:  # the kind depends on whether Triton is installed
    outcome = f"stopped: {type(error).__name__}: {str(error).splitlines()[0]}"
print(f"trl {trl.__version__}, torch {torch.__version__}, {len(judged)} completions sampled: {outcome}")
PY
"$folder/venv/bin/python" "$folder/step.py" "$folder" >"$folder/seen" 2>"$folder/log"
grep '^trl 1.15.0.* stopped: ' "$folder/seen" || { echo "changed: 1.15.0 trains on a CPU"; cat "$folder/log"; exit 1; }
"$folder/venv/bin/pip" install --quiet 'trl==1.16.0'
"$folder/venv/bin/python" "$folder/step.py" "$folder" >"$folder/seen" 2>"$folder/log"
grep '^trl 1.16.0.* 4 completions sampled: trained a step' "$folder/seen" || { echo "changed: 1.16.0 does not train"; cat "$folder/log"; exit 1; }
echo "as described: 1.15.0 accepts use_cpu=True and cannot take a step without an accelerator, 1.16.0 can"
