"""A lesson: a policy learns what a person said about a few of its answers, and little else.

Marks say what not to do, and a policy whose habits are all marked has nothing to move to (`rl.metrics.cornered_share`).
So it answers each marked prompt again, with the comment in the prompt, and the acceptable answers become examples of
what the comment wants: positive where they depart from the marked words (`alternatives`).

    marks.jsonl         the marked answers, as the studio and `text2grad feedback import` write them
    alternatives.jsonl  the accepted answers to the same prompts, with their positive spans
    before.jsonl        the answers to held-out questions, before the steps of run/, whose policy is a LoRA adapter
    lesson.json         figures, and these answers before and after, which report.html shows side by side

The steps are Algorithm 4's on the prompts without the comment. An accepted answer is a sample of another distribution
there; each step scores it anew, so PPO's ratio begins at 1. The advantage of a token is its own reward (ppo.gamma = 0):

    δ_t − β (log π − log π_ref)   where a token is marked; 0 after δ/β nats
    − (log π − log π_ref)         elsewhere, and in answers without a mark, which are evidence that they are good
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from text2grad.align import encode, response_deltas
from text2grad.config import Recipe
from text2grad.errors import DataError
from text2grad.feedback import Annotation, annotation_to_json, read_critique_records
from text2grad.files import to_json, write_atomically, write_records
from text2grad.models import Scores, TokenBatch, batch_indices, collate, encode_prompts, response_logprobs, stop_ids
from text2grad.progress import note
from text2grad.rl import Advantages, Text2GradTrainer, held_out_responses, own_held_out, phase, prepare_policy
from text2grad.runs.alternatives import departing
from text2grad.runs.evaluate_policy import PolicySampler
from text2grad.runs.reports.html import rollouts_page
from text2grad.runs.reports.run_report import side_by_side
from text2grad.tasks import Lesson
from text2grad.types import Critique, Example, Rollout, Span

Mode = Literal["marks", "alternatives", "both"]
ANSWERS = 20  # marked answers of a ready lesson
TRIES = 4  # answers with the comment in the prompt, of which an acceptable one is taken
PASSES = 6  # over the prompts of the steps
TRIES_SEED = 1_000_003  # apart from that of the first answers


class Judged(NamedTuple):
    """An answer of the policy and its critique."""

    rollout: Rollout
    critique: Critique

    @property
    def texts(self) -> dict[str, Any]:
        """Prompt and response, as a page shows them."""
        return {"prompt": self.rollout.example.prompt_text, "response": self.rollout.response}

    @property
    def blamed(self) -> bool:
        """Whether it has a negative mark; if not, it is evidence of what is good."""
        return any(span.label == "negative" for span in self.critique.spans)

    @property
    def asked_again(self) -> Example:
        """The prompt with the comment; with notes on words, which begin with a quotation mark, if there is no other."""
        lines = self.critique.feedback.splitlines()
        comment = "\n".join([line for line in lines if not line.startswith('"')] or lines)
        return Example(f"{self.rollout.example.prompt_text}\n\n{comment}".rstrip())


class ReadOnce:
    """A reference that has read the answers of the steps: their states never change, and cost a third of each step."""

    def __init__(self, reference: Any, policy: Any, batches: Sequence[TokenBatch]) -> None:
        """Read all answers, in batches that do not depend on the step, so that a resumed run has the same states."""
        self.reference, self.states = reference, dict[tuple[int, ...], Tensor]()
        for batch in batches:
            hidden, self.head = reference.read(policy, batch)
            lengths = batch.response_lengths.tolist()
            self.states |= zip(self.rows(batch), hidden.detach().split(lengths), strict=True)

    @staticmethod
    def rows(batch: TokenBatch) -> list[tuple[int, ...]]:
        """Return the ids of each row, without padding."""
        lasts = batch.last_positions().tolist()
        return [tuple(ids[: last + 1]) for ids, last in zip(batch.ids.tolist(), lasts, strict=True)]

    def read(self, policy: Any, batch: TokenBatch) -> Any:
        """Return what `Reference.read` does."""
        rows = self.rows(batch)
        if all(row in self.states for row in rows):
            return torch.cat([self.states[row] for row in rows]), self.head
        return self.reference.read(policy, batch)


class LessonTrainer(Text2GradTrainer):
    """Takes its steps on answers that are there already: a step has all those to `rollout.batch_size` prompts."""

    reference: Any

    def __init__(self, policy: Any, tokenizer: Any, answers: Sequence[Judged], recipe: Recipe, **more: Any) -> None:
        """Take the answers; `more` goes to the trainer."""
        self.answers: dict[tuple[int, ...], list[Rollout]] = {}
        for rollout, _ in answers:
            self.answers.setdefault(rollout.prompt_ids, []).append(rollout)
        known = {tuple(own.texts.values()): own.critique for own in answers}

        def critic(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
            return [known[example.prompt_text, text] for example, text in zip(examples, responses, strict=True)]

        examples = [own[0].example for own in self.answers.values()]
        super().__init__(policy, critic, examples, recipe, processing_class=tokenizer, **more)
        with torch.no_grad():
            batches = [self.collate(own) for own in self.answers.values()]
            self.reference = ReadOnce(self.reference, self.model.policy, batches)

    @phase("rollout")
    def sample(self, early: Any = None) -> list[Rollout]:
        """Return the answers to the prompts of the step, those to a prompt as neighbours."""
        prompts, recipe = list(self.answers.values()), self.recipe
        count = min(recipe.rollout.batch_size, len(prompts))
        chosen = batch_indices(len(prompts), count, step=self.step, seed=recipe.run.seed)
        return [rollout for index in chosen for rollout in prompts[index]]

    def advantages(self, rewards: Tensor, scores: Scores, batch: TokenBatch, taught: Tensor | None) -> Advantages:
        """Draw each token without a reward of its own back to its log-prob before the lesson, with a weight of 1."""
        gone = scores.logp - scores.logp_ref
        own = (rewards + self.beta_in_reward * scores.kl).abs() > 1e-6
        return super().advantages(torch.where(own, rewards, -gone), scores, batch, taught)


class LessonRun(PolicySampler):
    """The policy that a lesson is given to, and the answers that lie in `run.out`, which are not made again."""

    def __init__(self, recipe: Recipe, lesson: Lesson | Path) -> None:
        """Load the policy, with a fresh adapter, and read or make the marked answers.

        Raises:
            DataError: if the file of a person's marks cannot be read, or no answer has a mark.
        """
        super().__init__(recipe, recipe.model.path, dtype=recipe.model.dtype)
        torch.manual_seed(recipe.run.seed)  # of the adapter's first weights
        self.policy = prepare_policy(self.policy, recipe.model).eval()
        self.out, self.ready = Path(recipe.run.out), lesson if isinstance(lesson, Lesson) else None
        self.out.mkdir(parents=True, exist_ok=True)
        self.known: dict[str, Example] = {}
        if isinstance(lesson, Lesson):
            taught, self.held_out = lesson.questions("train")[:ANSWERS], lesson.questions("held_out")
            self.known = {example.prompt_text: example for example in [*taught, *self.held_out]}
            note(f"the policy answers {len(taught)} questions")
            self.marked = self.kept("marks.jsonl", lambda: self.judged(self(taught, seed=recipe.run.seed)))
        else:
            self.marked = self.read(lesson)
            self.held_out = [own.rollout.example for own in self.marked]
        self.count = sum(bool(own.critique.spans) for own in self.marked)
        if not self.count:
            raise DataError(f"no answer of {self.out if self.ready else lesson} has a mark: nothing can be learned")

    def alternatives(self) -> list[Judged]:
        """Return an answer to each prompt with negative marks: of `TRIES` with the comment, the likeliest right one.

        The likeliest on the prompt without the comment asks for the smallest change; some prompts have none.
        """
        wanted = [own for own in self.marked if own.blamed]
        again, acceptable = [own.asked_again for own in wanted for _ in range(TRIES)], list[Judged]()
        tries = self(again, seed=self.recipe.run.seed + TRIES_SEED) if again else []
        for number, rollout in enumerate(tries):
            old, critique = wanted[number // TRIES]
            new = departing(old.response, critique.spans, rollout.response)
            if new is not None and not (self.ready and self.ready.critique(old.example, rollout.response).spans):
                rollout = replace(rollout, example=old.example, prompt_ids=old.prompt_ids)
                acceptable.append(Judged(rollout, new))
        ranked = zip(self.likely([own.rollout for own in acceptable]) if acceptable else (), acceptable, strict=True)
        chosen = {own.rollout.prompt_ids: own for _, own in sorted(ranked, key=lambda pair: pair[0])}  # the last stays
        return [chosen[own.rollout.prompt_ids] for own in wanted if own.rollout.prompt_ids in chosen]

    def likely(self, rollouts: Sequence[Rollout]) -> list[float]:
        """Return the log-prob of each answer, in nats."""
        batch = collate(rollouts, pad_id=0, device=self.policy.device)
        with torch.no_grad():
            logp = response_logprobs(self.policy, batch, temperature=self.recipe.rollout.temperature)[0]
        return logp.sum(1).tolist()

    def judged(self, rollouts: Sequence[Rollout]) -> list[Judged]:
        """Return answers with the marks of a ready lesson."""
        nothing = Critique("")
        return [Judged(r, self.ready.critique(r.example, r.response) if self.ready else nothing) for r in rollouts]

    def kept(self, name: str, make: Callable[[], list[Judged]]) -> list[Judged]:
        """Return the judged answers of a file of `out`, made now if it is missing."""
        if not (path := self.out / name).exists():
            annotations = [(annotation_to_json(Annotation(**j.texts, critique=j.critique)), j.rollout) for j in make()]
            write_records(path, ({**text, "ids": list(rollout.response_ids)} for text, rollout in annotations))
        return self.read(path)

    def read(self, path: Path) -> list[Judged]:
        """Return the judged answers of a file; ids of a record are taken if they decode to its text.

        Raises:
            DataError: if it cannot be read, or the tokenizer changes an answer, so that marks would lie elsewhere.
        """
        records = list(read_critique_records(path, require_prompt=True)) if path.stat().st_size else []
        records = [record for record in records if record.critique.status != "withdrawn"]  # says nothing, good or bad
        examples = [self.known.get(record.prompt, Example(record.prompt)) for record in records]
        prompts = encode_prompts(self.tokenizer, examples, **self._form) if records else []
        ends = stop_ids(self.policy, self.tokenizer, self.recipe.rollout.eos_token_ids, **self._form)
        decode, judged = partial(self.tokenizer.decode, skip_special_tokens=True), []
        for record, example, prompt in zip(records, examples, prompts, strict=True):
            ways = (ids for ids in (record.ids, encode(self.tokenizer, record.response)) if ids)
            ids = next((own for own in ways if max(own) < len(self.tokenizer) and decode(own) == record.response), ())
            if not ids:
                raise DataError(
                    f"{record.where}: the policy's tokenizer changes the response {record.response[:60]!r}, or it is "
                    "empty; marks on it cannot be moved. Mark a response of this policy"
                )
            judged.append(Judged(Rollout(example, prompt, ids, record.response, ids[-1] not in ends), record.critique))
        return judged

    def trainer(self, answers: Sequence[Judged]) -> LessonTrainer:
        """Return the trainer of the steps on some answers, at its last checkpoint."""
        out, size = self.out / "run", self.recipe.rollout.batch_size
        steps = PASSES * ceil(len({own.rollout.prompt_ids for own in answers}) / size)
        run = self.recipe.run.model_copy(update={"out": str(out), "steps": steps})
        recipe, held_out = self.recipe.model_copy(update={"run": run}), self.held_out[: self.recipe.data.eval_examples]
        resume = (out / "run.json").exists()
        return LessonTrainer(self.policy, self.tokenizer, answers, recipe, eval_dataset=held_out, resume=resume)


def give_lesson(recipe: Recipe, lesson: Lesson | Path, *, mode: Mode = "alternatives") -> dict[str, Any]:
    """Teach a lesson to the policy of a recipe, and return its figures; an interrupted lesson goes on.

    Args:
        recipe: the settings; `run.steps` is set to `PASSES` passes over the prompts.
        lesson: a ready lesson, or a file of a person's marked answers.
        mode: whether the steps are taken on the alternatives, on the answers with negative marks, or on both; those
            without one are always among them.

    Raises:
        DataError: if the file cannot be read, no answer has a mark, or none has an alternative that `mode` asks for.
    """
    run = LessonRun(recipe, lesson)
    note(f"{run.count} of {len(run.marked)} answers are marked; it answers again with the comment in the prompt")
    others = run.kept("alternatives.jsonl", run.alternatives)
    note(f"{len(others)} of them have an acceptable alternative")
    given = [own for own in run.marked if mode != "alternatives" or not own.blamed]
    answers = [*given, *(others if mode != "marks" else ())]
    if not others and mode != "marks":
        raise DataError(
            f"no answer with the comment in its prompt is acceptable: say in {lesson} what you want instead"
        )
    trainer = run.trainer(answers)

    def sample() -> list[Judged]:
        return run.judged(held_out_responses(trainer, own_held_out(trainer), "held-out questions"))

    before = run.kept("before.jsonl", sample)
    trainer.train(after_step=lambda _: None)
    sides = {"before": before, "after": sample()}
    figures: dict[str, Any] = {"mode": mode, "marked": run.count, "alternatives": len(others), "steps": trainer.step}
    figures |= {"questions": len(before), **_figures(trainer, **sides)}
    answered = {name: [own.texts for own in side] for name, side in sides.items()}
    write_atomically(run.out / "lesson.json", to_json(figures | answered))
    write_atomically(run.out / "report.html", _page(run, sides).encode())
    return figures


def _figures(trainer: LessonTrainer, before: Sequence[Judged], after: Sequence[Judged]) -> dict[str, float | None]:
    """Return the shares of marked answers, and exact KL(π ‖ π before) per token on the answers before, in nats."""
    batch = trainer.collate([own.rollout for own in before])
    with torch.no_grad():
        kl, mask = trainer.score(batch, kl="full").kl, batch.response_mask
    fine = mask & torch.tensor([not own.critique.spans for own in before], device=mask.device)[:, None]
    shares = (fmean(bool(own.critique.spans) for own in side) for side in (before, after))
    nats = (float(kl[chosen].mean()) if chosen.any() else None for chosen in (fine, mask))
    names = ("marked_before", "marked_after", "kl_per_token_unmarked", "kl_per_token")
    return {name: value and round(value, 4) for name, value in zip(names, (*shares, *nats), strict=True)}


def _page(run: LessonRun, sides: Mapping[str, Sequence[Judged]]) -> str:
    """Return the page of held-out answers, before and after: marks are negative, and positive what is new after it."""
    shown: dict[str, list[dict[str, Any]]] = {f"{name} the lesson": [] for name in sides}
    for row in zip(*sides.values(), strict=True):
        old, whole = row[0], [Span(0, len(row[0].rollout.response), "negative")]
        for side, own in zip(shown.values(), row, strict=True):
            new = departing(old.rollout.response, whole, own.rollout.response) if own is not old else None
            critique = Critique("", (*own.critique.spans, *(new.spans if new else ())))
            (delta,), (offsets,) = response_deltas(run.tokenizer, [own.rollout], [critique])
            side.append({**own.texts, "delta": delta, "offsets": offsets})
    intro = f"“{run.ready.comment}”\n\n" if run.ready else ""
    intro += "Held-out questions. Negative: what the comment is about. Positive: words that are new after the lesson."
    return rollouts_page("A lesson", intro=intro, groups=[("Answers", side_by_side(shown))])
