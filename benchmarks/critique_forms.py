"""What each form of a critique costs on the same annotations: tokens to write, and what of the spans it can say.

    text2grad import mqm ../shared/data/mqm_ted_ende/segments.jsonl --out mqm.jsonl
    python benchmarks/critique_forms.py mqm.jsonl
    python benchmarks/critique_forms.py mqm.jsonl --tokenizer meta-llama/Llama-3.1-8B-Instruct --json forms.json

    words + marks    tokens of the whole target, the critique in words before the marks, mean per annotation
    marks alone      of the target without words (`words = false`)
    ratio            of the marks alone, to those of the first form
    exact            share of the annotations whose spans are read back as they were, to the character

Without --tokenizer a byte-level BPE of 16,384 tokens is made of the annotations, of the targets of every form alike.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from text2grad.feedback.records import Annotation, read_annotations
from text2grad.feedback.spans import critique_from_text
from text2grad.models.pretrained import load_tokenizer
from text2grad.reward_models.writing import LABEL_FORMS, critique_from_labels, critique_prompt, critique_target
from text2grad.types import Critique, CritiqueForm, Example

FORMS: tuple[CritiqueForm, ...] = get_args(CritiqueForm)


def target(one: Annotation, form: CritiqueForm, *, write_feedback: bool) -> str:
    """Return what is learned of an annotation."""
    return critique_target(one.critique, one.response, write_feedback=write_feedback, form=form)


def read(text: str, response: str, form: CritiqueForm) -> Critique:
    """Read it as a learned critic does."""
    if form == "spans":
        return critique_from_text(text, response, occurrences="first")
    return critique_from_labels(text, response, LABEL_FORMS[form])


def own_tokenizer(annotations: Sequence[Annotation]) -> Any:
    """Return a byte-level BPE that has seen all forms, and has a token made for none."""
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
    """Return what a form costs, means over annotations, each target with its end-of-sequence."""

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
    parser.add_argument("--tokenizer", help="the directory or name of a model (default: a BPE of the annotations)")
    parser.add_argument("--json", type=Path, help="write the numbers there, too")
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
