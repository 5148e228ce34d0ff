"""Questions → answers of one model, each sampled once, on disk before it is used.

answers/SUITE.MODEL.jsonl   one line per turn: id, sample, turn, text, tokens, finish
answers/SUITE.MODEL.json    model, type of its weights, sampling and questions of the answers; others are refused there
answers.sqlite              every answer of a server, by a hash of its request

The random numbers of an answer follow from the seed and from suite, question, sample and turn, never from what ran
before. The answers are sampled in batches whose rows are fixed by the questions and `rows_at_once`; a batch is written
when it is whole, and an interrupted batch is sampled again, whole. So an interrupted and an undisturbed run give equal
files on one machine. Other batches or machines round differently, which can change a token where two are almost equally
likely. Requests to servers carry the sample's own `seed` where the temperature is above 0; the first answer stays.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from hashlib import sha256
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from text2grad.config import Endpoint
from text2grad.costs import TokenCount
from text2grad.critics.servers import Request, Store
from text2grad.errors import ConfigError, DataError
from text2grad.evaluation.judging import all_answers
from text2grad.evaluation.subjects import LoadedModel, Subject
from text2grad.evaluation.suite import Answer, AnsweredSuite, Question, Suite, digest_of_questions
from text2grad.files import append_records, appended_records, claim, to_json, write_records
from text2grad.models import context_of, encode_prompts, sample, texts_of
from text2grad.progress import Progress
from text2grad.types import Example, Message

_TAIL_TOKENS = 32  # last tokens of a response, searched for a text that ends it
_MOST_STOPS = 4  # OpenAI's limit of texts that end an answer; the answer is cut at all of them here


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are sampled."""

    temperature: float = 0.0  # 0 takes the most likely token
    samples: int = 1  # answers to each question
    max_new_tokens: int | None = None  # longest answer of one turn; None takes the suite's
    seed: int = 0
    rows_at_once: int = 16  # answers that are sampled together
    too_long: Literal["refuse", "empty"] = "refuse"  # "empty": a prompt without room gets an empty answer

    def __post_init__(self) -> None:
        """Refuse several samples that could not differ."""
        if self.samples > 1 and not self.temperature:
            raise ConfigError(
                f"--samples {self.samples} at --temperature 0 would give the same answer {self.samples} times; set a "
                "temperature, such as 0.8"
            )

    def heat(self, question: Question) -> float:
        """Return the temperature of the answers to a question."""
        return self.temperature if question.temperature is None else question.temperature


Line = dict[str, Any]
_KEYS = ("id", "sample", "turn", "text", "tokens", "finish")


class Turn(NamedTuple):
    """One answer to sample: its question, and the numbers of sample and turn."""

    question: Question
    sample: int
    turn: int

    @property
    def key(self) -> tuple[str, int, int]:
        """What a line of the file names."""
        return self.question.id, self.sample, self.turn

    def seed(self, suite: str, seed: int, bits: int) -> int:
        """Return the seed of this answer's random numbers, of 31 or 63 bits."""
        digest = sha256(to_json([seed, suite, *self.key])).digest()
        return int.from_bytes(digest[: (bits + 1) // 8]) & (1 << bits) - 1

    def line(self, text: str, tokens: int, finish: str) -> Line:
        """Return the line of the file."""
        return dict(zip(_KEYS, (*self.key, text, tokens, finish), strict=True))


def _by_key(lines: Iterable[Line]) -> dict[tuple[str, int, int], Line]:
    return {(line["id"], line["sample"], line["turn"]): line for line in lines}


def stem_of(suite: Suite, model: str) -> str:
    """Return the name of the files of one model in one suite, without folder and ending."""
    return f"{suite.name}.{model}".replace("/", "-").replace(":", "-")


class AnswerFile:
    """The answers of one model to one suite, on disk."""

    def __init__(self, out: Path, suite: AnsweredSuite, subject: Subject, sampling: Sampling) -> None:
        """Name the files; nothing is read or written."""
        self.path = out / "answers" / f"{stem_of(suite, subject.name)}.jsonl"
        self.suite, self.subject, self.sampling = suite, subject, sampling
        self.length = sampling.max_new_tokens or suite.max_new_tokens  # longest answer of one turn, in tokens
        self.said: dict[tuple[str, int, int], Line] = {}  # lines by id, sample and turn

    def open(self, *, force: bool) -> None:
        """Read the whole lines that are on disk.

        Raises:
            ConfigError: if the file cannot be used, or without `force` holds answers of another model or sampling.
        """
        settings = asdict(self.sampling) | {"max_new_tokens": self.length}
        if self.subject.served:
            del settings["rows_at_once"], settings["too_long"]
        questions = digest_of_questions(self.suite.questions)
        identity = {"subject": self.subject.identity(), "sampling": settings, "questions": questions}
        belongs = self.path.with_suffix(".json")
        if force and belongs.exists() and belongs.read_bytes() != to_json(identity):
            self.path.unlink(missing_ok=True)
            belongs.unlink()
        holds = f"{self.path.name}, answers of another model, other sampling or other questions"
        claim(belongs, identity, holds=holds, way_out="add --force to replace them")
        try:
            self.said = _by_key(appended_records(self.path))
        except (LookupError, TypeError) as error:
            raise ConfigError(f"cannot use {self.path}: {error!r}. Choose another --out") from error

    def add(self, lines: Sequence[Line]) -> None:
        """Write lines; they are on disk when this returns."""
        append_records(self.path, lines)
        self.said |= _by_key(lines)

    @cached_property
    def turns(self) -> list[Turn]:
        """Every answer to sample: first turns before second turns, question by question."""
        most, samples = max(question.turns for question in self.suite.questions), range(self.sampling.samples)
        every = [(turn, question) for turn in range(most) for question in self.suite.questions if turn < question.turns]
        return [Turn(question, number, turn) for turn, question in every for number in samples]

    @property
    def missing(self) -> list[Turn]:
        """The answers that are not known yet."""
        return [turn for turn in self.turns if turn.key not in self.said]

    def answers(self, *, chat: bool) -> list[Answer]:
        """Write all lines in order, and return the answers; `chat` says whether they reply to prompts."""
        write_records(self.path, [self.said[turn.key] for turn in self.turns])
        answers = []
        for question in self.suite.questions:
            for number in range(self.sampling.samples):
                lines = [self.said[question.id, number, turn] for turn in range(question.turns)]
                texts, tokens, finish = (tuple(line[key] for line in lines) for key in ("text", "tokens", "finish"))
                answers.append(Answer(question, number, texts, tokens, finish, not chat))
        return answers

    def prompt(self, turn: Turn, *, chat: bool) -> str | Sequence[Message]:
        """Return the prompt of a turn: the first, or the conversation so far."""
        question = turn.question
        first = question.prompt if chat or question.continuation is None else question.continuation
        if not turn.turn:
            return first
        messages: list[Message] = [{"role": "user", "content": first}] if isinstance(first, str) else list(first)
        for earlier in range(turn.turn):
            messages += [
                {"role": "assistant", "content": self.said[question.id, turn.sample, earlier]["text"]},
                {"role": "user", "content": question.then[earlier]},
            ]
        return messages


def sample_answers(model: LoadedModel, file: AnswerFile, tokens: TokenCount) -> None:
    """Sample the answers of a loaded model that are missing; each batch goes to the file and to the costs."""
    phase, done = f"{file.suite.name}: answers of {file.subject.name}", len(file.turns) - len(file.missing)
    with Progress(phase, len(file.turns), done=done, unit="answer") as progress:
        for batch in _batches(model, file):
            sampled = _sample_batch(model, file, batch)  # whole, also if some are known, for the same numbers
            lines = [line for line, turn in zip(sampled, batch, strict=True) if turn.key not in file.said]
            file.add(lines)
            for line in lines:
                progress.advance(tokens=line["tokens"])
                tokens.add(0, line["tokens"])


def _batches(model: LoadedModel, file: AnswerFile) -> Iterator[list[Turn]]:
    """Yield batches with missing answers: rows of one turn, with one temperature and the same texts that end one."""

    def alike(turn: Turn) -> tuple[int, float, tuple[str, ...]]:
        return turn.turn, file.sampling.heat(turn.question), () if model.chat else turn.question.stop

    for _, group in groupby(file.turns, alike):
        while batch := list(islice(group, file.sampling.rows_at_once)):
            if any(turn.key not in file.said for turn in batch):
                yield batch


def _sample_batch(model: LoadedModel, file: AnswerFile, batch: Sequence[Turn]) -> list[Line]:
    import torch

    prompts = _encode(model, file, batch)
    fitting = [row for row, ids in enumerate(prompts) if len(ids) <= context_of(model.model) - file.length]
    lines = [turn.line("", 0, "too_long") for turn in batch]
    if not fitting:
        return lines
    stop = () if model.chat else batch[0].question.stop
    prompts = [prompts[row] for row in fitting]

    def has_stop(ids: Sequence[int]) -> bool:  # a token has at least one character
        tail = model.tokenizer.decode(ids[-_TAIL_TOKENS:], skip_special_tokens=True)
        return any(end in tail for end in stop)

    seeds = (batch[row].seed(file.suite.name, file.sampling.seed, 63) for row in fitting)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    responses = sample(
        model.model,
        prompts,
        torch.stack([torch.rand(file.length, generator=generator) for generator in generators]),  # one for each row
        eos_ids=model.eos_ids,
        pad_id=model.pad_id,
        temperature=file.sampling.heat(batch[0].question),
        rows_at_once=len(fitting),
        ended=has_stop if stop else None,
    )
    for row, ids, text in zip(fitting, responses, _texts(model, prompts, responses), strict=True):
        cut = cut_at(text, stop)
        ended = cut != text or (bool(ids) and ids[-1] in model.eos_ids)
        lines[row] = batch[row].line(cut, len(ids), "stop" if ended else "length")
    return lines


def _texts(model: LoadedModel, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[str]:
    """Return the texts of responses; a text that continues its prompt keeps the white space at its beginning.

    Tokenizers of SentencePiece drop it, which would break a program: prompt and response are decoded together.
    """
    decoded = partial(texts_of, model.tokenizer)
    alone = decoded(responses)
    if model.chat:
        return alone
    whole = decoded([[*prompt, *ids] for prompt, ids in zip(prompts, responses, strict=True)])
    return [
        both[len(prompt) :] if both.startswith(prompt) else text
        for text, prompt, both in zip(alone, decoded(prompts), whole, strict=True)
    ]


def cut_at(text: str, stop: Sequence[str]) -> str:
    r"""Return a text up to the first of the texts that end it.

    Example:
        >>> cut_at("    return 1\n\ndef other(): ...", ["\ndef", "\nclass"])
        '    return 1\n'
    """
    return text[: min((place for end in stop if (place := text.find(end)) >= 0), default=len(text))]


def _encode(model: LoadedModel, file: AnswerFile, turns: Sequence[Turn]) -> list[tuple[int, ...]]:
    examples = [Example(file.prompt(turn, chat=model.chat)) for turn in turns]
    return encode_prompts(model.tokenizer, examples, prompt_format="chat" if model.chat else "plain")


def check_room(model: LoadedModel, file: AnswerFile) -> None:
    """Refuse prompts of first turns without room for an answer; the model's weights are not needed."""
    most, context = file.length, context_of(model.model)
    first = [Turn(question, 0, 0) for question in file.suite.questions]
    lengths = zip(first, map(len, _encode(model, file, first)), strict=True)
    long = [(turn.question.id, length) for turn, length in lengths if length > context - most]
    if long and (file.sampling.too_long == "refuse" or context <= most):
        raise DataError(
            f"{len(long)} of {len(first)} prompts of suite {file.suite.name} leave no room for {most} new tokens in "
            f"the context of {context} tokens of {file.subject.name}; the first is question {long[0][0]!r} with "
            f"{long[0][1]} tokens. Lower --max-new-tokens, or count them as failed with --set data.too_long=skip"
        )


def endpoint_of(file: AnswerFile, server: Endpoint) -> Endpoint:
    """Return how the server of a model is requested; `server` says key, concurrency and time limit."""
    model, address, heat = file.subject.model_name, file.subject.path, file.sampling.temperature
    own = {"model": model, "base_url": address, "temperature": heat, "max_tokens": file.length}
    return server.model_copy(update=own)


def request_answers(file: AnswerFile, out: Path, server: Endpoint, tokens: TokenCount) -> None:
    """Request the missing answers of a model on a server, turn by turn; each is stored in `out`."""
    endpoint, chat = endpoint_of(file, server), file.subject.prompt_format != "plain"
    what = f"answers of {file.subject.name} to suite {file.suite.name}"
    with Store(out / "answers.sqlite") as store:
        for _, group in groupby(file.missing, lambda turn: turn.turn):
            turns, lines = list(group), []
            requests = [_request(file, turn, chat=chat) for turn in turns]
            for turn, answer in zip(turns, all_answers(endpoint, store, requests, tokens, what), strict=True):
                text = answer.text if chat else cut_at(answer.text, turn.question.stop)
                finish = "stop" if text != answer.text else answer.finish.partition(",")[0]
                lines.append(turn.line(text, max(answer.completion_tokens or 0, 0), finish))
            file.add(lines)


def _request(file: AnswerFile, turn: Turn, *, chat: bool) -> Request:
    question, prompt = turn.question, file.prompt(turn, chat=chat)
    more: dict[str, Any] = {} if question.temperature is None else {"temperature": question.temperature}
    if file.sampling.heat(question):
        more["seed"] = turn.seed(file.suite.name, file.sampling.seed, 31)
    if not chat and question.stop:
        more["stop"] = list(question.stop[:_MOST_STOPS])
    if not chat:
        return Request(Example(prompt).joined_text, None, turn.sample, more)
    messages: Sequence[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return Request(tuple(map(dict, messages)), None, turn.sample, more)
