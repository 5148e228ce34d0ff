"""`text2grad win-rate`: two sets judged in both orders, against a server that prefers a place or a length."""

import json
from pathlib import Path
from typing import Any

import pytest

from fault_server import Running
from text2grad.cli.__main__ import main
from text2grad.cli.win_rate import summary
from text2grad.critics.servers.preference import Comparison, Preference, messages, read_verdict
from text2grad.critics.servers.store import Answer

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
    (path / "my.toml").write_text(
        f'[annotate]\nmodel = "m"\nbase_url = "{server.url}"\napi_key_env = "SOME_KEY"\nretries = 1\n'
    )
    names = [str(path / "ours.jsonl"), str(path / "theirs.jsonl"), "--recipe", str(path / "my.toml")]
    return ["win-rate", *names, "--out", str(path / "out"), "--what", what]


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
    assert (found["inconsistent"], found["first_place_twice"], found["second_place_twice"]) == (1, 1, 0)
    assert (found["alike"], found["failed"]) == (1, 0)
    assert found["rates"]["win"]["value"] == pytest.approx(2 / 6)
    assert found["rates"]["win"]["low"] < 2 / 6 < found["rates"]["win"]["high"]
    assert server.requests() - before == 10  # two orders of five pairs
    assert "inconsistent        1" in capsys.readouterr().out
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
    other = [command[0], command[2], command[1], *command[3:]]
    assert main(other) == 2
    assert "would be overwritten; choose another --out, or add --force" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "out" / "win_rate.json").read_bytes() == before
    assert main([*other, "--force"]) == 0
    assert result(tmp_path)["first"].endswith("theirs.jsonl")
    assert main([*command, "--out", str(tmp_path)]) == 2
    assert "holds other files" in capsys.readouterr().err


def test_a_budget_stops_it_cleanly(server: Running, tmp_path: Path) -> None:
    command = files(tmp_path, server, SCRIPTS[:3])
    assert main([*command, "--max-requests", "3"]) == 3
    assert result(tmp_path)["requests"] == 3
    assert main(command) == 0
    assert (result(tmp_path)["requests"], result(tmp_path)["answers_from_before"]) == (3, 3)


def test_one_tie_and_one_preference_are_an_inconsistent_tie() -> None:
    found = summary([Preference("tie", ("first", "tie")), Preference("second", ("second", "second"))], seed=0)
    assert (found["wins"], found["ties"], found["losses"], found["inconsistent"]) == (0, 1, 1, 1)
    assert (found["first_place_twice"], found["second_place_twice"]) == (0, 0)


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
    ],
)
def test_a_verdict_is_one_of_three_words_and_the_last_one_counts(text: str, side: str | None) -> None:
    assert read_verdict(Answer(text, "stop")) == side
    assert read_verdict(Answer(text, "refused")) is None
