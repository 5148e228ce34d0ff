"""The page of coloured rollouts: the text exactly once, the right colours, and nothing that a text could smuggle in."""

import json
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from hashlib import sha256
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from text2grad.align.offsets import token_offsets
from text2grad.rl.metrics import response_records
from text2grad.runs.reports.html import COLUMNS, Table, response_html, rollouts_page, strength
from text2grad.runs.reports.plots import Picture
from text2grad.types import Critique, Example, Rollout, Span, visible
from tokenizers_made_here import made

EVIL = "</style><script>alert(1)</script>\"'><img src=x onerror=alert(2)> javascript:alert(3) & &amp; {0}"
VOID = {"meta", "source", "img", "br"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parent: "Element | None" = None
    text: list[str] = field(default_factory=list)

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    @property
    def content(self) -> str:
        return "".join(self.text)


class Page(HTMLParser):
    """Reads a page with the standard library's parser, which knows nothing of how it was made."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.open: list[Element] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {[element.tag for element in self.open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        element = Element(tag, {k: v or "" for k, v in attrs}, self.open[-1] if self.open else None)
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text.append(data)

    def all(self, tag: str = "", cls: str = "", inside: Element | None = None) -> list[Element]:
        found = [e for e in self.elements if (not tag or e.tag == tag) and (not cls or cls in e.classes)]
        return [e for e in found if inside is None or e.parent is inside]

    def one(self, tag: str = "", cls: str = "") -> Element:
        (element,) = self.all(tag, cls)
        return element


def record(response: str = "Hi there", offsets: Any = ((0, 2), (2, 8)), **more: Any) -> dict[str, Any]:
    return {"response": response, "offsets": [list(pair) for pair in offsets], "delta": [0.0] * len(offsets), **more}


def tokens(page: Page) -> list[Element]:
    return page.all("span", "t", inside=page.one("div", "text"))


@st.composite
def responses_with_ranges(draw: st.DrawFn) -> tuple[str, list[list[int]]]:
    text = draw(st.text(st.characters() | st.sampled_from("<>&\"'\r\n\0 😀"), max_size=30))
    ranges, at = [], 0
    for _ in range(draw(st.integers(0, 12))):
        start = draw(st.integers(max(0, at - 2), min(len(text), at + 2)))
        at = draw(st.integers(start, min(len(text), start + 4)))
        ranges.append([start, at])
    return text, ranges


def test_numbers_that_were_not_recorded_are_left_out() -> None:
    offsets = [[0, 1], [1, 3], [3, 5]]
    one = {"response": "a b c", "offsets": offsets, "delta": [1.0, None, -1.0], "reward": [0.25, None, 0.5]}
    page = Page(rollouts_page("x", [{**one, "kl": [None, None, None]}]))
    shown = [element for element in page.all("span", "t") if "title" in element.attributes]
    assert [(e.attributes["title"], e.classes) for e in shown] == [
        ("δ 1 · reward 0.25", ["t", "p4"]),
        ("", ["t"]),
        ("δ -1 · reward 0.5", ["t", "n4"]),
    ]
    facts = " ".join(e.content for e in page.elements if e.parent is not None and "facts" in e.parent.classes)
    assert facts == "3 tokens 1 positive 1 negative Σ reward 0.75 Σ KL –"


@settings(deadline=None, derandomize=True, max_examples=400)
@given(responses_with_ranges())
def test_the_text_of_the_page_is_the_response_each_character_once_whatever_the_ranges(
    case: tuple[str, list[list[int]]],
) -> None:
    text, ranges = case
    page = Page("<div class='text'>" + response_html(record(text, ranges), ["delta"]) + "</div>")
    assert page.one("div", "text").content == visible(text)
    assert len(tokens(page)) == len(ranges)


def test_characters_that_nobody_would_see_are_shown_and_joiners_know_their_neighbours() -> None:
    text = "\ufeffa\u200b 5\u00a0% \u0645\u06cc\u200c\u062e a\u200cb"
    ranges = [[n, n + 1] for n in range(len(text))]
    page = Page("<div class='text'>" + response_html(record(text, ranges), ["delta"]) + "</div>")
    assert page.one("div", "text").content == "⟨U+FEFF⟩a⟨U+200B⟩ 5\u00a0% \u0645\u06cc\u200c\u062e a⟨U+200C⟩b"
    assert len(tokens(page)) == len(text)


@pytest.mark.parametrize("family", ["gpt2", "llama2", "bert"])
def test_the_tokens_of_real_tokenizers_say_the_response_exactly_once(family: str) -> None:
    tokenizer = made(family)
    ids = tokenizer("so glad 😀😀😁 👨‍👩‍👧 today,\r\n\tthe café", add_special_tokens=False)["input_ids"]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    page = Page(rollouts_page("x", [record(text, token_offsets(tokenizer, ids))]))
    assert page.one("div", "text").content == text
    assert "".join(token.content for token in tokens(page)) == text
    assert len(tokens(page)) == len(ids)


def test_an_emoji_of_four_tokens_stands_in_the_first_and_the_others_are_marked_as_sharing_it() -> None:
    shown = record("a😀b", [(0, 1), (1, 2), (1, 2), (1, 2), (1, 2), (2, 3), (3, 3)])
    page = Page(rollouts_page("x", [shown]))
    assert [token.content for token in tokens(page)] == ["a", "😀", "", "", "", "b", ""]
    marks = [[], [], ["shared"], ["shared"], ["shared"], [], ["none"]]
    assert [token.classes[1:] for token in tokens(page)] == marks


def test_text_between_ranges_and_after_them_is_shown_without_being_a_token() -> None:
    page = Page(rollouts_page("x", [record("one two three", [(0, 3), (4, 7)])]))
    assert page.one("div", "text").content == "one two three"
    assert [token.content for token in tokens(page)] == ["one", "two"]


def test_a_line_break_is_marked_since_nobody_would_see_its_colour() -> None:
    html = rollouts_page("x", [record("a\r\n b", [(0, 1), (1, 3), (3, 5)])])
    assert "\r" not in html  # browsers would drop it; as a reference it stays
    page = Page(html)
    assert page.one("div", "text").content == "a\r\n b"
    assert [token.classes[1:] for token in tokens(page)] == [[], ["newline"], []]


@pytest.mark.parametrize(
    ("delta", "style"),
    [(1.0, " p4"), (0.76, " p4"), (0.75, " p3"), (0.5, " p2"), (0.25, " p1"), (0.001, " p1"), (7.0, " p4")],
)
def test_a_reward_has_one_of_four_strengths_of_its_sign(delta: float, style: str) -> None:
    assert strength(delta) == style
    assert strength(-delta) == style.replace("p", "n")


def test_no_reward_has_no_colour() -> None:
    assert strength(0.0) == strength(-0.0) == ""


def test_each_token_has_the_colour_of_its_own_delta() -> None:
    page = Page(rollouts_page("x", [record("abcd", [(0, 1), (1, 2), (2, 3), (3, 4)], delta=[0.0, 1.0, -0.5, -1.0])]))
    assert [token.classes for token in tokens(page)] == [["t"], ["t", "p4"], ["t", "n2"], ["t", "n4"]]


def test_each_token_carries_its_numbers_in_the_order_that_the_page_names_them() -> None:
    full = record(delta=[1.0, -0.5], advantage=[0.25, -1.23456], reward=[0.1, 0], kl=[1e-5, 2], value=[3.0, -4.5])
    page = Page(rollouts_page("x", [full]))
    assert [token.attributes["title"] for token in tokens(page)] == [
        "δ 1 · reward 0.1 · KL 1e-05 · value 3 · advantage 0.25",
        "δ -0.5 · reward 0 · KL 2 · value -4.5 · advantage -1.235",
    ]
    names = [known.name for column, known in COLUMNS.items() if column != "change"]
    assert [name.content for name in page.all("dt")] == names


def test_a_number_that_one_record_lacks_is_left_out() -> None:
    page = Page(rollouts_page("x", [record(), record(value=[1.0, 2.0])]))
    first = page.all("span", "t", inside=page.all("div", "text")[0])
    assert [token.attributes["title"] for token in first] == ["δ 0", "δ 0"]


def test_every_number_is_explained() -> None:
    page = Page(rollouts_page("x", [record()]))
    assert COLUMNS["delta"].meaning in page.one("section", "legend").content


def evil_page() -> str:
    critique = {"feedback": EVIL, "spans": [], "status": EVIL, "outcome": -0.5, "unmatched": [EVIL]}
    evil = record(EVIL, [(0, 9), (9, len(EVIL))], prompt=EVIL, critique=critique, step=EVIL, delta=[1.0, -1.0])
    long = {**evil, "prompt": EVIL * 9}
    return rollouts_page(
        EVIL,
        [evil],
        intro=EVIL,
        summary=[(EVIL, f"{EVIL} ({EVIL})")],
        groups=[(EVIL, [long]), (EVIL, [])],
        images=[(EVIL, [Picture(EVIL, b"\x89PNG")])],
        tables=[Table(EVIL, [EVIL], [[EVIL]])],
    )


def test_nothing_that_anybody_wrote_becomes_a_tag_or_an_attribute() -> None:
    page = Page(evil_page())
    assert (len(page.all("script")), len(page.all("style"))) == (0, 1)
    assert [image.attributes["src"][:22] for image in page.all("img")] == ["data:image/png;base64,"]
    for element in page.elements:
        assert not [name for name in element.attributes if name.startswith("on") or name == "style"]
        assert not {"srcset", "href"} & element.attributes.keys()
    for place in ("title", "h1", "h2", "figcaption", "caption", "th", "td", "blockquote", "li", "dt", "dd"):
        assert EVIL in page.all(place)[0].content, place
    for cls in ("text", "prompt", "where", "status", "intro"):
        assert EVIL in page.all(cls=cls)[0].content, cls
    assert page.all("img")[0].attributes["alt"] == EVIL
    assert page.one("div", "table").attributes["aria-label"] == EVIL
    assert EVIL * 9 in page.all("details", "prompt")[0].content


def test_the_policy_allows_this_style_alone() -> None:
    page = Page(evil_page())

    def named(element: Element) -> str:
        return "sha256-" + b64encode(sha256(element.content.encode()).digest()).decode()

    (policy,) = [e for e in page.all("meta") if e.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policy.attributes["content"] == (
        f"default-src 'none'; img-src data:; style-src '{named(page.one('style'))}'; "
        "base-uri 'none'; form-action 'none'"
    )
    assert page.elements.index(policy) < page.elements.index(page.one("style"))


def test_the_page_needs_no_other_file_and_no_network() -> None:
    html = rollouts_page("x", [record()], images=[("curve", [Picture("a", b"png")])])
    assert not re.search(r"(?i)https?:|//[a-z]|@import|url\(|javascript:|innerhtml|<link|\bstyle=", html)


def test_the_page_is_the_same_when_it_is_made_again() -> None:
    assert evil_page() == evil_page()


def test_groups_have_headings_and_keep_their_order() -> None:
    groups = [("Before", [record("one", [(0, 3)])]), ("After", [record("two", [(0, 3)]), record("six", [(0, 3)])])]
    page = Page(rollouts_page("x", groups=groups))
    assert [heading.content for heading in page.all("h2")] == ["Before 1 response", "After 2 responses"]
    assert [text.content for text in page.all("div", "text")] == ["one", "two", "six"]


def test_pictures_and_tables_are_inside_the_page() -> None:
    table = Table("Held out", ["", "before", "after"], [["invented", "1.2 %", "0.4 %"]])
    picture = Picture("Loss by step", b"\x89PNG\r\n\x1a\n123")
    page = Page(rollouts_page("x", images=[("Both", [picture])], tables=[table]))
    assert b64decode(page.one("img").attributes["src"].partition(",")[2]) == b"\x89PNG\r\n\x1a\n123"
    assert page.one("img").attributes["alt"] == "Loss by step"
    assert page.one("figcaption").content == "Both"
    assert [cell.content for cell in page.all("td")] == ["invented", "1.2 %", "0.4 %"]
    assert page.one("caption").content == "Held out"


def test_responses_to_one_prompt_stand_side_by_side() -> None:
    others = [{**record(text, [(0, 3)]), "by": text} for text in ("two", "six")]
    page = Page(rollouts_page("x", [{**record("one", [(0, 3)]), "beside": others}]))
    assert [text.content for text in page.all("div", "text")] == ["one", "two", "six"]


def test_the_critique_says_its_words_how_it_was_read_and_what_it_misquoted() -> None:
    critique = {"feedback": "Wrong city.\nNice verb.", "status": "repaired", "outcome": 0.5, "unmatched": ["Paris"]}
    page = Page(rollouts_page("x", [record(critique={**critique, "spans": []}, truncated=True)]))
    assert [line.content for line in page.all("p", inside=page.one("blockquote"))] == ["Wrong city.", "Nice verb."]
    assert page.one("h3").content == "Critiquerepairedoutcome +0.5"
    assert page.one("h4").content == "Not found in the response"
    assert page.one("li").content == "Paris"
    assert "cut by the length limit" in page.one("p", "facts").content


def test_a_critique_without_faults_has_no_notes() -> None:
    critique = {"feedback": "Fine.", "status": "ok", "outcome": None, "unmatched": [], "spans": []}
    page = Page(rollouts_page("x", [record(critique=critique)]))
    assert page.one("h3").content == "Critique"
    assert not page.all("div", "missing")


def test_the_facts_count_tokens_by_sign_and_add_up_reward_and_kl() -> None:
    shown = record("abc", [(0, 1), (1, 2), (2, 3)], delta=[1.0, -1.0, -0.5], reward=[1.0, -2.0, 0.25], kl=[0.1, 0, 0.2])
    facts = [fact.content for fact in Page(rollouts_page("x", [shown])).all("span", "") if fact.parent]
    assert facts[-5:] == ["3 tokens", "1 positive", "2 negative", "Σ reward -0.75", "Σ KL 0.30"]


def test_a_response_without_anything_else_is_a_page_too() -> None:
    page = Page(rollouts_page("x", [{"response": "plain"}]))
    assert page.one("div", "text").content == "plain"
    assert not page.all("aside")
    assert not page.all("section", "legend")


def test_a_long_prompt_is_folded_and_still_whole() -> None:
    page = Page(rollouts_page("x", [record(prompt="word " * 100)]))
    assert page.one("details", "prompt").content == "word " * 100


def test_the_records_of_a_run_make_a_page() -> None:
    rollout = Rollout(Example("Where?"), (1,), (5, 6), "in Lyon", truncated=False)
    critique = Critique("Wrong city.", (Span(3, 7, "negative"),), unmatched=("Paris",))
    numbers = {name: torch.tensor([[0.5, -0.25]]) for name in ("reward", "kl", "value", "advantage")}
    records = response_records(3, [rollout], [critique], [[0.0, -1.0]], [[(0, 2), (2, 7)]], numbers)
    page = Page(rollouts_page("x", json.loads(json.dumps(records))))
    assert [(token.content, token.classes) for token in tokens(page)] == [("in", ["t"]), (" Lyon", ["t", "n4"])]
    assert tokens(page)[1].attributes["title"] == "δ -1 · reward -0.25 · KL -0.25 · value -0.25 · advantage -0.25"
    assert page.one("p", "where").content == "step 3 · prompt"


def colours(scheme: int) -> dict[str, tuple[int, ...]]:
    css = files("text2grad.runs.reports").joinpath("page.css").read_text()
    root = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[scheme]
    found = re.findall(r"--(\w+): #(\w\w)(\w\w)(\w\w)", root)
    return {name: tuple(int(part, 16) for part in parts) for name, *parts in found}


def luminance(colour: tuple[int, ...]) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_positive_is_green_negative_is_red_and_both_are_easy_to_read(scheme: int) -> None:
    palette = colours(scheme)
    for level in "1234":
        assert palette["p" + level][1] > palette["p" + level][0]
        assert palette["n" + level][0] > palette["n" + level][1]
        assert contrast(palette["ink"], palette["p" + level]) >= 5
        assert contrast(palette["ink"], palette["n" + level]) >= 5
    assert palette["pos"][1] > palette["pos"][0]
    assert palette["neg"][0] > palette["neg"][1]
    assert contrast(palette["soft"], palette["paper"]) >= 4.5


def test_colour_is_not_the_only_sign_of_a_reward() -> None:
    css = " ".join(files("text2grad.runs.reports").joinpath("page.css").read_text().split())
    positive = re.search(r"\.p1, \.p2, \.p3, \.p4 \{(.*?)\}", css)
    negative = re.search(r"\.n1, \.n2, \.n3, \.n4 \{(.*?)\}", css)
    assert positive
    assert negative
    assert "underline" in positive[1]
    assert "var(--pos)" in positive[1]
    assert "wavy" in negative[1]
    assert "var(--neg)" in negative[1]
    assert "wavy" not in positive[1]
    for name in [sign + level for sign in "pn" for level in "1234"]:
        assert f".{name} {{ background: var(--{name}); }}" in css


def test_pointing_at_a_token_shows_what_is_said_about_its_spans() -> None:
    spans = [
        {
            "start": 3,
            "end": 7,
            "label": "negative",
            "category": "Fact",
            "severity": "major",
            "rater": "a<b",
            "reason": EVIL,
        },
        {"start": 5, "end": 9, "label": "positive", "reason": "So."},
        {"start": 0, "end": 2, "label": "positive"},
    ]
    record = {
        "response": "in Lyon on",
        "offsets": [[0, 2], [2, 7], [7, 10]],
        "delta": [1.0, -1.0, 1.0],
        "critique": {"spans": spans},
    }
    page = rollouts_page("x", [record])
    titles = [token.attributes["title"] for token in tokens(Page(page))]
    negative = f"negative: Fact · major · a<b: {EVIL}"
    assert titles == ["δ 1", f"δ -1\n{negative}\npositive: So.", "δ 1\npositive: So."]
    assert "<script>alert" not in page


# Conversations.


def of_turns(*turns: dict[str, Any], offsets: Any, delta: list[float]) -> Page:
    said = "".join(turn["text"] for turn in turns if turn.get("sampled"))
    talk = {**record(said, offsets), "delta": delta, "turns": list(turns)}
    return Page("<div class='text'>" + response_html(talk, ["delta"]) + "</div>")


def test_turns_are_shown_with_colours_on_what_the_policy_wrote_alone() -> None:
    call = {"name": "lookup", "arguments": {"city": "<b>Zürich"}}
    page = of_turns(
        {"role": "user", "text": "Where is it?"},
        {"role": "assistant", "text": "Hm. So: ", "sampled": True, "thought": "Hm.", "tool_calls": [call]},
        {"role": "tool", "text": EVIL, "name": "look<up>"},
        {"role": "assistant", "text": "", "sampled": True},
        {"role": "user", "text": "Go on"},
        {"role": "assistant", "text": "Here", "sampled": True},
        offsets=[(0, 0), (0, 2), (2, 6), (6, 8), (8, 8), (8, 12), (12, 12)],
        delta=[0.0, 1.0, -1.0, 0.0, 0.0, -1.0, 0.0],
    )
    turns = page.all("div", "turn")
    assert [(turn.classes, turn.content) for turn in turns] == [
        (["turn"], 'turn 1 · assistantthoughtHm. So: lookup({"city": "<b>Zürich"})'),
        (["turn", "given"], f"turn 2 · tool · look<up>{EVIL}"),
        (["turn"], "turn 3 · assistant"),
        (["turn", "given"], "turn 4 · userGo on"),
        (["turn"], "turn 5 · assistantHere"),
    ]
    assert page.one("details").content == "thoughtHm."
    assert page.one("code").content == 'lookup({"city": "<b>Zürich"})'
    # The token " So" begins in the thought, "." and " So" being one token here: it stands in both, each with its part.
    shown = [(token.content, token.classes[1:]) for token in page.all("span", "t")]
    assert shown == [
        ("", ["none"]),
        ("Hm", ["p4"]),
        (".", ["n4"]),
        (" So", ["n4"]),
        (": ", []),
        ("", ["none"]),
        ("Here", ["n4"]),
        ("", ["none"]),
    ]


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.text("ab <", max_size=6), min_size=1, max_size=5), st.lists(st.integers(0, 3), max_size=20))
def test_each_character_of_a_turn_is_shown_once_whatever_the_tokens(texts: list[str], sizes: list[int]) -> None:
    whole, at, ranges = "".join(texts), 0, []
    for size in sizes:
        ranges.append((at, min(at + size, len(whole))))
        at = ranges[-1][1]
    turns = [{"role": "r", "text": text, "sampled": True, "thought": text[1:2]} for text in texts]
    page = of_turns(*turns, offsets=ranges, delta=[0.0] * len(ranges))
    shown = [turn.content.partition(" · r")[2].replace("thought", "", 1) for turn in page.all("div", "turn")]
    assert shown == texts
    assert "".join(token.content for token in page.all("span", "t")) == whole[: ranges[-1][1] if ranges else 0]
    assert len(page.all("span", "t")) >= len(ranges)


def test_a_conversation_without_tokens_is_shown_as_text() -> None:
    talk = {"response": "ab", "turns": [{"role": "assistant", "text": "ab", "sampled": True, "thought": "never said"}]}
    page = Page(rollouts_page("x", [talk]))
    assert page.one("div", "turn").content == "turn 0 · assistantab"
    assert not page.all("details", inside=page.one("div", "turn"))


def test_a_token_on_the_edge_of_two_turns_makes_no_thought_where_there_is_none() -> None:
    first, second = ({"role": "assistant", "text": text, "sampled": True} for text in ("Hm.", "So."))
    page = of_turns(first, second, offsets=[(0, 2), (2, 5), (5, 6)], delta=[0.0, -1.0, 0.0])
    assert [turn.content for turn in page.all("div", "turn")] == ["turn 0 · assistantHm.", "turn 1 · assistantSo."]
    assert not page.all("details")
