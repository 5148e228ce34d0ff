"""The generative reward model R_φ(z | x, y): a language model that writes critiques of responses (section 3.4).

    prompt x, response y → prompt of the reward model → decoded critique text z → feedback and spans

Constrained decoding guarantees, for any weights, complete JSON whose quotes occur in the response, or that has a label
for each of its words.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, get_args

from text2grad.align import encode
from text2grad.costs import TokenCount
from text2grad.errors import ConfigError, DataError, ModelError, check_known
from text2grad.feedback import Annotation, Match, check_votes, critique_from_text, vote
from text2grad.files import to_json, write_atomically
from text2grad.models import (
    NO_LOSS,
    Ahead,
    Choose,
    FineTuning,
    Row,
    context_of,
    decode,
    load_tokenizer,
    most_likely,
    padding_id,
    row_of_ids,
    stop_ids,
    train_on_rows,
    with_end,
)
from text2grad.reward_models.decoding.constrained import (
    ConstrainedChoice,
    ConstrainedCritique,
    ConstrainedFeedback,
    ConstrainedLabels,
    FreeChoice,
    skeleton_of,
)
from text2grad.reward_models.decoding.labels import WordLabels
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.decoding.repeats import FeedbackWithoutRepeats
from text2grad.reward_models.decoding.skeleton import START, Skeleton
from text2grad.reward_models.marks import (
    Marked,
    annotated_marks,
    drawn_marks,
    likeliest_marks,
    marked_spans,
    marks_text,
)
from text2grad.reward_models.probe import ProbeRewardModel, is_probe, saved_probe
from text2grad.reward_models.prompts import critique_prompts
from text2grad.reward_models.shared_base import adapted, learning, load_weights, load_writer
from text2grad.reward_models.writing import (
    LABEL_FORMS,
    QUOTING,
    check_shown,
    critique_from_labels,
    critique_target,
    has_outcomes,
    inputs_of,
)
from text2grad.types import Critique, CritiqueForm, Evidence, Example, Learned, PromptFormat, Span

SETTINGS_FILE, PROBE = "reward_model.json", "probe"
SAVED = (
    *("max_new_tokens", "rows_at_once", "write_feedback", "form", "match", "constrain", "limits"),
    *("prompt_format", "votes", "vote_threshold", "learned", "evidence", "prompt_words", "outcomes"),
    "no_repeat_ngram_size",
)
NO_LIMIT = 2**31  # tokens, where a model's config names no context, and as room that forbids nothing
RENAMED = {"words": "write_feedback", "agreement": "vote_threshold", "supported": "quoted_in_feedback"}  # since 0.1


def saved_settings(directory: str | Path) -> dict[str, Any]:
    """Return the settings in a model's directory under their current names; without a file, no limits of quotes."""
    path = Path(directory) / SETTINGS_FILE
    saved = _current_names(json.loads(path.read_bytes()) if path.exists() else {})
    return {**saved, "limits": QuoteLimits(**_current_names(saved.get("limits", {})))}


def _current_names(saved: dict[str, Any]) -> dict[str, Any]:
    return {RENAMED.get(key, key): value for key, value in saved.items()}


class Written(NamedTuple):
    """The text of a critique, empty if there was no room for it.

    Attributes:
        text: as the model wrote it.
        spans: those of the marks of a probe, where the text has no others.
    """

    text: str
    spans: tuple[Span, ...] | None = None


class _Prompt(NamedTuple):
    """The ids of the prompt of a critique, and the spans of the critique if they are decided."""

    ids: list[int]
    spans: tuple[Span, ...] | None = None


class CritiqueDecoder(ABC):
    """The settings of a language model that decodes critiques, and the reading of its texts."""

    def __init__(  # noqa: PLR0913 - each is kept in reward_model.json under its name
        self,
        tokenizer: Any,
        size: int,
        eos_ids: Sequence[int],
        *,
        max_new_tokens: int = 512,
        write_feedback: bool = True,
        form: CritiqueForm = "spans",
        match: Match = "exact",
        constrain: bool | None = None,
        limits: QuoteLimits | None = None,
        prompt_format: PromptFormat = "plain",
        votes: int = 1,
        vote_threshold: float = 0.5,
        learned: Learned = "critique",
        evidence: Evidence = "none",
        prompt_words: int | None = None,
        no_repeat_ngram_size: int = 0,
        outcomes: bool = True,
        probe: ProbeRewardModel | None = None,
        seed: int = 0,
    ) -> None:
        """Take a tokenizer and the settings.

        Args:
            tokenizer: of the reward model; the policy may have another one.
            size: number of ids of the model.
            eos_ids: ids that end a critique.
            max_new_tokens: length limit of a critique.
            write_feedback: False if the model was trained on spans without feedback.
            form: "spans" quotes the response; "spans_and_outcome" and "labelled_spans" add a number for the whole
                response; "dense", "scores" and "tagged_words" label each word, "tagged_sentences" and
                "numbered_sentences" each sentence (`writing`).
            match: how quotes are located in the response; with constrained decoding always "exact".
            constrain: allow only complete JSON with verbatim quotes, or with one label for each word
                (docs/constrained.md); None allows no other. Without it, a truncated list of quotes is read up to its
                last quote.
            limits: further limits of the quotes in constrained decoding.
            prompt_format: as in training: "chat" uses the chat template, "plain" does not.
            votes: critiques sampled per response and combined by `vote`; 1 decodes greedily.
            vote_threshold: share of the critiques that must mark a character.
            learned: tokens with a loss in training: "critique", all; "choices", in a form with labels those alone that
                the constraint leaves to the model (`spelled`), which then cannot decode without it.
            evidence: as in training: "absent_words" also reads which words of each sentence the prompt lacks
                (`writing.evidence_of`).
            prompt_words: as in training: the first words of a longer prompt that are read; None for all. Evidence is
                of the whole prompt.
            no_repeat_ngram_size: no sequence of so many tokens occurs twice in the feedback; 0 allows any.
            outcomes: False if no critique of the training had one: with the constraint the outcome of a form is null.
            probe: the prompt shows its marks (`marks`), as in training those of the annotators. Sampled critiques are
                then the most likely ones behind marks that are drawn with its probabilities. With the constraint the
                spans of a critique are its marks, and `limits` concern the feedback.
            seed: of sampling.

        Raises:
            ConfigError: if there is no such form or evidence, `votes`, `vote_threshold`, `prompt_words` or
                `no_repeat_ngram_size` is out of range, or `learned` is "choices" where the form quotes, nothing
                constrains, or a probe marks.
            ModelError: if the tokenizer or `max_new_tokens` has no room for the JSON of a critique.
        """
        check_known("form", form, get_args(CritiqueForm))
        self.constrain, self._size, self.eos_ids = constrain is not False, size, eos_ids
        self.tokenizer, self.max_new_tokens, self.write_feedback = tokenizer, max_new_tokens, write_feedback
        self.form: CritiqueForm = form
        self.match: Match = match
        self.limits = limits or QuoteLimits()
        self.prompt_format: PromptFormat = prompt_format
        self.votes, self.vote_threshold, self.seed = votes, vote_threshold, seed
        check_votes(votes, vote_threshold)
        check_known("learned", learned, get_args(Learned))
        self.learned: Learned = learned
        check_shown(evidence, prompt_words)
        self.evidence: Evidence = evidence
        self.prompt_words, self.outcomes, self.probe = prompt_words, outcomes, probe
        self.no_repeat_ngram_size = no_repeat_ngram_size
        if no_repeat_ngram_size < 0 or no_repeat_ngram_size == 1:
            raise ConfigError(
                f"no_repeat_ngram_size = {no_repeat_ngram_size}: give 2 or more tokens, or 0 to allow repetition"
            )
        if learned == "choices" and (form in QUOTING or not self.constrain or probe):
            lifted = "constrain = False lifts the constraint"
            reason = "a probe chooses the labels" if probe else f"form = {form!r} quotes" if form in QUOTING else lifted
            raise ConfigError(
                f'learned = "choices" leaves out of the loss the text that the constraint of labels alone allows, and '
                f"{reason}; it belongs to the forms {', '.join(LABEL_FORMS)}, with the constraint and without a probe"
            )
        if self._is_marked and self.limits.quoted_in_feedback:
            raise ConfigError(
                "limits.quoted_in_feedback allows only quotes that the feedback contains, and the quotes are the marks "
                "of a probe. Leave it out (in a recipe: critic.quoted_in_feedback)."
            )
        if self.constrain and not write_feedback and self.limits.quoted_in_feedback:
            raise ModelError(
                "limits.quoted_in_feedback allows only quotes that the feedback contains, and this model writes no "
                "feedback. Leave it out (in a recipe: critic.quoted_in_feedback)."
            )
        if max_new_tokens < self._min_tokens:
            raise ModelError(
                f"max_new_tokens = {max_new_tokens} is too short for a critique: an empty critique has "
                f"{self._min_tokens} tokens with this tokenizer. Raise it, or switch constrained decoding off with "
                "constrain = False."
            )

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response, in order."""
        if self.votes == 1:
            return self._read([own[0] for own in self._drawn(examples, responses, 0)], responses)
        samples = self.draw(examples, responses)
        return [vote(*pair, threshold=self.vote_threshold) for pair in zip(samples, responses, strict=True)]

    def draw(self, examples: Sequence[Example], responses: Sequence[str]) -> list[list[Critique]]:
        """Return `votes` sampled critiques of each response."""
        drawn = self._drawn(examples, responses, self.votes)
        return [self._read(own, [response] * len(own)) for own, response in zip(drawn, responses, strict=True)]

    def write(self, examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
        """Return the text of one critique per response, in order, by greedy decoding.

        The text is empty if the model's context has no room for a critique after the prompt, or that of the probe none
        for the response.
        """
        return [own[0].text for own in self._drawn(examples, responses, 0)]

    @abstractmethod
    def _drawn(self, examples: Sequence[Example], responses: Sequence[str], draws: int) -> list[list[Written]]:
        """Return several sampled critiques of each response; with 0 draws, the greedy critique."""

    @property
    def read(self) -> dict[str, Any]:
        """The settings of the texts that a prompt shows, as keyword arguments of `critique_prompts`."""
        return {"evidence": self.evidence, "prompt_words": self.prompt_words}

    def prompts(
        self, examples: Sequence[Example], responses: Sequence[str], marks: Sequence[Sequence[Marked]] = ()
    ) -> list[list[int]]:
        """Return the ids of the prompt for each response; `marks`: of each, with a probe."""
        shown = (
            [
                marks_text(response, own, self.form, write_feedback=self.write_feedback)
                for response, own in zip(responses, marks, strict=True)
            ]
            if self.probe
            else []
        )
        return critique_prompts(
            self.tokenizer, examples, responses, self.prompt_format, self.form, **self.read, marks=shown
        )

    def _prompts_of_draws(
        self, examples: Sequence[Example], responses: Sequence[str], draws: int
    ) -> list[list[_Prompt]]:
        """Return the prompt of each critique of each response; none where the probe cannot read it."""
        if self.probe is None:
            return [[_Prompt(ids)] * (draws or 1) for ids in self.prompts(examples, responses)]
        scores = self.probe.scores(examples, responses)
        flat = [
            (row, marks)
            for row, own in enumerate(scores)
            if not isinstance(own, Critique)
            for marks in (
                drawn_marks(own, draws, f"{self.seed} {examples[row].prompt_text!r} {responses[row]!r}")
                if draws
                else [likeliest_marks(own, self.vote_threshold)]
            )
        ]
        rows = [row for row, _ in flat]
        prompts = self.prompts([examples[row] for row in rows], [responses[row] for row in rows], [m for _, m in flat])
        found: list[list[_Prompt]] = [[] for _ in responses]
        for (row, marks), ids in zip(flat, prompts, strict=True):
            found[row].append(_Prompt(ids, marked_spans(responses[row], marks) if self._is_marked else None))
        return found

    @property
    def _is_marked(self) -> bool:
        """Whether the spans of a critique are the marks that its prompt shows."""
        return self.constrain and self.probe is not None

    def _read(self, written: Sequence[Written], responses: Sequence[str]) -> list[Critique]:
        """Parse the texts of critiques.

        A quote marks one occurrence for each time that it is listed, as in the training targets: if it marked every
        occurrence, a policy would get more reward for each repetition of a good phrase.
        """
        pairs = [(one.text, response) for one, response in zip(written, responses, strict=True)]
        if self.form not in QUOTING:
            return [critique_from_labels(*pair, LABEL_FORMS[self.form]) for pair in pairs]
        match: Match = "exact" if self.constrain else self.match
        found = [critique_from_text(*pair, match=match, occurrences="first") for pair in pairs]
        return [
            one if own.spans is None or not own.text else replace(one, spans=own.spans)
            for one, own in zip(found, written, strict=True)
        ]

    @property
    def _skeleton(self) -> Skeleton:
        settings = self._written | {"marked": self._is_marked}
        return skeleton_of(self.tokenizer, size=self._size, eos_ids=self.eos_ids, **settings)

    @property
    def _written(self) -> dict[str, Any]:
        """The form of a critique, and whether it has words and outcomes."""
        return {"write_feedback": self.write_feedback, "form": self.form, "outcomes": self.outcomes}

    @property
    def _min_tokens(self) -> int:
        """Number of tokens of the shortest critique, without the labels of words."""
        if not self.constrain:
            return 1
        return int((self._skeleton.checked_cost if self.limits.verbatim else self._skeleton.cost)[START])

    def _labels(self, response: str, spans: Sequence[Span] | None = None) -> WordLabels | None:
        """Return the valid labels of a response, or its decided spans; None without constraint, and where it quotes."""
        if not self.constrain or (self.form in QUOTING and spans is None):
            return None
        return WordLabels(response, self.form, self._skeleton.vocabulary, spans, outcomes=self.outcomes)

    def spelled(self, response: str, target: str) -> tuple[list[int], list[bool]]:
        """Return the tokens of a critique in a form with labels, and for each whether the model chooses it.

        Text that the constraint alone allows, and labels, are spelled as in decoding with learned = "choices": by the
        longest tokens, and by one token for each label.

        Raises:
            ModelError: if the constraint refuses the tokenizer's tokens of the critique.
        """
        labels = WordLabels(response, self.form, self._skeleton.vocabulary, outcomes=self.outcomes)
        whole = target.encode()
        settings: dict[str, Any] = {"eos_ids": self.eos_ids, "room": NO_LIMIT, "limits": QuoteLimits()}
        critique = ConstrainedLabels(self._skeleton, response, labels=labels, **settings)
        usual, rest, ids, choices = self._by_place(target), list[int](), list[int](), list[bool]()
        while (at := len(critique.written)) < len(whole):
            token = critique.fixed_token()
            choices.append(token is None)
            if token is None:
                texts = self._skeleton.vocabulary.data
                token = next((one for one in critique.label_tokens() if whole.startswith(texts[one], at)), None)
            if token is not None or at in usual:
                token, rest = usual[at] if token is None else token, []
            else:  # the longest tokens led to a place within one of the usual tokens
                rest = rest or list(encode(self.tokenizer, whole[at:].decode()))
                token = rest.pop(0)
            if not critique.take(token) or not whole.startswith(critique.written):
                said, then = (part.decode(errors="replace") for part in (whole[:at][-40:], whole[at:][:40]))
                raise ModelError(
                    f'learned = "choices": behind {said!r} the constraint refuses {then!r} as the tokenizer encodes '
                    'it; choose learned = "critique"'
                )
            ids.append(token)
        return ids, choices

    def _by_place(self, text: str) -> dict[int, int]:
        """Return the tokens of a critique's text by the place of their first byte; none if they do not spell it."""
        vocabulary, at, found = self._skeleton.vocabulary, 0, dict[int, int]()
        for token in encode(self.tokenizer, text):
            found[at] = token
            at += len((vocabulary.data if at else vocabulary.first).get(token, b""))
        return found if at == len(text.encode()) else {}

    def _least(self, labels: WordLabels | None) -> float:
        """Return the number of tokens of the shortest critique with these labels."""
        return self._min_tokens + (0 if labels is None else labels.cost[0])


class _Request(NamedTuple):
    """One critique to decode."""

    ids: list[int]  # of the reward model's prompt
    response: str  # the text that may be quoted
    group: str  # requests of one group share a prefix
    rng: Random | None = None  # samples the critique; None decodes greedily
    spans: tuple[Span, ...] | None = None  # of the critique, if they are decided

    @property
    def written_of(self) -> tuple[str, tuple[Span, ...] | None]:
        """The texts that decide about the valid critiques."""
        return self.response, self.spans


class GenerativeRewardModel(CritiqueDecoder):
    """A critic that decodes critiques with a language model: `model(examples, responses)` returns critiques."""

    def __init__(self, model: Any, tokenizer: Any, *, rows_at_once: int = 64, **settings: Any) -> None:
        """Take a model that was trained to write critiques.

        Args:
            model: a Hugging Face causal language model.
            tokenizer: its tokenizer.
            rows_at_once: critiques per batch; changes memory, not results.
            settings: keyword arguments of `CritiqueDecoder`. A sampled critique depends on the seed and its own prompt
                only, not on the batch.

        Raises:
            ConfigError, ModelError: as `CritiqueDecoder`; ModelError also if the model has no end-of-sequence token.
        """
        super().__init__(tokenizer, model.config.get_text_config().vocab_size, stop_ids(model, tokenizer), **settings)
        self.model, self.rows_at_once, self.tokens = model.eval(), rows_at_once, TokenCount()
        self.pad_id = padding_id(model, tokenizer, self.eos_ids)

    def _drawn(self, examples: Sequence[Example], responses: Sequence[str], draws: int) -> list[list[Written]]:
        if self.probe and self.probe.shared is None:
            self.probe.model.to(self.model.device)
        prompts = self._prompts_of_draws(examples, responses, draws)
        if draws and not self.probe:
            requests = [
                _Request(ids, response, str(ids), Random(f"{self.seed} {number} {ids}"))
                for own, response in zip(prompts, responses, strict=True)
                for number, (ids, _) in enumerate(own)
            ]
            texts = iter(self._decode_all(requests))
            return [[Written(next(texts)) for _ in own] for own in prompts]
        distinct = {
            (str(ids), response): _Request(
                ids, response, f"{example.prompt_text}{response if draws else ''}", spans=spans
            )
            for own, response, example in zip(prompts, responses, examples, strict=True)
            for ids, spans in own
        }
        found = dict(zip(distinct, self._decode_all(list(distinct.values())), strict=True))
        return [
            [Written(found[str(ids), response], spans) for ids, spans in own] or [Written("")] * (draws or 1)
            for own, response in zip(prompts, responses, strict=True)
        ]

    def _decode_all(self, requests: Sequence[_Request]) -> list[str]:
        """Return the text of each request; a batch holds prompts of similar length, with groups kept together."""
        longest: dict[str, int] = {}
        for request in requests:
            longest[request.group] = max(longest.get(request.group, 0), len(request.ids))
        place = {group: number for number, group in enumerate(longest)}
        keys = [(longest[request.group], place[request.group], len(request.ids)) for request in requests]
        order = sorted(range(len(requests)), key=keys.__getitem__)
        texts = [""] * len(requests)
        for start in range(0, len(order), self.rows_at_once):
            batch = order[start : start + self.rows_at_once]
            labels = {one: self._labels(*one) for one in {requests[row].written_of for row in batch}}
            rows = [row for row in batch if self._fits(requests[row], labels[requests[row].written_of])]
            if rows:
                for row, text in zip(rows, self._decode([requests[row] for row in rows], labels), strict=True):
                    texts[row] = text
        return texts

    def _fits(self, request: _Request, labels: WordLabels | None) -> bool:
        """Return whether there is room for the shortest critique."""
        return self._room(request.ids) >= self._least(labels)

    def _decode(self, requests: Sequence[_Request], labels: Mapping[Any, WordLabels | None]) -> list[str]:
        """Return the texts of one batch."""
        rooms = [self._room(request.ids) for request in requests]
        rngs = [request.rng for request in requests if request.rng is not None]
        if self.constrain:
            critiques = [
                self._constrained(request, room, labels[request.written_of])
                for request, room in zip(requests, rooms, strict=True)
            ]
            choose = ConstrainedChoice(critiques, rngs, spell_fixed=self._is_marked or self.learned == "choices")
            self._write(requests, rooms, choose, choose.ahead if choose.spell_fixed else None)
            return [critique.text for critique in critiques]
        ids = self._write(requests, rooms, FreeChoice(rngs) if rngs else most_likely)
        return list(self.tokenizer.batch_decode([list(row) for row in ids], skip_special_tokens=True))

    def _constrained(self, request: _Request, room: int, labels: WordLabels | None) -> ConstrainedCritique:
        settings: dict[str, Any] = {"eos_ids": self.eos_ids, "room": room, "limits": self.limits}
        if labels is None:
            return ConstrainedCritique(self._skeleton, request.response, **settings)
        kind = ConstrainedLabels if request.spans is None else ConstrainedFeedback
        return kind(self._skeleton, request.response, labels=labels, **settings)

    def _write(
        self, requests: Sequence[_Request], rooms: Sequence[int], choose: Choose, ahead: Ahead | None = None
    ) -> list[tuple[int, ...]]:
        if self.no_repeat_ngram_size and self.write_feedback:
            without = FeedbackWithoutRepeats(choose, self.no_repeat_ngram_size, self.tokenizer, self.form, ahead)
            choose, ahead = without, ahead and without.ahead
        written = decode(
            self.model,
            [request.ids for request in requests],
            choose,
            max_new_tokens=rooms,
            eos_ids=self.eos_ids,
            pad_id=self.pad_id,
            groups=[request.group for request in requests],
            ahead=ahead,
        )
        self.tokens.add(sum(len(request.ids) for request in requests), sum(map(len, written)))
        return written

    def _room(self, prompt: list[int]) -> int:
        """Return the most tokens that a critique can have after this prompt."""
        return int(min(self.max_new_tokens, context_of(self.model) - len(prompt)))

    def training_rows(self, annotations: Sequence[Annotation], *, max_tokens: int) -> tuple[list[Row], int]:
        """Return the rows to train on, and the number of annotations that are left out because they are too long.

        A row holds [x; y; z] with z = [c; A(y)], and the loss is −log R_φ(z | x, y): prompt x and response y have no
        label. With learned = "choices", the tokens of z that the constraint alone allows have none either. Failed
        critiques are skipped. A longer annotation than `max_tokens` is left out: cut, it would teach invalid JSON.

        Raises:
            DataError: if no annotation is left.
            ModelError: if the tokenizer has no end-of-sequence token; with learned = "choices" also if the constraint
                refuses its tokens of a critique.
        """
        readable = [annotation for annotation in annotations if not annotation.critique.failed]
        marks = [annotated_marks(one, self.probe.unit) for one in readable] if self.probe else ()
        prompts = self.prompts(*inputs_of(readable), marks)
        rows = []
        for prompt, annotation in zip(prompts, readable, strict=True):
            target = critique_target(
                annotation.critique, annotation.response, write_feedback=self.write_feedback, form=self.form
            )
            if self.learned == "critique":
                row = row_of_ids(prompt, with_end(self.tokenizer, encode(self.tokenizer, target)))
            else:
                ids, choices = self.spelled(annotation.response, target)
                row = row_of_ids(prompt, with_end(self.tokenizer, ids))
                chosen = [False] * len(prompt) + choices + [False]
                labels = [label if one else NO_LOSS for label, one in zip(row["labels"], chosen, strict=True)]
                row = {**row, "labels": labels}
            rows.append(row)
        kept = [
            row for row in rows if len(row["input_ids"]) <= max_tokens and any(one != NO_LOSS for one in row["labels"])
        ]
        if not kept:
            raise DataError(
                f"no training example is left of {len(annotations)} annotations: {len(annotations) - len(readable)} "
                f"have a critique that could not be parsed, {len(readable)} are longer than max_tokens = {max_tokens}. "
                "Raise max_tokens, or check the annotations."
            )
        return kept, len(rows) - len(kept)

    def train_further(self, annotations: Sequence[Annotation], settings: FineTuning) -> None:
        """Train to write the critiques of annotations, in place, as a refresh during RL does.

        Raises:
            DataError: if no annotation is left.
        """
        self.outcomes |= has_outcomes(annotations)
        rows, _ = self.training_rows(annotations, max_tokens=int(min(settings.max_tokens, context_of(self.model))))
        with learning(self.model) as model:
            train_on_rows(model, self.tokenizer, rows, settings)

    def restore(self, directory: Path, *, trust_remote_code: bool = False) -> None:
        """Take the weights of a saved reward model, and whether it learned outcomes."""
        load_weights(self.model, directory, trust_remote_code=trust_remote_code)
        self.outcomes = saved_settings(directory).get("outcomes", True)

    def save(self, directory: Path) -> None:
        """Write a Hugging Face directory, and the settings as reward_model.json."""
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        settings = {name: getattr(self, name) for name in SAVED} | {"limits": asdict(self.limits)}
        write_atomically(directory / SETTINGS_FILE, to_json(settings))
        if self.probe:
            self.probe.save(directory / PROBE)

    @classmethod
    def load(
        cls, directory: str | Path, *, trust_remote_code: bool = False, model: Any = None, **settings: Any
    ) -> "GenerativeRewardModel":
        """Load a saved reward model, or any causal language model or adapter that writes critiques.

        Args:
            directory: of the model.
            trust_remote_code: run code that comes with the model.
            model: the model if it is already loaded, such as an adapter on the policy's base.
            settings: keyword arguments of the constructor (also by their 0.1 names); they replace the saved settings.

        Raises:
            ModelError: if there is no such model.
        """
        model = load_writer(directory, trust_remote_code=trust_remote_code) if model is None else model
        tokenizer = load_tokenizer(str(directory), trust_remote_code=trust_remote_code)
        if (path := probe_of(directory)) and "probe" not in settings:
            settings["probe"] = load_probe(path, model, trust_remote_code=trust_remote_code)
        return cls(model, tokenizer, **{**saved_settings(directory), **_current_names(settings)})


def probe_of(directory: str | Path) -> Path | None:
    """Return the directory of the probe that was saved with a generative reward model; None without one."""
    path = Path(directory) / PROBE
    return path if is_probe(path) else None


def load_probe(directory: str | Path, writer: Any, *, trust_remote_code: bool = False) -> ProbeRewardModel:
    """Load a probe; where the writer is an adapter on the probe's base, that base is in memory once.

    Raises:
        ModelError: as `ProbeRewardModel.load`.
    """
    shared = adapted(writer, saved_probe(directory)["base"])
    return ProbeRewardModel.load(directory, trust_remote_code=trust_remote_code, shared=shared)
