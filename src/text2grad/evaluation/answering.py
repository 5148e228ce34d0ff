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

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from text2grad.costs import TokenCount
from text2grad.critics.servers import CachedClient, Endpoint, Failure, Prompt, Request, Store, run_session
from text2grad.errors import ConfigError, DataError, RequestError
from text2grad.evaluation.subjects import LoadedModel, Subject
from text2grad.evaluation.suite import Answer, AnsweredSuite, Question, Suite, digest_of_questions
from text2grad.files import json_lines, to_json, write_atomically
from text2grad.models import context_of, encode_prompts, sample
from text2grad.progress import Progress
from text2grad.types import Example, Message

_TAIL_TOKENS = 32  # last tokens of a response, searched for a text that ends it


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

    def length(self, suite: AnsweredSuite) -> int:
        """Return the longest answer of one turn."""
        return self.max_new_tokens or suite.max_new_tokens

    def heat(self, question: Question) -> float:
        """Return the temperature of the answers to a question."""
        return self.temperature if question.temperature is None else question.temperature


Line = dict[str, Any]
Said = dict[tuple[str, int, int], Line]
"""Lines of the file by id, sample and turn."""
_BELONGING = {"subject": "another model", "sampling": "other settings of sampling", "questions": "other questions"}


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
        place = dict(zip(("id", "sample", "turn"), self.key, strict=True))
        return place | {"text": text, "tokens": tokens, "finish": finish}


def _by_key(lines: Iterable[Line]) -> Said:
    return {(line["id"], line["sample"], line["turn"]): line for line in lines}


def stem_of(suite: Suite, model: str) -> str:
    """Return the name of the files of one model in one suite, without folder and ending."""
    return f"{suite.name}.{model}".replace("/", "-").replace(":", "-")


class AnswerFile:
    """The answers of one model to one suite, on disk."""

    def __init__(
        self, out: Path, suite: AnsweredSuite, subject: Subject, sampling: Sampling, *, dtype: str = "auto"
    ) -> None:
        """Name the files; nothing is read or written."""
        self.path = out / "answers" / f"{stem_of(suite, subject.name)}.jsonl"
        self.suite, self.subject, self.sampling, self.dtype = suite, subject, sampling, dtype

    def open(self, *, force: bool) -> Said:
        """Return the whole lines that are on disk; create the files if there are none.

        Raises:
            ConfigError: if the file cannot be used, or without `force` holds answers of another model or sampling.
        """
        settings = asdict(self.sampling) | {"max_new_tokens": self.sampling.length(self.suite)}
        if self.subject.served:
            del settings["rows_at_once"], settings["too_long"]
        questions = digest_of_questions(self.suite.questions)
        now = {"subject": self.subject.identity(self.dtype), "sampling": settings, "questions": questions}
        belongs = self.path.with_suffix(".json")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            before = json.loads(belongs.read_bytes()) if belongs.exists() else now
            if before != now:
                changed = [
                    f"{what} ({json.dumps(before.get(key))}, now {json.dumps(now[key])})"
                    for key, what in _BELONGING.items()
                    if before.get(key) != now[key]
                ]
                if not force:
                    raise ConfigError(
                        f"{self.path} holds answers of {' and '.join(changed)}; choose another --out, or add --force "
                        "to replace them"
                    )
                self.path.unlink(missing_ok=True)
            write_atomically(belongs, to_json(now))
            data = self.path.read_bytes() if self.path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            if whole != data:  # a kill cut the last line
                os.truncate(self.path, len(whole))
            return _by_key(map(json.loads, whole.splitlines()))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"cannot use {self.path}: {error}. Choose another --out") from error

    def append(self, lines: Sequence[Line]) -> None:
        """Write lines; they are on disk when this returns."""
        with self.path.open("ab") as file:
            file.write(json_lines(lines))
            file.flush()
            os.fsync(file.fileno())

    def turns(self) -> list[Turn]:
        """Return every answer to sample: first turns before second turns, question by question."""
        most, samples = max(question.turns for question in self.suite.questions), range(self.sampling.samples)
        every = [(turn, question) for turn in range(most) for question in self.suite.questions if turn < question.turns]
        return [Turn(question, number, turn) for turn, question in every for number in samples]

    def is_complete(self, said: Said) -> bool:
        """Return whether lines hold every answer."""
        return all(turn.key in said for turn in self.turns())

    def answers(self, said: Said, *, chat: bool) -> list[Answer]:
        """Return the answers in the lines, question by question; `chat` says whether they reply to prompts."""
        answers = []
        for question in self.suite.questions:
            for number in range(self.sampling.samples):
                lines = [said[question.id, number, turn] for turn in range(question.turns)]
                texts, tokens, finish = (tuple(line[key] for line in lines) for key in ("text", "tokens", "finish"))
                answers.append(Answer(question, number, texts, tokens, finish, not chat))
        return answers


def sample_answers(model: LoadedModel, file: AnswerFile, said: Said, tokens: TokenCount) -> None:
    """Sample the answers of a loaded model that are missing; they are added to `said`, to the file and to the costs."""
    turns = file.turns()
    missing = sum(turn.key not in said for turn in turns)
    phase = f"{file.suite.name}: answers of {file.subject.name}"
    with Progress(phase, len(turns), done=len(turns) - missing, unit="answer") as progress:
        for batch in _batches(turns, file.sampling, chat=model.chat):
            new = [turn.key not in said for turn in batch]
            if not any(new):
                continue
            lines = [line for line, wanted in zip(_sample_batch(model, file, batch, said), new, strict=True) if wanted]
            file.append(lines)
            said |= _by_key(lines)
            for line in lines:
                progress.advance(tokens=line["tokens"])
                tokens.add(0, line["tokens"])


def _batches(turns: Sequence[Turn], sampling: Sampling, *, chat: bool) -> Iterator[list[Turn]]:
    """Yield the batches: rows of one turn, with the same temperature and the same texts that end an answer."""

    def alike(turn: Turn) -> tuple[int, float, tuple[str, ...]]:
        return turn.turn, sampling.heat(turn.question), () if chat else turn.question.stop

    for _, group in groupby(turns, alike):
        while batch := list(islice(group, sampling.rows_at_once)):
            yield batch


def _sample_batch(model: LoadedModel, file: AnswerFile, batch: Sequence[Turn], said: Said) -> list[Line]:
    import torch

    most = file.sampling.length(file.suite)
    prompts = _encode(model, batch, said)
    fitting = [row for row, ids in enumerate(prompts) if len(ids) <= context_of(model.model) - most]
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
        torch.stack([torch.rand(most, generator=generator) for generator in generators]),  # a generator for each row
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
    decoded = partial(model.tokenizer.batch_decode, skip_special_tokens=True)
    alone: list[str] = decoded(list(map(list, responses)))
    if model.chat:
        return alone
    whole = decoded([[*prompt, *ids] for prompt, ids in zip(prompts, responses, strict=True)])
    return [
        both[len(prompt) :] if both.startswith(prompt) else text
        for text, prompt, both in zip(alone, decoded(list(map(list, prompts))), whole, strict=True)
    ]


def cut_at(text: str, stop: Sequence[str]) -> str:
    r"""Return a text up to the first of the texts that end it.

    Example:
        >>> cut_at("    return 1\n\ndef other(): ...", ["\ndef", "\nclass"])
        '    return 1\n'
    """
    return text[: min((place for end in stop if (place := text.find(end)) >= 0), default=len(text))]


def _encode(model: LoadedModel, batch: Sequence[Turn], said: Said) -> list[tuple[int, ...]]:
    examples = [Example(_prompt(turn, said, chat=model.chat)) for turn in batch]
    return encode_prompts(model.tokenizer, examples, prompt_format="chat" if model.chat else "plain")


def _prompt(turn: Turn, said: Said, *, chat: bool) -> str | Sequence[Message]:
    """Return the prompt of a turn: the first, or the conversation so far."""
    question = turn.question
    first = question.prompt if chat or question.continuation is None else question.continuation
    if not turn.turn:
        return first
    messages: list[Message] = [{"role": "user", "content": first}] if isinstance(first, str) else list(first)
    for earlier in range(turn.turn):
        messages += [
            {"role": "assistant", "content": said[question.id, turn.sample, earlier]["text"]},
            {"role": "user", "content": question.then[earlier]},
        ]
    return messages


def check_room(model: LoadedModel, file: AnswerFile) -> None:
    """Refuse a context, or prompts of first turns, without room for an answer; the model's weights are not needed."""
    most, context, suite = file.sampling.length(file.suite), context_of(model.model), file.suite.name
    if context <= most:
        raise DataError(
            f"{file.subject.name} has a context of {context} tokens, and --max-new-tokens {most} leaves no room for a "
            f"prompt of suite {suite}; lower it"
        )
    if file.sampling.too_long != "refuse":
        return
    first = [Turn(question, 0, 0) for question in file.suite.questions]
    lengths = zip(first, map(len, _encode(model, first, {})), strict=True)
    if long := [(turn.question.id, length) for turn, length in lengths if length > context - most]:
        raise DataError(
            f"{len(long)} of {len(first)} prompts of suite {suite} leave no room for {most} new tokens in the context "
            f"of {context} tokens of {file.subject.name}; the first is question {long[0][0]!r} with {long[0][1]} "
            "tokens. Lower --max-new-tokens, or count them as failed with --set data.too_long=skip"
        )


class Served(NamedTuple):
    """A conversation with a server, or the reason why it did not end."""

    lines: list[Line]
    failure: Failure | None


def endpoint_of(file: AnswerFile, server: Endpoint) -> Endpoint:
    """Return how the server of a model is requested; `server` says key, concurrency and time limit."""
    length = file.sampling.length(file.suite)
    model, address, heat = file.subject.model_name, file.subject.path, file.sampling.temperature
    return replace(server, model=model, base_url=address, temperature=heat, max_tokens=length)


def request_answers(file: AnswerFile, out: Path, server: Endpoint, tokens: TokenCount) -> Said:
    """Return all answers of a model on a server; each is stored in `out`, the file is written when all are there."""
    items = [Turn(question, number, 0) for question in file.suite.questions for number in range(file.sampling.samples)]
    converse = partial(_converse, file=file, chat=file.subject.prompt_format != "plain")
    with Store(out / "answers.sqlite") as store:
        conversations, usage = run_session(endpoint_of(file, server), store, converse, items)
    tokens.add(usage.prompt_tokens, usage.completion_tokens)
    failures = [conversation.failure for conversation in conversations if conversation.failure is not None]
    if failures:
        raise RequestError(
            failures[0].kind,
            f"{len(failures)} of {len(items)} answers of {file.subject.name} to suite {file.suite.name} did not "
            f"arrive; the first: {failures[0].detail}. Run the same command again: it requests the missing answers "
            "only",
        )
    said = _by_key(line for conversation in conversations for line in conversation.lines)
    write_atomically(file.path, json_lines(said[turn.key] for turn in file.turns()))
    return said


async def _converse(client: CachedClient, first: Turn, *, file: AnswerFile, chat: bool) -> Served:
    """Return the answers of all turns of a conversation with a server."""
    question, sampling = first.question, file.sampling
    said: Said = {}
    for turn in range(question.turns):
        current = first._replace(turn=turn)
        more: dict[str, Any] = {} if question.temperature is None else {"temperature": question.temperature}
        if sampling.heat(question):
            more["seed"] = current.seed(file.suite.name, sampling.seed, 31)
        if not chat and question.stop:
            more["stop"] = list(question.stop[:4])  # OpenAI's limit; the text is cut at all of them below
        prompt = _prompt(current, said, chat=chat)
        messages: Sequence[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        sent: Prompt = tuple(map(dict, messages)) if chat else Example(prompt).prompt_text
        answer, failure = await client.reply(Request(sent, sample=current.sample, more=more))
        if answer is None:
            return Served([], failure)
        text = answer.text if chat else cut_at(answer.text, question.stop)
        finish = "stop" if text != answer.text else answer.finish
        said[current.key] = current.line(text, answer.completion_tokens or 0, finish)
    return Served(list(said.values()), None)
