"""The compared methods: policies that learn from the same critiques, as spans or as one number per response.

Every method starts at the same weights and samples the same number of rollouts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evidence.plans.search_space import SEARCH_SPACE

ONE_NUMBER = ("reward.placement=last_token", "ppo.gamma=1.0", "ppo.whiten=full")
"""The same δ, summed on the last token, with the discount at which the sum reaches the first token undiminished."""

GROUP = ("rollout.group_size=4", "model.value=none", "ppo.lam=1.0", "optim.value_warmup_steps=0")
"""Four responses per prompt, whose mean is the baseline, in place of a value function."""

GRPO = (*GROUP, "ppo.baseline=group", "ppo.whiten=group", "ppo.loss_mean=response", "ppo.kl_in=loss")
"""The baseline, the scale, the mean over tokens and the KL term of GRPO."""

EXPLAINS_RETURNS = ("ppo.baseline=value", "model.value=model", "ppo.value_clip_range=0.0", "optim.value_lr=3e-3")
"""A value function of its own, not clipped against returns of 8: the head on the policy's trunk explains nothing.

It is the baseline also where the recipe's is the mean of a group.
"""

PROGRAM_CRITIC = ("critic.use=''", "critic.model=''", "refresh.steps=[]", "refresh.audit=0")
"""The task's program is the critic, in place of a learned one."""

SPANS_SEARCHED = ("lr", "beta", "epochs", "gamma", "value", "positive")
NUMBER_SEARCHED = ("lr", "beta", "epochs", "lam", "value_lr", "value")
GROUP_SEARCHED = ("lr", "beta", "epochs", "group_size", "whiten", "kl_in")
"""Six settings each: with twelve trials, more of them would leave every method badly tuned."""


@dataclass(frozen=True, slots=True)
class Method:
    """One way to learn from critiques.

    Attributes:
        label: in tables and pictures.
        settings: by which it differs from the task's recipe, each as "section.key=value".
        searched: names in `SEARCH_SPACE` of the settings that `python -m evidence tune` searches.
        signal: what the policy gets: spans, or one number per response; both from the same critiques, unless `needs`.
        needs: directory of a further model of phase 2; empty for none.
        annotations: file of the annotations of phase 1 that refreshes replay.
        command: the command that trains it.
        leading: one of the methods that get the full number of tuning trials and seeds.
        recorded: its setting is gone; pages show the records of its runs, and no run of it is made.
    """

    label: str
    settings: tuple[str, ...] = ()
    searched: tuple[str, ...] = SPANS_SEARCHED
    signal: Literal["spans", "number", "words"] = "spans"
    needs: str = ""
    annotations: str = "annotations.jsonl"
    command: Literal["train", "rival"] = "train"
    leading: bool = False
    recorded: bool = False


def _ablation(label: str, *settings: str, needs: str = "") -> Method:
    fixed = {setting.partition("=")[0] for setting in settings}
    searched = tuple(name for name in SPANS_SEARCHED if SEARCH_SPACE[name].setting not in fixed)
    return Method(label, settings, searched, needs=needs)


def _number(label: str, *settings: str, searched: tuple[str, ...], needs: str = "", leading: bool = False) -> Method:
    return Method(label, (*ONE_NUMBER, *settings), searched, "number", needs, leading=leading)


def _rival(
    label: str, *settings: str, searched: tuple[str, ...], signal: Literal["number", "words"] = "number"
) -> Method:
    return Method(label, settings, searched, signal, command="rival")


METHODS: Mapping[str, Method] = {
    "text2grad": Method("Text2Grad", leading=True),
    "scalar_ppo": _number("same spans, summed", searched=NUMBER_SEARCHED),
    "ppo": _number("one number (PPO)", *EXPLAINS_RETURNS, searched=NUMBER_SEARCHED, leading=True),
    "scalar_reward_model": _number("learned scalar reward model", searched=NUMBER_SEARCHED, needs="reward_head"),
    "ppo_scalar_reward_model": _number(
        "one learned number (PPO)", *EXPLAINS_RETURNS, searched=NUMBER_SEARCHED, needs="reward_head", leading=True
    ),
    "grpo": _number(
        "one number (GRPO)",
        *GRPO,
        searched=GROUP_SEARCHED,
        leading=True,
    ),
    "dr_grpo": _number(
        "one number (Dr. GRPO)",
        *GROUP,
        "ppo.baseline=group",
        "ppo.whiten=none",
        "ppo.loss_mean=constant",
        searched=("lr", "beta", "epochs", "group_size"),
    ),
    "rloo": _number(
        "one number (RLOO)",
        *GROUP,
        "ppo.baseline=leave_one_out",
        "ppo.whiten=none",
        searched=("lr", "beta", "epochs", "group_size"),
    ),
    "outcome_only": Method(
        "right or wrong (GRPO)",
        ("reward.placement=verdict", "ppo.gamma=1.0", *GRPO),
        GROUP_SEARCHED,
        "number",
    ),
    "text2grad_group": Method(
        "Text2Grad (group baseline)",
        (*GROUP, "ppo.baseline=group"),
        ("lr", "beta", "epochs", "gamma", "group_size", "positive"),
        leading=True,
    ),
    "dpo": _rival(
        "DPO",
        "rollout.group_size=4",
        searched=("lr", "rounds", "passes", "group_size", "dpo_beta"),
    ),
    "sft_best": _rival(
        "imitation of the best responses",
        "rollout.group_size=4",
        "rival.keep=0.25",
        searched=("lr", "rounds", "passes", "group_size", "keep"),
    ),
    "ilf": _rival(
        "ILF (perfect refiner)",
        "rival.keep=1.0",
        searched=("lr", "rounds", "passes", "keep"),
        signal="words",
    ),
    "sdpo": _rival("SDPO", searched=("lr", "rounds", "epochs"), signal="words"),
    "reflection": _rival("reflection at inference", searched=(), signal="words"),
    **{
        f"process_{rule}": Method(
            f"one number per {rule.removesuffix('s')}",
            (f"reward.placement={rule}", "ppo.gamma=1.0"),
            ("lr", "beta", "epochs", "gamma", "lam", "value"),
        )
        for rule in ("lines", "sentences", "clauses")
    },
    "recipe_settings": Method("Text2Grad (the recipe's settings)", searched=()),
    "gamma_1": _ablation("Text2Grad (γ = 1)", "ppo.gamma=1.0"),
    "gamma_0": _ablation("Text2Grad (γ = 0)", "ppo.gamma=0.0"),
    "lambda_1": _ablation("Text2Grad (λ = 1)", "ppo.lam=1.0"),
    "frozen": _ablation("Text2Grad (frozen reward model)", "refresh.steps=[]"),
    "annotator_spans": _ablation(
        "Text2Grad (the annotator's own spans)", "critic.model=''", "refresh.steps=[]", "refresh.audit=0"
    ),
    "no_words": _ablation(
        "Text2Grad (spans without words)",
        'critic.quote_limits=["one_list"]',  # the other limits concern the feedback
        needs="reward_model_without_words",
    ),
    "dense_labels": _ablation(
        "Text2Grad (a label per word)",
        "critic.quote_limits=[]",
        needs="reward_model_dense",
    ),
    "verdicts_only": Method(
        "Text2Grad (critiques without truths)",
        ("world.truths=false",),
        needs="reward_model_of_verdicts",
        annotations="verdicts.jsonl",
    ),
    "linear_decay": _ablation("Text2Grad (linear decay)", "reward.weighting=linear_decay"),
    "token_importance": _ablation("Text2Grad (token importance)", "reward.weighting=token_importance"),
    "last_token": _ablation("Text2Grad (reward on the last token)", "reward.placement=last_token"),
    "span_mass_span": _ablation("Text2Grad (1 per span)", "reward.span_mass=span"),
    "span_mass_response": _ablation("Text2Grad (divided by length)", "reward.span_mass=response"),
    "positive_only": _ablation("Text2Grad (positive spans only)", "reward.negative=0.0"),
    "negative_only": _ablation("Text2Grad (negative spans only)", "reward.positive=0.0"),
    "unlabelled_1": _ablation("Text2Grad (unlabelled tokens +1)", "reward.unlabelled=1.0"),
    "balanced": Method("Text2Grad (balanced credit)", recorded=True),
    "strict": _ablation("Text2Grad (strict boundaries)", "reward.mode=strict"),
    "last_wins": _ablation("Text2Grad (the last span wins)", "reward.overlap=last_wins"),
}
"""Name in results, directories and on the command line → the method."""

# The best of the tried learning rates for one number per response: evidence/results/quickstart.md.
SCALAR_LR: Mapping[str, float] = {"summarization": 1e-3, "code": 1e-3, "qa": 5e-4}


def settings(method: str, task: str, phases: Path) -> list[str]:
    """Return the settings by which a method differs from the recipe, each as "section.key=value".

    Args:
        method: a key of `METHODS`.
        task: name of the task.
        phases: directory of the models of phases 1 and 2.
    """
    chosen = METHODS[method]
    found = [f"model.path='{phases / 'start'}'"]
    if chosen.needs == "reward_head":
        found += ["critic.kind=scalar", "refresh.audit=0"]
    found.append(f"critic.model='{phases / (chosen.needs or 'reward_model')}'")
    found.append(f"refresh.replay_from='{phases / chosen.annotations}'")
    found += chosen.settings
    one_number = chosen.signal == "number" and chosen.command == "train"
    return [*found, f"optim.lr={SCALAR_LR[task]}"] if one_number else found
