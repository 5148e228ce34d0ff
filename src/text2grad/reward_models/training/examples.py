"""Phase 2: a language model learns to write what the annotators wrote (section 3.4).

The loss is the negative log-likelihood of z = [c; A(y)] given [x; y]; prompt and response have none.
"""

from collections.abc import Callable, Sequence
from typing import Any

from text2grad.errors import DataError
from text2grad.feedback import Annotation
from text2grad.models import FineTuning, context_of, fine_tune
from text2grad.reward_models.generative import GenerativeRewardModel, critique_prompts
from text2grad.reward_models.writing import critique_questions, critique_target
from text2grad.types import Example


def train_reward_model(
    model: Any,
    tokenizer: Any,
    annotations: Sequence[Annotation],
    how: FineTuning,
    *,
    on_step: Callable[[int], None] | None = None,
    **settings: Any,
) -> tuple[GenerativeRewardModel, int]:
    """Train a language model on annotations.

    Args:
        model: a Hugging Face causal language model, trained in place.
        tokenizer: its tokenizer.
        annotations: responses with critiques; failed critiques teach nothing and are passed over.
        how: steps, batch size, learning rate.
        on_step: called with the number of steps made.
        settings: keyword arguments of `GenerativeRewardModel`; of these `words` and `form` say what it learns to write.

    Returns:
        The reward model, and how many annotations were left out because prompt, response and critique together are
        longer than `how.max_tokens`, or than the model's context: cut, they would teach it to write broken JSON.

    Raises:
        ConfigError: if decoding is to be constrained to a form that it cannot be constrained to.
        ModelError: if it could not write critiques; before it has learned anything.
        DataError: if none is left to learn from.
    """
    learner = GenerativeRewardModel(model, tokenizer, prompt_format=how.prompt_format, **settings)
    longest = int(min(how.max_tokens, context_of(model)))
    asked, targets, left_out = lessons(learner, annotations, max_tokens=longest)
    fine_tune(model, tokenizer, asked, targets, how, on_step=on_step)
    model.eval()
    return learner, left_out


def lessons(
    learner: GenerativeRewardModel, annotations: Sequence[Annotation], *, max_tokens: int
) -> tuple[list[Example], list[str], int]:
    """Return what is asked, what is to be written, and how many annotations are too long for `max_tokens`.

    Raises:
        DataError: if none is left to learn from.
    """
    tokenizer, prompt_format, form = learner.tokenizer, learner.prompt_format, learner.form
    read = [one for one in annotations if not one.critique.failed]
    examples, responses = [Example(one.prompt) for one in read], [one.response for one in read]
    asked = [Example(one) for one in critique_questions(examples, responses, prompt_format, form)]
    targets = [
        critique_target(one.critique, one.response, write_feedback=learner.write_feedback, form=form) for one in read
    ]
    questions = critique_prompts(tokenizer, examples, responses, prompt_format, form)
    lengths = [
        len(question) + len(answer) + 1  # and the end of the sequence
        for question, answer in zip(questions, _ids(tokenizer, targets), strict=True)
    ]
    kept = [row for row, length in enumerate(lengths) if length <= max_tokens]
    if not kept:
        raise DataError(
            f"none of {len(annotations)} annotations can be learned from: {len(annotations) - len(read)} hold no "
            f"critique that could be read, {len(read)} are longer than max_tokens = {max_tokens}"
        )
    return [asked[row] for row in kept], [targets[row] for row in kept], len(read) - len(kept)


def _ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    return list(tokenizer(texts, add_special_tokens=False)["input_ids"]) if texts else []
