"""A run tells whose marks it learned from; marks that are taken back are gone, and from what learned from them, too."""

import fcntl
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from critics_by_name import Raters
from rated_runs import last_weights, rated_run
from task_texts import untrained_policy
from text2grad.cli.__main__ import main
from text2grad.config import make_recipe
from text2grad.critics.cached import CachedCritic
from text2grad.feedback import item_of, mark_of
from text2grad.files import write_records
from text2grad.rl.run_log import RunLog
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.runs.lineage import Retraction, write_lineage
from text2grad.runs.reports.html import rollouts_page
from text2grad.types import Critique, Example, Rollout

SETTINGS = (
    "data.eval_examples=4",
    "run.steps=2",
    "optim.lr=0.03",
    "optim.value_warmup_steps=0",
    "run.save_every=1",
    "run.keep_checkpoints=2",
)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("start")
    untrained_policy(path)
    return path


def run(start: Path, out: Path, critic: str = "Raters", **how: Any) -> Path:
    return rated_run(start, out, critic, *SETTINGS, **how)


@pytest.fixture(scope="module")
def parent(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(start, tmp_path_factory.mktemp("runs") / "parent")


@pytest.fixture
def mine(parent: Path, tmp_path: Path) -> Path:
    """A copy of the run below a folder of runs, beside which three of its responses are a file of annotations."""
    copy = shutil.copytree(parent, tmp_path / "runs" / "mine")
    names = ("prompt", "response", "critique")
    write_records(tmp_path / "team.jsonl", [{name: record[name] for name in names} for record in records_of(copy)[:3]])
    return copy


def records_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "rollouts" / "00000.jsonl").read_text().splitlines()]


def spans_of(records: Sequence[dict[str, Any]], rater: str) -> list[dict[str, Any]]:
    return [span for record in records for span in record["critique"]["spans"] if span.get("rater") == rater]


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def retract(directory: Path, *options: str) -> int:
    names = [str(directory / name) for name in ("team.jsonl", "runs")]
    return main(["feedback", "retract", *names, "--rater", "ann", *options])


def test_a_rater_takes_all_marks_back(
    start: Path, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    never, before = run(start, tmp_path / "never", "BobAlone"), records_of(mine)
    (mine / "report.html").write_text(rollouts_page("Mine", before))
    (mine / "other.html").write_text("<p>And now: bob</p>")
    index = tmp_path / "runs" / "studio" / "index" / "mine.sqlite"
    index.parent.mkdir(parents=True)
    index.write_text(Raters.why)
    files = contents(tmp_path)
    assert sum(Raters.why.encode() in data for data in files.values()) >= 4

    assert retract(tmp_path, "--dry-run") == 0
    assert contents(tmp_path) == files
    assert f"{mine} learned from them, and is made again as {mine}-without-ann" in capsys.readouterr().out

    monkeypatch.setattr(Raters, "said", ("bob",))  # as a critic does that reads the marks
    assert retract(tmp_path) == 0
    out = tmp_path / "runs" / "mine-without-ann"
    assert last_weights(out) == last_weights(never) != last_weights(mine)
    assert [path for path, data in contents(tmp_path).items() if Raters.why.encode() in data] == []
    assert not index.exists()
    assert [path.name for path in mine.glob("*.html")] == ["other.html"]

    after = records_of(mine)
    assert spans_of(after, "ann") == []
    assert spans_of(after, "bob") == spans_of(before, "bob") != []
    assert [record["ids"] for record in after] == [record["ids"] for record in before]
    team = [json.loads(line)["critique"] for line in (tmp_path / "team.jsonl").read_text().splitlines()]
    assert all((critique["status"] == "withdrawn") == (not critique["spans"]) for critique in team)
    assert len(team) == 3, "the prompts stay"
    assert {frozenset(json.loads(line)) for line in (tmp_path / "team.jsonl").read_text().splitlines()} == {
        frozenset(("prompt", "response", "critique"))
    }

    marks = {name for record in after for name in record.get("withdrawn", {})}
    stones = [json.loads(line) for line in (tmp_path / "withdrawn.jsonl").read_bytes().splitlines() if line]
    assert marks <= {stone["mark"] for stone in stones}
    assert {frozenset(stone) for stone in stones} == {frozenset(("mark", "rater", "at", "reason"))}

    assert retract(tmp_path) == 0, "given again, it finds nothing new"
    assert (tmp_path / "withdrawn.jsonl").read_bytes().count(b'"mark"') == len(stones)


def test_a_run_that_lost_marks_goes_on_and_its_card_still_counts_them(mine: Path, tmp_path: Path) -> None:
    before = records_of(mine)
    ann, bob = (len(spans_of(before, rater)) for rater in ("ann", "bob"))
    log, readme = mine / "rollouts" / "00000.jsonl", mine / "checkpoints" / "step-000002" / "policy" / "README.md"
    write_lineage(mine)
    assert f'"ann": {ann}' in readme.read_text()
    size = log.stat().st_size
    Retraction(tmp_path / "team.jsonl", tmp_path / "runs", "ann").write("a test")
    assert log.stat().st_size == size
    lineage = write_lineage(mine)
    assert (lineage["raters"], lineage["categories"]) == ({"bob": bob}, {"fact": bob})
    assert (lineage["marks"], lineage["withdrawn"]) == ({"positive": bob}, {"ann": ann})
    assert lineage["feedback"] == json.loads((mine / "run.json").read_bytes())["inputs"]
    card = json.loads(readme.read_text().split("```")[1].removeprefix("json"))
    assert card == {name: lineage[name] for name in ("feedback", "marks", "raters", "categories", "withdrawn")}
    position = json.loads((mine / "checkpoints" / "step-000001" / "state.json").read_bytes())["log"]
    assert RunLog(mine).rewind(position) == []
    assert [record["ids"] for record in records_of(mine)] == [record["ids"] for record in before[:8]]


class WithoutMark(Text2GradTrainer):
    """Never hears Ann on the response of row 3 of step 1."""

    def criticize(self, rollouts: Sequence[Rollout], early: Any = None) -> list[Critique]:
        critiques = super().criticize(rollouts, early)
        if self.step == 1:
            kept = tuple(span for span in critiques[3].spans if span.rater != "ann")
            critiques[3] = Critique("", kept)
        return critiques


def test_a_single_mark_is_taken_back_from_the_checkpoint_before_it_on(
    start: Path, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    never, before = run(start, tmp_path / "never", trainer_class=WithoutMark), records_of(mine)
    record = before[8 + 3]
    (span,) = spans_of([record], "ann")
    name = mark_of(item_of(record["prompt"], record["response"]), span)
    assert retract(tmp_path, "--id", name[:12]) == 0
    out = tmp_path / "runs" / f"mine-without-{name[:12]}"
    assert last_weights(out) == last_weights(never) != last_weights(mine)
    assert [path.name for path in sorted((out / "checkpoints").iterdir())] == ["step-000001", "step-000002"]
    after = records_of(mine)
    assert after[8 + 3]["withdrawn"] == {name: "ann"}
    assert [place for place, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]] == [8 + 3]
    assert json.loads((out / "lineage.json").read_bytes())["without"]["critiques"] == [name[:12]]
    assert retract(tmp_path, "--id", "no such mark") == 2
    assert "no mark no such mark of ann in" in capsys.readouterr().err


def made(home: Path, kind: str, **sections: dict[str, Any]) -> Path:
    """Write run.json of a run or of a training; a run has responses, too."""
    (home / "rollouts" if kind == "prompts" else home).mkdir(parents=True)
    recipe = make_recipe(sections).model_dump(mode="json")
    (home / "run.json").write_text(json.dumps({"recipe": recipe, "inputs": {kind: "a digest"}}))
    return home


def test_what_learned_by_a_reward_model_or_from_another_policy_is_listed_with_the_way_to_make_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, runs = tmp_path / "team.jsonl", tmp_path / "runs"
    span = {"start": 0, "end": 2, "label": "negative", "rater": "ann"}
    write_records(source, [{"prompt": "Where?", "response": "In Lyon.", "critique": {"feedback": "", "spans": [span]}}])
    of_critic, own_model = {"annotations": [str(source)]}, {"model": str(runs / "critic" / "model")}
    critic = made(runs / "critic", "annotations", reward_model=of_critic, critic=own_model)
    of_policy: dict[str, dict[str, Any]] = {"critic": {"model": str(critic / "model")}, "reward_model": of_critic}
    policy = made(runs / "policy", "prompts", **of_policy)
    further = made(runs / "further", "prompts", model={"path": str(policy / "checkpoints" / "step-000001" / "policy")})
    refreshed = made(runs / "refreshed", "prompts", refresh={"replay_from": str(source)})
    made(runs / "apart", "prompts", data={"train": str(source)}, reward_model=of_critic, critic={"model": "elsewhere"})
    made(runs / "program", "prompts", critic={"use": "module:name", "model": str(critic / "model")})
    made(runs / "critical", "annotations", reward_model={"annotations": ["other.jsonl"]})
    adapter = runs / "studio" / "versions" / "0001"
    adapter.mkdir(parents=True)
    (adapter / "version.json").write_text("{}")
    shutil.copy(source, adapter / "marks.jsonl")
    versions = {critic: [], policy: ["critic.model"], further: ["model.path"], refreshed: ["refresh.replay_from"]}
    versions |= {adapter: []}
    retraction = Retraction(source, runs, "ann")
    assert retraction.versions == versions
    assert retract(tmp_path, "--dry-run") == 0
    said = capsys.readouterr().out
    assert f"again by text2grad reward RECIPE.toml --out {critic}-without-ann\n" in said
    assert f"again by text2grad train RECIPE.toml --set critic.model=NEW --out {policy}-without-ann\n" in said

    assert f"{adapter} learned from them, and is made again in the studio, by a lesson\n" in said

    retraction.write("a test")
    own, begun = (made(runs / name, "prompts") for name in ("own", "own-without-ann"))
    heard = {"step": 0, "prompt": "Where?", "response": "In Nice.", "critique": {"feedback": "", "spans": [span]}}
    for home in (own, begun):
        write_records(home / "rollouts" / "00000.jsonl", [heard])
    del versions[adapter]  # whose marks are gone
    assert Retraction(source, runs, "ann").versions == {**versions, own: [], begun: []}, "the source had marks"
    assert retract(tmp_path, "--dry-run") == 0
    said = capsys.readouterr().out
    assert f"{own} learned from them, and is made again as {begun}\n" in said
    assert f"as {begun}-without-ann" not in said, "it was begun before an interruption"


def test_caches_of_critics_and_critiques_of_a_step_under_way_lose_marks_too(tmp_path: Path) -> None:
    source, cache = tmp_path / "team.jsonl", tmp_path / "serve" / "critiques.jsonl"
    cache.parent.mkdir()
    CachedCritic(Raters(), cache)([Example("Where?"), Example("When?")], ["In Lyon now.", "In Lyon now."])
    kept = tmp_path / "critiques" / "000000-0.json"
    kept.parent.mkdir()
    [first, _] = [json.loads(line) for line in cache.read_bytes().splitlines() if line]
    responses = [{"response": "In Lyon now.", "critique": first["critique"]}]
    kept.write_text(json.dumps({"random": {}, "responses": responses}))
    source.write_text("")
    name = mark_of(item_of("Where?", "In Lyon now."), spans_of([first], "ann")[0])
    Retraction(source, tmp_path, "ann", name).write("a test")
    left = [json.loads(line)["critique"]["spans"] for line in cache.read_bytes().splitlines() if line]
    assert [[span["rater"] for span in spans] for spans in left] == [["bob"], ["ann", "bob"]]
    Retraction(source, tmp_path, "ann").write("a test")
    assert [path.name for path, data in contents(tmp_path).items() if Raters.why.encode() in data] == []
    assert json.loads(kept.read_bytes())["responses"][0]["critique"]["spans"] == spans_of([first], "bob")


def test_nothing_is_changed_beside_a_process_that_writes(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(tmp_path)
    with (mine / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert retract(tmp_path) == 2
    assert "another run is writing to" in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_an_import_of_the_same_mark_leaves_it_out_with_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def span(start: int, end: int, rater: str) -> dict[str, Any]:
        return {"start": start, "end": end, "label": "negative", "rater": rater, "reason": f"{rater} knows better."}

    table, team = tmp_path / "marks" / "table.jsonl", tmp_path / "team.jsonl"
    table.parent.mkdir()
    rows = [("When?", [span(3, 7, "ann")]), ("Where?", [span(0, 2, "ann"), span(3, 7, "bob")])]
    write_records(table, [{"prompt": prompt, "response": "On Monday.", "spans": spans} for prompt, spans in rows])
    command = ["feedback", "import", "table", str(table), "--out", str(team)]
    assert main(command) == 0
    (tmp_path / "runs").mkdir()
    assert retract(tmp_path) == 0
    capsys.readouterr()
    assert main([*command, "--force"]) == 0
    said = f"{team}: 2 marks are left out, which were withdrawn ({tmp_path / 'withdrawn.jsonl'})"
    assert said in capsys.readouterr().err
    assert b"ann knows better." not in team.read_bytes()
    critiques = [json.loads(line)["critique"] for line in team.read_text().splitlines()]
    assert [(critique["status"], len(critique["spans"])) for critique in critiques] == [("withdrawn", 0), ("ok", 1)]
    assert main([*command[:-1], str(table.with_name("other.jsonl"))]) == 0, "elsewhere nobody withdrew anything"
    assert b"ann knows better." in table.with_name("other.jsonl").read_bytes()


def test_names_are_recognized_however_they_are_written_and_lines_that_a_crash_cut_stay(tmp_path: Path) -> None:
    source, record = (
        tmp_path / "team.jsonl",
        {"prompt": [{"role": "user", "content": "Where?"}], "response": "In Lyon."},
    )
    span = {"start": 0, "end": 2, "label": "negative", "rater": "Zoë"}
    marked = {**record, "critique": {"feedback": "", "spans": [span]}}
    odd = {**record, "critique": {"feedback": "Zoë", "spans": [[0, 2, "negative"]]}}
    lines = [
        *(json.dumps(marked, ensure_ascii=ascii) for ascii in (True, False)),
        json.dumps(odd),
        '{"critique": "Zo\\u00eb',
    ]
    source.write_text("\n".join(lines))
    retraction = Retraction(source, tmp_path, "Zoë")
    assert retraction.files == {source: {mark_of(item_of("Where?", "In Lyon."), span)}}
    retraction.write("a test")
    first, second, *others = source.read_text().split("\n")
    assert others == lines[2:]
    assert [json.loads(line)["critique"]["spans"] for line in (first, second)] == [[], []]
