"""The page in a browser: read, mark by mouse, touch and keys, undo, a crash, two raters, hostile texts, teach."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")
from playwright.sync_api import expect

from places import QWEN, STORIES
from studio_browser import CHROMIUM, SECONDS, Served, chromium, close, context_of, page_of, served, wait_for_rows
from studio_world import append, record, write_run
from text2grad.feedback import turns_to_json
from text2grad.tasks import ready_lesson
from text2grad.types import Conversation, Example, Span, Turn, signs, visible
from text2grad_studio.marks import MarkStore

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")]

LIST = re.compile(r"/rollouts\?")  # the requests for a page of the list

EVIL = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> \u202eabc \x1b[31m \u2066x"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve one run to all tests; each has a rater of its own."""
    directory = tmp_path_factory.mktemp("studio")
    write_run(directory / "run", steps=2)
    with served(directory / "store", directory / "run") as server:
        yield server


def segment(page: Any, text: str, number: int = 0) -> Any:
    return page.locator("#response .s", has_text=text).nth(number)


def drag(page: Any, start: Any, end: Any, *, release: bool = True) -> None:
    a, b = start.bounding_box(), end.bounding_box()
    page.mouse.move(a["x"] + 2, a["y"] + a["height"] / 2)
    page.mouse.down()
    page.mouse.move(b["x"] + b["width"] / 2, b["y"] + b["height"] / 2, steps=4)
    if release:
        page.mouse.up()


def saved(page: Any) -> None:
    expect(page.locator("#saved")).to_have_text("All marks saved")


def spans(store: Path, rater: str) -> list[tuple[str, str]]:
    """Return the marked words on disk with their labels, read by another process's store."""
    return [
        (marks.opened["response"][span["start"] : span["end"]], span["label"])
        for marks in MarkStore(store).marked(rater).values()
        for span in sorted(marks.spans.values(), key=lambda span: (span["start"], span["end"]))
    ]


def chosen(page: Any) -> str:
    return "".join(page.locator("#response .chosen").all_text_contents())


def test_reading_shows_every_number_of_a_token_and_names_what_is_missing(browser: Any, server: Served) -> None:
    with page_of(browser, server, "reader") as page:
        assert page.locator("#response").text_content() == "The cat sat on the mat."
        segment(page, "cat").hover()
        tip = page.locator("#tip").inner_text()
        assert "token 2 of 7" in tip
        assert "advantage" in tip
        assert "−5" in tip  # row 3 is the first of the list: −2 − 3
        assert "not recorded: Δ log p" in page.locator(".by").inner_text()
        page.get_by_role("button", name="advantage").click()
        assert "n4" in segment(page, "cat").get_attribute("class")
        page.fill("#text", "Prompt 2")
        expect(page.locator("#count")).to_have_text("2 responses")
        page.goto(f"{server.address.split('?')[0]}#/run/1.2")
        expect(page.locator(".where")).to_contain_text("step 1 · response 3")


def test_tokens_without_text_of_their_own_show_their_numbers(browser: Any, tmp_path: Path) -> None:
    offsets = [[0, 1], [1, 2], [2, 3], [2, 3], [3, 7], [7, 7]]  # an emoji of two tokens, and the end of the sequence
    numbers = {"reward": [0, 0, 0, -0.5, 0, 5.0], "delta": [0, 0, 0, -1, 0, 0]}
    run = tmp_path / "run"
    (run / "rollouts").mkdir(parents=True)
    append(run, [{"step": 0, "prompt": "Say.", "response": "a 😀 cat", "offsets": offsets, **numbers}])
    with served(tmp_path / "store", run) as server, page_of(browser, server, "ann", has_touch=True) as page:
        assert page.locator("#response").text_content() == "a 😀 cat"
        page.locator("#response .shared").hover()
        assert page.locator("#tip").inner_text().splitlines() == ['"😀"', "token 4 of 6", "δ", "−1", "reward", "−0.5"]
        page.locator("#response .none").tap()
        assert page.locator("#tip").inner_text().split("\n")[:2] == ["no text of its own", "token 6 of 6"]
        assert "5" in page.locator("#tip div").last.inner_text()
        segment(page, "cat").click()
        assert chosen(page) == "cat"


def test_the_critiques_of_trls_trainer_colour_the_words_that_they_mark(browser: Any, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    response = " 😀<think>A fair?</think>\n\n The fair is on Friday."
    marked = [("Friday", "negative"), ("fair is", "positive"), ("is", "negative")]
    spans = [
        {"start": response.index(words), "end": response.index(words) + len(words), "label": label}
        for words, label in marked
    ]
    spans[0] |= {"category": "Fact", "severity": "major", "reason": "It was <b>Monday</b>."}
    rest = {"spans": spans, "outcome": None, "status": "ok", "unmatched": ["on Monday"], "response": response}
    columns = {
        "step": [5],
        "prompt": [[{"role": "user", "content": "When?"}]],
        "completion": [[{"role": "assistant", "content": "The fair is on Friday."}]],
        "spans": [-1.0],
        "critique": ["The day is wrong."],
        "critique_spans": [json.dumps(rest)],
        "advantage": [0.5],
    }
    (tmp_path / "run" / "completions").mkdir(parents=True)
    pq.write_table(pa.table(columns), tmp_path / "run" / "completions" / "completions_00005.parquet")
    with served(tmp_path / "store", tmp_path / "run") as server, page_of(browser, server, "ann") as page:
        assert page.locator("#response").text_content() == response
        expect(page.locator("blockquote")).to_have_text("The day is wrong.")
        expect(page.locator(".missing li")).to_have_text("on Monday")
        assert page.locator(".suggestions q").all_text_contents() == [words for words, _ in marked]
        assert page.locator(".suggestions li > p + p").all_text_contents() == ["Fact · major: It was <b>Monday</b>."]
        assert "".join(page.locator("#response .n4").all_text_contents()) == "Friday"
        assert "".join(page.locator("#response .p4").all_text_contents()) == "fair "  # "is" has both labels
        page.keyboard.press("x")
        expect(page.locator("#response .n4")).to_have_count(0)
        saved(page)


def test_a_run_is_followed_and_the_open_response_stays_chosen(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=2)
    with served(tmp_path / "store", run) as server, page_of(browser, server, "ann") as page:
        expect(page.locator(".item[aria-selected=true]")).to_have_attribute("data-index", "0")
        append(run, [record(2, row, response="A new text.") for row in range(3)])
        expect(page.locator("#count")).to_have_text("11 responses")
        expect(page.locator(".item[aria-selected=true]")).to_have_attribute("data-index", "3")
        page.keyboard.press("k")
        expect(page.locator("#response")).to_have_text("A new text.")
        page.locator(".curve svg").first.focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        expect(page.locator("#count")).to_have_text("4 responses")  # of step 1


def test_curves_with_long_names_stay_in_their_pane_and_show_their_values(browser: Any, server: Served) -> None:
    steps = [
        {"step": step, "reward": step, "kl": 0.1, "tokens": 60, "negative": 0.5, "failed": 0, "truncated": 0}
        for step in range(2)
    ]
    name = "stories_with_invented_words_and_more"
    evaluations = [{"step": step, "values": {name: 0.25, f"{name}_2": 0.125}} for step in range(2)]
    with page_of(browser, server, "curves") as page:
        page.route("**/curves", lambda route: route.fulfill(json={"steps": steps, "evaluations": evaluations}))
        page.reload()
        expect(page.locator(".curve")).to_have_count(6)
        edge = page.locator("#browse").bounding_box()
        for curve in page.locator(".curve").all():
            for part in (curve, curve.locator("figcaption span").last):
                box = part.bounding_box()
                assert box["x"] + box["width"] <= edge["x"] + edge["width"]


def test_without_a_run_a_text_of_ones_own_is_marked(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path / "store", options=("--rater", "ann")) as server:
        context = context_of(browser)
        page = context.new_page()
        page.goto(server.address)
        page.fill("#own-response", "I went to the zoo.")
        page.click("text=Mark it")
        segment(page, "zoo").click()
        page.keyboard.press("p")
        saved(page)
        page.click("[data-view=mine]")
        expect(page.locator(".item .preview")).to_have_text("I went to the zoo.")
        context.close()
    assert spans(tmp_path / "store", "ann") == [("zoo", "positive")]


def test_a_file_is_read_from_its_beginning_and_a_run_from_its_end(browser: Any, tmp_path: Path) -> None:
    file, run = tmp_path / "own.jsonl", write_run(tmp_path / "run", steps=2)
    file.write_text("".join(json.dumps({"prompt": "Say.", "response": f"Text {n}."}) + "\n" for n in range(3)))
    with served(tmp_path / "store", file, run) as server, page_of(browser, server, "ann") as page:
        expect(page.locator(".item .preview").first).to_have_text("Text 0.")
        page.select_option("#run", "1")
        expect(page.locator(".item .facts").first).to_contain_text("step 1")
        assert page.input_value("[name=order]") == "newest"
        page.select_option("[name=order]", "longest")
        page.select_option("#run", "0")
        assert page.input_value("[name=order]") == "longest"
        page.locator("#filters [type=reset]").dispatch_event("click")
        expect(page.locator(".item .preview").first).to_have_text("Text 0.")
        assert page.input_value("[name=order]") == "oldest"


def test_marks_by_mouse_are_snapped_before_release_and_saved(browser: Any, server: Served) -> None:
    with page_of(browser, server, "mouse") as page:
        drag(page, segment(page, "cat"), segment(page, "sat"), release=False)
        assert chosen(page) == "cat sat"  # whole words, while the button is down
        page.mouse.up()
        page.get_by_role("button", name="Negative", exact=True).click()
        segment(page, "mat").click()
        page.get_by_role("button", name="Positive", exact=True).click()
        page.evaluate("Object.defineProperty(Event.prototype, 'timeStamp', { get: () => 1e9 })")
        segment(page, "on").dblclick()  # within a moment, however busy the machine is
        assert chosen(page) == "The cat sat on the mat."
        page.keyboard.press("p")  # overlaps both
        box = segment(page, "cat").bounding_box()
        page.keyboard.down("Shift")
        page.mouse.move(box["x"] + 1, box["y"] + 10)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 10, steps=3)
        page.mouse.up()
        page.keyboard.up("Shift")
        assert chosen(page) == "ca"
        page.keyboard.press("n")
        saved(page)
    assert spans(server.store, "mouse") == [
        ("The cat sat on the mat.", "positive"),
        ("ca", "negative"),
        ("cat sat", "negative"),
        ("mat", "positive"),
    ]


def test_a_selection_is_shown_in_the_text_as_it_is_drawn(browser: Any, server: Served) -> None:
    with page_of(browser, server, "long") as page:  # 5,000 words that are drawn anew for each word take a second
        page.evaluate("drawn = [...document.querySelectorAll('#response .s')]")
        page.locator("#response").press("Home")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Shift+ArrowRight")
        assert chosen(page) == "cat sat"
        assert "".join(page.locator("#response .at").all_text_contents()) == " sat"  # the token whose numbers are shown
        drag(page, segment(page, "on"), segment(page, "mat"))
        assert chosen(page) == "on the mat"
        page.keyboard.press("Escape")
        assert chosen(page) == ""
        assert page.locator("#response .at").count() == 0
        assert page.evaluate("drawn.every(segment => segment.isConnected)")


BOX_OF_CHARACTER = """place => {
    for (const segment of document.querySelectorAll("#response .s")) {
        const start = Number(segment.dataset.s);
        if (start > place || place >= Number(segment.dataset.e)) continue;
        const range = document.createRange();
        range.setStart(segment.firstChild, place - start);
        range.setEnd(segment.firstChild, place - start + 1);
        const { left, top, width, height } = range.getBoundingClientRect();
        return { left, top, width, height };
    }
}"""


@pytest.mark.parametrize("text", ["The cat sat on the mat.", "שלום עולם, זה משפט"])
def test_characters_are_chosen_in_both_directions_of_writing(browser: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "own.jsonl").write_text(json.dumps({"prompt": "Say.", "response": text}))
    with served(tmp_path / "store", tmp_path / "own.jsonl") as server, page_of(browser, server, "ann") as page:
        page.keyboard.down("Shift")
        for part in (0.25, 0.75):  # of the width of the first and the last character
            for first, last in ((0, 2), (5, 7), (12, 13)):
                a, b = (page.evaluate(BOX_OF_CHARACTER, place) for place in (first, last))
                page.mouse.move(a["left"] + a["width"] * part, a["top"] + a["height"] / 2)
                page.mouse.down()
                page.mouse.move(b["left"] + b["width"] * part, b["top"] + b["height"] / 2, steps=3)
                page.mouse.up()
                assert chosen(page) == text[first : last + 1]


def test_the_keyboard_alone_marks_explains_undoes_and_goes_on(browser: Any, server: Served) -> None:
    with page_of(browser, server, "keys") as page:
        page.keyboard.press("ArrowRight")  # from the list, where the click was
        page.keyboard.press("Shift+ArrowRight")
        assert chosen(page) == "The cat"
        page.keyboard.press("Escape")
        page.keyboard.press("n")
        hints = page.locator("#response .hint").all_text_contents()
        page.keyboard.type(hints[1])  # "cat"
        page.keyboard.type(hints[2])  # to "sat": five keys in all
        page.keyboard.press("e")
        page.keyboard.type("it ran")
        page.keyboard.press("Enter")
        page.keyboard.press("Home")
        page.keyboard.press("Shift+ArrowRight")
        assert chosen(page) == "The cat"
        page.keyboard.press("p")
        saved(page)
        assert spans(server.store, "keys") == [("The cat", "positive"), ("cat sat", "negative")]
        for _ in range(3):
            page.keyboard.press("u")
        assert page.locator(".marks .spans").first.locator("li.is-negative, li.is-positive").count() == 2
        page.keyboard.press("r")
        page.keyboard.press("Control+Shift+Z")
        page.keyboard.press("c")
        page.keyboard.type("Half right.")
        page.keyboard.press("Escape")
        page.keyboard.press("d")
        expect(page.locator(".where")).to_contain_text("response 3")
        saved(page)
    [marked] = MarkStore(server.store).marked("keys").values()
    assert [(span["label"], span["note"]) for span in marked.spans.values()] == [("negative", "it ran")]
    assert (marked.critique, marked.state) == ("Half right.", "done")


def test_a_span_takes_at_most_six_keys_with_the_step_to_the_next_response(browser: Any, server: Served) -> None:
    with page_of(browser, server, "fast") as page:
        keys, places = 0, []
        for first, last in ((1, 1), (4, 5), (2, 2), (0, 5)):
            places.append(page.locator(".where").inner_text())
            page.keyboard.press("n")
            hints = page.locator("#response .hint").all_text_contents()
            pressed = [*hints[first], *(hints[last] if last != first else ["Enter"]), "d"]
            for key in pressed:
                page.keyboard.press(key)
            assert 1 + len(pressed) <= 6
            keys += 1 + len(pressed)
            expect(page.locator(".where")).not_to_have_text(places[-1])
        saved(page)
        assert len(set(places)) == 4
        assert keys == 22
    assert sorted(words for words, _ in spans(server.store, "fast")) == [
        "The cat sat on the mat",
        "cat",
        "sat",
        "the mat",
    ]


SLOW_RECORDS = r"""() => {
    const fetchNow = window.fetch;
    window.fetch = async (url, ...more) => {
        if (/rollouts\/\d+/.test(url)) await new Promise(done => setTimeout(done, 400));
        return fetchNow(url, ...more);
    };
}"""


def test_keys_that_are_faster_than_the_server_act_on_the_next_response(browser: Any, server: Served) -> None:
    with page_of(browser, server, "hasty") as page:
        page.keyboard.press("n")
        hints = page.locator("#response .hint").all_text_contents()  # of these words in every response
        page.keyboard.press("Escape")
        page.evaluate(SLOW_RECORDS)
        for key in ["d", "n", *hints[1], "Enter", "e", *"no", "Enter", "d", "d", "d", "n", *hints[2], "Enter"]:
            page.keyboard.press(key)
        expect(page.locator(".marks .spans .is-negative").first).to_contain_text("sat")
        expect(page.locator(".where")).to_contain_text("step 0 · response 4")
        saved(page)
    opened = [marks for marks in MarkStore(server.store).marked("hasty").values() if marks.opened]
    states = {tuple(marks.opened["place"]): marks.state for marks in opened}
    assert [states[1, row] for row in (3, 2, 1, 0)] == ["done"] * 4
    assert sorted(spans(server.store, "hasty")) == [("cat", "negative"), ("sat", "negative")]
    [marked] = [marks for marks in opened if tuple(marks.opened["place"]) == (1, 2)]
    assert [span["note"] for span in marked.spans.values()] == ["no"]


def test_touch_marks_a_word_and_a_phone_shows_all_of_it(browser: Any, server: Served) -> None:
    phone = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}
    with page_of(browser, server, "touch", **phone) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        segment(page, "cat").tap()
        assert chosen(page) == "cat"
        expect(page.locator("#tip:visible")).to_contain_text("token 2 of 7")
        page.get_by_role("button", name="Negative", exact=True).tap()
        expect(page.locator("#tip")).to_be_hidden()
        saved(page)
        page.get_by_role("button", name="All responses").tap()
        assert page.locator("#list").is_visible()
        expect(page.locator("#own")).to_be_in_viewport(ratio=1)  # below the list
    assert spans(server.store, "touch") == [("cat", "negative")]


@pytest.mark.parametrize(("width", "name"), [(360, "run"), (1000, "a run with a long name " * 2)])
def test_the_text_stays_in_its_place_when_marks_are_saved(browser: Any, tmp_path: Path, width: int, name: str) -> None:
    write_run(tmp_path / name.strip(), steps=1)
    phone = {"viewport": {"width": width, "height": 780}, "has_touch": True, "is_mobile": True}
    with (
        served(tmp_path / "store", tmp_path / name.strip()) as server,
        page_of(browser, server, "still", **phone) as page,
    ):
        word = segment(page, "cat")
        before = word.bounding_box()["y"]
        word.tap()
        page.get_by_role("button", name="Negative", exact=True).tap()
        saved(page)
        page.evaluate("scrollTo(0, 0)")
        assert word.bounding_box()["y"] == before


def test_undo_goes_on_where_it_was_when_a_response_is_opened_again(browser: Any, server: Served) -> None:
    with page_of(browser, server, "again") as page:
        marks = page.locator("#response .positive, #response .negative")
        mark(page, "sat", "n")
        page.keyboard.press("A")  # "cat" and "mat", in one act
        mark(page, "on", "p")
        page.keyboard.press("u")
        saved(page)
        for open_again in (lambda: (page.keyboard.press("j"), page.keyboard.press("k")), page.reload):
            open_again()
            expect(page.locator(".where")).to_contain_text("response 4")
            expect(marks).to_have_text(["cat", "sat", "mat"])
            page.keyboard.press("u")
            expect(marks).to_have_text(["sat"])
            assert page.get_by_role("button", name="Accept all 2").count() == 1
            page.keyboard.press("r")
            expect(marks).to_have_text(["cat", "sat", "mat"])
            page.keyboard.press("r")
            expect(marks).to_have_text(["cat", "sat", "on", "mat"])
            page.keyboard.press("u")
            saved(page)
    assert len(spans(server.store, "again")) == 3


def test_suggestions_are_accepted_mended_and_rejected(browser: Any, server: Served) -> None:
    with page_of(browser, server, "judge") as page:
        page.keyboard.press("a")  # "cat", negative
        drag(page, segment(page, "the", 1), segment(page, "mat"))
        page.get_by_role("button", name="Mend mat").click()
        saved(page)
        assert spans(server.store, "judge") == [("cat", "negative"), ("the mat", "positive")]
        page.keyboard.press("j")
        expect(page.locator(".where")).to_contain_text("response 3")
        page.keyboard.press("x")
        page.keyboard.press("A")
        saved(page)
    marked = sorted(MarkStore(server.store).marked("judge").values(), key=lambda marks: marks.at)
    assert list(marked[1].suggestions.values()) == ["rejected", "accepted"]


def test_nothing_is_lost_when_the_server_is_killed(browser: Any, server: Served) -> None:
    with page_of(browser, server, "crash") as page:
        segment(page, "cat").click()
        page.keyboard.press("n")
        saved(page)
        server.kill()
        segment(page, "mat").click()
        page.keyboard.press("p")
        expect(page.locator("#saved")).to_contain_text("Not saved")
        assert spans(server.store, "crash") == [("cat", "negative")]
        server.start()
        saved(page)
        page.reload()
        page.wait_for_selector(".item .preview")
        page.wait_for_selector("#response .positive")
        assert page.locator("#response .negative").text_content() == "cat"
        page.keyboard.press("u")  # history goes on after a reload
        page.wait_for_selector("#response .positive", state="detached")
        saved(page)
    assert spans(server.store, "crash") == [("cat", "negative")]


def test_a_mark_that_waits_says_so_as_long_as_it_waits(browser: Any, server: Served) -> None:
    with page_of(browser, server, "patient") as page:
        server.kill()
        mark(page, "cat", "n")
        expect(page.locator("#saved")).to_contain_text("Not saved")
        page.evaluate("""() => {
            const saved = document.getElementById("saved");
            told = [];
            new MutationObserver(() => told.push(saved.textContent)).observe(saved, { childList: true });
        }""")
        for _ in range(2):  # the page looks for the server, and the first look has been answered
            with page.expect_event("requestfailed", lambda request: request.url.endswith("/api/studio")):
                pass
        told = page.evaluate("told")
        assert told
        assert [words for words in told if "Not saved" not in words] == []
        server.start()
        saved(page)


def test_what_a_closed_page_could_not_save_is_saved_by_the_next(browser: Any, server: Served) -> None:
    with page_of(browser, server, "closed") as page:
        server.kill()
        segment(page, "sat").click()
        page.keyboard.press("n")
        expect(page.locator("#saved")).to_contain_text("Not saved")
        context = page.context
        page.close()
        server.start()
        other = context.new_page()
        other.goto(server.address)
        saved(other)
        other.close()
    assert spans(server.store, "closed") == [("sat", "negative")]


def beside_unsent_marks(page: Any) -> Any:
    """Mark "sat" where no mark reaches the server, and return another page of the rater, which does not know it."""
    for request in ("marks", "tab"):
        page.route(f"**/api/{request}", lambda route: route.abort("connectionreset"))
    mark(page, "sat", "n")
    expect(page.locator("#saved")).to_contain_text("Not saved")
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator("#detail")).to_contain_text("None yet.")
    return other


def test_marks_of_a_page_that_is_still_being_left_are_shown_when_it_is_gone(browser: Any, server: Served) -> None:
    with page_of(browser, server, "leaving") as page:
        other = beside_unsent_marks(page)
        page.close()  # now its lock is free
        expect(other.locator("#detail")).not_to_contain_text("None yet.")
        saved(other)
    assert spans(server.store, "leaving") == [("sat", "negative")]


@contextmanager
def held(page: Any, pattern: str | re.Pattern[str], method: str = "GET") -> Iterator[list[Any]]:
    """Keep matching requests of a page from the server; the end of the block sends those that still wait."""
    requests: list[Any] = []
    page.route(pattern, lambda route: requests.append(route) if route.request.method == method else route.fallback())
    yield requests
    while requests:
        requests.pop(0).continue_()
    page.unroute(pattern)  # sends one that came meanwhile, too


def wait_for(page: Any, requests: list[Any], number: int) -> None:
    """Wait until so many requests are held."""
    for _ in range(SECONDS * 20):
        if len(requests) >= number:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{len(requests)} requests came, not {number}")


def read(page: Any) -> None:
    """Wait until the page has read the answers that came: it reads a later one."""
    page.evaluate("fetch('/api/studio').then(answer => answer.json())")


def test_a_late_answer_does_not_replace_what_was_opened_after_it(browser: Any, server: Served) -> None:
    with page_of(browser, server, "late") as page:
        address = page.url
        with held(page, "**/api/marks/*") as requests:
            page.keyboard.press("j")
            wait_for(page, requests, 1)
            page.keyboard.press("k")
            wait_for(page, requests, 2)
            page.keyboard.press("d")  # waits for the response that is on its way: the first
            requests.pop(1).continue_()
            expect(page.locator(".done-row")).to_contain_text("Done, next")
        expect(page.locator(".item").first).to_contain_text("done ✓")
        expect(page.locator(".item[aria-selected=true]")).to_have_attribute("data-index", "1")
        page.keyboard.press("k")
        expect(page.locator(".done-row")).to_contain_text("Done ✓")
        assert page.url == address
        with held(page, "**/api/marks/*") as requests:
            page.keyboard.press("j")
            wait_for(page, requests, 1)
            page.get_by_role("button", name="My marks").click()
            page.wait_for_selector(".summary")
            with page.expect_response("**/api/marks/*") as answer:
                requests.pop().continue_()
            answer.value.finished()
        read(page)
        assert page.locator("#response").count() == 0


def test_what_is_opened_while_new_rows_are_on_their_way_stays_open(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=2)
    with served(tmp_path / "store", run) as server, page_of(browser, server, "ann") as page:
        selected = page.locator(".item[aria-selected=true]")
        expect(selected).to_have_attribute("data-index", "0")
        with held(page, LIST) as requests:
            append(run, [record(2, row, response="A new text.") for row in range(3)])
            wait_for(page, requests, 1)
            page.keyboard.press("j")
            expect(page.locator(".where")).to_contain_text("step 1 · response 3")
            expect(selected).to_have_attribute("data-index", "1")
        expect(page.locator("#count")).to_have_text("11 responses")
        expect(selected).to_have_attribute("data-index", "4")
        page.keyboard.press("k")
        expect(page.locator(".where")).to_contain_text("step 1 · response 4")


def test_an_answer_to_a_list_that_was_left_does_not_move_the_place_in_the_next(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=2)
    with served(tmp_path / "store", run) as server, page_of(browser, server, "ann") as page:
        with held(page, LIST) as requests:
            append(run, [record(2, row, response="A new text.") for row in range(3)])
            wait_for(page, requests, 1)
            page.fill("#text", "Prompt")
            wait_for(page, requests, 2)
            requests.pop(1).continue_()
            page.wait_for_selector(".item .preview")  # the count was the same before
            page.locator("#list").press("Home")
            expect(page.locator(".item[aria-selected=true]")).to_have_attribute("data-index", "0")
            with page.expect_response(LIST):
                requests.pop(0).continue_()
        page.keyboard.press("j")
        expect(page.locator(".where")).to_contain_text("step 1 · response 3")


def test_an_answer_to_a_list_that_was_left_is_not_counted_in_the_next(browser: Any, server: Served) -> None:
    with page_of(browser, server, "ann") as page:
        with held(page, LIST) as requests:
            page.fill("#text", "Prompt")
            wait_for(page, requests, 1)
            page.get_by_role("button", name="My marks").click()
            expect(page.locator("#count")).to_have_text("0 responses")
            with page.expect_response(LIST) as answer:
                requests.pop().continue_()
            answer.value.finished()
        read(page)
        assert page.locator("#count").text_content() == "0 responses"


def test_the_end_of_a_list_is_opened_though_new_rows_are_fetched_meanwhile(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=2, rows=60)
    with served(tmp_path / "store", run) as server, page_of(browser, server, "ann") as page:
        with held(page, LIST) as requests:
            page.locator("#list").press("End")
            wait_for(page, requests, 1)  # the second page
            append(run, [record(2, row) for row in range(3)])
            wait_for(page, requests, 2)
        expect(page.locator(".where")).to_contain_text("response")
        expect(page.locator("#count")).to_have_text("123 responses")
        expect(page.locator(".where")).to_contain_text("step 0")


def test_a_response_that_is_opened_again_has_the_marks_that_are_not_yet_saved(browser: Any, server: Served) -> None:
    with page_of(browser, server, "quick") as page:
        with held(page, "**/api/marks", "POST") as requests:
            segment(page, "cat").click()
            page.keyboard.press("n")
            wait_for(page, requests, 1)
            page.keyboard.press("j")
            page.keyboard.press("k")
        saved(page)
        page.keyboard.press("d")
        saved(page)
        assert spans(server.store, "quick") == [("cat", "negative")]
        page.keyboard.press("k")
        expect(page.locator("#response .negative")).to_have_text("cat")


def test_two_tabs_and_two_raters_keep_their_marks_apart(browser: Any, server: Served) -> None:
    with page_of(browser, server, "one") as first, page_of(browser, server, "one") as second:
        segment(first, "cat").click()
        first.keyboard.press("n")
        saved(first)
        segment(second, "mat").click()  # opened before the other tab marked: it must not undo that
        second.keyboard.press("p")
        saved(second)
        assert spans(server.store, "one") == [("cat", "negative"), ("mat", "positive")]
        second.get_by_role("button", name="Keys").click()
        second.locator("dialog input").fill("two")
        second.keyboard.press("Tab")
        second.keyboard.press("Escape")  # the response is opened again
        expect(second.locator("#response .positive, #response .negative")).to_have_count(0)
        segment(second, "sat").click()
        second.keyboard.press("n")
        saved(second)
        assert spans(server.store, "two") == [("sat", "negative")]
        for page in (first, second):
            page.keyboard.press("d")
            saved(page)
        first.keyboard.press("k")
        expect(first.locator(".other", has_text="two")).to_have_count(1)  # other raters marked it, too
        first.get_by_role("button", name="My marks").click()
        expect(first.locator(".summary table")).to_contain_text("one, two")


def test_undo_takes_back_no_act_of_another_tab_that_the_page_does_not_show(browser: Any, server: Served) -> None:
    with refused_page_of(browser, server, "tabs") as first, refused_page_of(browser, server, "tabs") as second:
        mark(first, "cat", "n")
        saved(first)
        second.reload()
        expect(second.locator("#response .negative")).to_have_text("cat")
        second.get_by_role("button", name="→ positive").click()
        saved(second)
        with held(first, "**/api/marks/*") as requests:
            first.keyboard.press("u")  # it would take the mark away that the other tab has turned
            wait_for(first, requests, 1)
            first.keyboard.press("u")  # before the marks have come; later it would be an act of its own
        expect(first.locator(".told")).to_contain_text("so nothing was undone or redone")
        expect(first.locator("#response .positive")).to_have_text("cat")
        first.reload()
        expect(first.locator("#response .positive")).to_have_text("cat")
        first.keyboard.press("u")
        expect(first.locator("#response .negative")).to_have_text("cat")
        saved(first)
        mark(second, "mat", "p")  # a mark is taken, and what the other tab did meanwhile is shown with it
        expect(second.locator(".told")).to_contain_text(
            "Another tab changed these marks meanwhile. All marks are shown"
        )
        expect(second.locator("#response .negative")).to_have_text("cat")
        for _ in range(2):
            second.keyboard.press("u")
        expect(second.locator(".told")).to_have_count(0)
        expect(second.locator("#response .positive, #response .negative")).to_have_count(0)
        saved(second)
    assert spans(server.store, "tabs") == []


def test_an_address_with_a_name_that_is_none_asks_for_one(browser: Any, server: Served) -> None:
    context = context_of(browser)
    page = context.new_page()
    page.goto(f"{server.address}&rater=../x")
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("“../x” in the address is no name of a rater. A name begins with a letter")
    for _ in range(2):
        page.keyboard.press("Escape")  # nobody marks without a name
    expect(dialog).to_be_visible()
    dialog.locator("input").fill("-")
    page.keyboard.press("Enter")
    expect(dialog.locator(".problem")).to_contain_text("A name begins with a letter or digit")
    dialog.locator("input").fill("named")
    page.keyboard.press("Enter")
    page.locator(".item").first.click()
    mark(page, "cat", "n")
    saved(page)
    assert page.url.partition("?")[2].startswith("rater=named")
    context.close()
    assert spans(server.store, "named") == [("cat", "negative")]


@contextmanager
def marked_without_server(browser: Any, store: Path, file: Path) -> Iterator[tuple[Any, Any]]:
    """Yield the page of a rater with a mark that waits, and its server, which was killed and has no run any more."""
    with served(store, file) as server, page_of(browser, server, "ann") as page:
        server.kill()
        expect(page.locator("#saved")).to_contain_text("No connection")
        mark(page, "Text", "n")
        server.paths = ()
        yield page, server


def test_a_page_goes_on_with_a_server_that_has_no_run_any_more(browser: Any, tmp_path: Path) -> None:
    file = write_responses(tmp_path / "alpha.jsonl", 2)
    with marked_without_server(browser, tmp_path / "store", file) as (page, server):
        server.start()
        expect(page.locator("#troubles")).to_have_text(
            "The server was started anew without alpha; the list is that of your marks."
        )
        saved(page)
        expect(page.locator(".item")).to_have_count(1)
        expect(page.get_by_role("link", name="Share")).to_have_count(0)
        mark(page, "1", "p")
        saved(page)
        page.get_by_role("button", name="Teach").click()
        page.locator("#own").click()
        expect(page.locator("#own-response")).to_be_visible()
        expect(page.locator("#count")).to_have_text("1 response")
        server.kill()
        expect(page.locator("#saved")).to_contain_text("No connection")
        server.paths = (file,)
        server.start()
        expect(page.locator("#troubles")).to_have_text("The server was started anew, with alpha.")
        page.get_by_role("button", name="Responses").click()
        expect(page.locator(".item")).to_have_count(2)
        expect(page.locator("#troubles")).to_be_empty()
    assert spans(tmp_path / "store", "ann") == [("Text", "negative"), ("1", "positive")]


@pytest.mark.parametrize("is_killed", [True, False])  # a server that was not killed has the same list as before
def test_a_lesson_that_is_opened_without_a_server_is_there_when_one_comes(
    browser: Any, tmp_path: Path, is_killed: bool
) -> None:
    file = write_responses(tmp_path / "alpha.jsonl", 2)
    with served(tmp_path / "store", file) as server, page_of(browser, server, "ann") as page:
        if is_killed:
            server.kill()
        else:
            page.route("**/api/**", lambda route: route.abort("connectionrefused"))
        expect(page.locator("#saved")).to_contain_text("No connection")
        page.get_by_role("button", name="Teach").click()
        expect(page.locator("#count")).to_have_text("the server cannot be reached")
        assert page.locator("#detail").inner_text() == ""
        if is_killed:
            server.start()
        else:
            page.unroute("**/api/**")
        expect(page.locator("#detail h2").first).to_have_text("Teach")
        expect(page.locator("#count")).to_have_text("2 responses")


def test_marks_that_waited_for_the_server_stand_in_a_list_that_was_fetched_before_them(
    browser: Any, tmp_path: Path
) -> None:
    file = write_responses(tmp_path / "alpha.jsonl", 2)
    with marked_without_server(browser, tmp_path / "store", file) as (page, server):
        with held(page, "**/api/marks", "POST") as requests:
            server.start()
            wait_for(page, requests, 1)
            expect(page.locator(".item")).to_have_count(0)  # the list of marks, without the one that waits
        saved(page)
        expect(page.locator(".item")).to_have_count(1)


@contextmanager
def refused_page_of(browser: Any, server: Served, rater: str) -> Iterator[Any]:
    """Open the studio for a rater; refusals belong to the test, errors of scripts do not."""
    context = context_of(browser)
    page, errors = context.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    wait_for_rows(context, server)
    page.goto(f"{server.address}&rater={rater}")
    page.locator(".item").first.click()
    page.wait_for_selector("#response .s")
    yield page
    close(context)
    assert errors == []


def mark(page: Any, text: str, key: str) -> None:
    segment(page, text).click()
    page.keyboard.press(key)


def test_a_mark_that_waits_is_saved_by_the_page_that_is_loaded_anew(browser: Any, server: Served) -> None:
    with page_of(browser, server, "anew") as page:
        mark(page, "cat", "n")
        saved(page)
        server.kill()
        mark(page, "mat", "p")  # the text of the response was sent with the first mark
        expect(page.locator("#saved")).to_contain_text("Not saved")
        with held(page, "**/api/marks", "POST"):  # the page goes before it tries again
            server.start()
            page.goto("about:blank")
        page.goto(server.address + "&rater=anew")
        saved(page)
    assert spans(server.store, "anew") == [("cat", "negative"), ("mat", "positive")]


def test_marks_that_the_disk_refuses_wait_and_are_shown(browser: Any, server: Served) -> None:
    with refused_page_of(browser, server, "full") as page:
        folder = server.store / "marks" / "full"
        folder.parent.mkdir(exist_ok=True)
        folder.touch()
        mark(page, "cat", "n")
        expect(page.locator("#saved")).to_contain_text("File exists. Tried again, and kept in this browser.")
        mark(page, "mat", "p")
        page.keyboard.press("j")
        expect(page.locator(".where")).to_contain_text("response 3")
        page.keyboard.press("k")
        expect(page.locator("#response .negative")).to_have_text("cat")
        folder.unlink()
        saved(page)
        assert spans(server.store, "full") == [("cat", "negative"), ("mat", "positive")]
        page.keyboard.press("u")
        saved(page)
    assert spans(server.store, "full") == [("cat", "negative")]


def test_marks_that_are_too_many_for_the_browser_to_keep_are_shown_and_saved(browser: Any, server: Served) -> None:
    with refused_page_of(browser, server, "many") as page:
        page.route("**/api/marks", lambda route: route.fulfill(status=503, json={"error": "disk full"}))
        page.evaluate(
            "for (let size = 2 ** 22; size; size >>= 1) try { localStorage[size] = 'x'.repeat(size); } catch {}"
        )
        mark(page, "cat", "n")
        expect(page.locator("#response .negative")).to_have_text("cat")
        words = "Not saved: disk full. Tried again, but too much for this browser to keep: leave the page open."
        expect(page.locator("#saved")).to_have_text(words)
        page.unroute("**/api/marks")
        saved(page)
    assert spans(server.store, "many") == [("cat", "negative")]


def test_a_page_that_is_not_let_in_keeps_its_marks(browser: Any, server: Served) -> None:
    with refused_page_of(browser, server, "locked") as page:
        page.route("**/api/marks", lambda route: route.fulfill(status=403, body="closed"))
        mark(page, "cat", "n")
        expect(page.locator("#saved")).to_contain_text("Not saved: the server answered 403. Tried again, and kept")
        page.unroute("**/api/marks")
        saved(page)
    assert spans(server.store, "locked") == [("cat", "negative")]


def test_a_malformed_mark_is_given_up_and_the_next_is_saved(browser: Any, server: Served) -> None:
    with refused_page_of(browser, server, "odd") as page:
        page.route("**/api/marks", lambda route: route.fulfill(status=400, json={"error": "no span"}))
        mark(page, "cat", "n")
        words = "Refused, and not saved: no span. Reload the page to see the saved marks."
        expect(page.locator("#saved")).to_have_text(words)
        page.unroute("**/api/marks")
        with page.expect_response("**/api/marks"):
            mark(page, "mat", "p")
        expect(page.locator("#saved")).to_have_text(words)  # the first mark is still on the page
        page.reload()
        expect(page.locator("#response .positive")).to_have_text("mat")
        assert page.locator("#response .negative").count() == 0
    assert spans(server.store, "odd") == [("mat", "positive")]


def test_the_text_of_a_malformed_batch_goes_with_the_next_one(browser: Any, server: Served) -> None:
    with refused_page_of(browser, server, "next") as page:
        with held(page, "**/api/marks", "POST") as requests:
            mark(page, "cat", "n")
            wait_for(page, requests, 1)
            mark(page, "mat", "p")  # waits behind it, without the text
            requests.pop(0).fulfill(status=400, json={"error": "no span"})
        expect(page.locator("#saved")).to_contain_text("Refused, and not saved: no span.")
        page.reload()
        expect(page.locator("#response .positive")).to_have_text("mat")
    assert spans(server.store, "next") == [("mat", "positive")]


def test_marks_wait_for_the_store_they_were_made_for(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1)
    with served(tmp_path / "one", run) as first, refused_page_of(browser, first, "ann") as page:
        context = page.context
        first.kill()
        mark(page, "cat", "n")
        expect(page.locator("#saved")).to_contain_text("Not saved")
        with served(tmp_path / "two", run, options=("--port", first.port)) as second:
            other = context.new_page()
            other.goto(f"{second.address}&rater=ann")  # the pages share storage and cookie
            other.locator(".item").first.click()
            mark(other, "mat", "p")
            saved(other)
            expect(page.locator("#saved")).to_contain_text("this page is of another --out")
            page.close()
            other.reload()
            other.wait_for_selector("#response .positive")
            mark(other, "sat", "p")
            saved(other)
        other.close()
        first.start()
        again = context.new_page()
        again.goto(f"{first.address}&rater=ann")
        saved(again)
    assert spans(tmp_path / "one", "ann") == [("cat", "negative")]
    assert spans(tmp_path / "two", "ann") == [("sat", "positive"), ("mat", "positive")]


def write_responses(path: Path, number: int) -> Path:
    """Write a file of responses: "Text 1." and so on."""
    lines = [json.dumps({"prompt": "Say.", "response": f"Text {n + 1}."}) + "\n" for n in range(number)]
    path.write_text("".join(lines))
    return path


def test_what_is_finished_while_a_filter_shows_what_is_not_done_moves_no_later_row(
    browser: Any, tmp_path: Path
) -> None:
    file = write_responses(tmp_path / "own.jsonl", 210)
    with served(tmp_path / "store", file) as server, page_of(browser, server, "ann") as page:
        page.locator("#more summary").click()
        with page.expect_response("**marked=open**"):
            page.select_option("[name=marked]", "open")
        expect(page.locator(".item .preview").first).to_have_text("Text 1.")  # the filtered list is here
        page.locator("#list").press("Home")
        for n in range(3):
            expect(page.locator("#response")).to_have_text(f"Text {n + 1}.")
            page.keyboard.press("d")
        expect(page.locator("#response")).to_have_text("Text 4.")
        saved(page)
        page.locator("#list").press("End")  # of pages that are fetched now
        expect(page.locator("#response")).to_have_text("Text 210.")
        expect(page.locator("#count")).to_have_text("210 responses")
        page.locator("#text").fill("Text")  # another list begins with what is not done now
        expect(page.locator("#count")).to_have_text("207 responses")


def test_rows_that_a_lost_connection_left_empty_come_when_it_is_back(browser: Any, tmp_path: Path) -> None:
    file = write_responses(tmp_path / "own.jsonl", 210)
    with served(tmp_path / "store", file) as server, refused_page_of(browser, server, "ann") as page:
        page.route("**/api/**", lambda route: route.abort("connectionrefused"))
        page.locator("#list").evaluate("list => { list.scrollTop = list.scrollHeight; }")
        expect(page.locator("#saved")).to_contain_text("No connection")
        assert page.locator(".item .preview", has_text="Text 210.").count() == 0
        page.unroute("**/api/**")
        expect(page.locator(".item .preview").last).to_have_text("Text 210.")
        expect(page.locator("#count")).to_have_text("210 responses")


@pytest.mark.parametrize("leave", ["another field", "another response", "the page"])
def test_words_that_were_typed_before_their_response_came_are_saved(browser: Any, server: Served, leave: str) -> None:
    rater = f"ahead-{len(leave)}"
    with page_of(browser, server, rater) as page:
        with held(page, "**/api/marks/*") as requests:
            page.keyboard.press("j")
            wait_for(page, requests, 1)
            page.keyboard.press("c")
            page.keyboard.type("Half right.")
        critique = page.locator("[data-field=critique]")
        expect(critique).to_have_value("Half right.")
        expect(critique).to_be_focused()
        if leave == "another field":
            page.locator("#text").focus()
        elif leave == "another response":
            page.locator(".item").first.click()
        else:
            page.goto("about:blank")
            page.goto(f"{server.address}&rater={rater}")
            page.locator(".item").first.click()
            mark(page, "mat", "p")  # what waits is sent before it
        saved(page)
    assert "Half right." in [marks.critique for marks in MarkStore(server.store).marked(rater).values()]


def test_words_that_are_being_typed_are_saved_when_the_page_is_left(browser: Any, server: Served) -> None:
    with page_of(browser, server, "typist") as page:
        mark(page, "cat", "n")
        page.keyboard.press("e")
        page.keyboard.type("it was a dog")
        page.reload()
        expect(page.locator("[data-field^=note]")).to_have_value("it was a dog")
        page.keyboard.press("c")
        page.keyboard.type("Half right.")
        expect(page.locator("[data-field=critique]")).to_have_value("Half right.")  # keys wait for the list
        page.goto("about:blank")
        page.goto(f"{server.address}&rater=typist")
        page.locator(".item").first.click()
        mark(page, "mat", "p")  # the page tells of saved marks when it has sent some; the words can be saved already
        saved(page)
    [marked] = MarkStore(server.store).marked("typist").values()
    assert {span["note"] for span in marked.spans.values()} == {"it was a dog", ""}
    assert marked.critique == "Half right."


def test_the_address_of_a_marked_response_names_its_own_run(browser: Any, tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": "Say.", "response": f"Text of {name}."}))
    files = [tmp_path / "alpha.jsonl", tmp_path / "beta.jsonl"]
    with served(tmp_path / "store", *files) as server, page_of(browser, server, "ann") as page:
        page.select_option("#run", "1")
        page.locator(".item", has_text="beta").click()
        mark(page, "beta", "n")
        saved(page)
        page.select_option("#run", "0")
        page.locator(".item", has_text="alpha").click()
        expect(page.locator("#response")).to_have_text("Text of alpha.")
        page.get_by_role("button", name="My marks").click()
        page.locator(".item", has_text="beta").click()
        expect(page.locator("#response")).to_have_text("Text of beta.")
        page.reload()
        expect(page.locator("#response")).to_have_text("Text of beta.")
        page.click("#own")
        page.fill("#own-response", "My own text.")
        page.click("text=Mark it")
        expect(page.locator("#response")).to_have_text("My own text.")
        assert "#" not in page.url  # it has no place in a run


def test_read_only_shows_marks_and_takes_none_back(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1)
    with served(tmp_path / "store", run) as server, page_of(browser, server, "ann") as page:
        mark(page, "cat", "n")
        saved(page)
    with (
        served(tmp_path / "store", run, options=("--read-only",)) as server,
        page_of(browser, server, "ann") as page,
    ):
        page.locator("#response").press("Home")
        page.keyboard.press("ArrowRight")  # to the marked word
        for key in ("u", "Control+z", "Backspace"):
            page.keyboard.press(key)
        expect(page.locator("#response .negative")).to_have_text("cat")
        expect(page.locator("#saved")).to_have_text("read-only")


@contextmanager
def lesson_of(page: Any, *versions: int) -> Iterator[dict[str, Any]]:
    """Let the server say that a lesson is under way; change its "state", or make it "lost" to break the connection.

    It follows lessons that made the `versions`.
    """
    work = {"state": "working", "kind": "teach", "number": 1, "progress": "round 1"}
    made = [
        {
            "version": version,
            "parent": version - 1,
            "kind": "lesson",
            "steps": 1,
            "spans": 1,
            "responses": 1,
            "kl": 0.1,
        }
        | dict.fromkeys(("negative", "positive", "unmarked"))
        for version in versions
    ]

    def answer(route: Any) -> None:
        if work["state"] == "lost":
            route.abort("connectionrefused")
            return
        state = route.fetch().json()
        state["teaching"] |= {"policy": {"path": "policy"}, "work": dict(work), "versions": made}
        route.fulfill(json=state)

    page.route("**/api/studio", answer)
    yield work
    page.unroute_all(behavior="ignoreErrors")  # an answer may be on its way


def heard(page: Any) -> None:
    """Wait for answers of the server about its lesson."""
    for _ in range(3):
        with page.expect_response("**/api/studio"):
            pass


def test_the_end_of_a_lesson_leaves_the_response_that_is_read(browser: Any, server: Served) -> None:
    with page_of(browser, server, "reads") as page, lesson_of(page) as work:
        page.click("[data-view=teach]")
        page.wait_for_selector(".work progress")
        page.click("[data-view=read]")
        page.wait_for_selector("#response .s")
        page.locator("[data-field=critique]").click()
        page.keyboard.type("It is")
        work["state"] = "done"
        heard(page)
        page.keyboard.type(" wrong.")
        page.keyboard.press("Escape")
        assert page.locator("#teach-start").count() == 0
        saved(page)
        work["state"] = "working"
        page.click("[data-view=teach]")
        page.wait_for_selector(".work progress")
        page.click("#own")
        page.fill("#own-response", "My own text.")
        work["state"] = "done"
        heard(page)
        assert page.input_value("#own-response") == "My own text."
    [marked] = MarkStore(server.store).marked("reads").values()
    assert marked.critique == "It is wrong."


def test_a_lesson_goes_on_after_a_request_was_lost(browser: Any, server: Served) -> None:
    with page_of(browser, server, "lost") as page, lesson_of(page) as work:
        mark(page, "cat", "n")
        saved(page)
        page.click("[data-view=teach]")
        page.wait_for_selector(".work progress")
        work["state"] = "lost"
        expect(page.locator("#saved")).to_contain_text("No connection")
        work["state"] = "done"
        expect(page.locator(".work progress")).to_have_count(0)
        expect(page.locator("#teach-start")).to_be_enabled()
        saved(page)


def test_a_mark_is_withdrawn_after_the_versions_that_learned_from_it_are_told(browser: Any, server: Served) -> None:
    asked = list[Any]()
    with page_of(browser, server, "sorry") as page, lesson_of(page) as work:

        def begin(route: Any) -> None:
            asked.append(route.request.post_data_json)
            result = {**asked[-1], "marks": 1, "learned": [2, 3], "parent": 0}
            work.update(kind="withdraw", state="done", number=len(asked) + 1, result=result)
            route.fulfill(json=dict(work))

        page.route("**/api/withdraw", begin)
        segment(page, "cat").click()
        page.keyboard.press("n")
        page.get_by_role("button", name="Withdraw", exact=False).press("Enter")
        told = page.locator(".withdrawn p").first
        expect(told).to_have_text("1 mark of sorry to withdraw; version 2, version 3 learned from it.")
        page.get_by_role("button", name="Withdraw for good").press("Enter")
        expect(told).to_have_text("1 mark of sorry withdrawn; version 2, version 3 learned from it.")
        expect(page.locator(".withdrawn .how")).to_contain_text("The next lesson begins before these versions")
        expect(page.locator("#choice-begin-from")).to_have_value("0")
        assert [own["sure"] for own in asked] == [False, True]
        assert asked[0]["id"]
        assert {own["item"] for own in asked} == {asked[0]["item"]}
        page.click("[data-view=mine]")
        page.get_by_role("button", name="Withdraw all marks").press("Enter")
        expect(told).to_contain_text("1 mark of sorry to withdraw")
        assert (asked[2]["item"], asked[2]["id"], asked[2]["rater"]) == ("", "", "sorry")


def test_words_are_asked_why_and_each_critique_of_the_answer_opens_its_response(browser: Any, tmp_path: Path) -> None:
    run, asked = write_run(tmp_path / "my run", steps=2), list[Any]()
    file = tmp_path / "answers.jsonl"
    file.write_text('{"prompt": "p", "response": "The cat sat."}')
    (run / "checkpoints" / "step-000001").mkdir(parents=True)
    for name in ("run.json", "checkpoints/step-000001/state.json"):
        (run / name).write_text('{"recipe": {}}')
    shares = [
        {"step": 0, "row": 2, "nats": 0.5, "raters": ["ann", "bob"], "words": EVIL},
        {"step": 1, "row": 3, "nats": -0.25, "raters": [], "words": ""},
    ]
    result = {"source": "my run", "phrase": EVIL, "critiques": 8, "places": 1, "shares": shares}
    result |= {"before": -3.0, "after": -2.75, "explained": 0.987}
    with (
        served(tmp_path / "store", run, file) as server,
        page_of(browser, server, "ann") as page,
        lesson_of(page) as work,
    ):

        def begin(route: Any) -> None:
            asked.append(route.request.post_data_json)
            work.update(kind="why", state="working", number=len(asked) + 1, progress="attribute: step 1 of 2")
            route.fulfill(json=dict(work))

        page.route("**/api/why", begin)
        work["state"] = "idle"
        page.keyboard.press("w")  # nothing is chosen
        segment(page, "cat").click()
        page.get_by_role("button", name="Why?", exact=True).click()
        expect(page.locator(".work")).to_contain_text("attribute: step 1 of 2")
        assert asked == [{"run": 0, "phrase": "cat"}]
        work.update(state="done", result=result)
        expect(page.locator(".why h3")).to_contain_text("became likelier")
        expect(page.locator(".why .how")).to_have_text(
            "log p, 1 place: −3 → −2.75 (+0.25 nats); all 8 critiques together explain 99 %"
        )
        assert page.locator(".why td").all_text_contents() == [
            *("0:2", "+0.5", "ann, bob", visible(EVIL)),
            *("1:3", "−0.25", "", ""),
        ]
        page.get_by_role("link", name="1:3").click()  # the address named it before, too
        expect(page.locator(".where")).to_have_text("my run · step 1 · response 4")
        page.click("[data-view=teach]")
        page.get_by_role("link", name="0:2").click()
        expect(page.locator(".where")).to_have_text("my run · step 0 · response 3")
        expect(page.locator(".item[aria-selected=true] .facts")).to_contain_text("step 0")
        segment(page, "mat").click()
        page.keyboard.press("w")
        expect(page.locator(".work progress")).to_have_count(1)
        assert asked[1:] == [{"run": 0, "phrase": "mat"}]
        work.update(state="failed", error="no response of the run contains it")
        expect(page.locator(".work .problem")).to_have_text("no response of the run contains it")
        assert page.title() == "text2grad studio"
        page.click("[data-view=read]")
        page.select_option("#run", "1")
        page.locator(".item", has_text="The cat sat.").last.click()
        expect(page.locator(".where")).to_contain_text("answers")
        segment(page, "cat").click()
        expect(page.locator(".positive-button")).to_be_visible()
        assert page.get_by_role("button", name="Why?", exact=True).count() == 0
        page.keyboard.press("w")
        heard(page)
    assert len(asked) == 2


def test_another_rater_marks_the_open_response(browser: Any, server: Served) -> None:
    with page_of(browser, server, "first") as page:
        mark(page, "cat", "n")
        saved(page)

        def name(rater: str) -> None:
            page.get_by_role("button", name="Keys").click()
            page.locator("dialog input").fill(rater)

        name("../second")
        page.keyboard.press("Tab")
        expect(page.locator("dialog .problem")).to_contain_text("The rater is still first.")
        page.keyboard.press("Escape")
        name("-")
        page.keyboard.press("Escape")  # also if it is closed with this name
        expect(page.locator("dialog .problem")).to_contain_text("The rater is still first.")
        page.locator("dialog input").fill("Zoë 2")
        page.keyboard.press("Tab")
        page.keyboard.press("Escape")
        expect(page.locator("#response .negative")).to_have_count(0)
        expect(page.locator("#response .s").first).to_be_visible()
        expect(page.locator(".item[aria-selected=true]")).to_have_attribute("data-index", "0")
        mark(page, "mat", "p")
        saved(page)
        page.reload()
        expect(page.locator("#response .positive")).to_have_text("mat")
        page.get_by_role("button", name="My marks").click()
        expect(page.locator(".summary h2")).to_have_text("Marks of Zoë 2")
        expect(page.locator("#count")).to_have_text("1 response")
        name("nobody")
        page.keyboard.press("Tab")
        page.keyboard.press("Escape")
        expect(page.locator(".summary h2")).to_have_text("Marks of nobody")
        expect(page.locator("#count")).to_have_text("0 responses")
        with lesson_of(page):
            page.click("[data-view=teach]")
            expect(page.locator(".lesson p").first).to_contain_text("0 spans of nobody")
            name("first")
            page.keyboard.press("Tab")
            page.keyboard.press("Escape")
            expect(page.locator(".lesson p").first).to_contain_text("1 span of first")
    assert spans(server.store, "first") == [("cat", "negative")]
    assert spans(server.store, "Zoë 2") == [("mat", "positive")]


def test_a_response_of_another_run_brings_the_list_of_that_run(browser: Any, tmp_path: Path) -> None:
    texts = {"alpha": ("one", "two", "three"), "beta": ("four", "five", "six", "seven")}
    prompts = {"alpha": ("q1", "q2", "q3"), "beta": ("x1", "x2", "q1", "x3")}
    for name, words in texts.items():
        records = zip(prompts[name], words, strict=True)
        lines = [json.dumps({"prompt": prompt, "response": word}) for prompt, word in records]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    files = [tmp_path / "alpha.jsonl", tmp_path / "beta.jsonl"]
    with served(tmp_path / "store", *files) as server, page_of(browser, server, "ann") as page:

        def shows_beta(chosen: str, response: str) -> None:
            expect(page.locator("#response")).to_have_text(response)
            expect(page.locator(".item .preview")).to_have_text(list(texts["beta"]))
            expect(page.locator(".item[aria-selected=true]")).to_have_attribute("data-index", chosen)
            assert page.locator("#run option:checked").inner_text() == "beta"

        page.keyboard.press("o")
        page.locator(".same", has_text="six").click()
        shows_beta("2", "six")
        page.locator(".item").nth(1).click()
        shows_beta("1", "five")
        page.select_option("#run", "0")
        expect(page.locator(".item .preview")).to_have_text(list(texts["alpha"]))
        page.keyboard.press("o")  # the response on the page is still beta's
        expect(page.locator(".same")).to_have_text("reward –five")
        with files[0].open("a") as more:
            more.write('\n{"prompt": "q4", "response": "eight"}')
        expect(page.locator(".item .preview")).to_have_text([*texts["alpha"], "eight"])
        assert page.locator(".item[aria-selected=true]").count() == 0  # none of alpha's is open
        page.reload()  # the address names beta
        shows_beta("1", "five")
        page.evaluate("location.hash = '#/alpha/-.1'")
        expect(page.locator("#response")).to_have_text("two")
        expect(page.locator(".item .preview")).to_have_text([*texts["alpha"], "eight"])
        page.evaluate("location.hash = '#/beta/-.3'")
        shows_beta("3", "seven")
        page.keyboard.press("k")
        shows_beta("2", "six")
        mark(page, "six", "n")
        saved(page)
        page.get_by_role("button", name="My marks").click()
        page.locator(".item").first.click()
        page.locator("#response .negative").wait_for()
        page.keyboard.press("o")
        page.locator(".same", has_text="one").click()
        expect(page.locator(".item .preview")).to_have_text([*texts["alpha"], "eight"])
        expect(page.locator("#response")).to_have_text("one")


def test_a_note_stays_when_its_mark_is_turned_or_moved_at_once(browser: Any, server: Served) -> None:
    with page_of(browser, server, "notes") as page:
        mark(page, "cat", "n")
        note = page.locator("[data-field^=note]")
        note.click()
        page.keyboard.type("a dog")
        page.get_by_role("button", name="→ positive").click()  # the click ends the typing
        expect(page.locator(".marks .spans").first.locator("li")).to_have_class("is-positive")
        expect(note).to_have_value("a dog")
        drag(page, segment(page, "cat"), segment(page, "sat"))
        note.click()
        page.keyboard.press("End")
        page.keyboard.type(", I think")
        page.keyboard.press("Enter")
        page.keyboard.press("m")
        expect(page.locator("#response .positive")).to_have_text(["cat", " ", "sat"])
        expect(note).to_have_value("a dog, I think")
        expect(page.get_by_role("button", name="Move mark here")).to_have_count(0)  # it is there
        saved(page)
    [marked] = MarkStore(server.store).marked("notes").values()
    assert [(span["label"], span["note"]) for span in marked.spans.values()] == [("positive", "a dog, I think")]


def test_keys_wait_for_a_response_to_the_same_prompt_that_is_on_its_way(browser: Any, tmp_path: Path) -> None:
    file = write_responses(tmp_path / "own.jsonl", 4)
    with served(tmp_path / "store", file) as server, page_of(browser, server, "ann") as page:
        page.keyboard.press("o")
        with held(page, "**/api/marks/*") as requests:
            page.locator(".same", has_text="Text 3.").click()
            wait_for(page, requests, 1)
            page.keyboard.press("d")
        expect(page.locator("#response")).to_have_text("Text 4.")
        saved(page)
    done = [marks.opened["response"] for marks in MarkStore(tmp_path / "store").marked("ann").values() if marks.state]
    assert done == ["Text 3."]


def test_what_is_opened_while_lessons_are_left_stays_open(browser: Any, server: Served) -> None:
    with page_of(browser, server, "leaver") as page:
        page.keyboard.press("t")
        expect(page.locator("#detail h2").first).to_have_text("Teach")
        with held(page, LIST) as requests:
            page.click("[data-view=read]")
            wait_for(page, requests, 1)
            page.locator(".item").nth(1).click()
            expect(page.locator(".where")).to_contain_text("step 1 · response 3")
        heard(page)
        expect(page.locator(".where")).to_contain_text("step 1 · response 3")
        expect(page.locator(".item[aria-selected=true]")).to_have_attribute("data-index", "1")


def test_the_end_of_a_lesson_leaves_the_question_that_is_typed_and_the_choice_of_versions(
    browser: Any, server: Served
) -> None:
    with page_of(browser, server, "asks") as page, lesson_of(page, 1, 2) as work:
        page.click("[data-view=teach]")
        page.wait_for_selector(".work progress")
        page.get_by_label("Begin from").select_option("1")
        page.get_by_label("First version").select_option("1")
        page.get_by_label("Second version").select_option("0")
        page.fill("#ask-prompt", "Who ")
        work["state"] = "done"
        expect(page.locator(".work progress")).to_have_count(0)
        page.keyboard.type("jumped?")  # no key is a command
        assert page.input_value("#ask-prompt") == "Who jumped?"
        chosen = ("Begin from", "First version", "Second version")
        assert [page.get_by_label(name).input_value() for name in chosen] == ["1", "1", "0"]
        page.get_by_label("Seed").fill("3")
        work["number"] = 2  # of another tab
        page.locator("#ask-start").focus()
        heard(page)
        expect(page.locator("#ask-start")).to_be_focused()
        assert [page.get_by_label(name).input_value() for name in (*chosen, "Seed")] == ["1", "1", "0", "3"]


def test_the_changes_of_the_version_that_was_asked_for_last_are_shown(browser: Any, server: Served) -> None:
    with page_of(browser, server, "versions") as page, lesson_of(page, 1, 2) as work:
        work["state"] = "done"
        page.click("[data-view=teach]")
        with held(page, "**/api/versions/*") as requests:
            for number in (1, 2):
                page.get_by_role("button", name=f"version {number}").click()
                wait_for(page, requests, number)
            requests.pop(1).fulfill(json={"version": 2, "changes": []})
            expect(page.locator(".changes h4")).to_contain_text("version 2")
            requests.pop(0).fulfill(json={"version": 1, "changes": []})
            heard(page)
        expect(page.locator(".changes h4")).to_contain_text("version 2")


def test_the_keyboard_stays_where_it_was_after_an_action(browser: Any, server: Served) -> None:
    with page_of(browser, server, "focus") as page:

        def press(name: str, key: str = "Enter") -> None:
            page.get_by_role("button", name=name).first.focus()
            page.keyboard.press(key)

        def focused(name: str) -> None:
            expect(page.get_by_role("button", name=name).first).to_be_focused()

        press("Next")
        expect(page.locator(".where")).to_contain_text("response 3")
        focused("Next")
        mark(page, "cat", "n")
        page.keyboard.press("e")
        page.keyboard.type("a dog")
        page.keyboard.press("Tab")
        focused("→ positive")
        page.keyboard.press("Enter")
        focused("→ negative")
        press("Undo", " ")
        expect(page.get_by_role("button", name="→ positive")).to_be_visible()
        focused("Undo")
        press("remove the mark on cat")
        expect(page.locator(".marks")).to_contain_text("None yet.")
        expect(page.locator("#response")).to_be_focused()
        press("Undo")
        segment(page, "cat").click()
        press("Remove mark")
        expect(page.locator("#response")).to_be_focused()
        press("Reject mat")
        expect(page.locator("#response")).to_be_focused()
        press("Done, next")
        expect(page.locator(".where")).to_contain_text("response 2")
        expect(page.locator("#response")).to_be_focused()  # Enter once more finishes no response that nobody read
        saved(page)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_next_response_is_read_from_its_beginning(browser: Any, tmp_path: Path, width: int) -> None:
    texts = [f"Text {n}. " + "It goes on and on. " * 300 for n in range(2)]
    (tmp_path / "own.jsonl").write_text(
        "".join(json.dumps({"prompt": "Say.", "response": text}) + "\n" for text in texts)
    )
    with (
        served(tmp_path / "store", tmp_path / "own.jsonl") as server,
        page_of(browser, server, "ann", viewport={"width": width, "height": 780}) as page,
    ):
        page.locator("#response .s").last.scroll_into_view_if_needed()
        page.keyboard.press("j")
        expect(page.locator("#response")).to_contain_text("Text 1.")
        expect(page.locator(".where")).to_be_in_viewport()


def test_a_server_that_is_started_with_other_runs_keeps_the_run_that_is_read(browser: Any, tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": "Say.", "response": f"Text of {name}."}))
    files = [tmp_path / "alpha.jsonl", tmp_path / "beta.jsonl"]
    with served(tmp_path / "store", *files) as server, page_of(browser, server, "ann") as page:
        server.kill()
        expect(page.locator("#saved")).to_contain_text("No connection")
        server.paths = (files[1], files[0])
        server.start()
        expect(page.locator("#run option")).to_have_text(["beta", "alpha"])
        assert page.locator("#run option:checked").inner_text() == "alpha"
        expect(page.locator(".item .preview")).to_have_text(["Text of alpha."])
        expect(page.get_by_role("link", name="Share")).to_have_attribute("href", re.compile("run=1"))  # opened again
        page.keyboard.press("o")
        expect(page.locator(".beside h3")).to_have_text(["beta: 1 response", "alpha: 1 response"])
        server.kill()
        expect(page.locator("#saved")).to_contain_text("No connection")
        server.paths = (files[1],)
        server.start()
        expect(page.locator("#run option")).to_have_text(["beta"])
        expect(page.locator(".item .preview")).to_have_text(["Text of beta."])
        expect(page.locator("#troubles")).to_have_text(
            "The server was started anew without alpha; the list is that of beta."
        )


def test_a_run_that_is_made_anew_gives_no_other_response_for_the_open_one(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1)
    with served(tmp_path / "store", run) as server, refused_page_of(browser, server, "ann") as page:
        expect(page.locator(".where")).to_contain_text("response 4")
        (run / "rollouts" / "00000.jsonl").unlink()
        append(run, [record(0, row, prompt=f"Other {row}.", response=f"Other text {row}.") for row in range(5)])
        expect(page.locator("#count")).to_have_text("5 responses")
        assert page.locator(".item[aria-selected=true]").count() == 0
        expect(page.locator("#response")).to_have_text("The cat sat on the mat.")
        page.keyboard.press("o")
        expect(page.locator(".beside")).to_contain_text("made anew")
        share = page.get_by_role("link", name="Share").get_attribute("href")
        answer = page.request.get(f"http://127.0.0.1:{server.port}{share}")
        assert "Other text" not in answer.text()
        assert answer.status == 400


def test_an_act_that_was_saved_before_the_answer_was_lost_is_saved_once(browser: Any, server: Served) -> None:
    with refused_page_of(browser, server, "twice") as page:
        mark(page, "cat", "n")
        mark(page, "mat", "p")
        saved(page)

        def cut(route: Any) -> None:
            route.fetch()  # the server has it, and the page never hears of it
            route.abort("connectionreset")

        page.route("**/api/marks", cut)
        page.keyboard.press("u")
        expect(page.locator("#saved")).to_contain_text("Not saved")
        page.unroute_all(behavior="wait")  # the page tries again, and an answer is perhaps being lost
        saved(page)
        page.reload()
        expect(page.locator("#response .negative")).to_have_text("cat")
        page.keyboard.press("u")
        expect(page.locator("#response .negative")).to_have_count(0)
        page.keyboard.press("r")
        expect(page.locator("#response .negative")).to_have_text("cat")
        page.keyboard.press("r")
        expect(page.locator("#response .positive")).to_have_text("mat")
        saved(page)


def test_a_typing_error_that_is_mended_faster_than_the_server_is_mended(browser: Any, server: Served) -> None:
    with page_of(browser, server, "errors") as page:
        page.keyboard.press("n")
        hints = page.locator("#response .hint").all_text_contents()
        page.keyboard.press("Escape")
        page.evaluate(SLOW_RECORDS)
        for key in ["d", "n", *hints[1], "Enter", "e", *"a cod", "Backspace", "Backspace", "Shift", *"at", "Enter"]:
            page.keyboard.press(key)
        expect(page.locator("[data-field^=note]")).to_have_value("a cat")
        saved(page)
    assert MarkStore(server.store).events("errors")[-1]["note"] == "a cat"
    assert len([event for event in MarkStore(server.store).events("errors") if event["op"] == "span"]) == 2


def test_words_that_are_typed_while_marks_of_a_left_page_come_stay(browser: Any, server: Served) -> None:
    with page_of(browser, server, "late-left") as page:
        other = beside_unsent_marks(page)
        with held(other, "**/api/marks/*") as requests:
            page.close()
            wait_for(other, requests, 1)
            answer = requests[0].fetch()  # without the marks that follow
            other.keyboard.press("c")
            other.keyboard.type("Short")
            mark(other, "mat", "p")
            other.keyboard.press("c")
            other.keyboard.press("End")
            other.keyboard.type(" and wrong.")
            requests.pop(0).fulfill(response=answer)
        other.keyboard.type(" Yes.")
        expect(other.locator("#response .negative")).to_have_text("sat")
        expect(other.locator("#response .positive")).to_have_text("mat")
        expect(other.locator("[data-field=critique]")).to_have_value("Short and wrong. Yes.")
        saved(other)


def test_the_same_prompt_of_a_response_that_was_left_is_not_shown_beside_the_next(browser: Any, server: Served) -> None:
    with page_of(browser, server, "beside") as page:
        with held(page, "**/prompt/*") as requests:
            page.keyboard.press("o")
            wait_for(page, requests, 1)
            page.keyboard.press("j")
            expect(page.locator(".where")).to_contain_text("response 3")
        heard(page)
        assert page.locator(".beside .same").count() == 0


def test_a_response_that_is_on_its_way_when_new_rows_come_is_the_chosen_one(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=2)
    with served(tmp_path / "store", run) as server, page_of(browser, server, "ann") as page:
        with held(page, "**/api/marks/*") as requests:
            page.keyboard.press("j")
            wait_for(page, requests, 1)
            append(run, [record(2, row, response="A new text.") for row in range(3)])
            expect(page.locator("#count")).to_have_text("11 responses")
        expect(page.locator(".where")).to_contain_text("step 1 · response 3")
        expect(page.locator(".item[aria-selected=true]")).to_have_attribute("data-index", "4")


def test_a_mark_that_becomes_the_last_one_stays_chosen_when_its_list_is_fetched_anew(
    browser: Any, tmp_path: Path
) -> None:
    file = write_responses(tmp_path / "own.jsonl", 2)
    with served(tmp_path / "store", file) as server, page_of(browser, server, "ann") as page:
        for text in ("Text 1.", "Text 2."):
            expect(page.locator("#response")).to_have_text(text)
            mark(page, "Text", "n")
            page.keyboard.press("j")
        saved(page)
        page.click("[data-view=mine]")
        page.locator(".item", has_text="Text 1.").click()
        page.locator("#response .negative").wait_for()
        mark(page, "1", "p")
        saved(page)
        with file.open("a") as more:
            more.write('{"prompt": "q", "response": "r"}\n')
        expect(page.locator(".item .preview").first).to_have_text("Text 1.")  # marked last
        expect(page.locator(".item[aria-selected=true]")).to_contain_text("Text 1.")


def test_rows_of_a_run_cannot_be_chosen_any_more_when_my_marks_are_asked_for(browser: Any, server: Served) -> None:
    with page_of(browser, server, "markless") as page:
        with held(page, "**/api/agreement") as requests:
            page.click("[data-view=mine]")
            wait_for(page, requests, 1)
            expect(page.locator(".item")).to_have_count(0)  # no marks yet, and no rows of the run
        expect(page.locator(".summary")).to_be_visible()


def test_the_button_that_stops_a_lesson_is_not_replaced_while_it_is_pressed(browser: Any, server: Served) -> None:
    with page_of(browser, server, "stops") as page, lesson_of(page) as work:
        page.click("[data-view=teach]")
        page.wait_for_selector(".work progress")
        page.evaluate("stop = document.querySelector('.work button')")
        work |= {"progress": "round 2", "share": 0.5}
        expect(page.locator(".work")).to_contain_text("round 2")
        assert page.evaluate("stop.isConnected")
        assert page.evaluate("document.querySelector('.work progress').value") == 0.5


def test_a_damaged_address_costs_only_the_response_that_it_names(browser: Any, server: Served) -> None:
    with page_of(browser, server, "damaged") as page:
        page.goto(f"{server.address}&rater=damaged#/100%/0.1")
        page.reload()
        page.wait_for_selector(".item .preview")


def test_a_button_beside_a_field_that_is_filled_in_needs_one_click(browser: Any, server: Served) -> None:
    with page_of(browser, server, "click") as page:
        mark(page, "cat", "n")
        page.locator("[data-field^=note]").click()
        page.keyboard.type("a dog")
        box = page.get_by_role("button", name="Done, next").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.evaluate("new Promise(done => setTimeout(() => setTimeout(done)))")  # behind the tasks of the page
        page.mouse.up()
        expect(page.locator(".where")).to_contain_text("response 3")
        saved(page)
        page.locator("[data-field=critique]").click()
        page.keyboard.type("Short.")
        box = page.locator(".marks h2").first.bounding_box()
        page.mouse.move(box["x"] + 5, box["y"] + 5)
        page.mouse.down()
        page.mouse.up()
        saved(page)
        page.keyboard.press("u")
        expect(page.locator("[data-field=critique]")).to_have_value("")
        mark(page, "sat", "n")
        page.get_by_role("button", name="→ positive").click()
        expect(page.locator(".marks .spans").first.locator("li")).to_have_class("is-positive")  # drawn on release
        saved(page)
    first, second = sorted(MarkStore(server.store).marked("click").values(), key=lambda marks: marks.at)
    assert ([span["note"] for span in first.spans.values()], first.state) == (["a dog"], "done")
    assert second.critique == ""


def test_the_same_prompt_of_a_text_of_ones_own_says_why_nothing_is_shown(browser: Any, server: Served) -> None:
    with page_of(browser, server, "own-prompt") as page:
        page.click("#own")
        page.fill("#own-response", "My own text.")
        page.click("text=Mark it")
        expect(page.locator("#response")).to_have_text("My own text.")
        page.get_by_role("button", name="Same prompt").click()
        expect(page.locator(".beside [role=alert]")).to_have_text(
            "This text is no response of an open run, so there are no other responses to its prompt to show."
        )


def test_a_question_to_the_critic_that_is_lost_is_told(browser: Any, server: Served) -> None:
    with page_of(browser, server, "lost-question") as page:

        def with_critic(route: Any) -> None:
            overview = route.fetch().json()
            overview["runs"][0]["has_critic"] = True
            route.fulfill(json=overview)

        page.route("**/api/studio", with_critic)
        page.route("**/api/suggest", lambda route: route.fulfill(json={"state": "working", "progress": "it reads"}))
        with held(page, "**/suggestions/*") as requests:
            page.reload()
            page.wait_for_selector("#response .s")
            wait_for(page, requests, 1)
            requests.pop().fulfill(json={"state": "none"})  # it was not asked before
            page.keyboard.press("i")
            expect(page.locator(".marks progress")).to_be_visible()
            wait_for(page, requests, 1)
            requests.pop().fulfill(json={"state": "none"})
            expect(page.locator(".marks [role=alert]")).to_have_text(
                "There is no answer: the question was stopped in another tab, or the server was started anew. "
                "Ask again."
            )
        expect(page.get_by_role("button", name="Ask the critic again")).to_be_enabled()


def test_a_lesson_that_ended_with_its_server_is_told_though_other_work_has_begun(browser: Any, server: Served) -> None:
    with page_of(browser, server, "restarted") as page, lesson_of(page, 1) as work:
        page.click("[data-view=teach]")
        page.wait_for_selector(".work progress")
        page.click("[data-view=read]")
        work |= {"number": 2, "progress": "round 3"}  # of the next server
        heard(page)
        page.click("[data-view=teach]")
        lost = "The server was started anew; the work that was under way ended with the server before."
        expect(page.locator(".work .problem")).to_have_text(
            f"{lost} Other work has begun since, perhaps from another tab."
        )
        expect(page.locator(".work")).to_contain_text("round 3")
        work |= {"state": "done", "result": {"version": 1}}
        expect(page.locator(".work")).to_contain_text("The lesson has ended: version 1.")


def test_why_a_lesson_did_not_begin_stays_until_the_next(browser: Any, server: Served) -> None:
    with refused_page_of(browser, server, "refused") as page, lesson_of(page, 1) as work:
        mark(page, "cat", "n")
        saved(page)
        work["state"] = "done"
        page.click("[data-view=teach]")
        page.route("**/api/teach", lambda route: route.fulfill(status=400, json={"error": "another has begun"}))
        page.click("#teach-start")
        expect(page.locator(".work .problem")).to_have_text("another has begun")
        heard(page)
        expect(page.locator(".work .problem")).to_have_text("another has begun")
        page.unroute("**/api/teach")


def test_a_damaged_version_is_told_beside_the_others(browser: Any, server: Served) -> None:
    path = server.store / "versions" / "0001" / "version.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"version": 1, "par')
    try:
        with page_of(browser, server, "damage") as page, lesson_of(page, 2) as work:
            work["state"] = "done"
            page.click("[data-view=teach]")
            expect(page.locator(".versions .problem")).to_contain_text(f"version 1 cannot be used, since {path}")
            assert page.get_by_label("Begin from").input_value() == "2"
    finally:
        path.unlink()


def test_contradictions_and_the_lessons_that_they_are_about_are_told_before_training(
    browser: Any, server: Served
) -> None:
    version = server.store / "versions" / "0001"
    version.mkdir(parents=True, exist_ok=True)
    praise = {"start": 0, "end": 3, "label": "positive", "rater": "bob"}
    critique = {"feedback": '<i>Cats</i> are fine.\n"cat": yes', "spans": [praise]}
    (version / "marks.jsonl").write_text(json.dumps({"prompt": "p", "response": "cat", "critique": critique}))
    (version / "version.json").write_text('{"parent": 0, "responses": 1, "made": "2026-03-12T10:00:00+00:00"}')
    begin = {"name": "begin", "date": "2026-03-11", "words": ["Begin."], "raters": [], "effect": [0.9, 0.125]}

    def with_policy(route: Any) -> None:
        overview = route.fetch().json()
        overview["teaching"] |= {"policy": "policy", "lessons": [begin]}
        route.fulfill(json=overview)

    try:
        with page_of(browser, server, "contradicting") as page:
            page.route("**/api/studio", with_policy)
            page.click("[data-view=teach]")
            expect(page.locator(".lessons q")).to_have_text(["<i>Cats</i> are fine.", "Begin."])
            expect(page.locator(".lessons .how").first).to_contain_text("bob · 2026-03-12 · from the run's policy")
            expect(page.locator(".lessons .how").last).to_have_text("– · 2026-03-11 · answers with a mark: 0.9 → 0.125")
            assert page.locator(".against p").count() == 0
            page.click("[data-view=read]")
            mark(page, "cat", "n")
            saved(page)
            page.click("[data-view=teach]")
            where = "version 1, the lesson of 2026-03-12 by bob: 1×, 0× on the same prompt"
            expect(page.locator(".against p")).to_have_text([f'"cat" is negative here, positive in {where}'])
            page.get_by_label("Begin from").select_option("0")
            expect(page.locator(".against p")).to_have_count(0)
            page.unroute_all(behavior="ignoreErrors")
    finally:
        for file in version.iterdir():
            file.unlink()


def test_keys_that_a_version_lacks_are_dashes(browser: Any, server: Served) -> None:
    known: list[dict[str, Any]] = [{}, {"kind": "retraining", "spans": 2}, {"parent": 0, "steps": 1, "kl": 0.25}]
    known[1] |= {"agreement": {"before": {"marks": 0.5}}}
    folders = [server.store / "versions" / f"000{number}" for number in (1, 2, 3)]
    for folder, about in zip(folders, known, strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "version.json").write_text(json.dumps(about))

    def with_policy(route: Any) -> None:
        overview = route.fetch().json()
        overview["teaching"]["policy"] = "policy"
        route.fulfill(json=overview)

    try:
        with page_of(browser, server, "lacking") as page:
            page.route("**/api/studio", with_policy)
            mark(page, "cat", "n")
            saved(page)
            [item] = MarkStore(server.store).marked("lacking")
            (folders[1] / "version.json").write_text(json.dumps(known[1] | {"changes": [{"item": item}]}))
            page.click("[data-view=teach]")
            none = "negative –, positive –, others –, KL"
            expect(page.locator(".lessons .how")).to_have_text(
                [
                    f"– · – · from the run's policy · – · 1 step: {none} 0.25",
                    f"– · – · from – · 2 spans · reward model: {none} –",
                    f"– · – · from – · – · –: {none} –",
                ]
            )
            lines: list[str] = []
            for number in (1, 3, 2):
                page.get_by_role("button", name=f"version {number}").click()
                expect(page.locator(".changes h4").last).to_contain_text(f"token, version {number}")
                lines += page.locator(".changes li").all_inner_texts()
            words = "F1 of its labelled tokens against its critiques of your responses, corrected by your marks"
            assert lines == [f"{words}: 0.5 → –"]
            assert "undefined" not in page.locator("#detail").inner_text()
            page.unroute_all(behavior="ignoreErrors")
    finally:
        for folder in folders:
            (folder / "version.json").unlink()


def test_a_damaged_line_of_marks_is_named_in_my_marks(browser: Any, server: Served) -> None:
    with page_of(browser, server, "hand") as page:
        mark(page, "cat", "n")
        saved(page)
        [file] = (server.store / "marks" / "hand").iterdir()
        with file.open("a") as more:
            more.write('{"open": 1}\n')
        page.click("[data-view=mine]")
        expect(page.locator("#troubles")).to_have_text(
            "A line of your marks cannot be read, and is left out. "
            f'{file}, line 3: it has no "op". Mend the line, or remove it.'
        )
        expect(page.locator(".item")).to_have_count(1)


def test_the_keyboard_goes_from_the_list_to_the_text_and_to_the_lessons(browser: Any, server: Served) -> None:
    with page_of(browser, server, "walker") as page:
        page.locator("#list").focus()
        page.keyboard.press("ArrowDown")
        expect(page.locator(".where")).to_contain_text("response 3")
        page.keyboard.press("Enter")
        expect(page.locator("#response")).to_be_focused()
        outline = "getComputedStyle(document.activeElement).outlineColor"
        assert page.evaluate(outline) == "rgb(0, 117, 95)"  # as that of other controls
        page.keyboard.press("ArrowRight")
        assert chosen(page) == "The"
        page.keyboard.press("ArrowRight")
        tip, negative = page.locator("#tip").bounding_box(), page.get_by_role("button", name="Negative").bounding_box()
        assert tip["y"] + tip["height"] <= negative["y"]
        page.keyboard.press("n")
        page.keyboard.press("o")
        expect(page.locator(".beside")).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.locator(".beside .same").first).to_be_focused()
        saved(page)
        page.keyboard.press("t")
        expect(page.locator("#detail h2").first).to_have_text("Teach")
        expect(page.locator("#detail")).to_be_focused()
        page.click("[data-view=read]")
        page.set_viewport_size({"width": 390, "height": 780})  # a large zoom
        page.get_by_role("button", name="All responses").press("Enter")
        expect(page.locator("#list")).to_be_focused()
        page.keyboard.press("ArrowDown")
        expect(page.locator("#response")).to_be_focused()


@pytest.mark.parametrize("width", [390, 1024])
def test_everything_that_is_tapped_is_large_enough_for_a_finger(browser: Any, server: Served, width: int) -> None:
    small = """() => [...document.querySelectorAll("button, a:not(.skip), select, input:not([type=radio]), summary")]
        .filter(control => control.checkVisibility())
        .map(control => [control.outerHTML.slice(0, 80), control.getBoundingClientRect()])
        .filter(([, { width, height }]) => Math.min(width, height) < 24 || Math.max(width, height) < 35)
        .map(([name, { width, height }]) => `${name} ${width} x ${height}`)"""
    touch = {"viewport": {"width": width, "height": 780}, "has_touch": True, "is_mobile": True}
    with page_of(browser, server, f"finger-{width}", **touch) as page:
        segment(page, "cat").tap()
        page.get_by_role("button", name="Negative", exact=True).tap()
        expect(page.locator("[data-field^=note]")).to_be_visible()
        assert page.evaluate(small) == []
        saved(page)
        page.locator("[data-view=mine]").tap()
        page.locator("[data-view=read]").tap()
        page.locator("#more summary").tap()
        assert page.evaluate(small) == []


def test_hostile_texts_are_inert_and_visible(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1, rows=1)
    evil = record(1, 0, prompt=EVIL, response=EVIL, offsets=[[0, len(EVIL)]])
    for name in ("delta", "reward", "kl", "value", "advantage"):
        evil[name] = [1.0]
    evil["critique"] = {"feedback": EVIL, "spans": [], "status": "ok", "unmatched": [EVIL]}
    append(run, [evil])
    with served(tmp_path / "store", run) as server, page_of(browser, server, "ann") as page:
        read(page)  # an image would have been asked for before
        assert page.title() == "text2grad studio"
        assert page.locator("#detail img, #detail script, #list img").count() == 0
        shown = page.locator("#response").text_content()
        assert "⟨U+202E⟩abc ␛[31m ⟨U+2066⟩x" in shown
        assert "<script>document.title='owned'</script>" in shown
        segment(page, "abc").click()
        assert chosen(page) == "abc"
        page.keyboard.press("n")
        saved(page)
    assert spans(tmp_path / "store", "ann") == [
        ("abc", "negative")
    ]  # places count characters of the text, not signs shown


CALL = {"name": "look", "arguments": {"city": "<b>Lyon</b>"}}
TALK = Conversation(
    [
        Turn("user", "When is the fair?"),
        Turn("assistant", "Well. Hm, <i>look</i>. So I call.", True, "Hm, <i>look</i>.", (CALL,)),
        Turn("tool", EVIL, name="look"),
        Turn("assistant", "It is on Monday.", True),
    ]
)
MONDAY = {"start": 9, "end": 15, "label": "negative", "turn": 3}


def spoken(talk: Conversation, *spans: dict[str, Any]) -> dict[str, Any]:
    """A record of a conversation, a token per word; in each turn the last word has δ = −1."""
    offsets, delta = list[tuple[int, int]](), list[float]()
    for turn, start in talk.starts().items():
        words = [word.span() for word in re.finditer(r"\s*\S+", talk.turns[turn].text)]
        offsets += [(start + first, start + last) for first, last in words]
        delta += [0.0] * (len(words) - 1) + [-1.0]
    critique = {"feedback": "No.", "spans": list(spans), "status": "ok", "unmatched": []}
    numbers = {"offsets": offsets, "delta": delta, "critique": critique}
    return {"step": 0, "prompt": "When?", "response": str(talk), "turns": turns_to_json(talk), **numbers}


@contextmanager
def page_of_talk(browser: Any, tmp_path: Path, record: dict[str, Any], **options: Any) -> Iterator[Any]:
    (tmp_path / "run" / "rollouts").mkdir(parents=True)
    append(tmp_path / "run", [record])
    with served(tmp_path / "store", tmp_path / "run") as server, page_of(browser, server, "ann", **options) as page:
        yield page


def test_a_conversation_is_read_and_marked_turn_by_turn(browser: Any, tmp_path: Path) -> None:
    with page_of_talk(browser, tmp_path, spoken(TALK, MONDAY)) as page:
        read(page)  # an image would have been asked for before
        assert page.title() == "text2grad studio"
        assert page.locator("#detail img, #detail script, #detail i, #detail b").count() == 0
        named = page.locator("#response > .turn > summary").all_text_contents()
        assert named == ["turn 1 · assistant", "turn 2 · tool · look", "turn 3 · assistant"]
        assert visible(EVIL) in page.locator("#response .given").text_content()
        assert page.locator("#response .given .s, #response .given .t").count() == 0
        assert page.locator("#response code").text_content() == 'look({"city":"<b>Lyon</b>"})'
        assert "".join(page.locator("#response .n4").all_text_contents()) == " call. Monday."
        grey, soft = (
            page.locator(where).first.evaluate("element => getComputedStyle(element).color")
            for where in (".given", ".how")
        )
        assert grey == soft
        assert page.locator("#response details details").get_attribute("open") is None
        expect(page.locator(".suggestions strong")).to_have_text("− negative · turn 3")
        assert page.locator(".suggestions q").text_content() == "Monday"
        page.keyboard.press("a")
        expect(page.locator(".spans strong").first).to_have_text("− negative · turn 3")
        drag(page, segment(page, "call"), segment(page, "is", -1))
        assert chosen(page) == "call."  # no selection goes on in another turn
        page.keyboard.press("p")
        saved(page)
        assert page.locator("#response details details").get_attribute("open") is None
    (marks,) = MarkStore(tmp_path / "store").marked("ann").values()
    at = len("Well. Hm, <i>look</i>. So I ")
    assert marks.critique_of("ann").spans == (Span(at, at + 5, "positive", 1), Span(9, 15, "negative", 3))


def test_keys_walk_over_turns_and_open_what_is_folded(browser: Any, tmp_path: Path) -> None:
    with page_of_talk(browser, tmp_path, spoken(TALK)) as page:
        for keys, word in ((".", "Well"), (".", "It"), (",", "Well"), (",", "Well")):
            page.keyboard.press(keys)
            assert chosen(page) == word
        page.locator("#response > .turn > summary").first.click()
        expect(page.locator("#response > .turn").first).not_to_have_attribute("open", "")
        page.locator("#response").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert chosen(page) == "Hm"
        expect(page.locator("#response .turn").first).to_have_attribute("open", "")
        expect(page.locator("#response details details")).to_have_attribute("open", "")
        page.keyboard.press("n")  # what was opened stays open when marks are drawn
        saved(page)
        expect(page.locator("#response details details")).to_have_attribute("open", "")
        page.locator("#more summary").click()
        page.fill("[name=turn]", "1")
        expect(page.locator("#count")).to_have_text("0 responses")


@pytest.mark.parametrize(("pairs", "opened", "walked"), [(2, [1, 2, 3], 3), (7, [1, 3, 14], 5)])
def test_long_conversations_and_long_results_are_folded(
    browser: Any, tmp_path: Path, pairs: int, opened: list[int], walked: int
) -> None:
    turns = [Turn("user", "When?")]
    for pair in range(pairs):
        long = "Friday. " * (100 if pair else 1)
        turns += [Turn("assistant", f"I look {pair}.", True), Turn("tool", long, name="look")]
    last = {**MONDAY, "turn": 3, "start": 2, "end": 6}
    with page_of_talk(browser, tmp_path, spoken(Conversation(turns), last)) as page:
        states = page.locator("#response > .turn").evaluate_all("frames => frames.map(frame => frame.open)")
        assert [number for number, is_open in enumerate(states, 1) if is_open] == opened
        for _ in range(3):
            page.keyboard.press(".")
        expect(page.locator("#response > .turn").nth(walked - 1)).to_have_attribute("open", "")


HIDDEN = "\ufeffNo\u200bw co\u00adop 5\u00a0% \u0645\u06cc\u200c\u062e a\u200cb \u2060x."
HIDDEN_SHOWN = "⟨U+FEFF⟩No⟨U+200B⟩w co⟨U+00AD⟩op 5\u00a0% \u0645\u06cc\u200c\u062e a⟨U+200C⟩b ⟨U+2060⟩x."


def test_characters_without_width_are_shown_and_can_be_marked(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1, rows=1)
    cuts = [*range(len(HIDDEN)), len(HIDDEN)]  # each character is a token, joiners too
    append(run, [record(1, 0, response=HIDDEN, offsets=list(pairwise(cuts)), **{"delta": [0.0] * len(HIDDEN)})])
    with served(tmp_path / "store", run) as server, page_of(browser, server, "ann") as page:
        expect(page.locator("#response")).to_have_text(HIDDEN_SHOWN)
        for text in ("\ufeff", "x"):
            page.locator(f"#response [data-s='{HIDDEN.index(text)}']").click()
            page.keyboard.press("n")
            saved(page)
    assert [text.strip("\u2060") for text, _ in spans(tmp_path / "store", "ann")] == ["\ufeff", "x"]


def test_the_page_shows_the_characters_that_reports_show(browser: Any, server: Served) -> None:
    around = ("a{}b", "\u0915{}\u0937", "{}\u0645", "\U0001f469{}\U0001f4bb", "\u2764\ufe0f{}x")
    codes = [
        *range(0x3200),
        *range(0xA000, 0xAC00),
        *range(0xD800, 0xE000),
        *range(0xF900, 0x11000),
        *range(0xE0000, 0xE01F0),
    ]
    flags = ["\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "\U0001f3f4\U000e0067\U000e007f"]
    texts = [*(form.format(chr(code)) for form in around for code in codes), *flags]
    with page_of(browser, server, "signs") as page:
        shown = page.evaluate(
            "async texts => { const { signs, visible } = await import('/static/tokens.js');"
            " return texts.map(JSON.parse).map(text => [visible(text), signs(text)]).map(JSON.stringify); }",
            [json.dumps(text) for text in texts],
        )
    assert [json.loads(text) for text in shown] == [[visible(text), signs(text)] for text in texts]


def test_the_exported_page_opens_from_disk(browser: Any, server: Served, tmp_path: Path) -> None:
    with page_of(browser, server, "export") as page:
        segment(page, "cat").click()
        page.keyboard.press("n")
        saved(page)
        with page.expect_download() as download:
            page.get_by_role("button", name="My marks").click()
            page.get_by_role("link", name="one page").click()
        download.value.save_as(tmp_path / "marks.html")
        page.goto((tmp_path / "marks.html").as_uri())
        assert "δ" in (page.locator(".text .t", has_text="cat").get_attribute("title") or "")


def axe_finds(page: Any) -> list[tuple[str, str]]:
    """Return the findings of axe-core, of any weight, with the element."""
    from axe_playwright_python.sync_playwright import Axe

    violations = Axe().run(page).response["violations"]
    return [(violation["id"], violation["nodes"][0]["html"]) for violation in violations]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, tmp_path: Path, scheme: str) -> None:
    write_run(tmp_path / "run", steps=2)
    options = ("--model", str(tmp_path / "no-policy"), "--critic", "studio_page_critic:critic")
    with (
        served(tmp_path / "store", tmp_path / "run", options=options) as server,
        page_of(browser, server, "axe", color_scheme=scheme, bypass_csp=True) as page,
    ):
        page.keyboard.press("a")
        segment(page, "sat").click()
        assert axe_finds(page) == []
        page.keyboard.press("o")
        expect(page.locator(".beside .same").first).to_be_visible()
        page.keyboard.press("?")
        assert axe_finds(page) == []
        page.keyboard.press("Escape")
        page.click("[data-view=mine]")
        expect(page.locator(".summary")).to_be_visible()
        assert axe_finds(page) == []
        page.click("[data-view=teach]")
        page.check("#way-retraining")
        assert axe_finds(page) == []
        page.click("#own")
        assert axe_finds(page) == []
        page.set_viewport_size({"width": 390, "height": 780})
        assert axe_finds(page) == []


@pytest.mark.skipif(not STORIES.exists(), reason="models/stories260k is not in the shared folder")
def test_prompts_alone_are_answered_by_the_model_and_once(browser: Any, tmp_path: Path) -> None:
    prompts, options = tmp_path / "prompts.jsonl", ("--model", str(STORIES))
    prompts.write_text("".join(json.dumps({"prompt": f"Once upon a time {n}"}) + "\n" for n in range(3)))
    seen = []
    for _ in range(2):
        with (
            served(tmp_path / "store", prompts, options=options) as server,
            page_of(browser, server, "ann") as page,
        ):
            expect(page.locator(".item")).to_have_count(3)
            seen.append(page.locator("#response").inner_text())
    assert seen[0] == seen[1] != ""
    [answers] = (tmp_path / "store" / "converted").glob("*/answers.jsonl")
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [row["prompt"] for row in rows] == [f"Once upon a time {n}" for n in range(3)]
    assert all(row["response"] and row["ids"] for row in rows)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not QWEN.exists(), reason="models/qwen is missing: python -m evidence fetch-model qwen")
def test_an_assistant_is_taught_by_keyboard_from_an_empty_folder(browser: Any, tmp_path: Path) -> None:
    """The person marks what the comment of *begin* is about in twenty answers, and says it once beside the first."""
    lesson, prompts = ready_lesson("begin"), tmp_path / "prompts.jsonl"
    questions = [example.prompt_text for example in lesson.questions("train")[:20]]
    prompts.write_text("".join(json.dumps({"prompt": question}) + "\n" for question in questions))
    options = ("--model", str(QWEN))
    with served(tmp_path / "store", prompts, options=options) as server, page_of(browser, server, "ann") as page:
        for number, question in enumerate(questions, 1):
            expect(page.locator(".where")).to_have_text(f"prompts · response {number}")
            words = page.locator("#response .s").all_inner_texts()
            response = page.locator("#response").inner_text()
            spans = lesson.critique(Example(question), response).spans
            if spans:
                last = next(n for n in range(1, len(words) + 1) if len("".join(words[:n])) >= spans[0].end)
                page.keyboard.press("ArrowRight")
                for _ in range(last - 1):
                    page.keyboard.press("Shift+ArrowRight")
                page.keyboard.press("n")
                page.keyboard.press("c")
                expect(page.locator("[data-field=critique]")).to_be_focused()
                page.keyboard.type(lesson.comment)
                page.keyboard.press("Escape")
            page.keyboard.press("d")
        saved(page)
        page.keyboard.press("t")
        page.locator("#teach-start").press("Enter")
        page.wait_for_selector(".lessons li, .work .problem", timeout=5 * SECONDS * 1000)
        assert page.locator(".work .problem").count() == 0, page.locator(".work .problem").inner_text()
        page.locator("#ask-prompt").fill("How do I rename a branch in git?")
        page.locator("#ask-start").press("Enter")
        page.wait_for_selector(".answer, .work .problem")
    answers = json.loads((tmp_path / "store" / "versions" / "0001" / "lesson.json").read_text())
    faults = [
        sum(bool(lesson.critique(Example(own["prompt"]), own["response"]).spans) for own in answers[side])
        for side in ("before", "after")
    ]
    assert faults[1] <= faults[0] / 4


CRITIC = """
import time

from text2grad import Critique, Span


def critic(examples, responses):
    if "broken" in responses[0]:
        raise ValueError("no such word")
    if "slow" in responses[0]:
        time.sleep(600)
    return [Critique("<b>Zoos are closed.</b>", (Span(14, 17, "negative"), Span(0, 1, "positive"))) for _ in responses]
"""


def test_the_critic_is_asked_about_a_text_of_ones_own(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "studio_page_critic.py").write_text(CRITIC)
    monkeypatch.chdir(tmp_path)
    with served(tmp_path / "store", options=("--rater", "ann", "--critic", "studio_page_critic:critic")) as server:
        context = context_of(browser)
        page = context.new_page()
        page.goto(server.address)

        def own(text: str) -> None:
            page.click("#own")
            page.fill("#own-prompt", "Where?")
            page.fill("#own-response", text)
            page.click("text=Mark it")
            page.wait_for_selector("#response .s")
            page.keyboard.press("i")

        own("I went to the zoo.")
        expect(page.locator("blockquote")).to_have_text("<b>Zoos are closed.</b>")
        assert page.locator("#response .hint-negative").text_content() == "zoo"
        page.keyboard.press("a")  # the first suggestion
        page.keyboard.press("x")
        saved(page)
        own("a broken text")
        expect(page.locator(".marks .problem")).to_contain_text("no such word")
        own("a slow text")
        expect(page.locator(".marks progress")).to_be_visible()
        segment(page, "slow").click()  # the page goes on
        page.keyboard.press("n")
        saved(page)
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Ask the critic")).to_be_visible()
        context.close()
    marked = {marks.opened["response"]: marks for marks in MarkStore(tmp_path / "store").marked("ann").values()}
    assert spans(tmp_path / "store", "ann") == [("slow", "negative"), ("zoo", "negative")] or spans(
        tmp_path / "store", "ann"
    ) == [("zoo", "negative"), ("slow", "negative")]
    assert sorted(marked["I went to the zoo."].suggestions.values()) == ["accepted", "rejected"]


@pytest.mark.timeout(900)
@pytest.mark.skipif(not STORIES.exists(), reason="models/stories260k is not in the shared folder")
def test_a_correction_is_taught_and_retrained_and_the_word_becomes_less_likely(browser: Any, tmp_path: Path) -> None:
    story = "there was a little cliws. It was happy."
    run = tmp_path / "run"
    (run / "rollouts").mkdir(parents=True)
    append(run, [{"step": 0, "prompt": "Once upon a time", "response": story, "critique": {"feedback": "Well."}}])
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Once upon a time {n}"}) + "\n" for n in range(8)))
    recipe = {
        "model": {"path": str(STORIES), "value": "none", "prompt_format": "plain"},
        "data": {"train": str(prompts)},
        "rollout": {"batch_size": 2, "max_new_tokens": 8, "eos_token_ids": [1]},
        "reward_model": {"batch_size": 2, "max_new_tokens": 64},
        "run": {"threads": 1},
    }
    (run / "run.json").write_text(json.dumps({"recipe": recipe}))
    with served(tmp_path / "store", run) as server, page_of(browser, server, "ann") as page:
        segment(page, "cliws").click()
        page.keyboard.press("n")
        saved(page)
        page.keyboard.press("t")
        page.click("#teach-start")
        page.wait_for_selector(".lessons li, .work .problem", timeout=5 * SECONDS * 1000)
        assert page.locator(".work .problem").count() == 0, page.locator(".work .problem").inner_text()
        page.click("#ask-start")
        page.wait_for_selector(".answer, .work .problem")
        assert page.locator(".answer").count() == 2
        page.check("#way-retraining")
        page.get_by_label("Steps of the reward model").fill("2")
        page.get_by_label("Steps of the policy").fill("1")
        page.click("#teach-start")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".work")).to_have_text("Stopped; no version was made.")
        page.click("#teach-start")
        expect(page.locator(".lessons li")).to_have_count(2)
        page.get_by_role("button", name="version 2").click()
        expect(page.locator(".retrained li").last).to_contain_text("2 steps on your marks and 1 earlier annotation;")
        assert page.get_by_label("Begin from").input_value() == "2"  # the first one can be chosen, too
        page.click("[data-view=read]")
        expect(page.locator("#response .negative").first).to_be_visible()  # the response from which the lesson began
    second = json.loads((tmp_path / "store" / "versions" / "0002" / "version.json").read_text())
    assert (second["kind"], second["parent"], second["steps"]) == ("retraining", 1, {"reward_model": 2, "policy": 1})
    version = json.loads((tmp_path / "store" / "versions" / "0001" / "version.json").read_text())
    [change] = version["changes"]
    moved = [
        after - before
        for before, after, delta in zip(change["before"], change["after"], change["delta"], strict=True)
        if delta
    ]
    assert len(moved) >= 2  # "cliws" has several tokens
    assert moved[0] < -1.0  # where the policy can go elsewhere
