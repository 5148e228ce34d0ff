// The pane of one response: prompt, text, the critic's words, the person's marks, and where it comes from.

import { line, shown, visible } from "./tokens.js";
import { get, post } from "./api.js";
import { Marks, newId } from "./marks.js";
import { NAMES, ResponseView } from "./response.js";

const CRITIC_POLL_MS = 700;
const NO_ANSWER = "There is no answer: the question was stopped in another tab, or the server was started anew. Ask again.";
const NO_RUN = "This text is no response of an open run, so there are no other responses to its prompt to show.";
const OTHER = { positive: "negative", negative: "positive" };
const ALL = ["delta", "reward", "value", "advantage", "kl", "change"];

/**
 * A button; `key` is shown beside its name, `about` is for screen readers, behind the name. `field` is its name in
 * `replaceIn` where its text changes.
 */
export const button = (text, act, { key = "", name = "", about = "", field = "" } = {}) => {
  const element = line("button", text, name);
  element.type = "button";
  element.dataset.button = field || `${text} ${about}`;
  if (about) element.append(line("span", about, "sr"));
  if (key) {
    const sign = line("kbd", key);
    sign.setAttribute("aria-hidden", "true");
    element.append(sign);
    element.setAttribute("aria-keyshortcuts", key === "⌫" ? "Backspace" : key);
  }
  element.addEventListener("click", act);
  return element;
};

const nameOf = ({ dataset, id }) => dataset.field || dataset.button || id;

/** Replace what an element holds; the focus stays on the control of the same name, or goes to `otherwise`. */
export const replaceIn = (root, parts, otherwise = null) => {
  const { activeElement } = document;
  const isInside = root !== activeElement && root.contains(activeElement);
  const caret = isInside && activeElement.matches("input:not([type=number], [type=radio]), textarea")
    ? [activeElement.selectionStart, activeElement.selectionEnd] : null;
  root.replaceChildren(...parts);
  if (!isInside) return;
  const name = nameOf(activeElement);
  const same = name && [...root.querySelectorAll("button, input, select, textarea")].find(control => nameOf(control) === name);
  const target = same && !same.disabled ? same : otherwise;
  if (!target) return;
  target.focus({ preventScroll: true });
  if (target === same && caret) same.setSelectionRange(...caret);
};

export class Detail {
  constructor(root, tip, context) {
    this.root = root;
    this.tip = tip;
    this.context = context; // { rater(), readOnly(), outbox, keepTyped(), onMarks(record, marks), run(), … }
    for (const name of ["pointerup", "pointercancel"]) {
      document.addEventListener(name, () => setTimeout(() => this.release())); // after the click
    }
    this.leave();
    this.empty();
  }

  empty() {
    const text = line("div", "", "nothing");
    text.append(
      line("h2", "Read, mark, teach"),
      line("p", "Choose a response. Mark words as positive or negative and say why; then let the model learn from it."),
    );
    this.root.replaceChildren(text);
    this.root.setAttribute("aria-label", "Response");
  }

  /**
   * Show a response, and with it `told`, until the next act; answers false if another was asked for, or the view was
   * left, before its marks came.
   */
  async open(record, told = "") {
    const rater = this.context.rater();
    const asked = { record };
    const { outbox } = this.context;
    this.opening = asked;
    let pending = [];
    let saved = null;
    for (let added = -1; added !== outbox.added;) { // a person can go on with the response that is opened again
      ({ added } = outbox);
      await outbox.flush(); // the server's answer has every mark of this page that it takes now
      pending = outbox.pending(rater, record.item);
      saved = await get(`marks/${record.item}`, { rater });
      if (this.opening !== asked) return false;
      this.context.keepTyped();
    }
    const isAgain = this.record !== null && this.record.item === record.item;
    const typing = isAgain && this.panel.contains(document.activeElement) ? document.activeElement : null;
    this.record = record;
    this.told = told || (isAgain ? this.told : "");
    this.critic = { state: "none" };
    this.marks = new Marks(record, saved, pending, rater, outbox, () => this.changed());
    this.build();
    this.showMarks();
    const field = typing && this.fields.get(typing.dataset.field);
    if (field) {
      field.focus({ preventScroll: true });
      field.setSelectionRange(typing.selectionStart, typing.selectionEnd);
    }
    if (this.criticAt() >= 0) this.recallCritic(record);
    return true;
  }

  /** The response that was asked for last: shown, or on its way. */
  get asked() {
    return this.opening && this.opening.record;
  }

  /** Forget the response, and the one that is on its way. */
  leave() {
    this.record = null;
    this.opening = null;
  }

  /** Show what the critic said before about this response, if it was asked. */
  async recallCritic(record) {
    const asked = await get(`runs/${this.criticAt()}/suggestions/${record.item}`).catch(() => ({ state: "none" }));
    if (this.record === record && asked.state !== "none") this.hearCritic(record, asked);
  }

  /** The number of the source whose critic is asked about this response; −1 without one. */
  criticAt() {
    return this.context.criticOf(this.record);
  }

  /** Ask the run's critic about this response; the page goes on while it reads. */
  async askCritic() {
    const { record } = this;
    if (this.criticAt() < 0 || this.critic.state === "working" || this.context.readOnly()) return;
    this.hearCritic(record, { state: "working", progress: "asking" });
    const request = { run: this.criticAt(), prompt: record.prompt, response: record.response, turns: record.turns };
    this.hearCritic(record, await post("suggest", request).catch(error => ({ state: "failed", error: error.message })));
  }

  /** Show the state of the question, and look again until it is answered. */
  hearCritic(record, state) {
    if (this.record !== record) return;
    this.critic = state;
    if (state.state === "done") {
      const { spans } = state.critique;
      record.critique = state.critique;
      this.announce.textContent = `the critic suggests ${spans.length} span${spans.length === 1 ? "" : "s"}`;
      this.view.draw();
    }
    this.showMarks();
    if (state.state === "working") {
      setTimeout(async () => {
        if (this.critic !== state) return;
        const path = `runs/${this.criticAt()}/suggestions/${record.item}`;
        const now = await get(path).catch(() => state); // a lost connection: look again
        if (this.critic === state) this.hearCritic(record, now.state === "none" ? { state: "failed", error: NO_ANSWER } : now);
      }, CRITIC_POLL_MS);
    }
  }

  /** Stop the question about this response, which ends no other. */
  async stopCritic() {
    const { record } = this;
    const asked = post("stop-critic", { run: this.criticAt(), item: record.item });
    const error = await asked.then(() => null, problem => problem);
    if (this.record !== record || this.critic.state !== "working") return;
    this.hearCritic(record, error ? { ...this.critic, progress: `not stopped: ${error.message}` } : { state: "none" });
  }

  /** The button that asks the critic, its progress, and its error. */
  criticRow() {
    const parts = [];
    if (this.criticAt() < 0 || this.context.readOnly()) return parts;
    const { state, progress, error } = this.critic;
    if (state === "failed") parts.push(line("p", error, "problem as-is", { role: "alert" }));
    const row = line("div", "", "row");
    if (state === "working") {
      const bar = line("progress", "", "", { "aria-label": "The critic reads" });
      row.append(bar, line("span", progress, "how"), button("Stop", () => this.stopCritic(), { name: "quiet" }));
    } else {
      const words = this.record.critique || state === "failed" ? "Ask the critic again" : "Ask the critic";
      if (state !== "done") row.append(button(words, () => this.askCritic(), { key: "i" }));
      else row.append(line("small", "The critic was asked now.", "how"));
    }
    parts.push(row);
    return parts;
  }

  changed() {
    this.told = "";
    this.view.draw();
    this.showMarks();
    this.context.onMarks(this.record, this.marks);
  }

  build() {
    const { record } = this;
    const run = this.context.run();
    const head = line("header", "", "detail-head");
    const where = record.place
      ? `${record.source} · ${record.place[0] === null ? "" : `step ${record.place[0]} · `}response ${record.place[1] + 1}`
      : record.own ? "Your own text" : record.source || "An answer";
    head.append(button("‹ All responses", () => this.context.back(), { name: "back" }), line("p", where, "where as-is"));
    const moves = line("div", "", "moves");
    moves.append(
      button("Previous", () => this.context.move(-1), { key: "k" }),
      button("Next", () => this.context.move(1), { key: "j" }),
      button("Same prompt", () => this.samePrompt(), { key: "o" }),
    );
    if (record.id && run >= 0) {
      const href = `/api/export/response.html?run=${run}&number=${record.id}&item=${record.item}&rater=${encodeURIComponent(this.context.rater())}`;
      moves.append(line("a", "Share", "share", { href, title: "Download this response with its numbers and your marks as one page" }));
    }
    head.append(moves);

    const prompt = line("details", "", "prompt");
    prompt.open = record.prompt.length < 600;
    const summary = line("summary");
    summary.append(line("span", record.prompt || "(no prompt)"));
    prompt.append(summary);

    const card = line("article", "", "card");
    const text = line("div", "", "text mark-text", {
      id: "response", dir: "auto", tabindex: 0, role: "group",
      "aria-label": "Response. Arrow keys move between words, with Shift they select; N marks as negative, P as positive.",
    });
    this.text = text;
    this.view = new ResponseView(text, this.tip, record, this.marks, {
      onSelect: (start, end) => this.selected(start, end),
      onCommand: label => this.mark(label),
      readOnly: this.context.readOnly(),
    });
    this.tools = line("div", "", "tools");
    this.announce = line("p", "", "sr", { "aria-live": "polite" });
    card.append(this.legend(), text, this.tools, this.announce, this.facts());
    this.panel = line("section", "", "marks", { "aria-label": "Marks" });
    this.pressed = this.postponed = false;
    this.panel.addEventListener("pointerdown", () => { this.pressed = true; });
    this.beside = line("section", "", "beside", { "aria-label": "The same prompt", tabindex: -1 });
    const columns = line("div", "", "columns");
    columns.append(card, this.panel);
    replaceIn(this.root, [head, prompt, columns, this.beside], text);
    this.root.setAttribute("aria-label", "Response");
    if (this.read !== record.item) { // from its beginning
      this.root.scrollTop = 0;
      scrollTo(0, 0); // on a phone
    }
    this.read = record.item;
    this.selected(null, null);
  }

  legend() {
    const { columns } = this.view;
    const legend = line("div", "", "by", { role: "group", "aria-label": "Colour tokens by" });
    if (!columns.length) {
      const more = this.view.suggestions().length ? " The colours are those of the critic's spans that you have not judged." : "";
      legend.append(line("span", `No numbers per token were recorded for this response.${more}`));
      return legend;
    }
    legend.append(line("span", "Colour by"));
    const buttons = ["", ...columns].map(name => {
      const choice = button(name ? NAMES[name] : "nothing", () => {
        this.view.colour(name);
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === choice));
      });
      choice.setAttribute("aria-pressed", String(name === this.view.colourBy));
      return choice;
    });
    legend.append(...buttons);
    const missing = ALL.filter(name => !columns.includes(name)).map(name => NAMES[name]);
    if (missing.length) legend.append(line("small", `not recorded: ${missing.join(", ")}`));
    return legend;
  }

  facts() {
    const { record } = this;
    const facts = line("p", "", "facts");
    const add = words => facts.append(line("span", words));
    if (record.offsets) add(`${record.offsets.length} tokens`);
    for (const name of ["reward", "kl"]) {
      if (record[name]) add(`Σ ${NAMES[name]} ${shown(record[name].reduce((a, b) => a + b, 0))}`);
    }
    if (record.reward_of_response !== undefined) add(`reward ${shown(record.reward_of_response)}`);
    for (const [name, value] of Object.entries(record.rewards || {})) add(`${name} ${shown(value)}`);
    if (record.advantage_of_response !== undefined) add(`advantage ${shown(record.advantage_of_response)}`);
    if (record.environment) add(record.environment);
    if (record.truncated) add("cut by the length limit");
    return facts;
  }

  /** The selection changed: show what can be done with it. */
  selected(start, end) {
    const tools = [];
    if (this.context.readOnly()) {
      tools.push(line("span", "Started with --read-only: marks are not saved.", "how"));
    } else if (start === null) {
      tools.push(line("span", "Select words by mouse, touch or arrow keys. Click: word. Double click: sentence. Shift: characters.", "how"));
    } else {
      const quote = this.view.chars.slice(start, end).join("");
      this.announce.textContent = visible(`selected: ${quote}`);
      tools.push(
        button("Negative", () => this.mark("negative"), { key: "n", name: "negative-button" }),
        button("Positive", () => this.mark("positive"), { key: "p", name: "positive-button" }),
      );
      const at = this.at(start, end);
      if (at.length) {
        tools.push(button("Remove mark", () => this.remove(), { key: "⌫" }));
        const span = at[0];
        if (span.start !== start || span.end !== end) {
          tools.push(button("Move mark here", () => {
            this.alter(span.id, () => ({ start, end }));
            this.selected(start, end);
          }, { key: "m" }));
        }
      }
      if (this.context.explains()) tools.push(button("Why?", () => this.askWhy(), { key: "w" }));
      tools.push(line("q", quote.length > 80 ? `${quote.slice(0, 78)}…` : quote));
    }
    replaceIn(this.tools, tools, this.text);
  }

  /** Change a mark as it is now: its note may be younger than the button. */
  alter(id, change) {
    const now = this.marks.spans.get(id);
    if (now) this.marks.act({ op: "span", ...now, ...change(now) });
  }

  /** The marks that touch a range. */
  at(start, end) {
    return this.marks.list().filter(span => span.start < end && start < span.end);
  }

  mark(label) {
    const { selection } = this.view;
    if (!selection || this.context.readOnly()) return;
    const id = this.marks.add(selection.start, selection.end, label);
    this.announce.textContent = `marked as ${label}`;
    this.lastMark = id;
    this.view.select(null, null);
    this.text.focus();
  }

  /** Ask which critiques of the run made the chosen words likelier or less likely. */
  askWhy() {
    const { selection, chars } = this.view;
    if (!selection || !this.context.explains()) return;
    this.context.askWhy({ run: this.context.run(), phrase: chars.slice(selection.start, selection.end).join("") });
  }

  undo() {
    if (!this.context.readOnly()) this.marks.undo();
  }

  redo() {
    if (!this.context.readOnly()) this.marks.redo();
  }

  remove() {
    if (this.context.readOnly()) return;
    const { selection } = this.view;
    const touched = selection ? this.at(selection.start, selection.end) : [];
    if (touched.length) this.marks.act(...touched.map(({ id }) => ({ op: "unspan", id })));
    this.selected(selection && selection.start, selection && selection.end);
  }

  /** The pointer is up: draw the marks that changed while it was down. */
  release() {
    const { postponed } = this;
    this.pressed = this.postponed = false;
    if (postponed) this.showMarks();
  }

  /** Save typed words by `act`; the marks are drawn when the focus has moved on, since its new place must not be replaced before. */
  saveTyped(act) {
    const { pressed } = this;
    this.pressed = true;
    act();
    this.pressed = pressed;
    setTimeout(() => { if (!this.pressed) this.release(); });
  }

  showMarks() {
    if (!this.record) return;
    if (this.pressed) { // a button that is replaced under the pointer would not be clicked
      this.postponed = true;
      return;
    }
    const { marks } = this;
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.field : "";
    if (focused && this.panel.contains(document.activeElement) && this.fields && this.fields.has(focused)) {
      if (this.shownSpans === this.spanIds()) { // a person types: the field stays until it is left
        this.panel.onfocusout = () => { this.panel.onfocusout = null; setTimeout(() => this.showMarks()); };
        return;
      }
    }
    const parts = [line("h2", "Your marks")];
    if (this.told) parts.push(line("p", this.told, "problem told", { role: "alert" }));
    this.fields = new Map();
    const list = line("ol", "", "spans");
    for (const span of marks.list()) list.append(this.spanItem(span));
    parts.push(marks.spans.size ? list : line("p", "None yet.", "how"));
    parts.push(this.critiqueField());
    parts.push(this.doneRow());
    parts.push(...this.criticPart(), ...this.othersPart());
    this.shownSpans = this.spanIds();
    replaceIn(this.panel, parts, this.text);
  }

  spanIds() {
    return JSON.stringify([...this.marks.spans.values()].map(span => [span.id, span.label, span.start, span.end])) + this.marks.state;
  }

  /** The label of a span, in a conversation with its turn. */
  labelOf({ label, start }) {
    const { turn } = this.view.turnAt(start);
    return line("strong", `${label === "positive" ? "+" : "−"} ${label}${turn === null ? "" : ` · turn ${turn}`} `);
  }

  spanItem(span) {
    const item = line("li", "", `is-${span.label}`);
    const quote = this.view.chars.slice(span.start, span.end).join("");
    const head = line("p");
    head.append(this.labelOf(span), line("q", quote));
    const note = line("input", "", "", { placeholder: "Why?", "aria-label": `Why is ${quote} ${span.label}?`, "data-field": `note-${span.id}` });
    note.value = span.note;
    note.disabled = this.context.readOnly();
    this.fields.set(note.dataset.field, note);
    note.addEventListener("change", () => {
      const now = this.marks.spans.get(span.id);
      if (now && now.note !== note.value) this.saveTyped(() => this.alter(span.id, () => ({ note: note.value })));
    });
    note.addEventListener("keydown", event => {
      if (event.key === "Enter" || event.key === "Escape") {
        event.preventDefault();
        event.stopPropagation();
        note.blur();
        this.text.focus();
      }
    });
    const row = line("div", "", "row");
    row.append(note);
    if (!this.context.readOnly()) {
      row.append(
        button(`→ ${OTHER[span.label]}`, () => this.alter(span.id,
          ({ label }) => ({ label: OTHER[label] })), { name: "quiet", field: `turn-${span.id}` }),
        button("×", () => this.marks.act({ op: "unspan", id: span.id }), { name: "quiet", about: `remove the mark on ${quote}` }),
        button("Withdraw", () => this.context.withdraw(this.record.item, span.id), { name: "quiet", about: `the mark on ${quote}, also from what learned from it` }),
      );
    }
    item.append(head, row);
    return item;
  }

  critiqueField() {
    const label = line("label", "About the whole response ", "whole");
    label.append(line("kbd", "c"));
    const area = line("textarea", "", "", { rows: 2, "data-field": "critique" });
    area.value = this.marks.critique;
    area.disabled = this.context.readOnly();
    this.fields.set("critique", area);
    area.addEventListener("change", () => {
      if (area.value !== this.marks.critique) this.saveTyped(() => this.marks.act({ op: "critique", text: area.value }));
    });
    area.addEventListener("keydown", event => {
      if (event.key === "Escape" || (event.key === "Enter" && (event.ctrlKey || event.metaKey))) {
        event.preventDefault();
        event.stopPropagation();
        area.blur();
        this.text.focus();
      }
    });
    label.append(area);
    return label;
  }

  doneRow() {
    const row = line("div", "", "row done-row");
    if (this.context.readOnly()) return row;
    const { marks } = this;
    row.append(
      button(marks.state === "done" ? "Done ✓" : "Done, next", () => this.finish("done"), { key: "d", name: "main-button" }),
      button("Skip", () => this.finish("skipped"), { key: "s" }),
      button("Undo", () => this.undo(), { key: "u" }),
      button("Redo", () => this.redo(), { key: "r" }),
    );
    return row;
  }

  finish(value) {
    if (this.context.readOnly()) return;
    if (this.marks.state !== value) this.marks.act({ op: "state", value });
    this.context.move(1);
  }

  criticPart() {
    const { critique } = this.record;
    if (!critique) return this.criticAt() < 0 ? [] : [line("h2", "The critic"), ...this.criticRow()];
    const parts = [line("h2", "The critic"), ...this.criticRow()];
    if (critique.status && critique.status !== "ok") parts.push(line("p", critique.status, "status"));
    const quote = line("blockquote");
    for (const words of (critique.feedback || "").split("\n")) quote.append(line("p", words));
    parts.push(quote);
    const list = line("ol", "", "spans suggestions");
    let keyed = false;
    for (const span of this.view.suggestions()) {
      const verdict = this.marks.suggestions[span.id] || "";
      const item = line("li", "", `is-${span.label}`);
      const words = this.view.chars.slice(span.start, span.end).join("");
      const head = line("p");
      head.append(this.labelOf(span), line("q", words));
      item.append(head);
      if (span.said) item.append(line("p", span.said));
      if (verdict) head.append(line("small", ` ${verdict}`));
      else if (!this.context.readOnly()) {
        const row = line("span", "", "verdicts");
        const [accept, reject] = keyed ? ["", ""] : ["a", "x"];
        keyed = true;
        row.append(
          button("Accept", () => this.accept([span]), { key: accept, name: "quiet", about: words }),
          button("Mend", () => this.mend(span), { name: "quiet", about: words }),
          button("Reject", () => this.marks.act({ op: "suggestion", id: span.id, value: "rejected" }),
            { key: reject, name: "quiet", about: words }),
        );
        item.append(row);
      }
      list.append(item);
    }
    if (list.children.length) parts.push(list);
    const open = this.view.openSuggestions();
    if (open.length > 1 && !this.context.readOnly()) {
      parts.push(button(`Accept all ${open.length}`, () => this.accept(open), { key: "A", name: "quiet" }));
    }
    const missing = critique.unmatched || [];
    if (missing.length) {
      const gone = line("ul", "", "missing");
      for (const words of missing) gone.append(line("li", words));
      parts.push(line("h3", "Quotes that are not in the response"), gone);
    }
    return parts;
  }

  /** Take over a suggestion with another range: the selection if there is one, else its own to be changed. */
  mend(suggestion) {
    const { selection } = this.view;
    if (selection) {
      this.marks.add(selection.start, selection.end, suggestion.label, suggestion.id);
      this.view.select(null, null);
      return;
    }
    this.view.select(suggestion.start, suggestion.end);
    this.text.focus();
    this.announce.textContent = "Select the right words, then choose Mend again";
  }

  /** Take over suggestions as marks, in one act. */
  accept(suggestions) {
    if (!suggestions.length || this.context.readOnly()) return;
    this.marks.act(...suggestions.flatMap(({ id, start, end, label }) => [
      { op: "span", id: newId(), start, end, label, note: "", from: id },
      { op: "suggestion", id, value: "accepted" },
    ]));
  }

  judgeNext(accept) {
    const [next] = this.view.openSuggestions();
    if (!next || this.context.readOnly()) return;
    if (accept) this.accept([next]);
    else this.marks.act({ op: "suggestion", id: next.id, value: "rejected" });
  }

  othersPart() {
    if (!this.marks.others.length) return [];
    const parts = [line("h2", "Other raters")];
    for (const other of this.marks.others) {
      const text = other.spans.map(({ start, end, label }) =>
        `${label === "positive" ? "+" : "−"} “${this.view.chars.slice(start, end).join("")}”`).join("  ");
      const item = line("p", "", "other");
      item.append(line("strong", `${other.rater}: `), line("span", text || "no spans"), line("em", ` ${other.critique}`));
      parts.push(item);
    }
    return parts;
  }

  async samePrompt() {
    const { record } = this;
    const run = this.context.run();
    const answer = !record.id || run < 0 ? new Error(NO_RUN)
      : await get(`runs/${run}/prompt/${record.id}`, { item: record.item }).catch(error => error);
    if (this.record !== record) return; // another response was opened meanwhile
    if (answer instanceof Error) {
      this.beside.replaceChildren(line("p", answer.message, "problem", { role: "alert" }));
      this.beside.scrollIntoView({ block: "nearest" });
      return;
    }
    const parts = [line("h2", "The same prompt")];
    for (const { run, total, rows } of answer.groups) {
      if (!rows.length) continue;
      const group = line("div", "", "group-column");
      group.append(line("h3", `${this.context.runName(run)}: ${total} response${total === 1 ? "" : "s"}`));
      for (const row of rows) {
        const other = button("", () => this.context.openRow(run, row), { name: "same" });
        const head = `${row.step === null ? "" : `step ${row.step} · `}reward ${shown(row.reward)}`;
        other.append(line("small", head), line("span", row.response));
        group.append(other);
      }
      parts.push(group);
    }
    this.beside.replaceChildren(...parts);
    this.beside.focus({ preventScroll: true }); // Tab goes on to the responses
    this.beside.scrollIntoView({ block: "start" });
  }

  /** Keys that work anywhere but in fields. Returns true if the key was one. */
  command(event) {
    if (!this.record) return false;
    const startMark = label => {
      if (this.view.selection) this.mark(label);
      else if (!this.context.readOnly()) this.view.startHints(label);
    };
    const acts = {
      n: () => startMark("negative"), "-": () => startMark("negative"),
      p: () => startMark("positive"), "+": () => startMark("positive"),
      Backspace: () => this.remove(), Delete: () => this.remove(),
      u: () => this.undo(), r: () => this.redo(),
      a: () => this.judgeNext(true), A: () => this.accept(this.view.openSuggestions()), x: () => this.judgeNext(false),
      d: () => this.finish("done"), s: () => this.finish("skipped"),
      c: () => this.fields.get("critique").focus(),
      e: () => this.noteOfLast(),
      m: () => { const first = [...this.tools.querySelectorAll("button")].find(choice => choice.textContent.startsWith("Move")); if (first) first.click(); },
      o: () => this.samePrompt(),
      i: () => this.askCritic(), w: () => this.askWhy(),
      ".": () => this.view.moveTurn(1), ",": () => this.view.moveTurn(-1),
      ArrowLeft: () => this.toWord(event), ArrowRight: () => this.toWord(event),
    };
    const act = acts[event.key];
    if (!act) return false;
    act();
    return true;
  }

  /** Choose a word by an arrow key that was pressed elsewhere, as in the list after a click. */
  toWord(event) {
    this.text.focus({ preventScroll: true });
    this.view.key(event);
  }

  noteOfLast() {
    const { selection } = this.view;
    const touched = selection ? this.at(selection.start, selection.end)[0] : null;
    const id = touched ? touched.id : this.lastMark && this.marks.spans.has(this.lastMark) ? this.lastMark : [...this.marks.spans.keys()].pop();
    const field = id && this.fields.get(`note-${id}`);
    if (field) field.focus();
  }
}
