"""A lesson: a policy learns what a person said about a few of its answers, and little else.

Marks say what not to do, and a policy whose habits are all marked has nothing to move to (`rl.metrics.cornered_share`).
So it goes on from the first marked token of each answer with other tokens, the likeliest of them with the comment in
its prompt (`LessonRun.alternatives`). Each of these answers is an example of what the comment wants, or of what else
it does not want.

    marks.jsonl         the marked answers, as the studio and `text2grad feedback import` write them
    alternatives.jsonl  other answers to the same prompts: positive from the first other token on, or negative there
    before.jsonl        the answers to held-out questions, before the steps of run/, whose policy is a LoRA adapter
    lesson.json         figures, and these answers before and after, which report.html shows side by side

The steps are Algorithm 4's on the prompts without the comment, with two changes, since the answers are not the policy's
own samples, and the advantage of a token is its own reward. N_p: tokens with a reward in the answers to a prompt, N in
those to all P prompts of a step.

    Σ max(δ_t − β (log π − log π_ref), 0) ∇ log π(y_t) / P N_p    where δ_t > 0 (min below 0): still after δ/β nats
    − Σ ∇ KL(π_ref ‖ π) / N                                       elsewhere, exact over the vocabulary

The second holds still also what no answer says. Words that are blamed again and again may be lost everywhere, so it
leaves out the tokens in whose place the reference might say them. It needs no logits of the reference at each step:
with the last hidden state h_t and a frozen output layer, its gradient is ∂ log π_ref(y_t)/∂h_t − ∂ log π(y_t)/∂h_t, for
any token y_t.
"""

import re
from collections import Counter
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
from text2grad.errors import ConfigError, DataError
from text2grad.feedback import Annotation, annotation_to_json, read_critique_records
from text2grad.files import to_json, write_atomically, write_records
from text2grad.models import (
    Caches,
    Scores,
    TokenBatch,
    batch_indices,
    encode_prompts,
    head_of,
    make_rollouts,
    padding_id,
    response_logprobs,
    sample,
    step_uniforms,
    stop_ids,
    token_logprobs,
)
from text2grad.progress import note
from text2grad.rl import (
    Step,
    Text2GradTrainer,
    held_out_responses,
    observed,
    own_held_out,
    phase,
    prepare_policy,
)
from text2grad.runs.evaluate_policy import PolicySampler
from text2grad.runs.learned import contradictions, lessons_in, records_in
from text2grad.runs.reports.html import rollouts_page
from text2grad.runs.reports.run_report import side_by_side
from text2grad.runs.wishes import wished
from text2grad.runs.words import comment_of, in_words, new_words, places_of
from text2grad.tasks import Lesson
from text2grad.types import Critique, Example, Rollout, Span

Mode = Literal["marks", "alternatives", "both"]
ANSWERS = 20  # marked answers of a ready lesson
TRIES = 6  # other answers to a prompt, from the first marked token on
PRAISED = 4  # tokens of a good one that are positive
BEHIND = 16  # tokens of an answer that are sampled or read from its first marked one on
BACK = 3  # tokens before the first marked one from which an answer goes on if there is no good one from there
PASSES, STEPS = 4, 20  # over the prompts of the steps, which are at least these
WANTED = 2.0  # nats by which a comment makes a token likelier that it asks for
OF_MOST = 0.6  # and part of the nats of the token that it asks for most
SAID = 4  # words of a comment with which an answer begins that it gives itself
REST = 1e-6  # rewards that are none
AGAIN = 2  # marked answers in which the same words are blamed, so that they may be lost everywhere
LOST = 0.02  # probability of the first token of such words from which a place is free
TRIES_SEED = 1_000_003  # apart from that of the first answers


Row = tuple[int, ...]


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
    def first_blamed(self) -> str:
        """The words of its first negative mark."""
        spans = sorted((s.start, s.end) for s in self.critique.spans if s.label == "negative")
        return self.rollout.response[slice(*spans[0])] if spans else ""

    @property
    def praised(self) -> bool:
        """Whether it has a positive mark, or a positive judgement of the whole."""
        return any(span.label == "positive" for span in self.critique.spans) or (self.critique.outcome or 0.0) > 0.0

    @property
    def comment(self) -> str:
        """What the feedback says of the whole answer, as `comment_of`."""
        quotes = (self.rollout.response[span.start : span.end] for span in self.critique.spans)
        return comment_of(self.critique.feedback, quotes)

    @property
    def asked_again(self) -> Example:
        """The prompt with the comment."""
        return Example(f"{self.rollout.example.prompt_text}\n\n{self.comment}".rstrip())


def read_judged(
    path: Path, policy: Any, tokenizer: Any, recipe: Recipe, known: Mapping[str, Example] | None = None
) -> list[Judged]:
    """Return the judged answers of a file in a policy's tokens; ids of a record are taken if they decode to its text.

    Args:
        path: the file.
        policy: the policy.
        tokenizer: its tokenizer.
        recipe: has the form of prompts and the tokens that end an answer.
        known: examples by their prompt; others have the prompt alone.

    Raises:
        DataError: if it cannot be read, or the tokenizer changes an answer, so that marks would lie elsewhere.
    """
    form: dict[str, Any] = {"prompt_format": recipe.model.prompt_format}
    ends = stop_ids(policy, tokenizer, recipe.rollout.eos_token_ids, **form)
    records = list(read_critique_records(path, require_prompt=True)) if path.stat().st_size else []
    records = [record for record in records if record.critique.status != "withdrawn"]  # says nothing, good or bad
    examples = [(known or {}).get(record.prompt, Example(record.prompt)) for record in records]
    prompts = encode_prompts(tokenizer, examples, **form) if records else []
    decode, judged = partial(tokenizer.decode, skip_special_tokens=True), []
    for record, example, prompt in zip(records, examples, prompts, strict=True):
        ways = (ids for ids in (record.ids, encode(tokenizer, record.response)) if ids)
        ids = next((own for own in ways if max(own) < len(tokenizer) and decode(own) == record.response), ())
        if not ids:
            raise DataError(
                f"{record.where}: the policy's tokenizer changes the response {record.response[:60]!r}, or it is "
                "empty; marks on it cannot be moved. Mark a response of this policy"
            )
        judged.append(Judged(Rollout(example, prompt, ids, record.response, ids[-1] not in ends), record.critique))
    return judged


def says_more(rollout: Rollout) -> bool:
    """Return whether an answer has a word that its prompt does not have."""
    asked, said = (set(re.findall(r"\w+", text.lower())) for text in (rollout.example.prompt_text, rollout.response))
    return bool(said - asked)


def token_shares(rollouts: Sequence[Rollout], rewards: Tensor) -> Tensor:
    """Return the share of a token with a reward in the mean over prompts, and over such tokens of a prompt, [B].

    An end behind the first sentence is one token with a reward, and a lead-in has several in each of its alternatives:
    in a mean over tokens the ends would hardly count.

    Args:
        rollouts: the answers.
        rewards: of their tokens, [B, T].
    """
    counts = Counter[Row]()
    for rollout, count in zip(rollouts, (rewards.abs() > REST).sum(1).tolist(), strict=True):
        counts[rollout.prompt_ids] += count
    prompts = sum(count > 0 for count in counts.values())
    shares = [1 / max(prompts * counts[rollout.prompt_ids], 1) for rollout in rollouts]
    return torch.tensor(shares, device=rewards.device)


class ReadOnce:
    """What the reference says of the answers of the steps, which it reads once: its states never change.

    Attributes:
        reference: the reference itself.
        logp: ids of a row → log π_ref(y_t) of its response tokens, [T].
        slopes: ids of a row → ∂ log π_ref(y_t)/∂h_t, [T, H].
        free: ids of a row → whether π_ref has a probability above `LOST` for the tokens that may be lost, [T].
    """

    def __init__(
        self, reference: Any, policy: Any, batches: Sequence[TokenBatch], lost: Sequence[int], *, temperature: float
    ) -> None:
        """Read all answers, in batches that do not depend on the step, so that a resumed run has the same numbers.

        Args:
            reference: the reference.
            policy: the policy, whose adapter it may be without.
            batches: of the answers.
            lost: first tokens of the words that are blamed again and again.
            temperature: of the rollout.
        """
        self.reference, self.logp, self.slopes = reference, dict[Row, Tensor](), dict[Row, Tensor]()
        self.free = dict[Row, Tensor]()
        for batch in batches:
            with torch.no_grad():
                hidden, head = reference.read(policy, batch)
            hidden = hidden.detach().requires_grad_()
            with torch.enable_grad():
                logp = token_logprobs(hidden, head, batch.targets(), temperature=temperature).logp
                (slopes,) = torch.autograd.grad(logp.sum(), hidden)
            said = torch.zeros_like(logp)
            for token in lost:
                targets = torch.full_like(batch.targets(), token)
                with torch.no_grad():
                    said += token_logprobs(hidden, head, targets, temperature=temperature).logp.exp()
            lengths, rows = batch.response_lengths.tolist(), self.rows(batch)
            self.logp |= zip(rows, torch.split(logp.detach(), lengths), strict=True)
            self.slopes |= zip(rows, torch.split(slopes, lengths), strict=True)
            self.free |= zip(rows, torch.split(said > LOST, lengths), strict=True)

    @staticmethod
    def rows(batch: TokenBatch) -> list[Row]:
        """Return the ids of each row, without padding."""
        lasts = batch.last_positions().tolist()
        return [tuple(ids[: last + 1]) for ids, last in zip(batch.ids.tolist(), lasts, strict=True)]

    def read(self, policy: Any, batch: TokenBatch) -> Any:
        """Return what `Reference.read` does."""
        return self.reference.read(policy, batch)

    def of(self, batch: TokenBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return log π_ref(y_t), [N], its slope, [N, H], and `free`, [N], of the response tokens of a batch, packed."""
        rows = self.rows(batch)
        logp, slopes, free = (torch.cat([of[row] for row in rows]) for of in (self.logp, self.slopes, self.free))
        return logp, slopes, free


class LessonTrainer(Text2GradTrainer):
    """Takes its steps on answers that are there already: a step has all those to `rollout.batch_size` prompts."""

    reference: Any

    def __init__(
        self,
        policy: Any,
        tokenizer: Any,
        answers: Sequence[Judged],
        recipe: Recipe,
        *,
        lost: Sequence[int] = (),
        **more: Any,
    ) -> None:
        """Take the answers, and the first tokens of words that may be lost everywhere; `more` goes to the trainer."""
        self.answers: dict[tuple[int, ...], list[Rollout]] = {}
        for rollout, _ in answers:
            self.answers.setdefault(rollout.prompt_ids, []).append(rollout)
        known = {tuple(own.texts.values()): own.critique for own in answers}

        def critic(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
            return [known[example.prompt_text, text] for example, text in zip(examples, responses, strict=True)]

        examples = [own[0].example for own in self.answers.values()]
        super().__init__(policy, critic, examples, recipe, processing_class=tokenizer, **more)
        if head_of(self.model.policy).weight.requires_grad:
            raise ConfigError("a lesson holds the output layer still: give it to an adapter, with model.lora_r = 16")
        prompts, size = list(self.answers.values()), recipe.rollout.batch_size
        parts = (prompts[at : at + size] for at in range(0, len(prompts), size))
        batches = [self.collate([rollout for own in part for rollout in own]) for part in parts]
        temperature = recipe.rollout.temperature
        self.reference = ReadOnce(self.reference, self.model.policy, batches, lost, temperature=temperature)

    @phase("rollout")
    def sample(self, early: Any = None) -> list[Rollout]:
        """Return the answers to the prompts of the step, those to a prompt as neighbours."""
        prompts, recipe = list(self.answers.values()), self.recipe
        count = min(recipe.rollout.batch_size, len(prompts))
        chosen = batch_indices(len(prompts), count, step=self.step, seed=recipe.run.seed)
        return [rollout for index in chosen for rollout in prompts[index]]

    @observed
    def train_step(self) -> Step:
        """Take one step on the answers to some prompts."""
        rollouts = self.sample()
        batch = self.collate(rollouts)
        critiques = self.criticize(rollouts)
        deltas, offsets, _, rewards = self.rewards(rollouts, critiques, batch)
        learning_rates = self.optimizers.begin(self.step)
        shares = token_shares(rollouts, rewards)
        scores, advantages = self.sizes.in_micro_batches(batch, lambda: self.backward(batch, rewards, shares))
        step = Step(self.step, rollouts, batch, scores, critiques, deltas, offsets, rewards, advantages, advantages)
        self._tell("before_update", step)
        step.metrics |= learning_rates | self.optimizers.step()
        self._tell("after_update", step)
        self.follow(step)
        return step

    @phase("update")
    def backward(self, batch: TokenBatch, rewards: Tensor, shares: Tensor) -> tuple[Scores, Tensor]:
        """Add up the gradient of a step, and return the scores and advantages, [B, T], that it was made from.

        Args:
            batch: its answers.
            rewards: of the spans, [B, T].
            shares: of each answer's tokens with a reward, [B].
        """
        self.optimizers.zero_grad()
        scores = Scores.zeros(rewards.shape, batch.ids.device)
        advantages, count = torch.zeros_like(rewards), (rewards.abs() > REST).sum().clamp(min=1)
        read, groups = self.sizes.pieces(batch)
        for index in groups:
            part = read.rows(index)
            mask, columns = part.response_mask, (index, slice(part.response_mask.shape[1]))
            logp, _, states = response_logprobs(self.model.policy, part, temperature=self.recipe.rollout.temperature)
            logp_ref, slopes, free = self.reference.of(part)
            gone, own = logp[mask].detach() - logp_ref, rewards[columns][mask]
            left = own - self.beta_in_reward * gone
            moved = torch.where(own > 0, left.clamp(min=0.0), left.clamp(max=0.0)) * (own.abs() > REST)
            held = (states.before.float() * slopes).sum(1) - logp[mask]  # its gradient is that of KL(π_ref ‖ π)
            share = shares[index].to(moved)[:, None].expand_as(mask)[mask]
            loss = (held * ((own.abs() <= REST) & ~free) / count - share * moved * logp[mask]).sum()
            self.accelerator.backward(loss)
            scores.logp[columns], scores.logp_ref[columns] = logp.detach(), part.unpack(logp_ref)
            scores.kl[columns], advantages[columns] = part.unpack(gone), part.unpack(moved)
        return scores, advantages


class LessonRun(PolicySampler):
    """The policy that a lesson is given to, and the answers that lie in `run.out`, which are not made again."""

    def __init__(self, recipe: Recipe, lesson: Lesson | Path) -> None:
        """Load the policy, with a fresh adapter, and read or make the marked answers.

        Raises:
            DataError: if the file of a person's marks cannot be read, or is another one now, or no answer has a mark.
        """
        super().__init__(recipe, recipe.model.path, dtype=recipe.model.dtype)
        torch.manual_seed(recipe.run.seed)  # of the adapter's first weights
        self.policy.name_or_path = recipe.model.path  # its base, which may be the merged adapter of an earlier lesson
        self.policy = prepare_policy(self.policy, recipe.model).eval()
        self.ends = stop_ids(self.policy, self.tokenizer, recipe.rollout.eos_token_ids, **self._form)
        self.out, self.ready = Path(recipe.run.out), lesson if isinstance(lesson, Lesson) else None
        self.out.mkdir(parents=True, exist_ok=True)
        self.known: dict[str, Example] = {}
        if isinstance(lesson, Lesson):
            questions, self.held_out = lesson.questions("train"), lesson.questions("held_out")
            first = ANSWERS * recipe.run.seed % len(questions)
            taught = [*questions, *questions][first : first + ANSWERS]
            self.known = {example.prompt_text: example for example in [*taught, *self.held_out]}
            note(f"the policy answers {len(taught)} questions")
            self.marked = self.kept("marks.jsonl", lambda: self.judged(self(taught, seed=recipe.run.seed)))
        else:
            given = self.read(lesson)
            self.marked = self.kept("marks.jsonl", lambda: given)
            if self.marked != given:
                raise DataError(f"{self.out} holds a lesson on other marks than {lesson}; choose another --out")
            self.held_out = [own.rollout.example for own in self.marked]
        self.count = sum(bool(own.critique.spans) for own in self.marked)
        if not self.count:
            raise DataError(f"no answer of {self.out if self.ready else lesson} has a mark: nothing can be learned")

    def alternatives(self) -> list[Judged]:
        """Return other answers to the prompts with negative marks: good ones, and those that are no better.

        Each begins as the marked answer, has another token where the first mark begins, and goes on with the comment
        in its prompt; the likeliest such tokens are tried. It is good if nothing is blamed in the first tokens from
        there on, and it says a word that the question does not. Where none is, the place is a token earlier, up to
        `BACK` times: behind "the following query:" no token mends an answer that was to have no block of code.

        A person's marks know no other words. So a good answer also begins with the words that the person wants there
        (`wished`), or else with words of the comment, if one of those that are tried does, or else with a token that
        the comment asks for (`beginnings`). A policy for which the comment asks for none heeds no comment, and is
        taught without.
        """
        asking = self.tried(heeds=self.ready is None)
        return asking if self.ready or any(own.praised for own in asking) else self.tried(heeds=False)

    def tried(self, *, heeds: bool) -> list[Judged]:
        """Return the alternatives; with `heeds` a good one begins as the comment says or asks."""
        wished = [self.wished(own) for own in self.marked if self.places(own)]
        marked, starts = [own for own, _ in wished], [starts for _, starts in wished]
        asked = encode_prompts(self.tokenizer, [own.asked_again for own in marked], **self._form) if marked else []
        judged, left = dict[int, list[Judged]](), {*range(len(marked))}
        for back in range(BACK + 1):
            if not (places := {at: place for at in left if (place := self.places(marked[at])[0] - back) >= 0}):
                break
            tries = [(at, *own) for at in places for own in self.beginnings(marked[at], asked[at], places[at])]
            wishes = {at: [] if back else starts[at] for at in places}
            tries += [(at, start, True) for at in places for start in wishes[at]]
            rollouts = self.go_on([(marked[at], asked[at], start) for at, start, _ in tries])
            said = {at: set(wishes[at]) for at in places}
            for (at, start, _), rollout in zip(tries, rollouts, strict=True):
                if heeds and self.says(marked[at].comment, rollout, places[at], wishes[at]):
                    said[at].add(start)
            new = dict[int, list[Judged]]()
            for (at, start, asks), rollout in zip(tries, rollouts, strict=True):
                wanted = not heeds or (start in said[at] if said[at] else asks)
                blamed, instead = self.blamed_in(marked[at], rollout), marked[at].first_blamed if heeds else ""
                verdict = self.verdict(rollout, places[at], blamed, wanted=wanted, instead=instead)
                new.setdefault(at, []).append(Judged(rollout, verdict))
            good = {at for at, others in new.items() if any(own.praised for own in others)}
            judged |= {at: others for at, others in new.items() if not back or at in good}
            left -= good
        return [own for at in sorted(judged) for own in judged[at]]

    def wished(self, own: Judged) -> tuple[Judged, list[Row]]:
        """Return an answer whose first mark begins where it leaves the wanted words, and the first ids with these."""
        if self.ready or not self.places(own):
            return own, []
        end = min(self.ends, key=lambda token: token != self.tokenizer.eos_token_id)
        critique, starts = wished(self.tokenizer, own.rollout, own.critique, own.comment, end)
        return own._replace(critique=critique), starts

    def beginnings(self, own: Judged, asked: Row, place: int) -> list[tuple[Row, bool]]:
        """Return the tokens before a place and, behind them, each of the likeliest others; and whether it is wanted.

        A comment asks for a token that it makes `WANTED` nats likelier, and `OF_MOST` of what it does for any of these.
        Without a comment all are wanted.

        Args:
            own: the marked answer.
            asked: ids of its prompt with the comment.
            place: of the token in whose place others come.
        """
        ids, plain = own.rollout.response_ids, own.rollout.prompt_ids

        def logp(prompt: Row) -> Tensor:
            with torch.no_grad():
                read = torch.tensor([[*prompt, *ids[:place]]], device=self.policy.device)
                own: Tensor = self.policy(read).logits[0, -1].float().log_softmax(-1)
                return own

        logits = logp(asked)
        lift = torch.full_like(logits, torch.inf) if asked == plain else logits - logp(plain)
        logits[ids[place]] = -torch.inf
        logits[[token for token in self.tokenizer.all_special_ids if token not in self.ends]] = -torch.inf
        tokens = logits.topk(TRIES).indices
        wanted = lift[tokens] >= max(WANTED, OF_MOST * float(lift[tokens].max()))
        others = [((*ids[:place], token), own) for token, own in zip(tokens.tolist(), wanted.tolist(), strict=True)]
        broken = "\N{REPLACEMENT CHARACTER}"
        return [other for other in others if not self.tokenizer.decode(other[0]).endswith(broken)]

    def says(self, comment: str, rollout: Rollout, place: int, starts: Sequence[Row] = ()) -> bool:
        """Return whether an answer says from a token on what the person wants there, behind at most one other word.

        Without wanted words: whether a comment has the first `SAID` words of it, or all, if they are less.

        Args:
            comment: the comment.
            rollout: the answer.
            place: of the token.
            starts: the first ids of answers with the wanted words, as `wished`.
        """
        decode = partial(self.tokenizer.decode, skip_special_tokens=True)
        texts = (decode(rollout.response_ids[place:]), comment, *(decode(start[place:]) for start in starts))
        first, said, *wanted = ([own.lower() for own in re.findall(r"\w+", text)] for text in texts)
        if starts:
            return any(own and own in (first[: len(own)], first[1 : len(own) + 1]) for own in wanted)
        return bool(first) and f" {' '.join(first[:SAID])} " in f" {' '.join(said)} "

    def go_on(self, tries: Sequence[tuple[Judged, Sequence[int], Sequence[int]]]) -> list[Rollout]:
        """Return answers to the plain prompts that begin with given tokens, and go on with the comment.

        Args:
            tries: the marked answer, ids of its prompt with the comment, and the first ids of the answer, of each.
        """
        rollout = self.recipe.rollout
        ends = self.ends
        goes_on = [(tuple(asked), (*asked, *start)) for _, asked, start in tries if start[-1] not in ends]
        caches = Caches()
        caches.groups, rows = zip(*goes_on, strict=True) if goes_on else ((), ())
        seed = self.recipe.run.seed + TRIES_SEED
        rest = iter(
            sample(
                self.policy,
                rows,
                step_uniforms(seed=seed, step=0, rows=len(rows), tokens=BEHIND),
                eos_ids=ends,
                pad_id=padding_id(self.policy, self.tokenizer, ends),
                temperature=rollout.temperature,
                rows_at_once=rollout.rows_at_once,
                caches=caches,
            )
        )
        ids = [(*start, *(next(rest) if start[-1] not in ends else ())) for _, _, start in tries]
        plain = [own.rollout for own, _, _ in tries]
        examples, prompts = [own.example for own in plain], [own.prompt_ids for own in plain]
        return make_rollouts(self.tokenizer, examples, prompts, ids, ends)

    def places(self, own: Judged) -> list[int]:
        """Return the first token of each run of tokens with a negative mark."""
        (delta,), _ = response_deltas(self.tokenizer, [own.rollout], [own.critique])
        return [at for at, value in enumerate(delta) if value < 0 and not (at and delta[at - 1] < 0)]

    def from_fork(self, own: Judged, others: Sequence[Judged]) -> Judged:
        """Return a marked answer whose first negative mark begins where its alternatives leave it."""
        if not (places := self.places(own)):
            return own
        ids, first = own.rollout.response_ids, places[0]
        same = [other.response_ids for other, _ in others if other.prompt_ids == own.rollout.prompt_ids]
        fork = max((at for at in range(first + 1) if any(tried[:at] == ids[:at] for tried in same)), default=first)
        _, (offsets,) = response_deltas(self.tokenizer, [own.rollout], [own.critique])
        earlier = (Span(offsets[fork][0], offsets[first][0], "negative"),) if fork < first else ()
        return own._replace(critique=replace(own.critique, spans=(*earlier, *own.critique.spans)))

    def blamed_in(self, own: Judged, other: Rollout) -> list[Span]:
        """Return where another answer has the words that are negative in a marked one, or a mark of a ready lesson."""
        quotes = (
            own.rollout.response[mark.start : mark.end] for mark in own.critique.spans if mark.label == "negative"
        )
        again = (place for quote in quotes for place in places_of(quote, other.response))
        return [*(Span(*place, "negative") for place in again), *self.judged([other])[0].critique.spans]

    def verdict(
        self, rollout: Rollout, place: int, blamed: Sequence[Span], *, wanted: bool = True, instead: str = ""
    ) -> Critique:
        """Return the critique of an alternative: its first other tokens, or the outcome where that is an end.

        Args:
            rollout: the alternative.
            place: of its first other token.
            blamed: what is blamed in it.
            wanted: the comment asks for that token.
            instead: marked words of which it must not begin with some again.
        """
        _, (offsets,) = response_deltas(self.tokenizer, [rollout], [Critique("")])
        start, end = offsets[place][0], offsets[place : place + PRAISED][-1][1]
        good = (
            wanted
            and says_more(rollout)
            and bool(start == end or not instead or new_words(instead, rollout.response[start:end]))
            and not any(span.start < max(end, start + 1) and span.end > start for span in blamed)
        )
        if start == end:
            return Critique("", outcome=1.0 if good else -1.0)
        return Critique("", (Span(start, end, "positive") if good else Span(*offsets[place], "negative"),))

    def parts(self, answers: Sequence[Judged], *, behind: int = BEHIND) -> list[Judged]:
        """Return what the steps read of some answers: `behind` tokens from the last mark on, or from the beginning.

        A negative mark stays on its first token: what follows is right or wrong with it, and is held still.
        """
        short = []
        for own in answers:
            rollout, critique = own
            _, (offsets,) = response_deltas(self.tokenizer, [rollout], [critique])
            first = [Span(*offsets[place], "negative") for place in self.places(own)]
            spans = sorted([*first, *(span for span in critique.spans if span.label != "negative")])
            marked = [
                at
                for at, (start, end) in enumerate(offsets)
                if spans and start < spans[-1].end and end > spans[-1].start
            ]
            last = len(offsets) if critique.outcome else (marked[0] if marked else 0) + behind
            ids = rollout.response_ids[:last]
            if last < len(offsets):
                text = rollout.response[: offsets[last - 1][1]]
                rollout = replace(rollout, response_ids=ids, response=text, truncated=True)
            short.append(Judged(rollout, replace(critique, spans=tuple(spans))))
        return short

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
        """Return the judged answers of a file, as `read_judged`."""
        return read_judged(path, self.policy, self.tokenizer, self.recipe, self.known)

    def trainer(self, answers: Sequence[Judged]) -> LessonTrainer:
        """Return the trainer of the steps on some answers, at its last checkpoint."""
        out, size = self.out / "run", self.recipe.rollout.batch_size
        steps = max(PASSES * ceil(len({own.rollout.prompt_ids for own in answers}) / size), STEPS)
        run = self.recipe.run.model_copy(update={"out": str(out), "steps": steps})
        recipe, held_out = self.recipe.model_copy(update={"run": run}), self.held_out[: self.recipe.data.eval_examples]
        resume = (out / "run.json").exists()
        return LessonTrainer(
            self.policy, self.tokenizer, answers, recipe, lost=self.lost(answers), eval_dataset=held_out, resume=resume
        )

    def lost(self, answers: Sequence[Judged]) -> list[int]:
        """Return the first tokens of words that are blamed in at least `AGAIN` marked answers, and praised in none."""
        told, praised = dict[str, list[tuple[int, int]]](), set[int]()
        for at, own in enumerate(self.marked):
            for span in own.critique.spans:
                alone = own._replace(critique=replace(own.critique, spans=(span,)))
                if places := self.places(alone):
                    words = in_words(own.rollout.response[span.start : span.end])
                    told.setdefault(words, []).append((at, own.rollout.response_ids[places[0]]))
        deltas, _ = response_deltas(self.tokenizer, [own.rollout for own in answers], [own.critique for own in answers])
        for own, delta in zip(answers, deltas, strict=True):
            praised |= {token for token, value in zip(own.rollout.response_ids, delta, strict=True) if value > 0}
        again = (places for places in told.values() if len({at for at, _ in places}) >= AGAIN)
        return sorted({token for places in again for _, token in places} - praised)


def give_lesson(recipe: Recipe, lesson: Lesson | Path, *, mode: Mode = "both") -> dict[str, Any]:
    """Teach a lesson to the policy of a recipe, and return its figures; an interrupted lesson goes on.

    Args:
        recipe: the settings; `run.steps` is set to `PASSES` passes over the prompts, or `STEPS` if they are more.
        lesson: a ready lesson, or a file of a person's marked answers.
        mode: whether the steps are taken on the alternatives, on the answers with negative marks, or on both; those
            without one are always among them.

    Raises:
        DataError: if the file cannot be read, no answer has a mark, or none has an alternative that `mode` asks for.
    """
    run = LessonRun(recipe, lesson)
    note(f"{run.count} of {len(run.marked)} answers are marked; it answers again with the comment in the prompt")
    others = run.kept("alternatives.jsonl", run.alternatives)
    praised = {own.rollout.prompt_ids for own in others if own.praised}
    note(f"{len(praised)} of them have a good alternative")
    for line in contradictions(records_in(run.out), lessons_in(recipe.model.path)):
        note(line, warning=True)
    taught = [run.wished(own)[0] for own in run.marked]
    given = [own for own in taught if mode != "alternatives" or not own.blamed]
    answers = run.parts([run.from_fork(own, others) for own in given])
    if mode != "marks":
        better, worse = ([own for own in others if own.praised == good] for good in (True, False))
        answers += [*run.parts(better), *run.parts(worse, behind=1)]
    if mode != "marks" and not any(own.praised for own in [*run.marked, *others]):
        raise DataError(
            "no answer with the comment in its prompt is acceptable: say in the comment what you want instead"
        )
    trainer = run.trainer(answers)

    def sample() -> list[Judged]:
        return run.judged(held_out_responses(trainer, own_held_out(trainer), "held-out questions"))

    before = run.kept("before.jsonl", sample)
    trainer.train(after_step=lambda _: None)
    sides = {"before": before, "after": sample()}
    figures: dict[str, Any] = {"mode": mode, "marked": run.count, "alternatives": len(praised), "steps": trainer.step}
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
        for side, own in zip(shown.values(), row, strict=True):
            new = new_words(row[0].rollout.response, own.rollout.response)
            fresh = Critique("", tuple(Span(*place, "positive") for place in new))
            deltas, (offsets, _) = response_deltas(run.tokenizer, [own.rollout] * 2, [own.critique, fresh])
            delta = [marked or is_new for marked, is_new in zip(*deltas, strict=True)]  # a new fault is a fault
            side.append({**own.texts, "delta": delta, "offsets": offsets})
    intro = f"“{run.ready.comment}”\n\nHeld-out questions." if run.ready else "The marked questions, asked anew."
    intro += " Negative: what the comment is about. Positive: words that are new after the lesson."
    return rollouts_page("A lesson", intro=intro, groups=[("Answers", side_by_side(shown))])
