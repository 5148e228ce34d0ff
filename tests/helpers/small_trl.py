"""A `text2grad.GRPOTrainer` on a Llama of a few thousand parameters; as a script it trains in a process of torchrun.

python small_trl.py DIRECTORY    → DIRECTORY/rank0.pt: the advantages of this process's rows of `REWARDS`
"""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig

from text2grad.feedback import locate_spans
from text2grad.integrations import GRPOTrainer, SDPOTrainer
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example

REWARDS = [[0.0, 2.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0], [3.0, 0.0, 0.0], [0.0, 4.0, 0.0]]
LENGTHS = [3, 2, 3, 2, 1, 2]  # of six responses to three prompts
OWN = (
    "reward",
    "max_failure_rate",
    "gamma",
    "leave_one_out",
    "match",
    "peft_config",
    "callbacks",
    "eval_dataset",
    "data",
    "tools",
    "environment_factory",
)


def yes_is_positive(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
    """Mark yes and no as positive, maybe and later as negative."""
    return [
        Critique("Commit yourself.", locate_spans(response, positive=["yes", "no"], negative=["maybe", "later"]).spans)
        for response in responses
    ]


def weather() -> str:
    """Tell the weather."""
    return "please yes or no ."


def tool_tokenizer() -> Any:
    """Return a tokenizer for chats, in which the word "maybe" calls the tool `weather`."""
    tokenizer = word_tokenizer(["please say yes or no .", "maybe later"])
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls or [] %}maybe "
        "{{ call.function.name }} {{ call.function.arguments }}{% endfor %}</s>{% endfor %}"
    )
    call = {"type": "function", "function": {"name": "weather", "arguments": {}}}
    tokenizer.response_template = {
        "start_anchor": "</s>",
        "fields": {
            "tool_calls": {
                "open_pattern": "maybe",
                "close_pattern": "$",
                "repeats": True,
                "content": "text",
                "transform": call,
            },
            "content": {"close_pattern": "</s>", "content": "text"},
        },
        "defaults": {"role": "assistant"},
    }
    return tokenizer


def make_trainer(
    out: Path,
    reward_funcs: Any = yes_is_positive,
    *,
    kind: Any = GRPOTrainer,
    rows: list[dict[str, Any]] | None = None,
    tokenizer: Any = None,
    stops: Sequence[str] = (),
    config: Any = GRPOConfig,
    model: Any = None,
    **settings: Any,
) -> GRPOTrainer:
    """Return a trainer; settings are those of TRL and of `text2grad.GRPOTrainer`. Tokens in `stops` end a turn, too."""
    tokenizer = tokenizer or word_tokenizer(["please say yes or no . maybe later"])
    own = {name: settings.pop(name) for name in OWN if name in settings}
    values = {
        "output_dir": str(out),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 6,
        "learning_rate": 3e-3,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "logging_steps": 1,
        "disable_tqdm": True,
        "save_strategy": "no",
        "seed": 3,
        **settings,
    }
    data = own.pop("data", None) or Dataset.from_list(
        rows or [{"prompt": "please say yes or no ."}, {"prompt": "yes or no ."}] * 8
    )
    model = model or tiny_llama(tokenizer, seed=0)
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids([tokenizer.eos_token, *stops])
    return kind(model, reward_funcs, config(**values), data, processing_class=tokenizer, **own)


def with_rewards(
    trainer: GRPOTrainer, rewards: list[list[float]], lengths: list[int], *, own: Any = None, **output: Any
) -> torch.Tensor:
    """Return the advantages for given token rewards of this process's rows; `own`: True on the policy's tokens."""
    mask = torch.arange(len(rewards[0])) < torch.tensor(lengths)[:, None]
    trainer.response_mask = mask if own is None else own
    trainer.numbers = torch.zeros(trainer.accelerator.num_processes * len(rewards), 1)
    return trainer._advantages(torch.tensor(rewards), {"completion_mask": mask.long(), **output})[0]


def main(out: Path) -> None:
    """Save the advantages of this process, then train two steps."""
    for scale in ("group", "batch"):
        trainer = make_trainer(
            out, per_device_train_batch_size=3, num_generations=2, scale_rewards=scale, gamma=0.5, max_steps=2
        )
        rank, size = trainer.accelerator.process_index, trainer.accelerator.num_processes
        if size != 2:
            raise SystemExit(f"{size} processes")
        rows = slice(3 * rank, 3 * rank + 3)  # the second group lies in both
        width = max(LENGTHS[rows])  # each process pads to its own longest response
        torch.save(
            with_rewards(trainer, [row[:width] for row in REWARDS[rows]], LENGTHS[rows]), out / f"{scale}{rank}.pt"
        )
    trainer.train()
    if trainer.token_rewards is None or len(trainer.token_rewards) != 3:
        raise SystemExit("not three rows of token rewards")

    def said(completions: list[str], **_: Any) -> list[Any]:
        """Say words in the first process alone."""
        return [0.0 if rank else (0.0, "later")] * len(completions)

    from trl.experimental.sdpo import SDPOConfig

    settings = {"teacher_model_kind": "live", "include_environment_feedback": True, "max_steps": 1}
    batch = {"per_device_train_batch_size": 3, "num_generations": 2}
    distilled: Any = make_trainer(out, said, kind=SDPOTrainer, config=SDPOConfig, **batch, **settings)
    distilled.train()
    used = distilled.state.log_history[0]["self_distillation/feedback_used_fraction"]
    if used != 0.5:
        raise SystemExit(f"the teacher read words about {used:.0%} of the samples")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
