"""Annotations → training examples of a generative reward model: rows of token ids and labels (section 3.4).

A row holds [x; y; z] with z = [c; A(y)], and the loss is −log R_φ(z | x, y): prompt x and response y have no label.
With learned = "choices", the tokens of z that the constraint alone allows have none either. Where the reward model
reads the marks of a probe, the prompt holds those of the annotator (`marks`).
"""

from collections.abc import Sequence

from text2grad.align import encode
from text2grad.errors import DataError
from text2grad.feedback import Annotation
from text2grad.models import NO_LOSS, Row, row_of_ids, with_end
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.marks import annotated_marks
from text2grad.reward_models.writing import critique_target, inputs_of


def training_rows(
    reward_model: GenerativeRewardModel, annotations: Sequence[Annotation], *, max_tokens: int
) -> tuple[list[Row], int]:
    """Return the rows to train on, in the reward model's format and form, and the number of too long annotations.

    Failed critiques are skipped. A longer annotation than `max_tokens` is left out: cut, it would teach invalid JSON.

    Raises:
        DataError: if no annotation is left.
        ModelError: if the tokenizer has no end-of-sequence token; with learned = "choices" also if the constraint
            refuses its tokens of a critique.
    """
    readable = [annotation for annotation in annotations if not annotation.critique.failed]
    form, tokenizer, probe = reward_model.form, reward_model.tokenizer, reward_model.probe
    marks = [annotated_marks(one, probe.unit) for one in readable] if probe else ()
    prompts = reward_model.prompts(*inputs_of(readable), marks)
    rows = []
    for prompt, annotation in zip(prompts, readable, strict=True):
        target = critique_target(
            annotation.critique, annotation.response, write_feedback=reward_model.write_feedback, form=form
        )
        if reward_model.learned == "critique":
            row = row_of_ids(prompt, with_end(tokenizer, encode(tokenizer, target)))
        else:
            ids, choices = reward_model.spelled(annotation.response, target)
            row = row_of_ids(prompt, with_end(tokenizer, ids))
            chosen = [False] * len(prompt) + choices + [False]
            labels = [label if one else NO_LOSS for label, one in zip(row["labels"], chosen, strict=True)]
            row = {**row, "labels": labels}
        rows.append(row)
    kept = [row for row in rows if len(row["input_ids"]) <= max_tokens and any(one != NO_LOSS for one in row["labels"])]
    if not kept:
        raise DataError(
            f"no training example is left of {len(annotations)} annotations: {len(annotations) - len(readable)} have a "
            f"critique that could not be parsed, {len(readable)} are longer than max_tokens = {max_tokens}. Raise "
            "max_tokens, or check the annotations."
        )
    return kept, len(rows) - len(kept)
