#!/usr/bin/env bash
# GRPOTrainer's `frac_reward_zero_std` misses groups whose rewards are all equal, and these groups get advantages.
#
# Expected: eight completions with the reward 0.7 have no deviation, so their group teaches nothing: the logged share of
# such groups is 1, and the advantages are 0.
# Seen: mean and deviation are taken in 32 bits, where the mean of eight times 0.7 is not 0.7. A deviation of about 6e-8
# is left, more than the 1e-8 up to which the trainer calls it zero. The share is 0 for 0.7 and 1 for 0.5, which 32 bits
# hold exactly; and divided by the deviation plus 1e-4, rounding becomes advantages of some 1e-4. A watch on this share
# sees the groups of a binary reward, and not those of most fractions.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'torch==2.13.0' 'transformers==5.23.0' 'trl==1.16.0' numpy
cat > "$folder/equal.py" <<'PY'
import sys
from pathlib import Path

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

print("torch", torch.__version__, "trl", trl.__version__)
words = ["<pad>", "<end>", *"name a bird that can not fly".split()]
vocab = {word: number for number, word in enumerate(words)}
core = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<end>")
config = LlamaConfig(
    vocab_size=len(vocab), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
    max_position_embeddings=64, bos_token_id=1, eos_token_id=1, pad_token_id=0,
)
largest = []


class Watched(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        largest.append(output["advantages"].abs().max().item())
        return output


shares = {}
for reward in (0.5, 0.7):
    torch.manual_seed(0)
    trainer = Watched(
        model=LlamaForCausalLM(config),
        reward_funcs=lambda completions, **_: [reward] * len(completions),
        args=GRPOConfig(
            str(Path(sys.argv[1], "run")), use_cpu=True, bf16=False, report_to="none", max_steps=1, logging_steps=1,
            num_generations=8, per_device_train_batch_size=8, max_completion_length=6, save_strategy="no", disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": "name a bird that can not fly"}] * 8),
        processing_class=tokenizer,
    )
    trainer.train()
    shares[reward] = next(log for log in trainer.state.log_history if "frac_reward_zero_std" in log)["frac_reward_zero_std"]
    print(f"eight rewards of {reward}: frac_reward_zero_std {float(shares[reward]):g}, largest advantage {largest[-1]:.1g}")
assert shares[0.5] == 1
assert largest[0] == 0
assert shares[0.7] == 0, "changed: equal rewards of 0.7 have no deviation"
assert 1e-6 < largest[1] < 1e-2, "changed: equal rewards of 0.7 give no advantages"
PY
"$folder/venv/bin/python" "$folder/equal.py" "$folder" 2>"$folder/log" > "$folder/seen" || { cat "$folder/seen" "$folder/log"; exit 1; }
grep -E '^(torch|eight)' "$folder/seen"
echo "as described: whether equal rewards count as equal depends on how 32 bits hold them"
