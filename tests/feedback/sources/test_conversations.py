"""Logs of chats as feedback: what is kept of a chat, what is counted, and every refusal word for word."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from fault_server import Running
from text2grad.cli.__main__ import main
from text2grad.errors import ConfigError, DataError
from text2grad.feedback.examples import read_examples
from text2grad.feedback.records import Annotation, read_annotations, write_annotations
from text2grad.feedback.sources.base import WORDS_ONLY, Item, Loss, Options
from text2grad.feedback.sources.conversations import NO_FEEDBACK, NO_MESSAGE, NO_TEXT, OTHER_LANGUAGE, THOUGHTS
from text2grad.feedback.sources.registry import read_items, read_source
from text2grad.types import Critique

ASK, SYDNEY = {"role": "user", "content": "Capital of Australia?"}, {"role": "assistant", "content": "Sydney."}
WRONG = {"role": "user", "content": "That's wrong. It is Canberra."}
CHAT = [ASK, SYDNEY, WRONG]
KEPT = Annotation("Capital of Australia?", "Sydney.", Critique(WRONG["content"]))


def written(tmp_path: Path, *records: Any, name: str = "in.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def items(tmp_path: Path, *records: Any, **options: Any) -> list[Item]:
    read = read_items(written(tmp_path, *records), "conversations", Options(**options))
    return [item._replace(where="") for item in read]


def kept(tmp_path: Path, *records: Any) -> list[Annotation]:
    return [made._replace(line=None) for made in annotations(tmp_path, *records)]


def annotations(tmp_path: Path, *records: Any) -> list[Annotation]:
    return [item.made for item in items(tmp_path, *records) if isinstance(item.made, Annotation)]


def refusal(tmp_path: Path, *records: Any) -> str:
    with pytest.raises(DataError) as caught:
        items(tmp_path, *records)
    return str(caught.value).replace(str(tmp_path), "DIR")


def sharegpt(*said: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"conversations": [{"from": speaker, "value": text} for speaker, text in said], **more}


def test_the_next_message_of_the_user_is_the_critique_of_an_answer(tmp_path: Path) -> None:
    chat = [*CHAT, {"role": "assistant", "content": "Canberra."}, {"role": "user", "content": "Thanks!"}]
    first, second = items(tmp_path, {"messages": chat})
    line = {"prompt": [ASK], "kind": "correction", "rule": "wrong"}
    assert first == Item(KEPT._replace(line=line), (Loss(WORDS_ONLY, "message 3"),))
    assert (
        second.made
        == Annotation(
            "<user>\nCapital of Australia?\n</user>\n\n<assistant>\nSydney.\n</assistant>\n\n"
            "<user>\nThat's wrong. It is Canberra.\n</user>",
            "Canberra.",
            Critique("Thanks!"),  # no spans, no outcome
            {"prompt": chat[:3], "kind": "thanks", "rule": "thanks"},
        )
    )


@pytest.mark.parametrize(
    "record",
    [
        {"messages": CHAT},
        {"conversation": CHAT, "language": "English", "turn": 2},
        {"prompt": [ASK], "completion": [SYDNEY, WRONG]},
        {"prompt": CHAT},
        {"messages": [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in CHAT]},
        sharegpt(("human", ASK["content"]), ("gpt", "Sydney."), ("human", WRONG["content"])),
        {"messages": [ASK, {"role": "assistant", "content": None, "refusal": "Sydney."}, WRONG]},
        {  # as in UltraChat the prompt is the first message once more
            "prompt": "Capital of Australia?",
            **sharegpt(("human", ASK["content"]), ("gpt", "Sydney."), ("human", WRONG["content"])),
        },
    ],
)
def test_the_forms_of_chats_are_read_alike(tmp_path: Path, record: dict[str, Any]) -> None:
    assert kept(tmp_path, record) == [KEPT]


def test_a_chat_is_read_from_json_compressed_text_and_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"messages": CHAT}]))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(json.dumps({"messages": CHAT}).encode()))
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"messages": [{**message, "tool_calls": None} for message in CHAT]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    for name in ("a.json", "b.jsonl.gz", "c.parquet"):
        (read,) = read_source(tmp_path / name, format="conversations")
        assert read == KEPT._replace(line={"prompt": [ASK], "kind": "correction", "rule": "wrong"})  # without nulls


CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]}
RESULT = {"role": "tool", "content": "Sydney", "tool_call_id": "1", "name": "look"}


def test_calls_of_tools_their_results_and_thoughts_stay_in_the_prompt(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    thought = {**SYDNEY, "reasoning_content": "Largest city"}
    call = {**CALL, "reasoning_content": "I look."}
    tools = [{"name": "look", "parameters": {}}]
    chat = [system, ASK, call, RESULT, {"role": "function", "content": "x"}, thought, {**system}, WRONG]
    (item,) = items(tmp_path, {"messages": chat, "tools": tools})
    assert isinstance(item.made, Annotation)
    bare = {key: value for key, value in call.items() if key != "content"}  # it has none
    prompt = [system, ASK, bare, RESULT, {"role": "function", "content": "x"}]
    assert item.made.line == {"prompt": prompt, "kind": "correction", "rule": "wrong", "tools": tools}
    assert item.losses == (Loss(WORDS_ONLY, "message 8"), Loss(THOUGHTS, "message 8"))


def test_older_calls_and_empty_messages_are_read_and_the_prompt_can_be_read_again(tmp_path: Path) -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}
    empty = {"role": "assistant", "content": None}
    made = annotations(tmp_path, {"messages": [ASK, empty, ASK, old, {**RESULT, "role": "function"}, SYDNEY, WRONG]})
    write_annotations(tmp_path / "out.jsonl", made)
    (example,) = read_examples(tmp_path / "out.jsonl")
    assert [message.get("content") for message in example.prompt] == [  # type: ignore[union-attr]
        *(ASK["content"], "", ASK["content"], None, "Sydney")
    ]


def test_every_answer_that_is_left_out_is_counted_with_its_message(tmp_path: Path) -> None:
    more = {"role": "user", "content": "And of Chad?"}
    assert items(tmp_path, {"messages": [ASK, SYDNEY, more, {"role": "assistant", "content": " "}, WRONG, SYDNEY]}) == [
        Item(None, (Loss(NO_FEEDBACK, "message 3"),)),
        Item(None, (Loss(NO_TEXT, "message 5"),)),
        Item(None, (Loss(NO_MESSAGE, "message 6"),)),
    ]
    assert items(tmp_path, {"messages": [ASK, CALL, RESULT]}) == [Item(None, (Loss(NO_MESSAGE, "message 2"),))]
    assert items(tmp_path, {"messages": [ASK, {**SYDNEY, "thinking": "?"}, more]}) == [
        Item(None, (Loss(NO_FEEDBACK, "message 3"),))
    ]
    assert items(tmp_path, {"messages": [ASK]}) == []
    assert read_source(written(tmp_path, {"messages": [ASK, SYDNEY]}), format="conversations") == []
    assert items(tmp_path, {"messages": [ASK, SYDNEY, {"role": "user", "content": ""}]})[0].losses[0][0] == NO_FEEDBACK


@pytest.mark.parametrize(
    ("language", "is_read"),
    [
        *(("English", True), ("en-US", True), ("EN", True), ("unknown", True), (None, True), ("", True)),
        *(("German", False), ("Estonian", False), ("Chinese", False), ("Englisch", False), ("Unknowns", False)),
    ],
)
def test_messages_in_a_language_that_the_rules_do_not_know_are_counted(
    tmp_path: Path, language: str | None, is_read: bool
) -> None:
    read = items(tmp_path, {"conversation": CHAT, "language": language})
    assert (read[0].made is not None) == is_read
    assert read[0].losses == (Loss(WORDS_ONLY if is_read else OTHER_LANGUAGE, "message 3"),)
    own = [ASK, SYDNEY, {**WRONG, "language": language or "English"}]
    assert (items(tmp_path, {"conversation": own, "language": "German"})[0].made is not None) == is_read


def test_a_reply_is_no_correction_and_the_question_before_tells_a_repeat(tmp_path: Path) -> None:
    asked = [{**SYDNEY, "content": "Which year?"}, {**WRONG, "content": "No, any."}]
    assert kept(tmp_path, {"messages": [ASK, *asked]}) == []
    stones = {"role": "user", "content": "Sort the heavy stones"}
    (repeat,) = annotations(tmp_path, {"messages": [ASK, *asked, SYDNEY, stones, SYDNEY, stones]})
    assert repeat.line is not None
    assert (repeat.line["kind"], repeat.line["rule"]) == ("repeat", "the same words")
    assert kept(tmp_path, {"messages": [stones, SYDNEY, ASK, SYDNEY, stones]}) == []  # only the latest counts


def test_fields_of_messages_that_are_about_people_are_left_out(tmp_path: Path) -> None:
    people = {"hashed_ip": "9f", "country": "Chad", "timestamp": "2024", "header": {"user-agent": "x"}}
    (made,) = annotations(tmp_path, {"conversation": [{**message, **people} for message in CHAT], **people})
    assert made.line == {"prompt": [ASK], "kind": "correction", "rule": "wrong"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"text": "a"},
            'a chat is a list of messages in "messages" or "conversations", got the keys "text"',
        ),
        ({"messages": []}, 'a chat is a list of messages in "messages" or "conversations", got the keys "messages"'),
        ({"messages": ["a"]}, 'a chat is a list of messages in "messages" or "conversations", got the keys "messages"'),
        ({"prompt": "a", "completion": "b"}, 'a chat is a list of messages in "messages" or "conversations", got the '
         'keys "prompt", "completion"'),
        ({"prompt": [ASK], "completion": ["b"]}, 'a chat is a list of messages in "messages" or "conversations", got '
         'the keys "prompt", "completion"'),
        ({"messages": [ASK, {"role": "bot", "content": "Secret"}]}, 'message 2 has the role "bot"; known are system, '
         "user, assistant and tool"),
        ({"messages": [{"role": ["user"], "content": "Secret"}]}, 'message 1 has the role ["user"]; known are system, '
         "user, assistant and tool"),
        (sharegpt(("human", "Secret"), ("function_call", "{}")), "message 2 has the role null; known are system, user, "
         "assistant and tool"),
        ({"messages": [ASK, ASK]}, "message 2 is of the user, but after user speaks the assistant"),
        ({"messages": [SYDNEY, ASK]}, "message 1 is of the assistant, but after nobody speaks the user"),
        ({"messages": [ASK, SYDNEY, SYDNEY]}, "message 3 is of the assistant, but after assistant speaks the user"),
        ({"messages": [ASK, CALL, ASK]}, "message 3 is of the user, but after call speaks the tool"),
        ({"messages": [ASK, RESULT]}, "message 2 is of the tool, but after user speaks the assistant"),
        ({"messages": [ASK, CALL, RESULT, ASK]}, "message 4 is of the user, but after tool speaks the tool or "
         "assistant"),
        ({"messages": [ASK, {**SYDNEY, "content": "\ud83d"}]}, "\"messages\" holds '\\ud83d', half of a surrogate "
         "pair, which nothing can encode"),
        ({"messages": [ASK, {**CALL, "function_call": {"name": "\udc00"}}]}, "\"messages\" holds '\\udc00', half of a "
         "surrogate pair, which nothing can encode"),
    ],
)  # fmt: skip
def test_a_chat_that_is_broken_is_refused_with_its_row_and_without_its_text(
    tmp_path: Path, record: dict[str, Any], message: str
) -> None:
    assert refusal(tmp_path, {"messages": CHAT}, record) == f"DIR/in.jsonl:2: {message}. Mend or remove the record"


@pytest.mark.parametrize(
    ("number", "record"),
    [
        (1, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "Secret"}}]}]}),
        (1, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]}),
        (2, {"messages": [ASK, {"role": "assistant", "content": None, "audio": {"id": "Secret"}}]}),
        (1, {"messages": CHAT, "images": ["secret.png"]}),
        (1, {"messages": CHAT, "audio": {"path": "secret.wav"}}),
        (1, {"messages": [{"role": "user", "content": 5}]}),
        (1, {"messages": [{"role": "user", "content": ["a"]}]}),
    ],
)
def test_images_and_sound_are_refused_and_never_dropped(tmp_path: Path, number: int, record: dict[str, Any]) -> None:
    assert refusal(tmp_path, record) == (
        f"DIR/in.jsonl:1: message {number} holds, or has beside it, what is no text; images and sound cannot be read. "
        "Mend or remove the record"
    )
    assert kept(tmp_path, {"messages": CHAT, "images": [], "audio": None}) == [KEPT]


def test_kinds_have_an_outcome_only_if_a_number_is_given_for_each(tmp_path: Path) -> None:
    numbers = {"correction": -0.5, "thanks": 1.0}
    (item,) = items(tmp_path, {"messages": CHAT}, columns={"outcome": "kind"}, labels=numbers)
    assert isinstance(item.made, Annotation)
    assert item.made.critique == Critique(WRONG["content"], outcome=-0.5)
    with pytest.raises(DataError, match='"kind" is "correction"; say its number with --map kind=up:1,down:-1, which'):
        items(tmp_path, {"messages": CHAT}, columns={"outcome": "kind"}, labels={"thanks": 1.0})
    with pytest.raises(ConfigError, match="column has no value 'prompt'"):
        items(tmp_path, {"messages": CHAT}, columns={"prompt": "x"})


def test_the_command_counts_prints_no_text_and_its_file_is_grounded_by_annotate(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = {"role": "assistant", "content": "So glad today."}
    said = {"role": "user", "content": "That's wrong. <b>[[ok]]</b> Secret"}
    other = {"role": "user", "content": "And of Chad?"}
    chats = [[ASK, CALL, RESULT, answer, said], [ASK, SYDNEY, other, SYDNEY], [ASK, ASK]]
    path = written(tmp_path, *({"messages": chat} for chat in chats))
    assert main(["feedback", "import", "conversations", str(path), "--out", "words.jsonl", "--skip-bad"]) == 0
    shown = capsys.readouterr()
    lines = " ".join(shown.out.split())
    assert "annotations 1 spans 0 examples 0" in lines
    assert f"1 × {WORDS_ONLY} {path}:1: message 5" in lines
    assert f"1 × records that cannot be used {path}:3: message 2 is of the user" in lines
    assert f"1 × {NO_MESSAGE} {path}:2: message 4" in lines
    assert f"1 × {NO_FEEDBACK} {path}:2: message 3" in lines
    assert "next: text2grad annotate RECIPE.toml --set data.train=words.jsonl" in lines
    for text in ("Secret", "So glad", "Australia", "Sydney"):
        assert text not in shown.out + shown.err
    (tmp_path / "recipe.toml").write_text(
        '[data]\ntrain = "words.jsonl"\n[annotate]\nmodel = "m"\napi_key_env = ""\nout = "out"\n'
        f'base_url = "{server.url}"\n'
    )
    assert main(["annotate", "recipe.toml"]) == 0
    (grounded,) = read_annotations(tmp_path / "out" / "annotations.jsonl")
    assert grounded.response == "So glad today."
    assert grounded.critique.feedback == said["content"]  # the user's own words
    assert [(span.start, span.end, span.label) for span in grounded.critique.spans] == [
        (0, 2, "positive"),
        (8, 14, "negative"),
    ]
    (example,) = read_examples(tmp_path / "words.jsonl")  # whose prompt a policy is asked as a chat, with its calls
    assert [message["role"] for message in example.prompt] == ["user", "assistant", "tool"]  # type: ignore[index]
    assert example.prompt[1]["tool_calls"] == CALL["tool_calls"]  # type: ignore[index]
    assert example.meta["rule"] == "wrong"


def test_a_log_without_feedback_writes_nothing_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, {"messages": [ASK, SYDNEY]})
    assert main(["feedback", "import", "conversations", str(path), "--out", str(tmp_path / "x.jsonl")]) == 2
    shown = capsys.readouterr()
    assert f"1 × {NO_MESSAGE}" in shown.out
    assert "no record can be used; nothing was written" in shown.err
    assert not (tmp_path / "x.jsonl").exists()


def test_the_file_has_the_messages_and_reads_back_as_the_annotations(tmp_path: Path) -> None:
    chat = [*CHAT, SYDNEY, {"role": "user", "content": "ugh"}]
    made = annotations(tmp_path, {"messages": chat})
    write_annotations(tmp_path / "out.jsonl", made)
    assert read_annotations(tmp_path / "out.jsonl") == [annotation._replace(line=None) for annotation in made]
    again = read_source(tmp_path / "out.jsonl")  # as a table
    assert [item.critique for item in again if isinstance(item, Annotation)] == [each.critique for each in made]
