"""Compare the forms of a critique on the same annotations: tokens to write, and spans that survive the round trip.

    text2grad import mqm ../shared/data/mqm_ted_ende/segments.jsonl --out mqm.jsonl
    python benchmarks/critique_forms.py mqm.jsonl
    python benchmarks/critique_forms.py mqm.jsonl --tokenizer meta-llama/Llama-3.1-8B-Instruct --json forms.json

    words + marks    tokens of the whole target, feedback before the marks, mean per annotation
    marks alone      tokens of the target without feedback (`reward_model.write_feedback = false`)
    ratio            marks alone / marks alone of the first form
    exact            share of the annotations whose spans are read back unchanged, to the character

Without --tokenizer, a byte-level BPE of 16,384 tokens is trained on the annotations and on the targets of all forms.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from text2grad.feedback.records import Annotation, read_annotations
from text2grad.feedback.spans import critique_from_text
from text2grad.models.pretrained import load_tokenizer
from text2grad.reward_models.writing import LABEL_FORMS, critique_from_labels, critique_prompt, critique_target
from text2grad.types import Critique, CritiqueForm, Example

FORMS: tuple[CritiqueForm, ...] = ("spans", *LABEL_FORMS)


def target(one: Annotation, form: CritiqueForm, *, write_feedback: bool) -> str:
    """Return the training target of an annotation."""
    return critique_target(one.critique, one.response, write_feedback=write_feedback, form=form)


def read(text: str, response: str, form: CritiqueForm) -> Critique:
    """Read a target back as a reward model does."""
    if form == "spans":
        return critique_from_text(text, response, occurrences="first")
    return critique_from_labels(text, response, LABEL_FORMS[form])


def own_tokenizer(annotations: Sequence[Annotation]) -> Any:
    """Return a byte-level BPE trained on all forms, without special tokens for any form."""
    texts = [critique_prompt(Example(one.prompt), one.response) for one in annotations]
    for write_feedback in (True, False):
        texts += [target(one, form, write_feedback=write_feedback) for one in annotations for form in FORMS]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=16_384, initial_alphabet=alphabet, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=core)


def cost(annotations: Sequence[Annotation], form: CritiqueForm, tokenizer: Any) -> dict[str, float]:
    """Return tokens and exactness of a form, means over annotations; a target includes its end-of-sequence token."""

    def tokens(*, write_feedback: bool) -> float:
        ids = tokenizer(
            [target(one, form, write_feedback=write_feedback) for one in annotations], add_special_tokens=False
        ).input_ids
        return sum(map(len, ids)) / len(annotations) + 1

    exact = [
        set(read(target(one, form, write_feedback=True), one.response, form).spans) == set(one.critique.spans)
        for one in annotations
    ]
    return {
        "with_words": tokens(write_feedback=True),
        "marks_alone": tokens(write_feedback=False),
        "exact": sum(exact) / len(annotations),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("annotations", type=Path)
    parser.add_argument("--tokenizer", help="directory or name of a model (default: a BPE trained on the annotations)")
    parser.add_argument("--json", type=Path, help="write the result here as well")
    options = parser.parse_args()
    annotations = [one for one in read_annotations(options.annotations) if not one.critique.failed]
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer else own_tokenizer(annotations)
    found = {form: cost(annotations, form, tokenizer) for form in FORMS}
    print(
        f"{len(annotations):,} annotations\n\n"
        "| form | words + marks | marks alone | ratio | exact |\n|---|---|---|---|---|"
    )
    for form, numbers in found.items():
        whole, marks, exact = numbers.values()
        ratio = marks / found["spans"]["marks_alone"]
        print(f"| {form} | {whole:.1f} | {marks:.1f} | {ratio:.2f} | {exact:.1%} |")
    if options.json:
        options.json.write_text(json.dumps({"annotations": len(annotations), **found}, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
