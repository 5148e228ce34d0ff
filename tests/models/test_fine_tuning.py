"""Fine-tuning: where the loss stands, that it falls, and that the model then does what it was shown."""

import copy
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate.state import AcceleratorState
from torch.optim.optimizer import register_optimizer_step_pre_hook

from text2grad.errors import DataError, ModelError
from text2grad.models import fine_tuning, launch
from text2grad.models.fine_tuning import (
    FineTuning,
    Row,
    conversation_rows,
    fine_tune,
    row_of_ids,
    supervised_trainer,
    train_on_rows,
    training_arguments,
)
from text2grad.models.pretrained import best_device
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Example

HOW_2 = FineTuning(steps=1, batch_size=2)
ANSWERS = {"red": " cat", "blue": " dog runs", "green": " bird", "one": " red red red"}
EXAMPLES = [Example(prompt) for prompt in ANSWERS]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return word_tokenizer([*ANSWERS, *ANSWERS.values()])


@pytest.fixture(scope="module")
def trained(tokenizer: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """A model shown four answers for 30 steps, and its weights before."""
    model = tiny_llama(tokenizer, seed=0, width=32, layers=1, context=16)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    how = FineTuning(steps=30, batch_size=4, learning_rate=0.02, seed=1)
    assert fine_tune(model, tokenizer, EXAMPLES, list(ANSWERS.values()), how) is model
    return model, before


def row_of(tokenizer: Any, prompt: str, answer: str) -> Row:
    (row,) = conversation_rows(tokenizer, [(prompt, answer)], "plain")
    return row


@torch.no_grad()
def loss_of(model: Any, tokenizer: Any) -> float:
    """Return the mean loss of the answers' tokens, end-of-sequence included."""
    total, count = 0.0, 0
    for prompt, answer in ANSWERS.items():
        row = row_of(tokenizer, prompt, answer)
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])
        logp = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        kept = labels[1:] != -100
        total -= float(logp[kept].gather(1, labels[1:][kept][:, None]).sum())
        count += int(kept.sum())
    return total / count


# Where the loss stands.


def test_the_loss_stands_on_the_answer_and_its_end_alone(tokenizer: Any) -> None:
    red, dog, runs = (tokenizer.convert_tokens_to_ids(token) for token in ("red", " dog", " runs"))
    end = tokenizer.eos_token_id
    row = row_of(tokenizer, "red", " dog runs")
    assert row == {"input_ids": [red, dog, runs, end], "labels": [-100, dog, runs, end]}


def test_an_answer_gets_no_second_beginning_of_sequence() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = word_tokenizer(["red cat"])
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<pad> $A", special_tokens=[("<pad>", tokenizer.pad_token_id)]
    )
    row = row_of(tokenizer, "red", " cat")
    assert tokenizer.convert_ids_to_tokens(row["input_ids"]) == ["<pad>", "red", " cat", "</s>"]
    assert row["labels"][:2] == [-100, -100]


def test_a_special_token_that_an_answer_spells_is_text() -> None:
    tokenizer = word_tokenizer(["red cat dog < / s > </"])
    row = row_of(tokenizer, "red", " cat</s> dog")
    assert row["input_ids"].count(tokenizer.eos_token_id) == 1
    assert row["input_ids"][-1] == tokenizer.eos_token_id


def test_what_is_longer_than_the_limit_is_cut_in_ids_and_labels_alike(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(fine_tuning, "train_on_rows", lambda model, rows, *_, **__: found.extend(rows))
    fine_tune(None, tokenizer, [Example("red")], [" dog runs"], FineTuning(steps=1, max_tokens=3))
    whole = row_of(tokenizer, "red", " dog runs")
    assert found == [{"input_ids": whole["input_ids"][:3], "labels": whole["labels"][:3]}]


# Training.


def test_the_loss_goes_down_and_the_model_gives_the_answers(tokenizer: Any, trained: Any) -> None:
    model, _ = trained
    fresh = tiny_llama(tokenizer, seed=0, width=32, layers=1, context=16).eval()
    assert loss_of(model, tokenizer) < 0.1 < 1.0 < loss_of(fresh, tokenizer)
    for prompt, answer in ANSWERS.items():
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
        assert tokenizer.decode(output[0, 1:]) == f"{answer}</s>"


def test_the_model_comes_back_ready_to_be_used(trained: Any) -> None:
    model, before = trained
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(torch.equal(before[name], p) for name, p in model.named_parameters())
    assert model.dtype == torch.float32


def test_the_same_seed_makes_the_same_weights(tokenizer: Any) -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        model = tiny_llama(tokenizer, seed=0, width=16, layers=1, context=16)
        torch.manual_seed(int(torch.randint(1_000, ())))  # whatever ran before
        how = FineTuning(steps=60, batch_size=2, learning_rate=0.01, seed=seed)
        many = 60
        return list(fine_tune(model, tokenizer, EXAMPLES * many, [*ANSWERS.values()] * many, how).parameters())

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def gradient_of(settings: FineTuning, rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Return the gradient of the output layer at the first step of a training, before it is clipped."""
    model = tiny_llama(word_tokenizer([*ANSWERS, *ANSWERS.values()]), seed=0, width=16, layers=1, context=16)
    gradients: list[torch.Tensor] = []
    clip = lambda parameters, _: gradients.extend(parameter.grad.clone() for parameter in parameters)  # noqa: E731
    monkeypatch.setattr(fine_tuning, "clip_grad_norm_", clip)
    train_on_rows(model, rows, settings)
    return gradients[-1]  # of lm_head


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_a_step_follows_the_mean_over_all_labels_of_its_batch(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, accumulate: int
) -> None:
    rows = [row_of(tokenizer, prompt, answer) for prompt, answer in ANSWERS.items()]  # 2, 3, 2 and 4 labels
    model = tiny_llama(tokenizer, seed=0, width=16, layers=1, context=16)
    total = torch.zeros(())
    for row in rows:
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])
        logp = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        total = total - logp[labels[1:] != -100].gather(1, labels[labels != -100][:, None]).sum()
    (total / 11).backward()
    how = FineTuning(steps=1, batch_size=4, accumulate=accumulate)
    assert torch.allclose(gradient_of(how, rows, monkeypatch), model.lm_head.weight.grad, atol=1e-6)


@pytest.mark.parametrize("how", [{"steps": 40}, {"epochs": 10.0}], ids=["steps", "epochs"])
def test_the_rate_rises_and_falls_and_long_gradients_are_cut(tokenizer: Any, how: dict[str, Any]) -> None:
    model, rows = tiny_llama(tokenizer, seed=0, width=16, layers=1, context=16), [row_of(tokenizer, "red", " cat")]
    with torch.no_grad():
        model.lm_head.weight.mul_(50)  # the first gradients are longer than 1
    seen: list[tuple[float, float, float]] = []

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        (group,) = optimizer.param_groups
        norm = torch.stack([parameter.grad.norm() for parameter in group["params"]]).norm()
        seen.append((group["lr"], group["weight_decay"], float(norm)))

    hook = register_optimizer_step_pre_hook(look)
    train_on_rows(model, rows * 4, FineTuning(**{"steps": 1, **how}, batch_size=1, learning_rate=0.1))
    hook.remove()
    rates, decays, norms = zip(*seen, strict=True)
    # 40 steps: 5 % of them, 2, rise from 0 to the peak; the other 38 fall along half a cosine, whose middle is step 21.
    assert len(rates) == 40
    assert rates[:3] == (0, 0.05, 0.1)
    assert rates[21] == pytest.approx(0.05)
    assert rates[39] == pytest.approx(0.05 * (1 + math.cos(math.pi * 37 / 38)))
    assert set(decays) == {0.0}
    assert max(norms) == pytest.approx(1)


def test_the_seed_decides_what_dropout_leaves_out_and_other_draws_go_on(tokenizer: Any) -> None:
    start = tiny_llama(tokenizer, seed=0, width=16, layers=1, context=16)
    start.model.layers[0].self_attn.attention_dropout = 0.5

    def weights(seed: int) -> torch.Tensor:
        model, how = copy.deepcopy(start), FineTuning(steps=2, learning_rate=0.1, seed=seed)
        train_on_rows(model, [row_of(tokenizer, "red", " cat")], how)
        return model.lm_head.weight.detach()

    state = torch.get_rng_state()
    first, again, other = weights(1), weights(1), weights(2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("saving", [False, True])
def test_a_training_may_save_memory(tokenizer: Any, saving: bool) -> None:
    model, seen = tiny_llama(tokenizer, seed=0, width=16, layers=1, context=16), list[torch.dtype]()
    hook = model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *given: seen.append(given[2].dtype))
    how = FineTuning(steps=1, bf16=saving, gradient_checkpointing=saving)
    train_on_rows(model, [row_of(tokenizer, "red", " cat")], how)
    hook.remove()
    step = seen[10:]  # `check_rows` made the first ten passes
    assert step == ([torch.bfloat16] * 2 if saving else [torch.float32])  # a layer with checkpoints is computed twice
    assert model.dtype == torch.float32


def test_processes_have_rows_of_their_own_in_parts_of_similar_length(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row_of_ids([3] * length, [4]) for length in range(1, 161)]
    how = FineTuning(steps=1, batch_size=8)
    parts = []
    for rank in (0, 1):
        for module in (launch, fine_tuning):
            monkeypatch.setattr(module, "place", lambda rank=rank: (rank, 2))
        parts.append(
            list(islice(fine_tuning._batches(launch.shared(rows), how), 20))
        )  # 80 rows each, 4 in a part, 5 parts sorted
    lengths = [[[len(row["input_ids"]) for row in part] for part in process] for process in parts]
    assert all(len(part) == 4 for process in lengths for part in process)
    assert sorted(n for process in lengths for part in process for n in part) == list(range(2, 162))
    assert all(abs(max(mine) - max(other)) <= 1 for mine, other in zip(*lengths, strict=True))


def test_a_process_without_rows_repeats_those_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "place", lambda: (1, 2))
    assert launch.shared(["red"]) == ["red"]
    assert launch.shared(["red", "blue", "green"]) == ["blue"]
    assert launch.shared(["red"], may_be_none=True) == []


def test_each_process_encodes_its_part_of_the_demonstrations_alone(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[Any]()
    monkeypatch.setattr(launch, "place", lambda: (1, 2))
    monkeypatch.setattr(fine_tuning, "train_on_rows", lambda _, rows, *__, **how: given.extend([rows, how["total"]]))
    fine_tune(None, tokenizer, EXAMPLES, list(ANSWERS.values()), HOW_2)
    mine = [row_of(tokenizer, name, ANSWERS[name]) for name in ("blue", "one")]  # the second and the fourth
    assert given == [mine, 4]  # the length of an epoch counts all


def test_batches_of_a_quarter_of_the_rows_are_sorted_and_each_pass_holds_all_rows() -> None:
    rows = [row_of_ids([3] * length, [4]) for length in range(1, 33)]
    drawn = [sorted(len(row["input_ids"]) for row in batch) for batch in islice(fine_tuning._batches(rows, HOW_2), 32)]
    first, second = drawn[:16], drawn[16:]  # 32 rows, 2 in a batch: 4 batches are sorted together
    for batches in (first, second):
        assert sorted(length for batch in batches for length in batch) == list(range(2, 34))
        for start in range(0, 16, 4):
            lengths = sorted(length for batch in batches[start : start + 4] for length in batch)
            assert sorted(batches[start : start + 4]) == [lengths[i : i + 2] for i in range(0, 8, 2)]
    assert first != second


def test_few_rows_come_in_any_company() -> None:
    rows = [row_of_ids([3] * length, [4]) for length in (1, 1, 1, 9, 9, 9)]
    drawn = [{len(row["input_ids"]) for row in batch} for batch in islice(fine_tuning._batches(rows, HOW_2), 30)]
    assert any(len(lengths) == 2 for lengths in drawn)


def test_epochs_are_passes_over_the_rows_in_batches_of_which_the_last_is_smaller(tokenizer: Any) -> None:
    model, steps = tiny_llama(tokenizer, seed=0, width=16, layers=1, context=16), list[int]()
    rows = [row_of(tokenizer, prompt, answer) for prompt, answer in ANSWERS.items()] * 2  # 8 rows: 3 + 3 + 2
    train_on_rows(model, rows, FineTuning(steps=99, batch_size=3, epochs=1.5), on_step=steps.append)
    assert steps == [1, 2, 3, 4, 5]  # 1.5 × 3 batches, rounded up
    train_on_rows(model, rows, FineTuning(steps=99, batch_size=3, epochs=0.5), on_step=steps.append, total=16)
    assert steps[5:] == [1, 2, 3]  # 16 rows of all processes: half of 6 batches


def test_a_training_within_a_sharded_run_has_whole_weights(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    before, model = dict(AcceleratorState._shared_state), tiny_llama(tokenizer, seed=0, width=16, layers=1, context=16)
    train_on_rows(model, [row_of(tokenizer, "red", " cat")], FineTuning(steps=1))
    assert type(model.lm_head.weight) is torch.nn.Parameter
    assert dict(AcceleratorState._shared_state) == before


# What is refused.


@pytest.mark.parametrize(("prompts", "answers"), [(0, 0), (2, 1), (1, 2), (0, 1)])
def test_each_prompt_needs_one_answer(tokenizer: Any, prompts: int, answers: int) -> None:
    with pytest.raises(DataError) as caught:
        fine_tune(None, tokenizer, EXAMPLES[:prompts], ["x"] * answers, FineTuning(steps=1))
    assert str(caught.value) == f"got {prompts} prompts and {answers} answers; one answer each is needed"


def test_a_limit_that_leaves_no_answer_is_refused(tokenizer: Any) -> None:
    with pytest.raises(DataError) as caught:
        fine_tune(None, tokenizer, EXAMPLES, list(ANSWERS.values()), FineTuning(steps=2, max_tokens=1))
    assert str(caught.value) == "max_tokens = 1 cuts every answer off, so nothing could be learned; raise it"


def test_a_tokenizer_without_an_end_is_refused() -> None:
    tokenizer = word_tokenizer(ANSWERS)
    tokenizer.eos_token = None
    with pytest.raises(ModelError) as caught:
        fine_tune(None, tokenizer, EXAMPLES, list(ANSWERS.values()), FineTuning(steps=1))
    assert str(caught.value) == (
        "the tokenizer has no end-of-sequence token, so the model cannot learn where an answer ends; give it one"
    )


def test_a_padding_token_that_the_embedding_has_not_changes_nothing(tokenizer: Any, tmp_path: Path) -> None:
    foreign = copy.deepcopy(tokenizer)
    foreign.add_special_tokens({"pad_token": "<new pad>"})  # as some directories have it; the embedding stays
    rows = [row_of(tokenizer, prompt, answer) for prompt, answer in ANSWERS.items()]
    losses = []
    for one in (tokenizer, foreign):
        model = tiny_llama(tokenizer, seed=0, width=32, layers=1, context=16)
        trainer = supervised_trainer(model, one, rows, HOW, str(tmp_path), logging_steps=1)
        batch = trainer.data_collator(rows)
        assert batch["attention_mask"].sum() < batch["input_ids"].numel()  # there is padding
        losses.append(model(**batch).loss)
    assert foreign.pad_token_id == model.config.vocab_size
    assert losses[0] == losses[1]
    assert foreign.pad_token == "<new pad>"


def test_a_copy_of_a_fine_tuned_model_is_a_model_of_its_own(trained: tuple[Any, dict[str, torch.Tensor]]) -> None:
    model, _ = trained
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
        ids = torch.tensor([[3, 4]])
        assert float(copied(ids).logits.abs().max()) == 0.0
        assert float(model(ids).logits.abs().max()) > 0.0


HOW = FineTuning(steps=1, batch_size=8, learning_rate=0.1)


class Arguments:
    """Stands for the arguments of a trainer on a machine with four GPUs, without a launcher."""

    n_gpu, world_size = 4, 1

    def __init__(self, **given: Any) -> None:
        self.given = given
        self.per_device_train_batch_size = given["per_device_train_batch_size"]


class ArgumentsOnCPU(Arguments):
    n_gpu = 0


@pytest.mark.parametrize(("config", "used"), [(Arguments, 1), (ArgumentsOnCPU, 0)])
def test_a_training_takes_one_gpu_of_several_so_that_a_batch_has_the_size_of_the_settings(
    config: type, used: int
) -> None:
    made = training_arguments(config, replace(HOW, accumulate=2), "out", run_name="a")
    assert made._n_gpu == used
    assert (made.given["per_device_train_batch_size"], made.given["run_name"]) == (4, "a")


def test_epochs_are_in_place_of_steps() -> None:
    by_steps, by_epochs = (training_arguments(Arguments, replace(HOW, epochs=epochs), "out").given for epochs in (0, 3))
    assert (by_steps["max_steps"], by_steps["num_train_epochs"]) == (HOW.steps, 1)
    assert (by_epochs["max_steps"], by_epochs["num_train_epochs"]) == (-1, 3)  # -1: no limit but the epochs


def test_processes_share_each_batch_unless_its_part_is_given() -> None:
    class InTwo(Arguments):
        world_size = 2

    shared = replace(HOW, accumulate=2)
    assert training_arguments(InTwo, shared, "out").per_device_train_batch_size == 2
    assert training_arguments(Arguments, shared, "out").per_device_train_batch_size == 4
    assert training_arguments(InTwo, shared, "out", per_device_train_batch_size=1).per_device_train_batch_size == 1


@pytest.mark.parametrize(("found", "on_cpu"), [(None, True), ("mps", True), ("cuda", False)])
def test_a_training_runs_where_the_other_models_are(
    monkeypatch: pytest.MonkeyPatch, found: str | None, on_cpu: bool
) -> None:
    device = None if found is None else torch.device(found)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: device)
    given = training_arguments(Arguments, HOW, "out").given
    assert (given["use_cpu"], given["dataloader_pin_memory"]) == (on_cpu, not on_cpu)


def test_trainers_of_transformers_obey() -> None:
    arguments = training_arguments(transformers.TrainingArguments, HOW, "out")
    assert (arguments.n_gpu, arguments.device) == (min(torch.cuda.device_count(), 1), best_device())
