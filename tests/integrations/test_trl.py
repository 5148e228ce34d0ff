"""TRL's GRPOTrainer with token rewards: advantages by hand, the loss beside our own, learning, refusals."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from peft import LoraConfig
from trl.trainer import grpo_trainer

import small_trl
from small_trl import LENGTHS, REWARDS, make_trainer, with_rewards
from text2grad.errors import ConfigError, CriticError
from text2grad.integrations import GRPOTrainer
from text2grad.integrations.trl_words import _anchored
from text2grad.models import collate
from text2grad.rl import JudgedIds
from text2grad.rl.advantages import group_advantages
from text2grad.rl.ppo import TokenMean, policy_loss
from text2grad.tasks.tiny import word_tokenizer
from text2grad.types import Conversation, Critique, Example, Rollout, Span, Turn
from text2grad_studio.columns import Filter
from text2grad_studio.index import RunIndex
from text2grad_studio.sources import open_sources
from warm_commands import Warm

# TRL's own default
pytestmark = pytest.mark.filterwarnings(
    "ignore:.(is_)?gradient_checkpointing(_disable|_enable)?. is deprecated:FutureWarning"
)


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[..., GRPOTrainer]:
    return partial(make_trainer, tmp_path / "out")


def length(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Return the number of tokens, a reward function of TRL."""
    return [float(len(ids)) for ids in completion_ids]


def test_advantages_are_made_by_hand(trainer: Callable[..., GRPOTrainer]) -> None:
    one = trainer(num_generations=2, scale_rewards="none", gamma=0.5)
    # returns at γ = 0.5: 0.5 + 1 · 0.5 = (0 + 0.5, 1) = (0.5, 1), mean 0.75; (-1), mean -1; the group's mean -0.125
    found = with_rewards(one, [[0.0, 1.0], [-1.0, 0.0]], [2, 1])
    assert found.tolist() == [[0.625, 1.125], [-0.875, 0.0]]
    # what tools answered has no advantage and no reward: the returns are 0 and -1, the group's mean -0.5
    tools = torch.tensor([[1, 0], [1, 0]])
    found = with_rewards(one, [[0.0, 0.0], [-1.0, 0.0]], [2, 1], own=tools.bool(), tool_mask=tools)
    assert found.tolist() == [[0.5, 0.0], [-0.5, 0.0]]
    # what a tool wrote between two tokens is no step: returns of 0.5 · 1 and 1, mean 0.75, and of -1; their mean -0.125
    between = torch.tensor([[1, 0, 1], [1, 0, 0]])
    rewards = [[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0]]
    found = with_rewards(one, rewards, [3, 1], own=between.bool(), tool_mask=between, completion_mask=between | 1)
    assert found.tolist() == [[0.625, 0.0, 1.125], [-0.875, 0.0, 0.0]]
    # of a truncated response TRL masks all tokens: its return, -1, stays in the mean
    cut = torch.tensor([[1, 1], [0, 0]])
    for masks in ({"completion_mask": cut, "tool_mask": cut}, {"completion_mask": cut}):
        found = with_rewards(one, [[0.0, 1.0], [-1.0, 0.0]], [2, 1], **masks)
        assert found.tolist() == [[0.625, 1.125], [0.0, 0.0]]
    # a truncated response that TRL leaves out of the loss still belongs to the group; the batch may be padded wider
    wide = torch.tensor([[0, 0, 0], [1, 0, 0]])
    left_out = with_rewards(one, [[0.0, 1.0], [-1.0, 0.0]], [2, 1], completion_mask=wide)
    assert left_out.tolist() == [[0.0, 0.0, 0.0], [-0.875, 0.0, 0.0]]


@pytest.mark.parametrize(("scale", "leave_one_out"), [("group", False), ("batch", False), ("none", True)])
def test_the_scale_of_advantages_is_trls(trainer: Callable[..., GRPOTrainer], scale: str, leave_one_out: bool) -> None:
    one = trainer(num_generations=2, scale_rewards=scale, leave_one_out=leave_one_out)
    found = with_rewards(one, REWARDS, LENGTHS)
    mask = one.response_mask
    plain = group_advantages(
        torch.tensor(REWARDS),
        mask,
        group_size=2,
        gamma=1.0,
        lam=1.0,
        leave_one_out=leave_one_out,
        scale=scale == "group",
    ).advantages
    expected = plain / plain[mask].std() if scale == "batch" else plain
    # whitening without centring: the deviation is about the mean
    torch.testing.assert_close(found, expected, atol=1e-4 if scale == "batch" else 1e-7, rtol=0)


@pytest.mark.parametrize(
    ("loss_type", "mean"),
    [("grpo", TokenMean("response")), ("dapo", TokenMean("token")), ("dr_grpo", TokenMean("constant", 6))],
)
def test_loss_and_gradient_are_those_of_our_own_trainer(
    trainer: Callable[..., GRPOTrainer], loss_type: str, mean: TokenMean
) -> None:
    one = trainer(loss_type=loss_type, gamma=0.5, scale_rewards="group")
    one.model.train()
    one.current_gradient_accumulation_steps = 1
    inputs = one._prepare_inputs([{"prompt": "please say yes or no ."}] * 4 + [{"prompt": "yes or no ."}] * 4)
    one.model.zero_grad()
    theirs = one.compute_loss(one.model, inputs)
    theirs.backward()
    gradient = {name: value.grad.clone() for name, value in one.model.named_parameters() if value.grad is not None}

    rollouts = [
        Rollout(
            Example(""),
            tuple(prompt[prompt_mask.bool()].tolist()),
            tuple(ids[mask.bool()].tolist()),
            "",
            False,
        )
        for prompt, prompt_mask, ids, mask in zip(
            inputs["prompt_ids"],
            inputs["prompt_mask"],
            inputs["completion_ids"],
            inputs["completion_mask"],
            strict=True,
        )
    ]
    assert inputs["advantages"].shape == inputs["completion_ids"].shape
    assert inputs["advantages"].abs().sum() > 0
    one.model.zero_grad()
    batch = collate(rollouts, pad_id=0)
    logp = response_logprobs_of(one.model, batch)
    tokens = int(batch.response_mask.sum())
    weights = mean.weights(batch.response_mask, token_count=tokens, row_count=len(rollouts))
    ours = policy_loss(
        logp, logp.detach(), inputs["advantages"] * weights, batch.response_mask, clip_range=0.2, token_count=tokens
    ).loss
    ours.backward()
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-5)
    for name, value in one.model.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(value.grad, gradient[name], atol=1e-5, rtol=1e-4)
    assert sum(value.abs().sum() for value in gradient.values()) > 1e-2


def response_logprobs_of(model: Any, batch: Any) -> torch.Tensor:
    """Return log π of the response tokens by a plain forward pass, [B, T]."""
    logits = model(batch.ids).logits.log_softmax(-1)
    rows = []
    for row, (start, ids) in enumerate(zip(batch.prompt_lengths.tolist(), batch.response_ids, strict=True)):
        places = torch.arange(start - 1, start - 1 + len(ids)).clamp(max=logits.shape[1] - 1)
        rows.append(logits[row, places, ids])
    return torch.stack(rows)


def test_it_learns_the_words_that_the_critic_praises(trainer: Callable[..., GRPOTrainer]) -> None:
    one = trainer(max_steps=25, learning_rate=1e-2, gamma=0.0)
    one.train()
    logged = [
        log["rewards/yes_is_positive/mean"] for log in one.state.log_history if "rewards/yes_is_positive/mean" in log
    ]
    assert logged[0] < 1
    assert sum(logged[-3:]) / 3 > 4  # of 6 words
    last = next(log for log in reversed(one.state.log_history) if "critic/failure_rate" in log)
    assert last["critic/failure_rate"] == 0
    assert last["critic/positive_spans"] == pytest.approx(last["rewards/yes_is_positive/mean"], abs=1e-6)


@pytest.mark.parametrize("checkpoint", [2, 4, 6])
def test_a_resumed_training_ends_with_the_same_weights(
    trainer: Callable[..., GRPOTrainer], tmp_path: Path, checkpoint: int
) -> None:
    # epochs of 4 steps with the prompts in another order each; TRL begins with the first epoch's order
    rows = [{"prompt": " ".join(["yes"] * length)} for length in range(1, 9)]
    seen: list[str] = []

    def critic(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        seen.extend(str(one.prompt) for one in examples)
        return small_trl.yes_is_positive(examples, responses)

    whole = trainer(critic, rows=rows, max_steps=9, save_strategy="steps", save_steps=checkpoint)
    whole.train()
    expected = seen.copy()
    assert expected[:32] != expected[32:64]
    seen.clear()
    resumed = trainer(critic, rows=rows, max_steps=9)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / f"checkpoint-{checkpoint}"))
    assert seen == expected[8 * checkpoint :]
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[name]), name


def test_the_critic_sees_the_columns_and_other_rewards_stand_on_the_last_token(
    trainer: Callable[..., GRPOTrainer],
) -> None:
    seen: list[Example] = []

    def critic(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        seen.extend(examples)
        return [Critique("", outcome=0.25)] * len(responses)

    # a column "meta" is the object of text2grad's own files
    row = {"prompt": "yes or no .", "reference": "no", "tests": "t", "difficulty": 3, "meta": {"passage": "p"}}
    one = trainer(
        [critic, length],
        rows=[row] * 8,
        reward_weights=[1.0, 2.0],
        max_steps=1,
    )
    one.train()
    assert (seen[0].prompt, seen[0].reference, seen[0].tests) == ("yes or no .", "no", "t")
    assert seen[0].meta == {"difficulty": 3, "passage": "p"}
    lengths = one.response_mask.sum(dim=1)
    expected = torch.zeros_like(one.token_rewards)
    expected[torch.arange(len(lengths)), lengths - 1] = 0.25 + 2.0 * lengths
    torch.testing.assert_close(one.token_rewards, expected)


def said(trainer: GRPOTrainer, ids: list[list[int]]) -> JudgedIds:
    """Return what the first reward function says about responses."""
    texts = trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
    trainer._calculate_rewards([{"prompt": "yes"}] * len(ids), ["yes"] * len(ids), texts, ids)
    return trainer.judged[0]


def test_rewards_follow_the_section_of_a_recipe(trainer: Callable[..., GRPOTrainer]) -> None:
    one = trainer(reward={"positive": 0.5, "negative": -2.0, "unlabelled": 0.125, "truncated": -1.0})
    tokenizer = one.processing_class
    ids = [tokenizer("please yes later").input_ids, [*tokenizer("please maybe").input_ids, tokenizer.eos_token_id]]
    judged = said(one, ids)
    rewards, mask = judged.rewards, judged.response_mask
    # yes 0.5, later -2 and cut: -1 more; maybe -2; the others 0.125
    assert rewards.tolist() == [[0.125, 0.5, -3.0], [0.125, -2.0, 0.125]]
    assert mask.all()
    one = trainer(reward={"placement": "last_token"})
    judged = said(one, ids)
    assert judged.rewards.tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, -1.0]]


def test_quotes_are_matched_and_spans_weighed_as_asked(trainer: Callable[..., GRPOTrainer]) -> None:
    def critic(examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
        return ['{"textual_feedback": "So.", "good_spans": ["YES  or"], "poor_spans": []}'] * len(responses)

    found = {}
    for match in ("exact", "normalized"):
        one = trainer(critic, reward={"span_mass": "span"}, match=match)
        found[match] = said(one, [one.processing_class("please yes or later").input_ids]).rewards
    assert found["exact"].tolist() == [[0.0] * 4]
    assert found["normalized"].tolist() == [[0.0, 0.5, 0.5, 0.0]]  # one span of mass 1


def test_a_critic_that_cannot_be_read_stops_the_training(trainer: Callable[..., GRPOTrainer]) -> None:
    one = trainer(lambda examples, responses: ['{"feedback": "cut'] * len(responses), max_steps=3)
    with pytest.raises(CriticError, match="100% of the last 8 critiques could not be read"):
        one.train()


@pytest.mark.parametrize("form", ["plain", "chat", "parsed"])
def test_the_studio_shows_the_critiques_of_logged_completions(
    trainer: Callable[..., GRPOTrainer], tmp_path: Path, form: str
) -> None:
    text = "please say yes or no ."
    tokenizer = word_tokenizer([text, "maybe later"])
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    if form == "parsed":  # TRL takes white space and reasoning out of the completion, and leaves special tokens in it
        fields = {
            "reasoning_content": {"open": " say", "close_pattern": " or", "content": "text"},
            "content": {"close_pattern": "</s>", "content": "text"},
        }
        tokenizer.response_template = {"start_anchor": text, "fields": fields, "defaults": {"role": "assistant"}}
    seen: list[str] = []

    def critic(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        seen.extend(responses)
        found = small_trl.yes_is_positive(examples, responses)
        return [Critique(f"Of {one!r}.", two.spans) for one, two in zip(responses, found, strict=True)]

    prompt = text if form == "plain" else [{"role": "user", "content": text}]
    settings = {"max_steps": 2, "log_completions": True, "num_completions_to_print": 0}
    trainer(critic, rows=[{"prompt": prompt}] * 8, tokenizer=tokenizer, **settings).train()

    [first, _] = sorted((tmp_path / "out" / "completions").glob("*.parquet"))
    table = pq.read_table(first).to_pylist()
    assert [row["critique"] for row in table] == [f"Of {one!r}." for one in seen[:8]]
    for row, response in zip(table, seen, strict=False):
        found = row["completion"] if isinstance(row["completion"], str) else row["completion"][0]["content"]
        assert json.loads(row["critique_spans"]).get("response", found) == response
    assert any('"response"' in row["critique_spans"] for row in table) == (form == "parsed")

    index = RunIndex(open_sources([tmp_path / "out"], tmp_path / "store")[0], tmp_path / "index.sqlite")
    assert index.update()
    records = [index.record(number) for number in index.find(Filter(order="oldest")).page()]
    assert [record["response"] for record in records] == seen
    marked = set()
    for record in records:
        assert (record["prompt"], record["critique"]["status"]) == (text, "ok")
        assert record["critique"]["feedback"] == f"Of {record['response']!r}."
        for span in record["critique"]["spans"]:
            marked.add((record["response"][span["start"] : span["end"]], span["label"]))
    assert {("yes", "positive"), ("maybe", "negative")} <= marked
    assert marked <= {("yes", "positive"), ("no", "positive"), ("maybe", "negative"), ("later", "negative")}


def test_feedback_that_utf8_cannot_encode_is_logged(trainer: Callable[..., GRPOTrainer], tmp_path: Path) -> None:
    one = trainer(
        lambda examples, responses: [Critique("half \ud83d", unmatched=("\ud83d",))] * len(responses),
        max_steps=1,
        log_completions=True,
    )
    one.train()
    [file] = (tmp_path / "out" / "completions").glob("*.parquet")
    assert pq.read_table(file)["critique"].to_pylist() == ["half \ufffd"] * 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level = 'sequence'"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "multi_objective_aggregation"),
    ],
)
def test_settings_that_would_lose_the_spans_are_refused_at_the_first_words(
    trainer: Callable[..., GRPOTrainer], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer(**settings).train()
    trainer(length, max_steps=1, **settings).train()  # numbers lose nothing


@pytest.mark.parametrize(
    ("settings", "message"), [({"gamma": 1.5}, "gamma = 1.5"), ({"reward": {"positve": 1}}, "positve")]
)
def test_wrong_settings_are_refused_before_the_model_is_loaded(
    trainer: Callable[..., GRPOTrainer], monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(grpo_trainer.GRPOTrainer, "__init__", pytest.fail)
    with pytest.raises(ConfigError, match=message):
        trainer(**settings)


@pytest.mark.parametrize("version", ["1.13.0", "1.17.0.dev0", "2.0.0"])
def test_an_untested_version_of_trl_is_refused(
    trainer: Callable[..., GRPOTrainer], monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr("text2grad.models.vllm_sampling.version", lambda package: version)
    with pytest.raises(ConfigError, match=f"installed is {version}"):
        trainer()


def test_a_version_of_trl_that_needs_triton_is_refused_without_it(
    trainer: Callable[..., GRPOTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("text2grad.integrations.trl.version", lambda package: "1.15.2")
    monkeypatch.setattr("text2grad.integrations.trl.is_installed", lambda package: True)
    for there in (True, False):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda there=there: there)
        if there:
            trainer()
        else:
            with pytest.raises(ConfigError, match=r"TRL 1\.15\.2 computes .* by Triton, .*: pip install"):
                trainer()


def test_a_group_may_lie_in_two_processes(warm: Warm, trainer: Callable[..., GRPOTrainer], tmp_path: Path) -> None:
    warm.together(2, "python", small_trl.__file__, tmp_path, ACCELERATE_USE_CPU="true")
    for scale in ("group", "batch"):
        whole = with_rewards(trainer(num_generations=2, scale_rewards=scale, gamma=0.5), REWARDS, LENGTHS)
        parts = [torch.load(tmp_path / f"{scale}{rank}.pt") for rank in (0, 1)]
        assert [part.shape[1] for part in parts] == [3, 2]
        parts[1] = torch.nn.functional.pad(parts[1], (0, 1))
        torch.testing.assert_close(torch.cat(parts), whole, atol=1e-6, rtol=0)


def test_steps_that_are_not_the_policys_are_told_at_the_first_words(
    trainer: Callable[..., GRPOTrainer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer(max_steps=1).train()
    assert "TRL pads prompts" not in caplog.text
    monkeypatch.setattr("text2grad.integrations.trl_words.steps_are_right", lambda *_: False)
    trainer(max_steps=1).train()
    assert "TRL pads prompts on the left and samples by such steps" in caplog.text


def loss_and_gradient(trainer: GRPOTrainer, inputs: dict[str, Any]) -> tuple[float, torch.Tensor, int]:
    """Return the loss, its gradient and the number of tokens that the model reads for it."""
    tokens: list[int] = []
    embedding = trainer.accelerator.unwrap_model(trainer.model).get_input_embeddings()
    hook = embedding.register_forward_hook(lambda module, given, output: tokens.append(given[0].numel()))
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    hook.remove()
    gradients = [value.grad.flatten() for value in trainer.model.parameters() if value.grad is not None]
    return loss.item(), torch.cat(gradients), sum(tokens)


@pytest.mark.parametrize(
    "settings",
    [
        {"entropy_coef": 0.1, "temperature": 0.7},
        {"beta": 0.1, "peft_config": LoraConfig(r=2, target_modules="all-linear"), "mask_truncated_completions": True},
        {"steps_per_generation": 2, "per_device_train_batch_size": 4},  # old log-probs, of two batches
    ],
    ids=["entropy", "LoRA and KL", "old log-probs"],
)
def test_a_training_with_words_reads_each_prompt_once(
    trainer: Callable[..., GRPOTrainer], monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    rows = [{"prompt": "please say yes or no ." * 3}, {"prompt": "yes or no ." * 4}]
    one = trainer(rows=rows * 8, gradient_checkpointing=False, **settings)
    one.model.train()
    one.current_gradient_accumulation_steps = 1
    batch = [rows[number // 4] for number in range(8)]
    inputs = one._prepare_inputs(batch)
    inputs["completion_mask"][0] = 0  # as of a truncated response
    inputs["completion_mask"][:, -1] = 0
    loss, gradient, read = loss_and_gradient(one, inputs)
    monkeypatch.setattr(one, "_reads_prompts_once", lambda policy: False)
    expected, whole, all_read = loss_and_gradient(one, inputs)
    assert loss == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(gradient, whole, atol=1e-6, rtol=0)
    assert whole.abs().max() > 1e-2
    assert read < 0.8 * all_read


def test_other_trainings_have_trls_pass(trainer: Callable[..., GRPOTrainer]) -> None:
    one = trainer(length)
    one.model.train()
    assert not one._reads_prompts_once(one.model)  # numbers alone
    one.critics = [True]
    assert one._reads_prompts_once(one.model)
    one.model.gradient_checkpointing_enable()
    assert not one._reads_prompts_once(one.model)  # no pass leaves keys and values
    one.model.gradient_checkpointing_disable()
    one.model.config.attention_dropout = 0.1
    assert not one._reads_prompts_once(one.model)
    one.model.config.attention_dropout, one.model.dropout = 0.0, torch.nn.Dropout(0.1)
    assert not one._reads_prompts_once(one.model)
    one.model.eval()
    assert one._reads_prompts_once(one.model)


def test_spans_keep_what_is_said_about_them_where_their_places_change() -> None:
    said = Span(0, 7, "negative", None, "No.", "Fact", "major", 0.5, "ann", "rules")
    completion = [{"role": "assistant", "content": "red cat"}]
    anchored = _anchored(Critique("", (said,)), completion, "So red cat")
    assert [span.stated for span in anchored.spans] == [{**said.stated, "start": 3, "end": 10}]


def test_a_span_that_names_a_message_of_trl_stands_in_that_turn() -> None:
    policy, other = partial(Turn, "assistant", sampled=True), partial(Turn, "tool")
    turns = [other("q"), policy(" red<c>"), other("x"), policy("So cat")]
    roles = {"red": "assistant", "x": "tool", "cat": "assistant"}  # TRL takes calls and white space out
    completion = [{"role": role, "content": text} for text, role in roles.items()]

    def anchored(*spans: Span) -> Critique:
        answer: Critique = _anchored(Critique("", spans), completion, Conversation(turns))
        return answer

    spans = anchored(Span(0, 3, "negative", 1), Span(0, 3, "positive", 3)).spans
    assert spans == (Span(1, 4, "negative", 1), Span(3, 6, "positive", 3))  # " red", "So cat"
    given = tuple(Span(0, 1, "negative", turn) for turn in (0, 2, 4, -1))  # whoever asks for these counts them
    assert anchored(*given).spans == given
    assert anchored(Span(0, 3, "negative")).status == "unparsable"  # of no one text
    completion[0]["content"] = "read"
    assert anchored(Span(0, 3, "negative", 1)).status == "unparsable"


def test_a_critic_sees_no_thoughts_and_a_reward_function_marks_what_trl_shows_it(
    trainer: Callable[..., GRPOTrainer],
) -> None:
    seen = list[str]()

    def critic(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        seen.extend(responses)
        return [Critique("", (Span(0, 3, "negative"),))] * len(responses)

    def function(completions: list[str], **_: Any) -> list[Critique]:
        return [Critique("", (Span(0, 3, "negative"),))] * len(completions)

    tokenizer = word_tokenizer(["yes or no", "no or yes"], ["</think>"])
    ids = [tokenizer("yes</think>no or yes").input_ids]  # five tokens; spans are 0-3 of "no or yes", and of all
    assert said(trainer(critic, tokenizer=tokenizer), ids).rewards.tolist() == [[0.0, 0.0, -1.0, -1.0, 0.0]]
    assert seen == ["no or yes"]
    assert said(trainer(function, tokenizer=tokenizer), ids).rewards.tolist() == [[-1.0, 0.0, 0.0, 0.0, 0.0]]
