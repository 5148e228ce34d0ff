"""Ten held-out questions with a run's answers before and after training, as a page that anybody can read.

    python evidence/results/make_answers.py RUN  # a run of evidence/recipes/smollm2-grounded.toml: writes answers.json
    python evidence/results/make_answers.py      # answers.json → answers.html, and answers.png with Chromium

The questions are the first ten held-out ones; nobody chose them. An answer is sampled once, at temperature 1.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from text2grad.files import to_json, write_atomically
from text2grad.runs.reports.html import rollouts_page
from text2grad.runs.reports.run_report import side_by_side

RESULTS = Path(__file__).parent
DATA, PAGE, PICTURE = (RESULTS / f"answers.{kind}" for kind in ("json", "html", "png"))
COUNT, SHOWN = 10, 2  # questions of the page, and the question of the picture, from 1
KEPT = ("response", "truncated", "critique", "ids", "offsets", "delta")
TITLE = "What a language model learned from words"
INTRO = """\
SmolLM2-135M-Instruct, a small language model, answers questions of people from a passage of Wikipedia. A program
reads each answer and says in words which names, numbers and claims the passage does not contain, and which it does.
text2grad turns these words into a reward on each word of the answer, and trains the model on them. Below are the
first ten questions that training never saw, with the answers before it and after. Orange: the critique says that the
passage does not contain this. Green: it does. "Outcome -4" stands where an answer as a whole says nothing of the
passage. An answer ends after {tokens} tokens, wherever it is then. What the model learned above all is to quote the
passage, also where the quote does not answer the question: nobody told it that this is no answer."""


def records_of(run: Path) -> dict[str, Any]:
    """Return the records of the page: question and passage, and both answers with their critiques."""
    files = sorted((run / "evaluations").glob("*.json"))
    first, last = (json.loads(files[place].read_bytes()) for place in (0, -1))
    tokens = json.loads((run / "run.json").read_bytes())["recipe"]["rollout"]["max_new_tokens"]
    made = []
    for record in side_by_side({"before": first["records"], "after": last["records"]})[:COUNT]:
        [after] = record["beside"]
        text = record["prompt"].partition("Passage: ")[2]
        passage, _, question = text.rpartition("\n\nQuestion: ")
        made.append(
            {
                "question": question.partition("\n")[0].partition("<|im_end|>")[0].strip(),
                "passage": passage.strip(),
                "answers": [{key: one[key] for key in KEPT} for one in (record, after)],
            }
        )
    return {"steps": last["step"], "tokens": tokens, "questions": made}


def page(found: dict[str, Any]) -> str:
    """Return the page as HTML."""
    names = ("Before training", f"After {found['steps']} steps")
    shown = []
    for one in found["questions"]:
        first, second = (_shown(answer, by) for answer, by in zip(one["answers"], names, strict=True))
        shown.append({**first, "prompt": f"{one['question']}\n\n{one['passage']}", "beside": [second]})
    return rollouts_page(TITLE, intro=INTRO.format(tokens=found["tokens"]), groups=[("Held-out questions", shown)])


def _shown(answer: dict[str, Any], by: str) -> dict[str, Any]:
    """Return the record of an answer; an outcome of 0 is no verdict, and is left out."""
    critique = answer["critique"]
    return {**answer, "critique": {**critique, "outcome": critique["outcome"] or None}, "by": by}


def take_picture() -> None:
    """Write a picture of one question, `SHOWN`; nothing without Chromium and Playwright."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1000, "height": 900}, color_scheme="light")
        opened.goto(PAGE.resolve().as_uri())
        opened.locator("article").nth(SHOWN - 1).screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_atomically(DATA, to_json(records_of(Path(sys.argv[1])), indent=1) + b"\n")
    write_atomically(PAGE, page(json.loads(DATA.read_bytes())).encode())
    take_picture()
