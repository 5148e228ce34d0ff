"""`text2grad evaluate pairs`: two sets judged in both orders, against a server that prefers a place or a length."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fault_server import Running
from text2grad.cli.__main__ import main
from text2grad.cli.options import SOME_REMAIN
from text2grad.critics.servers.preference import Comparison, Preference, messages, read_verdict
from text2grad.critics.servers.store import Answer
from text2grad.runs.critic_quality.verdicts import judges_agreement, summary

pytestmark = pytest.mark.usefixtures("short_waits")


def files(path: Path, server: Running, scripts: list[tuple[str, str, str]], *, what: str = "responses") -> list[str]:
    """Write two files, whose prompts say what happens to them, and a recipe; return the command."""
    for column, name in ((1, "ours"), (2, "theirs")):
        records: list[dict[str, Any]] = []
        for row, one in enumerate(scripts):
            prompt = {"prompt": f"{path} {row} [[{one[0]}]]"}
            critique = {"response": "So glad.", "critique": {"feedback": one[column], "spans": [[0, 2, "positive"]]}}
            records.append({**prompt, **(critique if what == "critiques" else {"response": one[column]})})
        (path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (path / "my.toml").write_text(f'[annotate]\nmodel = "m"\nbase_url = "{server.url}"\napi_key_env = "SOME_KEY"\n')
    names = [str(path / "ours.jsonl"), str(path / "theirs.jsonl"), "--judge", str(path / "my.toml")]
    return ["evaluate", "pairs", *names, "--out", str(path / "out")]


def result(path: Path) -> dict[str, Any]:
    return json.loads((path / "out" / "win_rate.json").read_text())  # type: ignore[no-any-return]


SCRIPTS = [
    *[("longer", "a long text", "short")] * 2,  # wins, whichever stands first
    ("longer", "short", "a long text"),  # a loss
    ("firstplace", "one", "two"),  # contradicts itself: a tie
    ("undecided", "one", "two"),
    ("400", "the same", "the same"),  # a tie that nobody is asked about
]


@pytest.mark.parametrize("what", ["responses", "critiques"])
def test_wins_ties_and_losses_are_counted_in_both_orders_and_paid_for_once(
    what: str, server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, before = files(tmp_path, server, SCRIPTS, what=what), server.requests()
    assert main(command) == 0
    found = result(tmp_path)
    assert (found["wins"], found["ties"], found["losses"], found["pairs"]) == (2, 3, 1, 6)
    assert (found["inconsistent"], found["failed"]) == (1, 0)
    assert found["rates"]["win"]["value"] == pytest.approx(2 / 6)
    assert found["rates"]["win"]["low"] < 2 / 6 < found["rates"]["win"]["high"]
    assert server.requests() - before == 10  # two orders of five pairs
    assert "33.3 [0.0, 66.7]   50.0 [16.7, 83.3]   16.7 [0.0, 50.0]   62.5" in capsys.readouterr().out
    verdicts = [json.loads(line) for line in (tmp_path / "out" / "verdicts.jsonl").read_text().splitlines()]
    assert [one["verdicts"] for one in verdicts[2:4]] == [["second", "second"], ["first", "second"]]
    assert all("sk-never" not in file.read_text("latin-1") for file in (tmp_path / "out").iterdir())

    assert main(command) == 0
    assert server.requests() - before == 10
    assert result(tmp_path)["answers_from_before"] == 10


def test_pairs_without_a_verdict_are_no_ties_and_the_exit_status_says_that_some_remain(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts = [
        ("longer", "a long text", "short"),
        *((kind, "one", "two") for kind in ("prose", "refused", "empty", "400")),
    ]
    assert main(files(tmp_path, server, scripts)) == 3
    found = result(tmp_path)
    assert (found["pairs"], found["wins"], found["failed"]) == (1, 1, 4)
    said = capsys.readouterr().out
    for kind in ("unreadable, 1 times: Once upon a time", "refused, 1 times", "empty, 1 times", "rejected, 1 times"):
        assert f"without a verdict: {kind}" in said


def test_files_of_other_prompts_and_responses_without_text_are_refused(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, before = files(tmp_path, server, SCRIPTS[:2]), server.requests()
    (tmp_path / "theirs.jsonl").write_text('{"prompt": "another", "response": "x"}\n')
    assert main(command) == 2
    assert "do not answer the same prompts: 3 prompts occur in one file only" in " ".join(
        capsys.readouterr().err.split()
    )
    (tmp_path / "theirs.jsonl").write_text('{"prompt": "another"}\n')
    assert main(command) == 2
    assert 'each line needs the texts "prompt" and "response"' in " ".join(capsys.readouterr().err.split())
    assert server.requests() == before


def test_a_comparison_of_other_files_is_not_overwritten(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = files(tmp_path, server, SCRIPTS[:1])
    assert main(command) == 0
    before = (tmp_path / "out" / "win_rate.json").read_bytes()
    other = [*command[:2], command[3], command[2], *command[4:]]
    assert main(other) == 2
    assert "would be overwritten; choose another --out, or add --force" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "out" / "win_rate.json").read_bytes() == before
    assert main([*other, "--force"]) == 0
    assert result(tmp_path)["first"].endswith("theirs.jsonl")
    assert main([*command, "--out", str(tmp_path)]) == 2
    assert "holds other files" in capsys.readouterr().err


def test_further_pairs_are_asked_about_alone(server: Running, tmp_path: Path) -> None:
    command = files(tmp_path, server, SCRIPTS[:3])
    assert main([*command, "--limit", "1"]) == 0
    assert result(tmp_path)["requests"] == 2
    assert main(command) == 0
    assert (result(tmp_path)["requests"], result(tmp_path)["answers_from_before"]) == (4, 2)


def test_one_tie_and_one_preference_are_an_inconsistent_tie() -> None:
    found = summary([Preference("tie", ("first", "tie")), Preference("second", ("second", "second"))])
    assert (found["wins"], found["ties"], found["losses"], found["inconsistent"]) == (0, 1, 1, 1)


def test_the_texts_change_places_and_stand_between_tags_that_they_do_not_hold() -> None:
    comparison = Comparison("Why?", "So.", "A </first>", "B")
    forth, back = (messages(comparison, swapped=swapped)[0]["content"] for swapped in (False, True))
    assert "<first-1>\nA </first>\n</first-1>\n\n<second>\nB\n</second>" in forth
    assert "<first>\nB\n</first>\n\n<second>\nA </first>\n</second>" in back
    assert "<response>\nSo.\n</response>" in forth
    assert "<response>" not in messages(comparison._replace(response=None), swapped=False)[0]["content"]


@pytest.mark.parametrize(
    ("text", "side"),
    [
        ('{"better": "first"}', "first"),
        ('{"better": "first"} No: {"better": " TIE "}', "tie"),
        ('{"better": "the second"}', None),
        ('{"better": 1}', None),
        ("first", None),
        ('<think>{"better": "first"}</think>{"better": "second"}', "second"),
        ('<think>Maybe {"better": "first"}? But', None),  # cut off in the reasoning
    ],
)
def test_a_verdict_is_one_of_three_words_and_the_last_one_counts(text: str, side: str | None) -> None:
    assert read_verdict(Answer(text, "stop")) == side
    assert read_verdict(Answer(text, "refused")) is None


# Several judges, and the cost beforehand.


def test_two_judges_stand_beside_each_other_with_their_agreement(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, before = files(tmp_path, server, SCRIPTS), server.requests()
    assert main([*command, "--judge", "two"]) == 0
    found = result(tmp_path)
    assert server.requests() - before == 20
    assert (found["judge"], list(found["judges"])) == ("m", ["m", "two"])
    assert found["judges"]["two"]["wins"] == 2
    [(names, both)] = found["agreement"].items()
    assert (names, both["ratings"], both["agreement"], both["alpha"]) == ("m and two", 12, 1.0, 1.0)
    verdicts = [json.loads(line) for line in (tmp_path / "out" / "verdicts.jsonl").read_text().splitlines()]
    assert [one["judge"] for one in verdicts] == ["m"] * 6 + ["two"] * 6
    assert main([*command, "--judge", "m"]) == 2
    assert "two judges are the model m" in capsys.readouterr().err


PRICES = ["--set", "annotate.prices=[1000,2000]"]


def test_cost_is_told_beforehand_and_a_dear_run_is_refused(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, before = files(tmp_path, server, [("longer", "a long text", "short")] * 3), server.requests()
    assert main([*command, *PRICES, "--dry-run"]) == 0
    assert re.search(
        r"m: 6 requests, about [\d,]+ tokens of prompts and 1,500 of answers, about \$", capsys.readouterr().out
    )
    assert main([*command, *PRICES, "--max-cost", "0.5"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "above max_cost = $0.5; nothing was requested. Raise max_cost" in said
    assert server.requests() == before
    assert main([*command, *PRICES, "--max-cost", "50"]) == 0
    assert main([*command, *PRICES, "--dry-run"]) == 0
    assert "m: 0 requests (6 are answered already)" in capsys.readouterr().out
    # 6 answers of 100 and 20 tokens at 1,000 and 2,000 dollars per million
    assert result(tmp_path)["cost_usd"] == pytest.approx(6 * (0.1 + 0.04))


def test_two_judges_share_a_budget_each_at_its_own_prices(server: Running, tmp_path: Path) -> None:
    command = [*files(tmp_path, server, [("longer", "a long text", "short")] * 2)[:4], "--out", str(tmp_path / "out")]
    for name, price in (("dear", 1000), ("cheap", 10)):
        text = (tmp_path / "my.toml").read_text().replace('"m"', f'"{name}"')
        (tmp_path / f"{name}.toml").write_text(f"{text}prices = [{price}, 0]\n")
    judges = ["--judge", str(tmp_path / "dear.toml"), "--judge", str(tmp_path / "cheap.toml")]
    assert main([*command, *judges, "--max-cost", "9"]) == 0
    assert result(tmp_path)["cost_usd"] == pytest.approx(4 * 0.1 + 4 * 0.001)
    assert main([*command, *judges, "--max-cost", "9"]) == 0
    assert (result(tmp_path)["requests"], result(tmp_path)["cost_usd"]) == (0, pytest.approx(0.404))
    # The last dear request costs 0.82 at most and finds 0.304 spent; cheap tokens at the dear price would be 0.4 more.
    turned = [*judges[2:], *judges[:2], "--out", str(tmp_path / "turned"), "--max-cost", "1.3"]
    assert main([*command, *turned]) == 0


def test_each_judge_keeps_to_its_own_budget_and_answers_of_others_in_the_directory_count(
    server: Running, tmp_path: Path
) -> None:
    command = [*files(tmp_path, server, [("longer", "a long text", "short")] * 2)[:4], "--out", str(tmp_path / "out")]
    for name, budget in (("poor", 1.0), ("rich", 9.0)):  # an answer costs 0.1, and 0.82 at most
        text = (tmp_path / "my.toml").read_text().replace('"m"', f'"{name}"')
        (tmp_path / f"{name}.toml").write_text(f"{text}prices = [1000, 0]\nmax_cost = {budget}\n")
    poor, rich = (["--judge", str(tmp_path / f"{name}.toml")] for name in ("poor", "rich"))
    assert main([*command, *poor, *rich]) == SOME_REMAIN
    judges = result(tmp_path)["judges"]
    assert (judges["poor"]["failed"] > 0, judges["rich"]["failed"]) == (True, 0)
    spent = result(tmp_path)["cost_usd"]
    assert main([*command, *rich]) == 0
    assert result(tmp_path)["cost_usd"] == pytest.approx(spent)  # with what was paid to the other judge


def test_a_judge_without_a_server_and_two_responses_are_refused(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files(tmp_path, server, SCRIPTS[:1])
    ours, theirs = str(tmp_path / "ours.jsonl"), str(tmp_path / "theirs.jsonl")
    command = ["evaluate", "pairs", ours, theirs, "--out", str(tmp_path / "out")]
    assert main([*command, "--judge", "m"]) == 2
    assert "--judge m is a model on the server of a --judge FILE.toml" in " ".join(capsys.readouterr().err.split())
    recipe = ["--judge", str(tmp_path / "my.toml")]
    assert main([*command, *recipe, "--max-cost", "1"]) == 2
    assert "--max-cost needs prices, without which nothing costs anything" in capsys.readouterr().err
    (tmp_path / "theirs.jsonl").write_text('{"prompt": "a", "response": "x"}\n{"prompt": "a", "response": "y"}\n')
    assert main([*command, *recipe]) == 2
    assert "the prompt 'a' has two responses" in " ".join(capsys.readouterr().err.split())


def test_position_bias_and_agreement_by_hand() -> None:
    one = [
        Preference("first", ("first", "first"), ("first", "second")),
        Preference("tie", ("first", "second"), ("first", "first")),
        Preference("tie", ("tie", "tie"), ("tie", "tie")),
    ]
    # two ties name no place
    assert summary(one)["rates"]["first_place"]["value"] == pytest.approx(3 / 4)
    other = [Preference("first", ("first", "first")), Preference("second", ("second", "second")), Preference(None)]
    found = judges_agreement({"a": one, "b": other})["a and b"]
    assert found["agreement"] == 0.5
    # Krippendorff: values first 2, tie 1, second 1; D_o = (0 + 1) / 2; D_e = 1 - (2·1 + 0 + 0) / (4·3) = 5/6
    assert found["alpha"] == pytest.approx(1 - 0.5 / (5 / 6))
    assert judges_agreement({"a": one}) == {}
    assert list(judges_agreement({"a": one, "b": other, "c": one})) == [
        "a and b",
        "a and c",
        "b and c",
        "a and b and c",
    ]
