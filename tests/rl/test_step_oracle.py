"""Whole steps of the trainer against `step_oracle`, a second implementation in float64 that shares no mathematics.

Each case is a recipe and a few consecutive steps of a tiny random model under a critic whose spans are chosen here.
After every step the weights, the numbers per token in `rollouts/`, the metrics and β must be the oracle's.
"""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from step_oracle import Oracle, Response, Step
from text2grad import Critique, Example, Span, Text2GradTrainer
from text2grad.config import make_recipe
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Conversation, Given, Rollout, Turn

WORDS = ["red", "blue", "green", "one", "two", "three", "cat", "dog", "bird", "runs", "sleeps", "eats"]
ENDINGS = ["</s>", "cat", " two"]  # so that some responses end before the length limit
EXAMPLES = [Example(" ".join((WORDS[i:] + WORDS[:i])[: 1 + i % 4])) for i in range(12)]  # one to four tokens

FEEDBACK = "Feedback on an earlier answer:\n<feedback>\nScripted.\n</feedback>\n\n"

BASE: dict[str, dict[str, Any]] = {
    "rollout": {"batch_size": 8, "max_new_tokens": 6, "temperature": 0.7},
    "model": {"prompt_format": "plain"},
    "critic": {"max_failure_rate": 1.0},
    "ppo": {
        "gamma": 0.9,
        "lam": 0.7,
        "beta": 0.6,
        "epochs": 2,
        "minibatches": 2,
        "micro_batch_tokens": 20,
        "vf_coef": 0.5,
    },
    "optim": {"lr": 4e-3, "value_lr": 3e-2, "schedule": "constant"},
    "run": {"steps": 4, "seed": 5, "threads": 1, "tracker": "none"},
}


@dataclass(frozen=True)
class Case:
    """A recipe's difference from `BASE`, the model's family, and how many steps are made."""

    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    family: str = "llama"
    steps: int = 2
    max_grad_norm: float = 2.5  # so that some gradients are clipped and some are not
    horizon: int = 10_000  # of the adaptive β, in responses
    turns: bool = False  # whether responses are cut into turns, with given ids between them


def case(**chosen: Any) -> Case:
    named = {
        name: chosen.pop(name) for name in ("family", "steps", "max_grad_norm", "horizon", "turns") if name in chosen
    }
    return Case(chosen, **named)


CASES: dict[str, Case] = {
    "a value head on the trunk": case(steps=3),
    "one minibatch of all rows": case(
        ppo={"minibatches": 1, "epochs": 3, "whiten": "none", "gamma": 1.0, "micro_batch_tokens": 24},
        max_grad_norm=100.0,
    ),
    "no value function": case(
        model={"value": "none"},
        ppo={"kl": "full", "whiten": "scale", "minibatches": 4},
        optim={"value_warmup_steps": 2},
        reward={"placement": "last_token", "truncated": -0.5, "positive": 0.5, "negative": -2.0, "unlabelled": 0.1},
    ),
    "a value function of its own": case(
        model={"value": "model"},
        ppo={"whiten": "scale", "value_clip_range": 0.01},
        optim={"value_lr": 5e-3},
        reward={"truncated": 0.7},
    ),
    "values on the trunk of another architecture": case(
        family="gpt2",
        ppo={"kl": "full", "whiten": "none", "entropy_coef": 0.3, "value_clip_range": 0.0, "vf_coef": 1.5},
        reward={"unlabelled": -0.2, "overlap": "negative_wins", "truncated": 0.4},
    ),
    "adapters of policy and value function": case(
        model={"value": "adapter", "lora_r": 2, "lora_alpha": 6},
        ppo={"kl": "full", "clip_range": 0.05, "value_clip_range": 0.02},
        max_grad_norm=0.3,
        reward={"mode": "contract", "overlap": "last_wins", "span_mass": "response"},
    ),
    "an adapter for the policy": case(
        steps=3,
        model={"lora_r": 2, "lora_alpha": 4},
        ppo={"entropy_coef": 0.05, "vf_coef": 0.0},
        reward={"mode": "strict", "span_mass": "span"},
    ),
    "spans that fade": case(
        steps=3,
        ppo={"clip_range": 0.02, "epochs": 1},
        optim={"schedule": "linear"},
        reward={"weighting": "linear_decay", "overlap": "last_wins", "span_mass": "span"},
    ),
    "spans that decay": case(
        run={"seed": 8},
        steps=3,
        ppo={"lam": 1.0, "gamma": 0.5, "whiten": "none"},
        optim={"schedule": "cosine"},
        reward={"weighting": "linear_decay", "overlap": "negative_wins", "placement": "last_token"},
    ),
    "GRPO: one number, group mean and deviation, KL in the loss": case(
        run={"seed": 6},
        steps=3,
        model={"value": "none"},
        rollout={"group_size": 4},
        ppo={
            "baseline": "group",
            "whiten": "group",
            "loss_mean": "response",
            "kl_in": "loss",
            "gamma": 1.0,
            "lam": 1.0,
        },
        reward={"placement": "last_token"},
    ),
    "outcome only: right or wrong": case(
        run={"seed": 6},
        model={"value": "none"},
        rollout={"group_size": 2},
        ppo={"baseline": "leave_one_out", "whiten": "none"},
        reward={"placement": "verdict", "positive": 0.5, "negative": -2.0},
    ),
    "RLOO: the mean of the others, KL in the reward": case(
        model={"value": "none"},
        rollout={"group_size": 2},
        ppo={"baseline": "leave_one_out", "whiten": "none", "loss_mean": "constant"},
    ),
    "spans over the mean of the group": case(
        run={"seed": 6},
        steps=3,
        model={"value": "none"},
        rollout={"group_size": 4},
        ppo={"baseline": "group", "kl_in": "loss", "loss_mean": "constant", "target_kl": 1.5},
        horizon=20,
        reward={"positive": 0.4, "negative": -1.5},
    ),
    "self-distillation by the average of the policies": case(
        steps=3,
        model={"value": "none"},
        ppo={"credit": "self_teacher", "teacher_update_rate": 0.4, "whiten": "scale", "beta": 0.1},
        reward={"truncated": -0.5},
    ),
    "spans gated by the policy itself, over the group": case(
        steps=3,
        model={"value": "none", "lora_r": 2, "lora_alpha": 6},
        rollout={"group_size": 2},
        ppo={"credit": "gated", "teacher_update_rate": 1.0, "whiten": "none", "baseline": "group", "kl_in": "loss"},
        reward={"positive": 0.5, "negative": -2.0, "unlabelled": 0.3, "weighting": "linear_decay"},
    ),
    "turns, and a discount between them": case(
        steps=3,
        turns=True,
        ppo={"gamma_turn": 0.4, "kl": "full", "entropy_coef": 0.05},
        reward={"placement": "clauses", "span_mass": "response", "truncated": -0.5},
    ),
    "turns without a discount between them, over the group": case(
        turns=True,
        run={"seed": 1},
        model={"value": "none", "lora_r": 2, "lora_alpha": 6},
        rollout={"group_size": 4},
        ppo={"gamma": 0.6, "gamma_turn": 1.0, "baseline": "group", "whiten": "none", "loss_mean": "response"},
    ),
    "turns with values of their own": case(turns=True, model={"value": "model"}, optim={"value_lr": 5e-3}),
    "turns, and a teacher that reads them, too": case(
        turns=True, model={"value": "none"}, ppo={"credit": "gated", "whiten": "scale", "gamma_turn": 0.0}
    ),
    "marks that weigh by what is said of them": case(
        reward={"severity": {"minor": 0.25}, "raters": {"Ann": 1.5}, "categories": {"style": 0.5, "fact": 9.0}}
    ),
    "one number per line": case(reward={"placement": "lines"}, ppo={"lam": 1.0}),
    "one number per sentence": case(reward={"placement": "sentences"}, ppo={"gamma": 1.0}),
    "one number per clause": case(run={"seed": 6}, reward={"placement": "clauses"}, steps=3),
    "a rise, then a linear fall": case(steps=3, optim={"schedule": "linear", "warmup_steps": 1}),
    "a rise, then half a cosine": case(steps=3, optim={"schedule": "cosine", "warmup_steps": 1}),
    "the value function first": case(steps=3, optim={"value_warmup_steps": 1}),
    "β that is steered": case(steps=4, horizon=20, ppo={"target_kl": 1.5}),
    "β that is steered at once": case(steps=4, horizon=3, ppo={"target_kl": 1.6, "kl": "full"}),
}


def made_sections(chosen: Case) -> dict[str, dict[str, Any]]:
    return {name: {**BASE.get(name, {}), **chosen.sections.get(name, {})} for name in {*BASE, *chosen.sections}}


SAID: list[dict[str, Any]] = [{"severity": "Minor"}, {"rater": "ann", "category": "style"}, {}]


class ScriptedCritic:
    """Gives each row another kind of critique, and another at the next call; every critique is remembered."""

    def __init__(self) -> None:
        self.calls: list[list[Critique]] = []

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        shift = 3 * len(self.calls)
        self.calls.append([self.judge(text, (row + shift) % 8) for row, text in enumerate(responses)])
        return self.calls[-1]

    @staticmethod
    def judge(text: str, kind: int) -> Critique:
        n = len(text)
        third, half = n // 3, n // 2
        whole_words = [i for i, letter in enumerate(text) if letter == " "] + [n]  # " red" is one token
        pieces = list(pairwise(whole_words))
        spans, outcome, status = {
            0: ([Span(0, half, "positive"), Span(half, n, "negative")], None, "ok"),
            1: ([Span(a, b, "negative" if a % 2 else "positive", **SAID[a % 3]) for a, b in pieces], 0.7, "repaired"),
            2: ([Span(0, half, "positive")], 5.0, "unparsable"),
            3: ([], None, "ok"),
            4: ([Span(0, n, "negative"), Span(third, n, "positive"), Span(half, n, "negative")], -0.5, "ok"),
            5: ([Span(min(1, n), max(n - 1, min(1, n)), "positive"), Span(0, 0, "negative")], None, "ok"),
            6: ([Span(0, n, "negative")], -3.0, "timed_out"),
            7: ([Span(0, third, "negative"), Span(0, n, "positive"), Span(half, n, "positive")], 0.0, "ok"),
        }[kind]
        return Critique("Scripted.", tuple(spans), outcome, status)


class InTurns(Text2GradTrainer):
    """Takes each response as a trajectory: after some sampled ids the policy was given words of its prompt."""

    def sample(self, early: Any = None) -> list[Rollout]:
        self.last = [self.in_turns(rollout, row) for row, rollout in enumerate(super().sample(early))]
        return self.last

    def in_turns(self, rollout: Rollout, row: int) -> Rollout:
        count, asked = len(rollout.response_ids), rollout.prompt_ids
        places = [place for place in [(), (1, 3), (2,), (1, count)][row % 4] if place <= count]
        given = tuple(Given(place, (asked * 3)[: 1 + (row + place) % 3]) for place in places)
        cut = replace(rollout, engine_logp=(), given=given)  # in the pass that sampled them nothing was given
        turns = [Turn("user", rollout.example.prompt_text)]
        for ids in filter(None, cut.sampled_turns()):
            text = self.tokenizer.decode(list(ids), skip_special_tokens=True)
            turns += [Turn("assistant", text, sampled=True), Turn("tool", "what it was given")]
        return replace(cut, response=Conversation(turns))


@dataclass
class After:
    """What the trainer left behind after a step, beside what the oracle expects."""

    weights: dict[str, torch.Tensor]
    records: list[dict[str, Any]]
    metrics: dict[str, float]
    returned: dict[str, float]
    beta: float
    expected: Step


@dataclass
class Run:
    """The steps of a case."""

    recipe: Any
    began: dict[str, torch.Tensor]
    steps: list[After]


def make_model(family: str, tokenizer: Any) -> Any:
    """Return a random model whose next tokens differ by several nats."""
    if family == "llama":
        model = tiny_llama(tokenizer, seed=1, width=16, layers=1, context=64)
    else:
        torch.manual_seed(2)
        ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=2, n_positions=64, **ids)
        )
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(3.0 if family == "llama" else 12.0)
    return model


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def trainable(trainer: Text2GradTrainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}


def run_case(chosen: Case, out: Path) -> Run:
    """Make the steps of a case with the trainer and with the oracle."""
    tokenizer = word_tokenizer([" ".join(WORDS), " " + " ".join(reversed(WORDS))])
    model = make_model(chosen.family, tokenizer)
    base = copy.deepcopy(model)
    endings = tokenizer.convert_tokens_to_ids(ENDINGS)
    sections = made_sections(chosen)
    sections["rollout"]["eos_token_ids"] = endings
    sections["run"]["out"] = str(out)
    recipe, critic = make_recipe(sections), ScriptedCritic()
    made = InTurns if chosen.turns else Text2GradTrainer
    trainer = made(model, critic, EXAMPLES, recipe, processing_class=tokenizer)
    trainer.optimizers.max_grad_norm, trainer.kl.horizon = chosen.max_grad_norm, chosen.horizon
    began = trainable(trainer)
    oracle, steps = Oracle(base, began, tokenizer, recipe, chosen.max_grad_norm, chosen.horizon), []
    for number in range(chosen.steps):
        returned = trainer.train_step().metrics
        assert trainer.step == number + 1
        records = [r for file in sorted((out / "rollouts").glob("*")) for r in lines(file) if r["step"] == number]
        metrics = lines(out / "metrics.jsonl")[number]
        rollouts = trainer.last if isinstance(trainer, InTurns) else [Rollout(Example(""), (1,), (), "", False)] * 8
        responses = [
            Response(
                prompt_ids=tokenizer(record["prompt"]).input_ids,
                ids=record["ids"],
                text=record["response"],
                critique=critique,
                truncated=record["ids"][-1] not in endings,
                told_ids=tokenizer(f"{FEEDBACK}{record['prompt']}").input_ids,
                given={given.place: list(given.ids) for given in rollout.given},
            )
            for record, critique, rollout in zip(records, critic.calls[number], rollouts, strict=True)
        ]
        steps.append(After(trainable(trainer), records, metrics, returned, trainer.kl.beta, oracle(responses)))
    return Run(recipe, began, steps)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Return the run of a named case, made once."""
    made: dict[str, Run] = {}

    def found(name: str) -> Run:
        if name not in made:
            made[name] = run_case(CASES[name], tmp_path_factory.mktemp("run"))
        return made[name]

    return found


every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_the_weights_after_each_step_are_those_of_the_oracle(name: str, run_of: Callable[[str], Run]) -> None:
    # AdamW moves a weight by about its learning rate at once. Where a gradient is far below its eps of 1e-5, fp32's
    # noise of 1e-7 in it becomes a hundredth of that; typical is a ten-thousandth.
    run = run_of(name)
    for number, after in enumerate(run.steps):
        assert after.weights.keys() == after.expected.weights.keys()
        for key, weight in after.weights.items():
            off = float((weight.double() - after.expected.weights[key]).abs().max())
            assert off <= 0.03 * min(run.recipe.optim.lr, run.recipe.optim.value_lr), (number, key, off)


@every_case
def test_the_numbers_of_each_token_are_those_of_the_oracle(name: str, run_of: Callable[[str], Run]) -> None:
    for number, after in enumerate(run_of(name).steps):
        for row, (record, expected) in enumerate(zip(after.records, after.expected.records, strict=True)):
            for key, values in expected.items():
                # Files hold δ with four decimals and the others with five.
                assert record[key] == pytest.approx(values, rel=1e-3, abs=1e-4), (number, row, key)


@every_case
def test_the_metrics_of_each_step_are_those_of_the_oracle(name: str, run_of: Callable[[str], Run]) -> None:
    for number, after in enumerate(run_of(name).steps):
        assert {"step": number, **after.returned} == after.metrics
        found = {key: after.metrics.get(key) for key in after.expected.metrics}
        assert found == pytest.approx(after.expected.metrics, rel=1e-3, abs=1e-4), number


@every_case
def test_the_coefficient_of_the_kl_penalty_moves_as_the_oracles(name: str, run_of: Callable[[str], Run]) -> None:
    for number, after in enumerate(run_of(name).steps):
        assert after.beta == pytest.approx(after.expected.beta, rel=1e-4), number


# --- The cases reach what they are for --------------------------------------------------------------------------------


@pytest.mark.parametrize("section", ["ppo", "reward", "optim"])
def test_the_cases_use_every_setting_and_each_of_its_choices(section: str) -> None:
    recipes = [make_recipe(made_sections(chosen)) for chosen in CASES.values()]
    default = getattr(make_recipe({}), section)
    for name, setting in type(default).model_fields.items():
        used = {getattr(getattr(recipe, section), name) for recipe in recipes}
        assert used - {getattr(default, name)}, f"{section}.{name} is never set"
        choices = {choice for choice in get_args(setting.annotation) if isinstance(choice, str)}
        assert choices <= used, f"{section}.{name} never is {choices - used}"


def test_the_cases_use_every_form_of_the_value_function() -> None:
    used = {made_sections(chosen).get("model", {}).get("value", "trunk") for chosen in CASES.values()}
    assert used == {"none", "trunk", "adapter", "model"}


def test_some_gradients_are_clipped_and_some_are_not(run_of: Callable[[str], Run]) -> None:
    # Where every gradient is clipped, a wrong factor on a loss is divided out again and would not show in a weight.
    run = run_of("a value head on the trunk")
    norms = [found["update/policy_grad_norm"] for after in run.steps for found in after.expected.minibatches]
    assert min(norms) < CASES["a value head on the trunk"].max_grad_norm < max(norms)


@every_case
def test_responses_that_ended_and_responses_that_were_cut_come_up(name: str, run_of: Callable[[str], Run]) -> None:
    shares = {after.expected.metrics["length/truncated_share"] for after in run_of(name).steps[1:]}
    assert any(0 < share < 1 for share in shares)  # from the second step on values are not zero


def test_a_cut_response_whose_critique_failed_comes_up_where_the_cut_is_paid(run_of: Callable[[str], Run]) -> None:
    run = run_of("values on the trunk of another architecture")
    assert run.recipe.reward.truncated
    failed = [after.expected.failed for after in run.steps]
    cut = [[record["truncated"] for record in after.records] for after in run.steps]
    assert any(a and b for rows in zip(failed, cut, strict=True) for a, b in zip(*rows, strict=True))


@pytest.mark.parametrize("name", ["β that is steered", "β that is steered at once"])
def test_the_steered_coefficient_falls_rises_and_moves_by_less_than_the_most(
    name: str, run_of: Callable[[str], Run]
) -> None:
    run = run_of(name)
    errors = [after.expected.metrics["kl/per_sequence"] / run.recipe.ppo.target_kl - 1 for after in run.steps]
    assert min(errors) < -0.2
    assert max(errors) > 0.2
    assert any(0.01 < abs(error) < 0.19 for error in errors), errors
