"""Pages of whole, partial and absent records; selection, missing runs, tuning, reruns; damaged files."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from made_records import VALUES, record, study, trials, write

from evidence.__main__ import main
from evidence.pages.bootstrap import Interval
from evidence.pages.figures import learners, length_line, look
from evidence.pages.pages import result_pages
from evidence.pages.records import read_runs
from evidence.pages.selection import edges, groups, missing, missing_of_plan
from evidence.plans.experiment_plan import load_plan
from evidence.plans.methods import METHODS
from evidence.plans.records import recipe_digest
from places import ROOT
from text2grad.config import load_recipe
from text2grad.errors import DataError
from text2grad.runs.reports.plots import COLOURS, DASHES, MARKERS

PNG = b"\x89PNG\r\n"


def text_of(pages: dict[str, bytes], name: str) -> str:
    return pages[name].decode()


def test_pages_of_a_whole_study() -> None:
    tuning = [one for method in list(VALUES)[:4] for one in trials(method, [VALUES[method] - 0.1, VALUES[method]])]
    pages = result_pages([*study(lengths=(1, 8)), *tuning])
    comparison, length = text_of(pages, "comparison.md"), text_of(pages, "length.md")
    assert "No run is missing" not in comparison  # two leading methods have no run
    assert (
        "Text2Grad ends above one number (GRPO), the strongest rival (the best mean on the tuning items), by"
        in comparison
    )
    assert "All 3 rivals are behind with both intervals." in comparison
    assert "optim.lr = 0.002 (the highest of 2 tried)" in comparison
    assert "All 8 trials" in comparison
    assert "The lead grows by 0.060 from length 1 to 8" in length
    assert "The share by the formula lies within the measured interval at 0 of 2 lengths." in length
    assert "the lead lies above 0: 4 of 4 at length 1; 4 of 4 at length 8." in length
    (summary,) = [line for line in length.splitlines() if line.startswith("| summarization, fact F1 |")]
    rows = [line.split(" | ") for line in length.splitlines() if " | 5, 5 | " in line]
    lead_1, lead_8 = (row[6].split(" ")[0] for row in rows)
    _, _, short, long, share, more, _ = (cell.strip() for cell in summary.split("|"))
    assert short.startswith(f"{lead_1} (")
    assert short.endswith("; length 1, 8 tokens")
    assert long.startswith(f"{lead_8} (")
    assert long.endswith("; length 8, 64 tokens")
    assert re.fullmatch(r"0\.\d\d \(0\.\d\d to 0\.\d\d\)", share)
    assert more == "1, 8 of 1, 8"
    for page in (comparison, length):
        pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page)
        assert pictures
        assert all(pages[name].startswith(PNG) for name in pictures)
        assert "\0" not in page
        assert "nan" not in page
        rows = [line for line in page.splitlines() if line.startswith("|")]
        assert {line.count(" | ") for line in rows}  # tables
    stated = {int(n) for n in re.findall(r"one of (\d+)", comparison)}
    assert stated == {2 * (len(VALUES) - 1) + 2}  # per length a lead over each other method, and a ratio


def test_methods_that_end_equal_are_level() -> None:
    ours = study({"text2grad": 0.93}, lengths=(1, 8))
    pages = result_pages([*ours, *(replace(one, method="grpo") for one in ours)], draw=False)
    comparison, length = text_of(pages, "comparison.md"), text_of(pages, "length.md")
    assert "Text2Grad ends level with one number (GRPO), the strongest rival (" in comparison
    assert "), in fact F1 (bootstrap 0.000 to 0.000, Student 0.000 to 0.000, one of " in comparison
    assert "by 0.0" not in comparison
    assert "The lead is the same at length 1 and 8 (no interval" in length


def test_a_policy_that_did_not_move_has_a_kl_of_0() -> None:
    stays = [
        replace(one, curve=[{**point, "kl_per_token": 0.0} for point in one.curve])
        for one in (record("grpo", seed) for seed in range(5))
    ]
    made = [*study({"text2grad": 0.9}), *stays]
    row = next(
        line for line in text_of(result_pages(made), "comparison.md").splitlines() if line.startswith("| **one number")
    )
    assert "| 0.000 |" in row


def test_the_tuning_of_methods_that_are_not_compared_is_left_out() -> None:
    """Trials of another study may have another metric and length, and further seeds."""
    tuning = trials("text2grad", [0.8, 0.9]) + trials("grpo", [0.7, 0.8])
    apart = [replace(one, seed=seed) for one in trials("rloo", [0.3], length=0, metric="exact") for seed in (50, 51)]
    page = text_of(
        result_pages([*study({"text2grad": 0.9, "grpo": 0.8}, lengths=(8,)), *tuning, *apart]), "comparison.md"
    )
    assert "All 4 trials" in page
    assert "one number (RLOO) |" not in page
    assert "are run again on further seeds" not in page


def test_a_page_says_within_which_kl_trials_were_judged() -> None:
    tuning = trials("text2grad", [0.8, 0.9], at_kl=0.03) + trials("grpo", [0.7, 0.8], at_kl=0.03)
    told = "A trial is judged by the best value that its evaluations offer at a KL of at most 0.03 per token."
    made = study({"text2grad": 0.9, "grpo": 0.8})
    assert told in text_of(result_pages([*made, *tuning]), "comparison.md")
    plain = [replace(one, at_kl=None) for one in tuning]
    assert "A trial is judged" not in text_of(result_pages([*made, *plain]), "comparison.md")


def test_the_number_of_methods_and_seeds_is_free() -> None:
    """A second task with one method, two seeds, no length; a method that METHODS does not know; no KL."""
    made = study({"text2grad": 0.9, "grpo": 0.8}, seeds=2, lengths=(0,), task="qa", metric="claim_f1")
    without_kl = [dict(point, kl_per_token=None) for point in record().curve]
    made += [
        record("text2grad", 0, task="code", curve=without_kl, critic="reward_model"),
        record("dpo_of_mine", 0, task="code", curve=without_kl, critic="reward_model"),
    ]
    made += [record("gamma_1", 0, task="stories")]
    pages = result_pages(made)
    comparison = text_of(pages, "comparison.md")
    assert "Text2Grad: 2 of 5 seeds (missing: 2, 3, 4)" in comparison
    assert "one learned number (PPO): no run" in comparison
    assert "dpo of mine" in comparison
    assert "one seed only: the bootstrap is over items alone" in comparison
    assert "Not behind Text2Grad with both intervals: dpo of mine." in comparison
    assert "No comparison yet: no rival has a finished run." in comparison
    assert "One length is recorded" in text_of(pages, "length.md")


def test_kls_at_which_the_lead_may_be_0_do_not_count() -> None:
    """Four seeds in which spans and the number gain the same by turns: 0.8 and 0.9, or 0.9 and 0.8."""
    made = [
        record(method, seed, value=0.8 if (seed % 2) == (method == "grpo") else 0.9, speed=2)
        for method in ("text2grad", "grpo")
        for seed in range(4)
    ]
    assert "the lead lies above 0: 0 of 4." in text_of(result_pages(made, draw=False), "length.md")


def test_the_lower_bound_at_the_shortest_length_is_that_of_the_wider_interval() -> None:
    made = [
        record(method, seed, length=length, value=0.9 if (seed % 2) == (method == "grpo") else 0.8)
        for method in ("text2grad", "grpo")
        for length in (1, 8)
        for seed in range(4)
    ]
    page = text_of(result_pages(made, draw=False), "length.md")
    [told] = re.findall(r"At length 1 the lower bound is (−0\.\d+), below −0\.02", page)
    [row] = [line for line in page.splitlines() if line.startswith("| 1 | ") and " | 4, 4 | " in line]
    bootstrap, student = re.findall(r"(−0\.\d+) to", row)
    assert "**" in row  # Student's is the wider one
    assert told == student != bootstrap


def test_a_number_that_ends_above_the_best_in_tuning_is_named_with_its_lead() -> None:
    values = {"text2grad": 0.93, "grpo": 0.80, "ppo": 0.88}
    tuning = [
        one for method, best in (("text2grad", 0.9), ("grpo", 0.8), ("ppo", 0.7)) for one in trials(method, [best])
    ]
    page = text_of(result_pages([*study(values, lengths=(1, 8)), *tuning], draw=False), "length.md")
    found = re.findall(r"At length (\d) one number \(PPO\) ends higher; the lead over it: (0\.\d+) \(", page)
    assert [length for length, _ in found] == ["1", "8"]
    ahead = [float(value) for _, value in found]
    assert ahead == pytest.approx([0.05, 0.11], abs=0.03)  # 0.93 - 0.88; numbers lose 0.02 * log2(8) at length 8


def test_the_variety_of_responses_stands_beside_their_gain() -> None:
    def varied(method: str, seed: int, end: float) -> object:
        one = record(method, seed)
        metrics = [dict(one.curve[0]["metrics"], distinct_2=share) for share in (0.6, end)]
        curve = [dict(one.curve[0], metrics=metrics[0]), *one.curve[1:-1], dict(one.curve[-1], metrics=metrics[1])]
        return record(method, seed, curve=curve)

    made = [varied("text2grad", seed, 0.4 + 0.1 * seed) for seed in range(2)]  # mean 0.45
    made += [varied("grpo", seed, 0.5) for seed in range(2)]
    page = text_of(result_pages(made, draw=False), "length.md")
    assert " | 0.600 → 0.450; 0.500 |\n" in page
    assert " | – |\n" in text_of(result_pages(study(lengths=(8,)), draw=False), "length.md")


def test_shares_that_are_small_at_the_start_have_four_digits() -> None:
    made = [
        record(method, seed, metric="invented_share", task="stories", items=[end] * 40, items_at_start=[0.012] * 40)
        for method, end in (("text2grad", 0.00512), ("grpo", 0.00898))
        for seed in range(2)
    ]
    page = text_of(result_pages(made, draw=False), "length.md")
    assert "| 0.0051 (0.0051 to 0.0051) | 0.0090 (0.0090 to 0.0090) | 0.0039 (0.0039 to 0.0039) |" in page
    searched = trials("text2grad", [0.0081, 0.0074], task="stories", metric="invented_share")
    compared = text_of(result_pages([*made, *searched], draw=False), "comparison.md")
    assert "by 0.0039 invented share (bootstrap 0.0039 to 0.0039, Student 0.0039 to 0.0039, one of" in compared
    assert "| 2 | 0.0051 (0.0051 to 0.0051) | " in compared
    assert " | 0.0039 (0.0039 to 0.0039) | 0.0039 to 0.0039 | yes |" in compared
    assert re.search(r"first reaches 0\.\d{4}, the final value", compared)
    assert compared.count("| 0.0074 |") == 2  # the best trial, and all trials
    for page_name in ("length.md", "comparison.md"):
        usual = text_of(result_pages(study(lengths=(8,)), draw=False), page_name)
        assert not re.search(r"0\.\d{4} \(", usual)


def test_series_over_lengths_come_before_conditions_of_one_length() -> None:
    made = [*study(lengths=(1, 8), task="summarization"), *study(lengths=(0,), task="code", metric="pass_1")]
    sections = re.findall(r"^## (\w+),", text_of(result_pages(made, draw=False), "length.md"), flags=re.MULTILINE)
    assert sections == ["summarization", "code"]


@pytest.mark.parametrize("records", [[], trials("grpo", [0.1, 0.2])], ids=["none", "tuning"])
def test_pages_without_evaluations_say_so(records: list[object]) -> None:
    pages = result_pages(records)  # type: ignore[arg-type]
    assert sorted(pages) == ["comparison.md", "length.md"]
    assert f"No evaluation is recorded yet; {len(records)} runs of tuning are." in text_of(pages, "comparison.md")
    assert "No condition has finished runs of both" in text_of(pages, "length.md")


def test_a_method_without_learning_curve_is_in_the_table_alone() -> None:
    """Reflection reads critiques at inference: one evaluation, no rollouts."""
    at_inference = record("reflection", 0, curve=[{**record().curve[-1], "rollouts": 0, "step": 1}])
    alone = result_pages([at_inference])
    assert "reflection at inference" in text_of(alone, "comparison.md")
    assert not [name for name in alone if name.startswith("comparison-")]
    pages = result_pages([at_inference, record("text2grad", 0), record("grpo", 0)])
    assert [name for name in pages if name.startswith("comparison-")]
    (group,) = groups([at_inference, record("text2grad", 0), record("grpo", 0)])
    assert learners(group) == ["text2grad", "grpo"]


def test_it_is_told_whose_trials_had_fewer_steps() -> None:
    def tuned(**steps: int | None) -> str:
        made = [*(record(name, 0) for name in steps)]
        for name, count in steps.items():
            more = {} if count is None else {"run.steps": count}
            made += [replace(one, settings={**one.settings, **more}) for one in trials(name, [0.5, 0.6])]
        return text_of(result_pages(made, draw=False), "comparison.md")

    assert "steps, evaluations" not in tuned(text2grad=None, grpo=None)
    assert "Trials had 20 steps, evaluations the recipe's." in tuned(text2grad=20, grpo=20)
    assert "Trials of one number (GRPO) had 20 steps, evaluations the recipe's." in tuned(text2grad=None, grpo=20)
    some = "Trials of Text2Grad had 30 steps; trials of one number (GRPO) had 20 steps, evaluations the recipe's."
    assert some in tuned(text2grad=30, grpo=20)


def test_a_level_on_fewer_seeds_is_told() -> None:
    numbers = [record("grpo", seed) for seed in (0, 1)]
    told = "the final value of one number (GRPO); for a method with fewer seeds, its value on these seeds:"
    assert told in text_of(result_pages([*numbers, record("text2grad", 0)]), "comparison.md")
    for same in ((0, 1), (0, 1, 2)):
        pages = result_pages([*numbers, *(record("text2grad", seed) for seed in same)])
        assert "the final value of one number (GRPO):" in text_of(pages, "comparison.md")


def test_rivals_tuned_with_different_critics_are_not_ranked_by_their_tuning() -> None:
    """GRPO's trials with the program's critiques are easier than the learned number's own with its reward model."""
    made = [record(name, 0, critic="reward_model", value=value) for name, value in (("grpo", 0.8), ("ppo", 0.9))]
    tuned = [*trials("grpo", [0.95]), *trials("ppo", [0.7], critic="reward_model")]
    (group,) = groups([*made, *tuned])
    assert {name: where.critic for name, where in group.tuning.where.items()} == {
        "grpo": "program",
        "ppo": "reward_model",
    }
    assert group.strongest() == (
        "ppo",
        "the best mean on the evaluation's own items, because the rivals were tuned with different critics: too high "
        "by chance",
    )


@pytest.mark.parametrize(("of_group", "ours"), [(0.95, "text2grad_group"), (0.85, "text2grad")])
def test_the_spans_that_are_compared_are_the_best_on_the_tuning_items(of_group: float, ours: str) -> None:
    values = {"text2grad": 0.9, "text2grad_group": 0.93, "grpo": 0.8, "ilf": 0.99}
    made = study(values, lengths=(8,))
    tuned = [one for name in values for one in trials(name, [{"text2grad_group": of_group}.get(name, values[name])])]
    (group,) = groups([*made, *tuned])
    assert group.ours == ours
    page = text_of(result_pages([*made, *tuned]), "comparison.md")
    named = METHODS[ours].label
    assert f"{named} ends below ILF (perfect refiner), the strongest rival (the best mean" in page
    assert f"{named} ends above one number (GRPO), the strongest rival that learns from numbers (the best mean" in page
    better = "On the tuning items Text2Grad (group baseline) is better than Text2Grad."
    assert (better in page) == (ours == "text2grad_group")
    assert "ILF (perfect refiner) read the critique's text" in page


def test_unpaired_methods_and_reruns_are_told() -> None:
    made = [*study({"text2grad": 0.9}), *study({"grpo": 0.8}, start="other")]
    again = record("text2grad", 0, study="again", machine={"cpu": "another"}, items=[0.5] * 40)
    pages = result_pages([again, *made])
    [group] = groups([again, *made])
    assert group.runs["text2grad"][0].study == "made"  # the study with more seeds
    page = text_of(pages, "comparison.md")
    assert "Not paired with Text2Grad, because start weights or held-out items differ" in page
    assert "1 runs were repeated (2 machines)" in page


def test_runs_of_a_study_that_is_apart_are_compared_with_each_other() -> None:
    """Each condition takes its own trials; without them, those of the other one."""
    apart = {"apart": "searched with it", "start": "other", "study": "again"}
    made = [*study({"text2grad": 0.9, "grpo": 0.8}), *study({"text2grad": 0.7, "grpo": 0.8}, **apart)]
    made += [*trials("text2grad", [0.9]), *trials("grpo", [0.8])]
    made += trials("text2grad", [0.5, 0.6], critic="reward_model", apart="searched with it")
    first, second = groups(made)
    assert (first.condition.name, second.condition.name) == (
        "summarization, length 8, program as critic",
        "summarization, length 8, program as critic, searched with it",
    )
    assert (first.studies, second.studies) == (["made"], ["again"])
    assert (first.reruns, second.reruns) == ([], [])
    best = [group.tuning.trials["text2grad"][0].settings["optim.lr"] for group in (first, second)]
    assert best == [0.001, 0.002]
    assert second.tuning.trials["grpo"][0].value == 0.8
    pages = result_pages(made)
    assert "## summarization, length 8, program as critic, searched with it (studies: again)" in text_of(
        pages, "comparison.md"
    )
    assert {"comparison-summarization-program-r.png", "comparison-summarization-program-r-searched-with-it.png"} <= {
        *pages
    }


def test_the_tuned_settings_are_compared_and_others_are_variants() -> None:
    low, high = {"ppo.beta": 0.1}, {"ppo.beta": 0.2}
    made = [record(seed=s, settings=low) for s in range(2)] + [record(seed=s, settings=high) for s in range(3)]
    [group] = groups(made)
    assert group.runs["text2grad"][0].settings == high  # more seeds
    tuned = record(purpose="tuning", trial=4, settings={"ppo.beta": 0.1, "rollout.max_new_tokens": 9})
    [group] = groups([*made, tuned])
    assert group.runs["text2grad"][0].settings == low
    assert [len(one) for one in group.variants["text2grad"]] == [2, 3]


def test_missing_runs_name_leading_methods_and_seeds() -> None:
    [group] = groups([*study({"text2grad": 0.9}, seeds=5), *study({"gamma_1": 0.8}, seeds=2)])
    few = missing(group)
    assert "Text2Grad (γ = 1): 2 of 3 seeds (missing: 2)" in few
    leading = [name for name, method in METHODS.items() if method.leading and name != "text2grad"]
    assert len(few) == 1 + len(leading)


def test_edges_are_those_of_the_values_tried() -> None:
    [group] = groups([*study({"grpo": 0.8}), *trials("grpo", [0.1, 0.9, 0.2])])
    assert edges(group.tuning, "grpo") == []
    [group] = groups([*study({"grpo": 0.8}), *trials("grpo", [0.9, 0.1])])
    assert edges(group.tuning, "grpo") == ["optim.lr = 0.001 (the lowest of 2 tried)"]
    [group] = groups([*study({"grpo": 0.8}), record("grpo", purpose="tuning", trial=0, settings={"ppo.beta": 0.5})])
    assert edges(group.tuning, "grpo") == ["ppo.beta = 0.5 (0.01 to 0.5)"]  # at the end of the search space


def test_no_two_methods_look_the_same() -> None:
    looks = set()
    for method in METHODS:
        again, number = divmod(look(method), len(COLOURS))
        looks.add((number, (number + again) % len(DASHES), (number + again) % len(MARKERS)))
    assert len(looks) == len(METHODS)
    assert [method for method in METHODS if look(method) % len(COLOURS) == 0] == ["text2grad"]


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    made = [*study({"grpo": 0.8}, seeds=2), *trials("grpo", [0.1])]
    assert read_runs(write(tmp_path, made)) == made
    assert read_runs(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "made.jsonl:2: not JSON"),
        ('{"study": "a"}', "made.jsonl:2: the record has no"),
        ("[]", "made.jsonl:2: a rec"),
    ],
)
def test_a_damaged_record_is_refused_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, [record()]) / "made.jsonl"
    path.write_text(path.read_text("utf-8") + line + "\n", "utf-8")
    with pytest.raises(DataError, match=message):
        read_runs(tmp_path)


def test_a_record_without_a_curve_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"method text2grad, seed 0.*has no evaluation"):
        read_runs(write(tmp_path, [record(curve=[])]))


@pytest.mark.usefixtures("drawn_pictures")
def test_the_command_writes_pages_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "runs", study({"text2grad": 0.9, "grpo": 0.8}, seeds=2))
    command = ["results", "--out", str(tmp_path)]
    command += ["--plan", str(ROOT / "evidence" / "recipes" / "results-short.toml")]
    assert main(command) == 0
    assert "comparison.md" in capsys.readouterr().out
    assert (tmp_path / "comparison-summarization-program-r.png").read_bytes().startswith(PNG)
    assert main(command) == 0
    assert "nothing: all pages are up to date" in capsys.readouterr().out
    planned = "short, summarization, program as critic: none of 3 evaluations"
    assert planned in (tmp_path / "comparison.md").read_text("utf-8")
    assert main([*command, "--runs", str(tmp_path / "nothing")]) == 0
    assert "No evaluation is recorded yet" in (tmp_path / "comparison.md").read_text("utf-8")


def test_missing_runs_of_a_plan(tmp_path: Path) -> None:
    path = ROOT / "evidence" / "recipes" / "results-short.toml"
    plan = load_plan(path)
    (shared,) = plan.study
    same = {"study": "short", "length": 0, "recipe": recipe_digest(load_recipe(path.parent / shared.recipe))}
    tried = [replace(one, seed=shared.tune_seed) for one in trials("scalar_ppo", [0.1], **same)]
    made = [record("grpo", **same), *tried, *(replace(one, seed=7) for one in tried)]
    assert missing_of_plan(plan, path, made) == [
        "short, summarization, program as critic: Text2Grad 0 of 1 evaluations and 0 of 2 trials; "
        "same spans, summed 0 of 1 evaluations and 1 of 2 trials"
    ]
    assert missing_of_plan(plan, path, [record(one, **same) for one in ("text2grad", "scalar_ppo", "grpo")]) == []


def test_an_evaluation_of_a_plan_counts_once_for_all_trials_whose_settings_it_has(tmp_path: Path) -> None:
    """The best trial may change while evaluations are made, and a seed then has one with each."""
    text = (ROOT / "evidence" / "recipes" / "results-short.toml").read_text("utf-8")
    path = tmp_path / "plan.toml"
    text = text.replace('recipe = "', f'recipe = "{ROOT / "evidence" / "recipes"}/')
    path.write_text(text.replace("seeds = [0]", "seeds = [0, 1]"))
    plan = load_plan(path)
    (shared,) = plan.study
    same = {"study": "short", "length": 0, "recipe": recipe_digest(load_recipe(shared.recipe))}
    tried = [replace(one, seed=shared.tune_seed) for one in trials("text2grad", [0.1, 0.2], **same)]
    made = [record("text2grad", settings=one.settings, **same) for one in tried]
    others = [record(name, seed, **same) for name in ("scalar_ppo", "grpo") for seed in (0, 1)]
    assert missing_of_plan(plan, path, [*tried, *made, *others]) == [
        "short, summarization, program as critic: Text2Grad 1 of 2 evaluations"
    ]


def test_a_length_at_which_a_level_is_never_reached_is_a_gap() -> None:
    inf, nan = float("inf"), pytest.approx(float("nan"), nan_ok=True)
    found = [
        Interval(value, low, high, None, None, 5)
        for value, low, high in ((0.5, 0.3, inf), (inf, 0.9, inf), (0.25, 0.1, 0.75))
    ]
    line = length_line([1.0, 2.0, 4.0], found, "text2grad")
    assert line.points == [(1.0, 0.5), (2.0, nan), (4.0, 0.25)]
    # an infinite limit is drawn at the largest finite number, 0.75
    assert line.band == [(1.0, 0.3, 0.75), (2.0, nan, nan), (4.0, 0.1, 0.75)]
