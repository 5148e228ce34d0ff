"""Spans in the terminal: colours where they belong, and nothing that a text could make the terminal do."""

import io

from rich.console import Console

from text2grad.runs.reports.terminal import BOTH, STYLES, coloured, plain, print_critique
from text2grad.types import Conversation, Critique, Span, Turn


def printed(response: str, critique: Critique, **settings: object) -> str:
    out = io.StringIO()
    print_critique(Console(file=out, width=60, color_system=None), response, critique, **settings)  # type: ignore[arg-type]
    return out.getvalue()


def styles(response: str, *spans: Span) -> list[tuple[int, int, str]]:
    return [(span.start, span.end, str(span.style)) for span in coloured(response, Critique("", spans)).spans]


def test_each_label_has_its_colour_and_a_place_in_both_has_its_own() -> None:
    spans = Span(0, 4, "positive"), Span(2, 7, "negative"), Span(8, 9, "positive"), Span(3, 3, "negative")
    assert styles("abcdefghi", *spans) == [
        (0, 2, "green underline"),
        (2, 4, "magenta reverse underline"),
        (4, 7, "red reverse"),
        (8, 9, "green underline"),
    ]
    assert len({BOTH, *STYLES.values()}) == 3


def test_no_spans_no_colours() -> None:
    assert styles("abc") == []
    assert styles("") == []


def test_neighbours_of_one_label_are_one_run() -> None:
    assert styles("abcd", Span(0, 2, "negative"), Span(1, 4, "negative")) == [(0, 4, "red reverse")]


def test_all_that_the_critic_said_is_printed_and_spans_have_signs_where_there_is_no_colour() -> None:
    critique = Critique(
        "Wrong city.", (Span(0, 6, "positive"), Span(10, 14, "negative")), -0.5, "repaired", ("in\n Nice",)
    )
    assert printed("I live in Lyon.", critique, title="line 3").split("\n") == [
        "line 3",
        "I live in Lyon.",
        "[repaired] Wrong city.",
        "  + I live",
        "  − Lyon",
        "  not found: in Nice",
        "outcome -0.5",
        "",
        "",
    ]


def test_markup_and_emoji_codes_are_only_text() -> None:
    evil = "[red]x[/red] [/] [link=file:x] :smile: \\[b]"
    critique = Critique(evil, (Span(0, len(evil), "negative"),), unmatched=(evil,))
    out = printed(evil, critique, title=evil)
    assert out.count(evil) == 5


def test_control_characters_are_shown_and_never_sent() -> None:
    evil = "a\x1b[2Jb\x9b31mc\x07\rd\x7fe\u202ef\ud800g\n\th"
    safe = plain(evil).plain
    assert safe == "a␛[2Jb⟨U+009B⟩31mc␇␍d␡e⟨U+202E⟩f⟨U+D800⟩g\n\th"
    out = printed(evil, Critique(evil, (Span(0, 3, "negative"),), unmatched=(evil,)), title=evil)
    assert not set(out) & set("\x1b\x9b\x07\r\x7f\u202e\ud800")


def test_spans_stay_on_their_characters_beside_control_characters() -> None:
    text = coloured("\u202eab\x9bcd", Critique("", (Span(4, 6, "negative"), Span(0, 2, "positive"))))
    assert text.plain == "⟨U+202E⟩ab⟨U+009B⟩cd"
    marked = {style: text.plain[start:end] for start, end, style in text.spans}
    assert marked == {"green underline": "⟨U+202E⟩a", "red reverse": "cd"}


def test_long_quotes_are_cut_in_the_list_only() -> None:
    out = printed("word " * 60, Critique("", (Span(0, 300, "negative"),)))
    listed = " ".join(out.split("−")[1].split())
    assert listed == "word " * 19 + "wor …"


def test_equal_marks_are_one_line() -> None:
    spans = (Span(0, 3, "negative"), Span(4, 7, "negative"), Span(8, 11, "positive"))
    assert printed("red red cat", Critique("", spans)).splitlines()[2:4] == ["  − 2 × red", "  + cat"]


def test_a_conversation_is_printed_turn_by_turn_with_colours_on_what_the_policy_wrote_alone() -> None:
    call = {"name": "look", "arguments": {"city": "[b]Lyon"}}
    thinks = Turn("assistant", "Hm.\u202e So", sampled=True, thought="Hm.\u202e", tool_calls=(call,))
    told, answer = Turn("tool", "[red]\x1bx Lyon", name="look"), Turn("assistant", "In Lyon.", sampled=True)
    talk = Conversation([Turn("user", "Where?"), thinks, told, answer])
    critique = Critique("No.", (Span(3, 7, "negative", 3), Span(5, 7, "positive", 1)))
    assert printed(talk, critique).split("\n") == [
        *("turn 0 · user", "Where?"),
        *("turn 1 · assistant", "Hm.⟨U+202E⟩ So", 'look({"city": "[b]Lyon"})'),
        *("turn 2 · tool · look", "[red]␛x Lyon"),
        *("turn 3 · assistant", "In Lyon."),
        *("No.", "  − turn 3: Lyon", "  + turn 1: So", "", ""),
    ]
    out = io.StringIO()
    print_critique(Console(file=out, width=60, color_system="standard", force_terminal=True), talk, critique)
    coded = out.getvalue()
    assert "\x1b[2mHm.⟨U+202E⟩\x1b[0m \x1b[4;32mSo\x1b[0m" in coded  # the thought is dim
    assert "\x1b[2mWhere?\x1b[0m" in coded
    assert "\x1b[2m[red]␛x Lyon\x1b[0m" in coded
    assert "In \x1b[7;31mLyon\x1b[0m." in coded


def test_a_span_of_a_whole_conversation_is_quoted_in_each_turn_that_it_covers() -> None:
    first, last = (Turn("assistant", text, sampled=True) for text in ("ab", "cd"))
    talk = Conversation([first, Turn("user", "x"), last])
    lines = printed(talk, Critique("", (Span(1, 3, "negative"),))).split("\n")
    assert lines[-4:] == ["  − turn 0: b", "  − turn 2: c", "", ""]
