"""MT-Bench (arXiv 2306.05685): 80 conversations of two turns, rated from 1 to 10, or compared with another model's.

The data is a directory with the files of FastChat: the questions, the judge's prompts and the reference answers.
Mathematics, reasoning and coding are judged with the reference.

mt_bench         each turn is rated: `score` is the mean over turns; also by turn and by category
mt_bench_pairs   each turn is compared with the same turn of another model (`--against`), in both orders: a win only
                 if both verdicts prefer it, contradicting verdicts are a tie
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.critics.servers import Prompt
from text2grad.errors import DataError
from text2grad.evaluation.intervals import Ratio
from text2grad.evaluation.judging import fill, judge_of
from text2grad.evaluation.suite import (
    Answered,
    Counts,
    JudgedSuite,
    Measure,
    Question,
    Scores,
    SuiteOptions,
    check_ids,
    digest_of_questions,
)
from text2grad.feedback import bad_record, json_object, read_entries, without_reasoning

WITH_REFERENCE = frozenset({"math", "reasoning", "coding"})
TEMPERATURES = {
    **dict.fromkeys(("writing", "roleplay"), 0.7),
    **dict.fromkeys(("extraction", "math", "coding", "reasoning"), 0.0),
    **dict.fromkeys(("stem", "humanities"), 0.1),
}
"""Temperature of the answers to a category, as FastChat samples them."""

FILES = {
    "questions": ("question.jsonl", "mt_bench_question.jsonl"),
    "prompts": ("judge_prompts.jsonl",),
    "references": ("reference_answer/gpt-4.jsonl", "mt_bench_reference_answer_gpt-4.jsonl"),
}
JUDGE_TOKENS = 2048
_RATING = (re.compile(r"\[\[(\d+\.?\d*)\]\]"), re.compile(r"\[(\d+\.?\d*)\]"))
_VERDICT = {"[[A]]": "first", "[[B]]": "second", "[[C]]": "tie"}
_WAY_OUT = (
    "Give --data {suite}=DIR, a directory with question.jsonl, judge_prompts.jsonl and reference_answer/gpt-4.jsonl "
    "of FastChat (lm-sys/FastChat, fastchat/llm_judge/data)"
)


class _Template(NamedTuple):
    system: str
    prompt: str


class MTBenchSuite(JudgedSuite):
    """Ratings of both turns."""

    name = "mt_bench"
    max_new_tokens = 1024

    def __init__(self, options: SuiteOptions) -> None:
        """Read the questions, the judge's prompts and the reference answers.

        Raises:
            DataError: if a file is absent or cannot be used.
            ConfigError: if no judge is named.
        """
        self.options = options
        given = judge_of(self.name, options.judge)
        self.judge = given.set_to(temperature=0.0, max_tokens=JUDGE_TOKENS)
        paths = {kind: _file(self.name, options.data, names) for kind, names in FILES.items()}
        self._templates = _templates(paths["prompts"])
        references = read_model_answers(paths["references"])
        self.questions = list(_questions(paths["questions"], references))[: options.limit]
        check_ids(self.name, self.questions)
        self.measures = self._measures()

    def _measures(self) -> Mapping[str, Measure]:
        categories = sorted({one.data["category"] for one in self.questions})
        rated = {
            "score": Measure(Ratio(("rating",), ("rated",)), about="mean rating of both turns, 1 to 10"),
            "turn_1": Measure(Ratio(("rating/1",), ("rated/1",)), about="rating of the first turn"),
            "turn_2": Measure(Ratio(("rating/2",), ("rated/2",)), about="rating of the second turn"),
        }
        of_categories = {
            one: Measure(Ratio((f"rating/{one}",), (f"rated/{one}",)), about=f"rating of category {one}")
            for one in categories
        }
        about = "share of judgements without a rating; they are in no mean"
        return {
            **rated,
            **of_categories,
            "unrated": Measure(Ratio(("unrated",), ("turns",), share=True), "lower", about=about),
        }

    def identity(self) -> dict[str, Any]:
        """Return questions, prompts and judge."""
        return {
            "suite": self.name,
            "questions": digest_of_questions(self.questions),
            "prompts": sha256(repr(sorted(self._templates.items())).encode()).hexdigest()[:16],
            "judge": self.judge.endpoint.model,
        }

    def score(self, answered: Sequence[Answered], folder: Path) -> list[Scores]:
        """Return ratings of both turns, and how many there are."""
        replies = iter(self.judge.ask(self.prompts(answered), folder, phase=f"{self.name}: ratings"))
        return [self._scores(one, [read_rating(text_of(next(replies))) for _ in one.answer.texts]) for one in answered]

    def prompts(self, answered: Sequence[Answered]) -> list[Prompt]:
        """Return a request for each turn of each answer."""
        return [self._prompt(one, turn) for one in answered for turn in range(one.question.turns)]

    def _scores(self, one: Answered, ratings: Sequence[float | None]) -> Scores:
        category = one.question.data["category"]
        found: dict[str, Any] = {"category_name": category, "turns": float(len(ratings)), "unrated": 0.0}
        for turn, rating in enumerate(ratings, start=1):
            if rating is None:
                found["unrated"] += 1.0
                continue
            for name in ("", f"/{turn}", f"/{category}"):
                found[f"rating{name}"] = found.get(f"rating{name}", 0.0) + rating
                found[f"rated{name}"] = found.get(f"rated{name}", 0.0) + 1.0
        return found

    def _prompt(self, one: Answered, turn: int) -> Prompt:
        """Return the judge's prompt about a turn; that about the second one shows both."""
        texts = one.answer.texts
        answers = {"answer": texts[0]} if turn == 0 else {f"answer_{n}": text for n, text in enumerate(texts, start=1)}
        return self._messages("single", one.question, turn, answers)

    def _messages(self, kind: str, question: Question, turn: int, answers: Mapping[str, str]) -> Prompt:
        data = question.data
        math = data["category"] in WITH_REFERENCE
        name = {"single": "single-math-v1" if math else "single-v1", "pair": "pair-math-v1" if math else "pair-v2"}[
            kind
        ]
        name += "-multi-turn" if turn else ""
        if name not in self._templates:
            raise DataError(f"suite {self.name}: the judge's prompts lack {name!r}; take the whole file of FastChat")
        asked, references = data["turns"], data["references"]
        fields = {"question": asked[0], **{f"question_{n}": text for n, text in enumerate(asked, start=1)}, **answers}
        fields |= {f"ref_answer_{n}": text for n, text in enumerate(references, start=1)}
        template = self._templates[name]
        where = f"suite {self.name}, prompt {name}"
        content = fill(template.prompt, fields, where)
        return ({"role": "system", "content": template.system}, {"role": "user", "content": content})


class MTBenchPairsSuite(MTBenchSuite):
    """Comparisons of both turns with the answers of another model, in both orders."""

    name = "mt_bench_pairs"

    def __init__(self, options: SuiteOptions) -> None:
        """Read as `MTBenchSuite`, and the answers of the other model.

        Raises:
            DataError: if a file is absent or cannot be used, or lacks an answer.
            ConfigError: if no judge is named.
        """
        super().__init__(options)
        if not options.against:
            raise DataError(
                f"suite {self.name}: name the answers to compare with: --against {self.name}=FILE, a file of "
                "model_answer/ of FastChat, or answers/mt_bench.MODEL.jsonl of another evaluation"
            )
        self.others = read_model_answers(Path(options.against))
        missing = [one.id for one in self.questions if len(self.others.get(one.id, ())) < one.turns]
        if missing:
            raise DataError(
                f"suite {self.name}: {options.against} lacks answers to {len(missing)} of {len(self.questions)} "
                f"questions, such as {missing[0]}; give answers of both turns to each"
            )

    def _measures(self) -> Mapping[str, Measure]:
        shares = {
            name: Measure(Ratio((name,), ("judged",), share=True), about=about) for name, about in _SHARES.items()
        }
        shares["inconsistent"] = shares["inconsistent"]._replace(better="lower")
        bias = "share of the verdicts for a place that are for the first one: 0.5 without position bias"
        unread = Measure(
            Ratio(("unjudged",), ("turns",), share=True), "lower", about="share of comparisons without both verdicts"
        )
        return {**shares, "first_place": Measure(Ratio(("first",), ("places",)), "", about=bias), "unjudged": unread}

    def identity(self) -> dict[str, Any]:
        """Return questions, prompts, judge and the other answers."""
        others = sha256(repr([self.others[one.id] for one in self.questions]).encode()).hexdigest()[:16]
        return {**super().identity(), "against": others}

    def score(self, answered: Sequence[Answered], folder: Path) -> list[Scores]:
        """Return wins, ties and losses of both turns; equal answers tie without a request."""
        replies = iter(self.judge.ask(self.prompts(answered), folder, phase=f"{self.name}: verdicts"))
        found: list[Scores] = []
        for one in answered:
            counts: Counts = {"turns": float(one.question.turns)}
            for turn in range(one.question.turns):
                alike = self._alike(one, turn)
                places = None if alike else [read_pair_verdict(text_of(next(replies))) for _ in range(2)]
                for name, value in pair_counts(places).items():
                    counts[name] = counts.get(name, 0.0) + value
            found.append(counts)
        return found

    def prompts(self, answered: Sequence[Answered]) -> list[Prompt]:
        """Return two requests for each turn that differs from the other model's, one per order."""
        return [
            self._pair(one, turn, swapped)
            for one in answered
            for turn in range(one.question.turns)
            if not self._alike(one, turn)
            for swapped in (False, True)
        ]

    def _alike(self, one: Answered, turn: int) -> bool:
        return list(one.answer.texts[: turn + 1]) == list(self.others[one.question.id][: turn + 1])

    def _pair(self, one: Answered, turn: int, swapped: bool) -> Prompt:
        mine, other = one.answer.texts, self.others[one.question.id]
        a, b = (other, mine) if swapped else (mine, other)
        if turn == 0:
            answers = {"answer_a": a[0], "answer_b": b[0]}
        else:
            answers = {f"answer_{side}_{n}": text[n - 1] for side, text in (("a", a), ("b", b)) for n in (1, 2)}
        return self._messages("pair", one.question, turn, answers)


_SHARES = {
    "win_rate": "wins + half of the ties",
    "win": "preferred in both orders",
    "tie": "ties, and contradicting verdicts",
    "loss": "the other answer preferred in both orders",
    "inconsistent": "the two orders had different verdicts",
}


def pair_counts(places: Sequence[str | None] | None) -> Counts:
    """Return the counts of a comparison.

    Args:
        places: the preferred place ("first", "second", "tie") when the answer stands first, and when it stands second;
            None for equal answers.

    Example:
        >>> pair_counts(["first", "second"])["win"], pair_counts(["first", "first"])["tie"]
        (1.0, 1.0)
    """
    if places is None:
        return {"judged": 1.0, "tie": 1.0, "win_rate": 0.5}
    if None in places:
        return {"unjudged": 1.0}
    mine = [place == winning for place, winning in zip(places, ("first", "second"), strict=True)]
    theirs = [place == winning for place, winning in zip(places, ("second", "first"), strict=True)]
    win, loss = float(all(mine)), float(all(theirs))
    return {
        **{"judged": 1.0, "win": win, "loss": loss, "tie": 1.0 - win - loss, "win_rate": (1.0 + win - loss) / 2},
        "inconsistent": float(mine != [mine[0]] * 2 or theirs != [theirs[0]] * 2),
        **{"first": float(places.count("first")), "places": float(2 - places.count("tie"))},
    }


def read_rating(text: str) -> float | None:
    """Return the rating in a judgement; None if it has none.

    Example:
        >>> read_rating("Good. Rating: [[8.5]]"), read_rating("Rating: [7]"), read_rating("8 of 10")
        (8.5, 7.0, None)
    """
    found = next((match for pattern in _RATING if (match := pattern.search(text))), None)
    return float(found[1]) if found else None


def read_pair_verdict(text: str) -> str | None:
    """Return the preferred place in a judgement, "tie", or None if it has no verdict.

    Example:
        >>> read_pair_verdict("A is wrong. [[B]]"), read_pair_verdict("[[C]]"), read_pair_verdict("B")
        ('second', 'tie', None)
    """
    return next((place for mark, place in _VERDICT.items() if mark in text), None)


def text_of(reply: Any) -> str:
    """Return the text of a reply without its reasoning, which holds drafts of a verdict; "" for a refusal."""
    if reply.answer is None or reply.answer.finish in ("refused", "too_long"):
        return ""
    return without_reasoning(reply.answer.text)


def read_model_answers(path: Path) -> dict[str, list[str]]:
    """Return the answers of a model by question, one for each turn.

    Args:
        path: JSONL of FastChat ("question_id", "choices"), or of an evaluation ("id", "turn", "text").

    Raises:
        DataError: if the file cannot be read.
    """
    found: dict[str, list[str]] = {}
    for entry in read_entries(path):
        record = json_object(entry.record, entry.where)
        if "choices" in record:
            try:
                found[str(record["question_id"])] = [str(text) for text in record["choices"][0]["turns"]]
            except (LookupError, TypeError) as error:
                raise bad_record(entry.where, 'needs "question_id" and "choices" with "turns"') from error
        elif isinstance(record.get("text"), str) and "id" in record:
            if record.get("sample", 0) == 0:
                found.setdefault(str(record["id"]), []).append(record["text"])
        else:
            raise bad_record(entry.where, 'needs "question_id" and "choices", or "id", "turn" and "text"')
    return found


def _file(suite: str, data: str, names: Sequence[str]) -> Path:
    way_out = _WAY_OUT.format(suite=suite)
    directory = Path(data)
    if not data or not directory.is_dir():
        said = f"{data} is no directory" if data else "no data is given"
        raise DataError(f"suite {suite}: {said}. {way_out}")
    found = next((directory / name for name in names if (directory / name).exists()), None)
    if found is None:
        raise DataError(f"suite {suite}: {directory} has no {' or '.join(names)}. {way_out}")
    return found


def _templates(path: Path) -> dict[str, _Template]:
    found = {}
    for entry in read_entries(path):
        record = json_object(entry.record, entry.where)
        texts = [record.get(key) for key in ("name", "system_prompt", "prompt_template")]
        if not all(isinstance(text, str) for text in texts):
            raise bad_record(entry.where, 'needs the texts "name", "system_prompt" and "prompt_template"')
        found[str(texts[0])] = _Template(str(texts[1]), str(texts[2]))
    return found


def _questions(path: Path, references: Mapping[str, Sequence[str]]) -> Iterator[Question]:
    for entry in read_entries(path):
        record = json_object(entry.record, entry.where)
        turns, category, name = record.get("turns"), record.get("category"), str(record.get("question_id", ""))
        if not name or not isinstance(category, str) or not isinstance(turns, list) or not 1 <= len(turns) <= 2:
            raise bad_record(entry.where, 'needs "question_id", "category" and one or two "turns"')
        known = list(references.get(name, ()))
        if category in WITH_REFERENCE and len(known) < len(turns):
            raise DataError(f"{entry.where}: question {name} ({category}) has no reference answer; take the whole file")
        data = {"category": category, "turns": [str(text) for text in turns], "references": known}
        yield Question(
            name,
            str(turns[0]),
            then=tuple(str(text) for text in turns[1:]),
            temperature=TEMPERATURES.get(category, 0.7),
            data=data,
        )
