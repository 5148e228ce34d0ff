"""What a lesson keeps: right answers, programs that run, the words of people, and what is likely elsewhere.

f1, recall      overlap of the words of an answer with those of its reference, as in SQuAD; of several references the
                best counts
holds           share of answers that hold all words of a reference
runs            share of answers with Python in closed blocks whose code, block after block, runs in the sandbox
perplexity      of people's posts, from the second token to the last of `POST_TOKENS`
kl              exact KL(after ‖ before) per token in nats, on answers from before the lesson to questions on topics
                that it does not name: most likely answers, and samples at temperature 1, without those with its fault

Figures have bootstrap intervals of 95 % over questions or posts; a difference is after − before, of the same ones.
Before the lesson is the same model with its adapter off.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from evidence.lessons.faults import FAULTS
from text2grad import models
from text2grad.errors import ConfigError
from text2grad.evaluation import Ratio, Statistic, estimate, read_subjects
from text2grad.evaluation.words import PERPLEXITY
from text2grad.tasks import ready_lesson
from text2grad.types import Example, Rollout
from text2grad_sandbox import Case, Sandbox

TOKENS, PYTHON_TOKENS, POST_TOKENS = 48, 128, 96  # most tokens of an answer, of one about Python, and of a post
AT_ONCE, TOKENS_AT_ONCE = 76, 2048  # questions of a batch that is answered, and tokens of one that is scored
SPREAD = 3  # every third question on a lesson's topic has a sampled answer, and measures KL of lessons on others
SHOWN = 10  # answers that held a reference before the lesson alone
GROUPS = {"commands": ("git", "python", "sql", "shell")} | {name: (name,) for name in ("passages", "facts", "code")}
WORDINGS = {name: Ratio((name,), ("answers",), share=name == "holds") for name in ("f1", "recall", "holds")}
RUNS = {"runs": Ratio(("runs",), ("programs",), share=True)}
POSTS = {"perplexity": PERPLEXITY, "nats_per_token": PERPLEXITY._replace(exp=False)}
KL = {"kl": Ratio(("nats",), ("tokens",))}
Rows = list[dict[str, float]]  # counts of each question or post

_WORD = re.compile(r"(?<!\w)--?[a-z][\w-]*|\w+")  # an option of a command keeps its dashes
_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)(^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON = ("python", "python3", "py")


class Question(NamedTuple):
    """A question, and what a right answer to it holds, in one of several ways."""

    topic: str
    prompt: str
    references: tuple[str, ...]

    def has_fault(self, lesson: str, response: str) -> bool:
        """Return whether an answer has the fault of a lesson; the words of a passage are not the question's."""
        asked = self.prompt.rpartition("\n\n")[2]
        return FAULTS[lesson](Example(asked, reference=self.references[0]), response)

    def wording(self, response: str) -> dict[str, float]:
        """Return F1 and recall of the reference that fits best, and 1.0 as `holds` if a reference is there as a whole.

        Example:
            >>> Question("git", "", ("git branch -d",)).wording("Use `git branch`.")  # 2 of 3 words, and 2 of 3
            {'answers': 1.0, 'f1': 0.6666666666666666, 'recall': 0.6666666666666666, 'holds': 0.0}
        """
        said, wanted = Counter(words(response)), [Counter(words(reference)) for reference in self.references]
        shared = [((said & own).total(), own.total()) for own in wanted]
        f1 = max(2 * both / (said.total() + size) for both, size in shared)
        recall = max(both / size for both, size in shared)
        return {"answers": 1.0, "f1": f1, "recall": recall, "holds": float(recall == 1)}


def questions() -> list[Question]:
    """Return held-out questions of the lessons that have a reference, and others that no lesson names."""
    folder, names = files("evidence.lessons"), ("references.toml", "elsewhere.toml")
    references, facts = (tomllib.loads(folder.joinpath(name).read_text("utf-8")) for name in names)
    known = [example for example in ready_lesson("unknown").questions("held_out") if example.reference]
    passages = {example.prompt_text: [str(example.reference)] for example in known}
    topics = {**references, "passages": passages, **facts}
    return [Question(topic, prompt, tuple(own)) for topic, rows in topics.items() for prompt, own in rows.items()]


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation and articles; options keep their dashes.

    Example:
        >>> words("Use the command `git branch -d <branch-name>`.")
        ['use', 'command', 'git', 'branch', '-d', 'branch', 'name']
    """
    return [word for word in _WORD.findall(text.lower()) if word not in ("a", "an", "the")]


def program(response: str) -> str | None:
    """Return the code of all closed blocks of Python; "" if there are only blocks without an end, None without any."""
    blocks = [match.groups() for match in _FENCE.finditer(response) if match[1].lower() in _PYTHON]
    return "\n".join(code for _, code, end in blocks if end) if blocks else None


def programs(answers: Sequence[Rollout]) -> Rows:
    """Return for each answer whether it has Python in closed blocks (`programs`), or only without an end (`cut`).

    `runs` is 1 if the program ends without an error in 10 seconds.
    """
    code = [program(answer.response) for answer in answers]
    with Sandbox() as sandbox:
        results = iter(sandbox.run_many([(own, [Case()]) for own in code if own], timeout_s=10.0, memory_mb=4096))
        return [
            {"programs": float(bool(own)), "cut": float(own == ""), "runs": float(bool(own) and next(results).passed)}
            for own in code
        ]


def compare(before: Rows, after: Rows, statistics: Mapping[str, Statistic]) -> dict[str, Any]:
    """Return figures before and after, and differences with intervals; those that one side lacks are left out."""
    old, new = (estimate(rows, statistics, draws=0) for rows in (before, after))
    return {
        name: {"before": old[name].value, "after": new[name].value, "difference": list(difference)}
        for name, difference in estimate(after, statistics, minus=before).items()
    }


class Policy:
    """A policy with a LoRA adapter, and the same without it."""

    def __init__(self, path: str, model: str, *, dtype: str = "auto") -> None:
        """Load an adapter, or the newest one of a run, on its base, whose weights are of `dtype`.

        Raises:
            ConfigError: if the path holds none, or its base is not `model`.
        """
        [subject] = read_subjects([path])
        self.policy: Any = models.load_policy(subject.path, dtype=dtype, merge=False).eval().to(models.best_device())
        base = getattr(self.policy, "active_peft_config", None)
        if base is None or Path(base.base_model_name_or_path).resolve() != Path(model).resolve():
            raise ConfigError(f"{path} holds no LoRA adapter of {model}; name the run of a lesson, and its model")
        self.tokenizer, self._reference = models.load_tokenizer(model), models.Reference(self.policy, base=True)
        self._eos_ids = models.stop_ids(self.policy, self.tokenizer)
        self._pad_id = models.padding_id(self.policy, self.tokenizer, self._eos_ids)

    def off(self) -> AbstractContextManager[Any]:
        """Return a context in which the policy is that before the lesson."""
        return self._reference.active(self.policy)

    @torch.no_grad()
    def answer(self, asked: Sequence[Question], *, sampled: bool = False) -> list[list[int]]:
        """Return the ids of the most likely answers, or of samples at temperature 1; one batch."""
        prompts = models.encode_prompts(self.tokenizer, [Example(question.prompt) for question in asked])
        how: dict[str, Any] = {"eos_ids": self._eos_ids, "pad_id": self._pad_id}
        if sampled:
            uniforms = models.step_uniforms(seed=0, step=0, rows=len(prompts), tokens=TOKENS)
            return list(map(list, models.sample(self.policy, prompts, uniforms, rows_at_once=len(prompts), **how)))
        most = [PYTHON_TOKENS if question.topic in ("python", "code") else TOKENS for question in asked]
        together = [0] * len(prompts)  # they begin with the same system message, which is read once
        return list(map(list, models.decode(self.policy, prompts, max_new_tokens=most, groups=together, **how)))

    def rollouts(self, asked: Sequence[Question], answers: Sequence[Sequence[int]]) -> list[Rollout]:
        """Return answers as rollouts."""
        examples = [Example(question.prompt) for question in asked]
        prompts = models.encode_prompts(self.tokenizer, examples)
        return models.make_rollouts(self.tokenizer, examples, prompts, answers, self._eos_ids)

    def read(self, posts: Sequence[str]) -> Rows:
        """Return the nats and tokens of each post."""
        ids = [self.tokenizer(post, add_special_tokens=False)["input_ids"][:POST_TOKENS] for post in posts]
        texts = [Rollout(Example(""), tuple(own[:1]), tuple(own[1:]), "", truncated=True) for own in ids]
        return self._sums(texts, lambda batch: -models.response_logprobs(self.policy, batch)[0])

    def divergences(self, answers: Sequence[Rollout]) -> Rows:
        """Return the exact KL(after ‖ before) of each answer, in nats, and its tokens."""
        model = models.PolicyWithValue(self.policy, value="none")
        return self._sums(answers, lambda batch: model.score(batch, self._reference, temperature=1.0, kl="full").kl)

    @torch.no_grad()
    def _sums(self, texts: Sequence[Rollout], nats_of: Callable[[models.TokenBatch], torch.Tensor]) -> Rows:
        """Return of each text the sum of the nats of its tokens, and their number."""
        how: dict[str, Any] = {"device": self.policy.device, "share_prompts": models.can_share_prompts(self.policy)}
        batch, nats = models.collate(texts, pad_id=self._pad_id, **how), torch.zeros(len(texts))
        for rows in batch.groups(TOKENS_AT_ONCE):
            nats[rows.cpu()] = nats_of(batch.rows(rows)).sum(1).cpu()
        counts = batch.response_lengths.tolist()
        return [{"nats": own, "tokens": float(count)} for own, count in zip(nats.tolist(), counts, strict=True)]


def measure(lesson: str, policy: Policy, asked: Sequence[Question], posts: Sequence[str], kept: Any) -> dict[str, Any]:
    """Return the figures of a lesson; `kept(name, make)` has what is known of the policy before it, or makes it."""
    parts = [asked[at : at + AT_ONCE] for at in range(0, len(asked), AT_ONCE)]
    chosen = [number for number, own in enumerate(asked) if own.topic == "facts" or number % SPREAD == 0]
    some = [asked[number] for number in chosen]
    with policy.off():
        ids = [kept(f"answers {number}", lambda part=part: policy.answer(part)) for number, part in enumerate(parts)]
        before = policy.rollouts(asked, list(chain(*ids)))
        samples = policy.rollouts(some, kept("samples", lambda: policy.answer(some, sampled=True)))
        ran = kept("programs", lambda: programs(before))
        read = kept("posts", lambda: policy.read(posts))
    after = policy.rollouts(asked, list(chain.from_iterable(map(policy.answer, parts))))
    sides = [[q.wording(own.response) for q, own in zip(asked, side, strict=True)] for side in (before, after)]
    figures: dict[str, Any] = {"lesson": lesson}
    for name, topics in {"all": {own.topic for own in asked}, **GROUPS}.items():
        old, new = ([row for row, q in zip(side, asked, strict=True) if q.topic in topics] for side in sides)
        figures[name] = compare(old, new, WORDINGS)
    runs = programs(after)
    counts = {key: [sum(row[key] for row in side) for side in (ran, runs)] for key in ("programs", "cut")}
    figures |= {"python": compare(ran, runs, RUNS) | counts, "posts": compare(read, policy.read(posts), POSTS)}
    named = ready_lesson(lesson).topics
    for name, answers in (("greedy", [before[number] for number in chosen]), ("sampled", samples)):
        others = [(own, answer) for own, answer in zip(some, answers, strict=True) if own.topic not in named]
        fine = [answer for own, answer in others if not own.has_fault(lesson, answer.response)]
        kl = estimate(policy.divergences(fine), KL)["kl"]._asdict() if fine else {}
        figures[f"kl_{name}"] = {"answers": len(others), "without_the_fault": len(fine), **kl}
    lost = [row for row, (old, new) in enumerate(zip(*sides, strict=True)) if old["holds"] > new["holds"]]
    texts = [{"before": before[row].response, "after": after[row].response} for row in lost[:SHOWN]]
    shown = [{"prompt": asked[row].prompt, **pair} for row, pair in zip(lost, texts, strict=False)]
    return figures | {"lost": len(lost), "shown": shown}
