"""Rivals of a lesson on a tiny model: what they learn from, their steps, and the figures of the program."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

import small_run
from evidence.benchmarks import lesson_rivals
from evidence.lessons import edits as edits_module, rivals
from evidence.lessons.edits import cut
from evidence.lessons.measuring import later, measured
from evidence.lessons.rivals import RIVALS, RivalRun, Row, give_rival, teach
from text2grad.config import Recipe, make_recipe
from text2grad.errors import DataError
from text2grad.feedback import Annotation, write_annotations
from text2grad.models import sampling
from text2grad.runs.lesson import TRIES_SEED
from text2grad.tasks import Lesson, ready_lesson
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example, Rollout, Span
from tiny_models import own_logits

GIVEN = {
    " red cat": " one cat runs",
    " blue dog": " two dog eats",
    " green bird": " bird sleeps",
    " red bird": " three",
}
HELD_OUT = [" one cat", " two dog", " three bird"]


class Numbers(Lesson):
    def questions(self, split: Any) -> list[Example]:
        return [Example(prompt) for prompt in (GIVEN if split == "train" else HELD_OUT)]


LESSON = Numbers("cat dog bird", [], [{"pattern": "one|two|three", "reason": "no numbers"}])


def recipe(tmp_path: Path, **sections: dict[str, Any]) -> Recipe:
    small_run.save_base(tmp_path / "base")
    base: dict[str, dict[str, Any]] = {
        "model": {"path": str(tmp_path / "base"), "value": "none", "lora_r": 4, "prompt_format": "plain"},
        "rollout": {"batch_size": 2, "max_new_tokens": 4},
        "ppo": {"gamma": 0.0, "epochs": 1, "whiten": "none"},
        "optim": {"lr": 1e-2, "schedule": "linear"},
        "data": {"eval_examples": 2},
        "run": {"out": str(tmp_path / "out"), "threads": 1, "tracker": "none"},
    }
    return make_recipe({name: {**values, **sections.get(name, {})} for name, values in base.items()})


def write_marks(out: Path) -> None:
    out.mkdir()
    answers = ((prompt, text, LESSON.critique(Example(prompt), text)) for prompt, text in GIVEN.items())
    write_annotations(out / "marks.jsonl", [Annotation(*answer) for answer in answers])


@pytest.fixture(autouse=True)
def edit_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def numbers(example: Example, response: str, spans: Any) -> str:
        return cut(response, spans).replace("  ", " ")

    monkeypatch.setitem(edits_module.EDITS, "numbers", numbers)  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> RivalRun:
    write_marks(tmp_path / "out")
    return RivalRun(recipe(tmp_path), LESSON, rival="sft", name="numbers", passes=2)


def test_a_thumb_is_down_for_a_mark_and_the_mean_thumb_is_the_baseline(run: RivalRun) -> None:
    plan = rivals.given_thumbs(run)
    # thumbs -1, -1, 1, -1 with a mean of -0.5
    assert [[row.reward for row in unit] for unit in plan.units] == [[-0.5], [-0.5], [1.5], [-0.5]]
    assert [unit[0].rollout for unit in plan.units] == [own.rollout for own in run.marked]
    assert plan.needed == "a thumb for each of 4 answers"


def test_groups_are_the_given_answer_and_three_samples_of_its_plain_prompt(
    run: RivalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sample(self: RivalRun, examples: list[Example], *, seed: int) -> list[Rollout]:
        assert seed == TRIES_SEED
        assert [example.prompt for example in examples] == [prompt for prompt in GIVEN for _ in range(3)]
        texts = [" one", " two", " three"] + [" one", " cat", " dog"] * 3
        return [Rollout(example, (1,), (5,), text, False) for example, text in zip(examples, texts, strict=True)]

    monkeypatch.setattr(RivalRun, "__call__", sample)
    plan = rivals.group_thumbs(run)
    rewards = [[row.reward for row in unit] for unit in plan.units]
    assert rewards == [[-1, -1, -1, -1], [-1, -1, 1, 1], [1, -1, 1, 1], [-1, -1, 1, 1]]
    assert [unit[0].rollout.response for unit in plan.units] == list(GIVEN.values())
    assert [{row.rollout.example.prompt for row in unit} for unit in plan.units] == [{prompt} for prompt in GIVEN]
    assert plan.counts == {"groups": 4, "groups_alike": 1}
    assert plan.needed == "a thumb for each of 16 answers, 4 to each prompt"


def test_an_edit_that_leaves_no_word_is_left_out_and_counted(run: RivalRun) -> None:
    plan, ids = rivals.preferences(run), run.tokenizer
    end = run.tokenizer.eos_token_id
    chosen = [unit[0].rollout for unit in plan.units]
    assert [rollout.response for rollout in chosen] == [" cat runs", " dog eats"]
    assert [rollout.response_ids for rollout in chosen] == [(*ids(r.response).input_ids, end) for r in chosen]
    assert [row.rollout.response for _, row in plan.units] == [" one cat runs", " two dog eats"]
    assert all(a.rollout.prompt_ids == b.rollout.prompt_ids for a, b in plan.units)
    assert [[row.reward for row in unit] for unit in plan.units] == [[1, -1]] * 2
    assert plan.counts == {"edited": 2, "left_out": 1}
    assert plan.needed == "4 answers read, and 2 of them written again"


def test_an_edit_with_the_end_of_an_answer_that_the_limit_cut_has_no_end_of_sequence(
    run: RivalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [rollout.truncated for _, rollout in rivals.edits(run)] == [False, False]
    monkeypatch.setattr(rivals, "KEEPS_END", {"numbers"})
    (own, cut_short), _ = rivals.edits(run)
    assert own.rollout.truncated
    assert (cut_short.truncated, cut_short.response_ids) == (True, tuple(run.tokenizer(" cat runs").input_ids))
    run.marked = [own._replace(rollout=replace(own.rollout, truncated=False))]
    [(_, ended)] = rivals.edits(run)
    assert (ended.truncated, ended.response_ids[-1]) == (False, run.tokenizer.eos_token_id)


def test_answers_without_a_mark_are_demonstrations_as_they_are(run: RivalRun) -> None:
    plan = rivals.demonstrations(run)
    assert [unit[0].rollout.response for unit in plan.units] == [" cat runs", " dog eats", " bird sleeps"]
    assert plan.units[2][0].rollout == run.marked[2].rollout


def test_a_pass_takes_each_prompt_once_and_the_rate_falls_to_zero_in_a_line(
    run: RivalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, rates, seen = run.trainer(run.marked), list[float](), list[list[float]]()
    units = [[Row(own.rollout, float(place)), Row(own.rollout, place + 0.5)] for place, own in enumerate(run.marked)]
    step = rivals.Optimizers.step

    def stepping(self: Any) -> dict[str, float]:
        rates.append(self.by_name["policy"].param_groups[0]["lr"])
        return step(self)

    def loss(logp: torch.Tensor, start: torch.Tensor, mask: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
        seen.append(rewards.tolist())
        return logp.sum()

    monkeypatch.setattr(rivals.Optimizers, "step", stepping)
    assert teach(trainer, units, loss, passes=2) == 4
    assert rates == pytest.approx([1e-2, 0.75e-2, 0.5e-2, 0.25e-2])
    assert all(second == first + 0.5 for row in seen for first, second in zip(row[::2], row[1::2], strict=True))
    assert [sorted(a[::2] + b[::2]) for a, b in (seen[:2], seen[2:])] == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("rival", ["thumb-reinforce", "thumb-grpo", "dpo", "sft"])
def test_the_steps_move_answers_as_the_person_wants(rival: str, tmp_path: Path) -> None:
    write_marks(tmp_path / "out")
    run = RivalRun(recipe(tmp_path), LESSON, rival=rival, name="numbers", passes=4)
    trainer = run.trainer(run.marked)
    rows = [row for unit in run.plan.units for row in unit]
    batch = trainer.collate([row.rollout for row in rows])
    signs = torch.tensor([row.reward for row in rows])
    before = trainer.score(batch, kl="k1")
    assert before.kl.abs().max() < 1e-5, "the start is the reference"
    trainer.train(after_step=lambda _: None)
    moved = (trainer.score(batch, kl="k1").logp - before.logp).sum(dim=1)
    assert (moved * signs).sum() > 0.5
    assert trainer.step == 4 * -(-len(run.plan.units) // 2)


@pytest.mark.parametrize("rival", RIVALS)
def test_a_rival_has_the_figures_of_a_lesson_and_what_it_needed(rival: str, tmp_path: Path) -> None:
    write_marks(tmp_path / "out")
    figures = give_rival(rival, "numbers", recipe(tmp_path), LESSON, passes=1)
    common = {"mode", "passes", "marked", "steps", "questions", "marked_before", "marked_after", "needed"}
    assert figures.keys() >= common | {"kl_per_token", "kl_per_token_unmarked"}
    steps = {"dpo": 1, "prompt": 0, "prompt-below": 0}.get(rival, 2)  # two pairs; three or four prompts, two at a time
    assert (figures["mode"], figures["marked"], figures["questions"], figures["steps"]) == (rival, 3, 2, steps)
    assert figures["kl_per_token"] > 0
    assert (tmp_path / "out" / "report.html").exists()
    assert (tmp_path / "out" / "alternatives.jsonl").read_bytes() == b""


@pytest.mark.parametrize(("rival", "asked"), [("prompt", "cat dog bird\n\n{}"), ("prompt-below", "{}\n\ncat dog bird")])
def test_the_comment_in_the_prompt_is_measured_without_a_step(
    rival: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_marks(tmp_path / "out")
    prompts, decode = list[list[tuple[int, ...]]](), sampling.decode

    def watched(model: Any, ids: list[tuple[int, ...]], *args: Any, **more: Any) -> Any:
        prompts.append(ids)
        return decode(model, ids, *args, **more)

    monkeypatch.setattr(sampling, "decode", watched)
    figures = give_rival(rival, "numbers", recipe(tmp_path), LESSON, passes=1)
    run = RivalRun(recipe(tmp_path), LESSON, rival=rival, name="numbers", passes=1)
    plain, longer = ([tuple(run.tokenizer(form.format(p)).input_ids) for p in HELD_OUT[:2]] for form in ("{}", asked))
    assert prompts == [plain, longer], "answers before, and after"
    assert figures["tokens_per_request"] == len(longer[0]) - len(plain[0])
    nats = list[float]()
    for own, ids in zip(run.read(tmp_path / "out" / "before.jsonl"), longer, strict=True):
        beside = (replace(own.rollout, prompt_ids=ids), own.rollout)
        with_it, without = (own_logits(run.policy, each).log_softmax(-1) for each in beside)
        nats += (with_it.exp() * (with_it - without)).sum(-1).tolist()
    assert figures["kl_per_token"] == pytest.approx(sum(nats) / len(nats), abs=1e-4)
    assert figures["kl_per_token"] > 1e-3


def test_without_an_edit_there_is_nothing_to_learn_from(run: RivalRun) -> None:
    run.marked = [own for own in run.marked if own.rollout.response == " three"]
    with pytest.raises(DataError, match="sft has nothing to learn from: no edit of a marked answer leaves a word"):
        run.trainer(run.marked)


def test_a_lesson_starts_behind_the_skipped_questions() -> None:
    lesson = ready_lesson("folder")
    assert later(lesson, 3).questions("held_out") == lesson.questions("held_out")[3:]
    assert later(lesson, 3).questions("train") == lesson.questions("train")


def folder_run(tmp_path: Path) -> list[str]:
    """Write a tiny model and the files of a lesson; return the arguments of the program."""
    asked, given = (ready_lesson("folder").questions(split)[:2] for split in ("train", "held_out"))
    asked, texts = asked[:2], ["Open the directory", "Use the folder"]
    tokenizer = word_tokenizer([*texts, *(example.prompt_text for example in [*asked, *given])])
    tiny_llama(tokenizer, seed=0, width=32, layers=1).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    (tmp_path / "run").mkdir()
    marks = [Critique("folder!", (Span(9, 18, "negative"),)), Critique("")]
    for name, examples in (("marks", asked), ("before", given)):
        rows = [
            Annotation(e.prompt_text, *own) for e, own in zip(examples, zip(texts, marks, strict=True), strict=True)
        ]
        write_annotations(tmp_path / "run" / f"{name}.jsonl", rows)
    sets = [
        "data.eval_examples=2",
        'model.dtype="float32"',
        "model.lora_r=4",
        "rollout.max_new_tokens=4",
        "run.threads=1",
    ]
    places = {"--model": "base", "--lesson-dir": "run", "--json": "out/figures.json"}
    named = [word for name, place in places.items() for word in (name, str(tmp_path / place))]
    return ["folder", *named, *(word for own in sets for word in ("--set", own))]


def test_the_program_teaches_from_the_files_of_a_lesson_and_leaves_them_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = folder_run(tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    lesson_rivals.main(["sft", *arguments, "--lr", "1e-3", "--passes", "2"])
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    figures = json.loads((tmp_path / "out" / "figures.json").read_bytes())
    assert (figures["mode"], figures["lesson"], figures["lr"], figures["passes"]) == ("sft", "folder", 1e-3, 2)
    assert (figures["fault_before"], figures["marked_before"], figures["edited"]) == (0.5, 0.5, 1)
    assert figures["fault_after"] == fmean("director" in row["after"] for row in figures["answers"]) != 0.5
    assert figures["kl_per_token"] > 0 < figures["processor_s"]
    assert [row["response"] for row in figures["answers"]] == ["Open the directory", "Use the folder"]
    said = capsys.readouterr().out
    assert "answers" not in json.loads(said[said.index("{") :])  # other commands may have sent notes there, too


def test_answers_to_other_questions_are_no_answers_before(tmp_path: Path) -> None:
    sides = {"before": [{"prompt": "a", "response": ""}], "after": [{"prompt": "b", "response": ""}]}
    (tmp_path / "lesson.json").write_text(json.dumps(sides))
    with pytest.raises(DataError, match=r"before\.jsonl has 1 answers to other questions than the 1 of this run"):
        measured("folder", tmp_path, started=0.0)


def test_a_folder_without_marks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = folder_run(tmp_path)
    (tmp_path / "run" / "before.jsonl").unlink()
    with pytest.raises(SystemExit):
        lesson_rivals.main(["sft", *arguments])
    assert "run has no before.jsonl; run evidence/benchmarks/lesson.py before" in capsys.readouterr().err
