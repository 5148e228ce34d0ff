"""The page of answers from a passage: figures by hand, the guard of recall and length, its own place."""

import json
import re
import tomllib

import pytest
from made_records import record, trials

from evidence.pages.grounded import PLANNED, in_words, not_finished, share_left
from evidence.pages.pages import result_pages
from evidence.pages.records import Record
from evidence.pages.selection import groups
from places import ROOT, script

START = {"unsupported_share": 0.4, "recall": 0.2, "mean_words": 20.0, "distinct_2": 0.9}
START |= {"reference_perplexity": 11.0, "truncated_share": 0.3, "kl_per_token": 0.0, "mean_tokens": 30.0}


def run(method: str, seed: int, **end: float) -> Record:
    """Return a record of 10 steps whose figures go from `START` to `end`."""
    points = [(0, START), (10, START | {"unsupported_share": 0.1, "kl_per_token": 0.05} | end)]
    curve = [
        {"step": step, "rollouts": 16 * step, "tokens": 500 * step, "seconds": 30.0 * step}
        | {"value": figures["unsupported_share"], "kl_per_token": figures["kl_per_token"], "metrics": figures}
        for step, figures in points
    ]
    value = curve[-1]["value"]
    return record(
        method,
        seed,
        task="grounded",
        length=0,
        metric="unsupported_share",
        curve=curve,
        items=[value - 0.05, value + 0.05],
        items_at_start=[0.4, 0.4],
        steps=10,
    )


def study(**end: float) -> list[Record]:
    ours = [run("text2grad_group", seed, **{"unsupported_share": 0.1 + 0.05 * seed, **end}) for seed in range(3)]
    others = [run("grpo", seed, unsupported_share=0.25) for seed in range(3)]
    tuning = [
        one
        for method, values in {"text2grad_group": [0.2, 0.1], "grpo": [0.3, 0.25]}.items()
        for one in trials(method, values, task="grounded", length=0, metric="unsupported_share")
    ]
    return [*ours, *others, *tuning]


def test_share_left_by_hand() -> None:
    """Ends 0.1, 0.15, 0.2 of 0.4: the ratio is 0.15 / 0.4 = 0.375, of the seeds 0.25, 0.375 and 0.5."""
    [group] = groups(study())
    found = share_left(group.runs["text2grad_group"], "unsupported_share")
    assert found.value == pytest.approx(0.375)
    # Student, 2 degrees of freedom: t = 4.3027, standard error 0.125 / √3
    assert (found.student_low, found.student_high) == pytest.approx((0.375 - 0.3105, 0.375 + 0.3105), abs=1e-3)


def test_the_guard_of_recall_and_length() -> None:
    [group] = groups(study())
    assert "at least halves the share" in in_words(group)
    assert "neither recall nor length falls by more than a tenth: recall × 1.00, words × 1.00" in in_words(group)
    records = [run("text2grad_group", 3, mean_words=17.0), *study()]  # 0.85 of the start on this seed
    [group] = groups(records)
    # (3 · 20 + 17) / 4 / 20 = 0.9625
    assert in_words(group).endswith("recall × 1.00, words × 0.96 (words × 0.85 on seed 3).")
    [group] = groups(study(recall=0.17))  # 0.85 of the start
    assert "; recall of the gold answer fall by more than a tenth: recall × 0.85" in in_words(group)
    [group] = groups(study(unsupported_share=0.21))
    assert "does not halve" in in_words(group)


def test_the_page_stands_apart_from_the_made_worlds() -> None:
    pages = result_pages(study(), draw=False)
    page = pages["grounded.md"].decode()
    assert "| start | 0.400 | 0.200 | 20.0 | 0.900 | 11.00 | 0.30 | 0.000 |" in page
    assert page.index("| Text2Grad (group") < page.index("| one number (GRPO)")  # the lower share is the better one
    assert "ends ahead of one number (GRPO), the strongest rival" in page
    assert "by 0.100 unsupported share (bootstrap 0.050 to 0.150" in page
    assert "are run again on further seeds" not in page
    assert "**Not finished**: no run of DPO, imitation of the best responses, ILF (perfect refiner) yet." in page
    fewer = [one for one in study() if (one.method, one.seed) != ("grpo", 2)]
    page = result_pages(fewer, draw=False)["grounded.md"].decode()
    assert "(perfect refiner) yet; 2 of 3 seeds of one number (GRPO)." in page
    assert "| one number (GRPO), 2 of 3 seeds |" in page
    assert "grounded" not in pages["comparison.md"].decode()
    assert "\0" not in page
    assert "grounded.md" not in result_pages([record()], draw=False)


def test_methods_that_are_not_leading_need_three_seeds() -> None:
    more = [run(method, 3) for method in ("text2grad_group", "grpo")]
    dpo = [run("dpo", seed, unsupported_share=0.3) for seed in range(3)]
    [found] = groups([*study(), *more, *dpo])
    [told] = not_finished(found)
    assert told == "**Not finished**: no run of imitation of the best responses, ILF (perfect refiner) yet."
    [found] = groups([*study(), *more[:1], *dpo[:2]])
    [told] = not_finished(found)
    assert told.endswith(" yet; 3 of 4 seeds of one number (GRPO); 2 of 3 seeds of DPO.")


def test_the_planned_methods_are_those_of_the_plan() -> None:
    plan = tomllib.loads((ROOT / "evidence" / "recipes" / "smollm2.toml").read_text("utf-8"))
    assert tuple(plan["study"][0]["methods"]) == PLANNED


def test_the_page_of_ten_answers_is_what_its_json_gives() -> None:
    made = script("evidence/results/make_answers.py")
    found = json.loads(made.DATA.read_bytes())
    assert made.PAGE.read_text("utf-8") == made.page(found), "run python evidence/results/make_answers.py"
    assert len(found["questions"]) == made.COUNT
    assert all(len(one["answers"]) == 2 for one in found["questions"])


def test_the_page_has_the_figures_of_the_critic_beside_people() -> None:
    found = json.loads((ROOT / "evidence" / "results" / "grounded_critic.json").read_bytes())
    page = " ".join((ROOT / "evidence" / "docs" / "grounded.md").read_text("utf-8").split())
    itself = found["of themselves"]
    assert itself["blamed"] == 0
    assert f"No sentence of the {itself['passages']} passages is blamed" in page
    assert f"In the {found['summaries']} summaries of FaithBench" in page
    for name, words in (("called absent", "calls absent"), ("praised", "praises")):
        value, low, high = (100 * found["marked"][name][key] for key in ("value", "low", "high"))
        share = rf"{value:.0f} % \({low:.0f} to {high:.0f}\)"
        assert re.search(rf"{share} of the [a-z ]* that (the critic|it) {words}", page)
