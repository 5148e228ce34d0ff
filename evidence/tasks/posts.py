"""Summaries of several short posts, each under a label: the product's task with a length."""

from dataclasses import dataclass
from random import Random

from evidence.tasks.parts import FactTask, LabelledFactCritic
from text2grad.tasks.base import Split, split_words
from text2grad.tasks.facts import Facts
from text2grad.tasks.summarization import posts, world
from text2grad.tasks.summarization.task import METRIC, SummarizationTask, SummaryCritic
from text2grad.types import Example

SHORT_DISTRACTORS = (1, 2)  # the fewest and the most sentences beside the event, in a post among several


def write_short_post(facts: Facts, split: Split, rng: Random) -> Example:
    """Return a post with few sentences beside the event, and its perfect summary.

    Half of the posts begin with one of these sentences, so that a hasty reader takes as many wrong values as from a
    longer post.
    """
    telling = posts.fact_templates(split, rng)
    others = posts.distractor_templates(split, rng.randint(*SHORT_DISTRACTORS), rng)
    opening = others[:1] if rng.random() < 0.5 else []
    order = opening + posts.interleave(telling, others[len(opening) :], rng)
    return posts.render(order, set(telling), facts, posts.Strangers(facts, split, rng))


@dataclass(frozen=True, slots=True)
class PostsCritic(LabelledFactCritic, SummaryCritic):
    """Judges summaries in words, each fact against the event of its post."""


@dataclass(frozen=True, slots=True)
class PostsTask(FactTask, SummarizationTask):
    """Posts and their summaries.

    With `settings.length` an item has so many short posts, each with a label, and the answer a labelled sentence for
    each post.
    """

    unit = "posts"
    lengths = (1, 2, 4, 8)
    cue = posts.CUE
    claim_metric = METRIC

    def critic(self) -> PostsCritic:
        """Return the program critic."""
        return PostsCritic(truths=self.settings.truths)

    @property
    def parts(self) -> int:
        """The number of posts under labels; 0 for a post of the usual length without a label."""
        return self.settings.length

    def facts(self, example: Example) -> Facts:
        """Return the event behind one post, by slot."""
        return world.facts_of(example)

    def state(self, facts: Facts) -> str:
        """Return the perfect summary of an event."""
        return world.summary_of(facts)

    def draw_part(self, rng: Random) -> Example:
        """Draw one post and its summary."""
        if self.parts:
            return write_short_post(world.draw_facts(self.split, rng), self.split, rng)
        return SummarizationTask.draw(self, rng)

    def label_prompt(self, label: str, prompt: str) -> str:
        """Return a post with the label before each sentence, by which a small model tells posts apart."""
        return f"{label}: {prompt.replace('. ', f'. {label}: ')}"

    def demonstrate_part(self, part: Example, rng: Random) -> str:
        """Return a summary with the values that the post names first, vague fillers, omissions and chatter."""
        return SummarizationTask.demonstration(self, part, rng)

    def corrupt_part(self, part: Example, rng: Random) -> str:
        """Return a summary with wrong values, or a garbled one."""
        return SummarizationTask.corruption(self, part, rng)

    def all_words(self) -> list[str]:
        """Return texts that together hold every word of posts, summaries and critiques."""
        return [*SummarizationTask.all_words(self), *self.label_words()]

    def score(self, example: Example, response: str) -> dict[str, float]:
        """Return fact F1 and ROUGE-L, and 1.0 as `exact` if the summary is the reference."""
        scores = SummarizationTask.score(self, example, response)
        return {"fact_f1": scores["fact_f1"], "rouge_l": rouge_l(self.reference(example), response), **scores}


def rouge_l(reference: str, response: str) -> float:
    """Return the F1 of the longest common subsequence of words, in [0, 1]; case and punctuation do not count.

    Example:
        >>> round(rouge_l("the cat sat down", "the dog sat"), 3)
        0.571
    """
    left, right = _plain_words(reference), _plain_words(response)
    row = [0] * (len(right) + 1)
    for word in left:
        diagonal = 0
        for j, other in enumerate(right, start=1):
            above = row[j]
            row[j] = diagonal + 1 if word == other else max(above, row[j - 1])
            diagonal = above
    return 2 * row[-1] / (len(left) + len(right)) if left or right else 0.0


def _plain_words(text: str) -> list[str]:
    return [word for word in split_words(text.lower()) if word.isalnum()]
