// One response: its tokens with their colours and numbers, its marks, and the selection of words.
//
// Places are counted in characters (code points), as Python counts them. The text is cut into segments at every place
// where a token, a word or a mark begins or ends; a segment is one element, and its text is never markup.

import { colourOf, fillTip, line, placeTip, signs, strongest, visible, wide } from "./tokens.js";

export const NAMES = {
  delta: "δ", reward: "reward", kl: "KL", value: "value", advantage: "advantage", change: "Δ log p", logp: "log p",
  entropy: "entropy", mismatch_kl: "mismatch KL", importance_ratio: "importance ratio", masked: "masked",
};
const DOUBLE_MS = 400;
const [LONG_CHARS, LONG_TURNS, BEGIN_CHARS] = [600, 12, 80]; // longer texts of others, and turns of longer conversations, are folded
const HINTS = "asdfghjklqwertyuiopzxcvbnm";

const segmenter = kind => new Intl.Segmenter(undefined, { granularity: kind });

/** Ranges of code points, [start, end), of the units of a part of a text: words with letters or digits, single other signs. */
const unitsOf = (chars, part, kind) => {
  const ranges = [];
  let at = part.start;
  for (const { segment, isWordLike } of segmenter(kind).segment(chars.slice(part.start, part.end).join(""))) {
    const size = Array.from(segment).length;
    const blank = !segment.replaceAll("\ufeff", "x").trim(); // a byte order mark is white space for `trim` alone
    if (!blank) ranges.push({ start: at, end: at + size, word: kind !== "word" || Boolean(isWordLike) });
    at += size;
  }
  if (kind === "sentence") { // without the white space after it
    for (const range of ranges) while (range.end > range.start && !chars[range.end - 1].trim()) range.end -= 1;
  }
  return ranges;
};

/** Where the policy's turns stand in the response, {turn, start, end}; a single response has one, without a number. */
const turnsOf = ({ response, turns }) => {
  let end = 0;
  const ranges = (turns || [{ sampled: true, text: response }]).map(({ sampled, text }, turn) => {
    const start = end;
    end += sampled ? Array.from(text).length : 0;
    return { turn: turns ? turn : null, start, end, sampled };
  });
  return ranges.filter(({ sampled }) => sampled);
};

/** The place of a part of a text on the page. */
const boxOf = (node, start, end) => {
  const range = document.createRange();
  range.setStart(node, start);
  range.setEnd(node, end);
  return range.getBoundingClientRect();
};

const nearest = (ranges, place) => {
  let low = 0;
  let high = ranges.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ranges[middle].end <= place) low = middle + 1;
    else high = middle;
  }
  return low;
};

export class ResponseView {
  /** `onSelect(start, end)` is called when a selection is made or dropped (null). */
  constructor(root, tip, record, marks, { onSelect, onCommand, readOnly }) {
    this.root = root;
    this.tip = tip;
    this.record = record;
    this.marks = marks;
    this.onSelect = onSelect;
    this.onCommand = onCommand;
    this.readOnly = readOnly;
    this.chars = Array.from(record.response);
    this.signs = signs(record.response); // of the characters, as they are shown
    this.turns = turnsOf(record);
    this.words = this.turns.flatMap(turn => unitsOf(this.chars, turn, "word"));
    this.sentences = this.turns.flatMap(turn => unitsOf(this.chars, turn, "sentence"));
    this.offsets = record.offsets || [];
    this.columns = Object.keys(NAMES).filter(name => Array.isArray(record[name]));
    this.colourBy = this.columns[0] || "";
    this.selection = null; // {start, end}
    this.cursor = -1; // a word
    this.anchor = -1;
    this.hints = null;
    this.heldToken = -1;
    this.segments = []; // drawn: {start, end, element, chosen}
    this.cuts = new Set(); // between them
    this.hasHints = false; // drawn
    this.showsCritic = true;
    this.parts = this.frames();
    this.listen();
    this.draw();
  }

  /** Make the frames of a conversation's turns, from the policy's first on, as reports do; answers the parts of the text in them. */
  frames() {
    const { turns } = this.record;
    if (!this.turns.length || !turns) return [{ start: 0, end: this.chars.length, root: this.root }];
    const marked = new Set([...this.suggestions(), ...this.marks.list()].map(span => this.turnAt(span.start).turn));
    const isShort = turns.length <= LONG_TURNS;
    const parts = [];
    let at = 0;
    for (const [number, { role, text, sampled, name = "", thought = "", tool_calls: calls = [] }] of turns.entries()) {
      if (!sampled && !parts.length) continue; // of the prompt
      const frame = this.root.appendChild(line("details", "", sampled ? "turn" : "turn given"));
      frame.open = isShort ? sampled || text.length < LONG_CHARS : marked.has(number) || !parts.length || number === turns.length - 1;
      const begin = visible(text.slice(0, BEGIN_CHARS)).replace(/\s+/g, " ");
      frame.append(line("summary", [`turn ${number}`, role, name].filter(Boolean).join(" · "), "where as-is", { "data-begin": begin }));
      if (!sampled) frame.append(line("span", text));
      const cut = Math.max(0, text.indexOf(thought));
      const cuts = [0, cut, text.startsWith(thought, cut) ? cut + thought.length : cut, text.length];
      for (let n = 0; sampled && n < 3; n += 1) {
        const end = at + Array.from(text.slice(cuts[n], cuts[n + 1])).length;
        const root = n === 1 && end > at ? frame.appendChild(line("details")) : frame;
        if (root !== frame) root.append(line("summary", "thought"));
        parts.push({ start: at, end, root: root.appendChild(line("span")) });
        at = end;
      }
      for (const call of calls) frame.append(line("code", `${call.name}(${JSON.stringify(call.arguments || {})})`));
    }
    return parts;
  }

  /** The turn of the policy that a place lies in. */
  turnAt(place) {
    return this.turns.find(({ start, end }) => start <= place && place < end) || { turn: null, end: this.chars.length };
  }

  colour(name) {
    this.colourBy = name;
    this.draw();
  }

  /** The critic's spans, with ids and their places in the whole response; none of a turn that is not the policy's. */
  suggestions() {
    const spans = (this.record.critique && this.record.critique.spans) || [];
    return spans
      .map(({ start: from, end: to, label, turn = null, category, severity, rater, reason }) => {
        const { start: at } = this.record.turns && turn !== null ? this.turns.find(own => own.turn === turn) || {} : { start: 0 };
        const [start, end] = [at + from, at + to];
        const said = [[category, severity, rater].filter(Boolean).join(" · "), reason].filter(Boolean).join(": ");
        return { start, end, label, id: `critic-${start}-${end}-${label}`, said };
      })
      .filter(span => span.end > span.start);
  }

  openSuggestions() {
    return this.suggestions().filter(span => !this.marks.suggestions[span.id]);
  }

  draw() {
    const cuts = new Set([0, this.chars.length]);
    const add = ({ start, end }) => { cuts.add(start); cuts.add(end); };
    this.offsets.forEach(([start, end]) => { cuts.add(start); cuts.add(end); });
    [...this.words, ...this.parts].forEach(add);
    const spans = this.marks.list();
    spans.forEach(add);
    const hinted = this.showsCritic ? this.openSuggestions() : [];
    hinted.forEach(add);
    if (this.selection) add(this.selection);
    const places = [...cuts].filter(place => place <= this.chars.length).sort((a, b) => a - b);
    const values = this.colourBy ? this.record[this.colourBy] : [];
    const sign = ["kl", "mismatch_kl"].includes(this.colourBy) ? -1 : 1;
    const top = this.colourBy === "delta" ? 1 : strongest(values);
    const look = token => {
      const colour = colourOf(sign * values[token], top, this.colourBy === "delta");
      return ` t${colour ? ` ${colour}` : ""}${token === this.heldToken ? " at" : ""}`;
    };
    const fragments = this.parts.map(() => document.createDocumentFragment());
    this.segments = [];
    this.cuts = cuts;
    this.hasHints = Boolean(this.hints);
    let token = 0;
    let drawn = -1; // the last token on the page
    let part = 0;
    /** Signs for the tokens before `next` that have no text of their own: at the end of the text, or within a character. */
    const addTextless = next => {
      while (this.columns.length && drawn + 1 < next) {
        drawn += 1;
        const element = line("span", "", (this.offsets[drawn][0] < this.offsets[drawn][1] ? "shared" : "none") + look(drawn));
        element.dataset.t = String(drawn);
        fragments[part].append(element);
      }
    };
    let word = 0;
    for (let n = 0; n + 1 < places.length; n += 1) {
      const [start, end] = [places[n], places[n + 1]];
      for (; this.parts[part].end <= start && part + 1 < this.parts.length; part += 1) {
        const ended = this.offsets.findLastIndex(([, to]) => to <= this.parts[part].end);
        addTextless(ended + 1);
      }
      while (token < this.offsets.length && this.offsets[token][1] <= start) token += 1;
      while (word < this.words.length && this.words[word].end <= start) word += 1;
      const element = line("span", "", "s", { "data-s": start, "data-e": end });
      const text = this.chars.slice(start, end).join("");
      element.textContent = this.signs.slice(start, end).join("");
      if (token < this.offsets.length && this.offsets[token][0] <= start) {
        addTextless(token);
        drawn = token;
        element.dataset.t = String(token);
        element.className += `${look(token)}${text.trim() || !/[\r\n]/.test(text) ? "" : " newline"}`;
      }
      const inside = span => span.start <= start && end <= span.end;
      for (const span of spans.filter(inside)) {
        element.className += ` ${span.label}`;
        if (span.start === start) element.className += ` ${span.label}-begin`;
      }
      const hints = hinted.filter(inside);
      for (const span of hints) element.className += ` hint-${span.label}`;
      if (!this.columns.length) { // without numbers of tokens, the colours are those of δ
        const delta = hints.reduce((sum, { label }) => sum + (label === "positive" ? 1 : -1), 0);
        if (delta) element.className += ` ${colourOf(delta, 1, true)}`;
      }
      const isChosen = Boolean(this.selection) && inside(this.selection);
      if (isChosen) element.className += " chosen";
      this.segments.push({ start, end, element, chosen: isChosen });
      if (this.hints && word < this.words.length && this.words[word].start === start) {
        const key = this.hints.labels[word];
        if (key && key.startsWith(this.hints.typed)) fragments[part].append(line("kbd", key, "hint", { "aria-hidden": "true" }));
      }
      fragments[part].append(element);
    }
    addTextless(this.offsets.length);
    this.parts.forEach(({ root }, n) => root.replaceChildren(fragments[n]));
  }

  /** Choose a range, as far as it lies in the turn of its beginning; null drops the selection. */
  select(start, end) {
    this.selection = start === null ? null : { start, end: Math.min(end, this.turnAt(start).end) };
    if (start === null) this.hideTip();
    if (!this.showSelection()) this.draw();
    this.onSelect(start, this.selection && this.selection.end);
  }

  /** Show the selection in the text as it is drawn: a long one is not drawn anew for each word. Answers whether it can. */
  showSelection() {
    const { selection, cuts } = this;
    if (this.hints || this.hasHints || (selection && !(cuts.has(selection.start) && cuts.has(selection.end)))) return false;
    for (const segment of this.segments) {
      const chosen = Boolean(selection) && selection.start <= segment.start && segment.end <= selection.end;
      if (chosen !== segment.chosen) segment.element.classList.toggle("chosen", chosen);
      segment.chosen = chosen;
    }
    return true;
  }

  snapped(from, to, { characters = false, sentence = false } = {}) {
    const [low, high] = from <= to ? [from, to] : [to, from];
    if (characters || !this.words.length) return [low, Math.min(this.chars.length, high + 1)];
    const units = sentence ? this.sentences : this.words;
    const first = units[nearest(units, low)];
    const last = units[nearest(units, high)];
    return [Math.min(first.start, last.start), Math.max(first.end, last.end)];
  }

  /** The character under a point. */
  characterAt(x, y) {
    const direct = document.elementFromPoint(x, y);
    const own = direct && direct.closest ? direct.closest(".s") : null;
    const caret = document.caretPositionFromPoint
      ? document.caretPositionFromPoint(x, y)
      : document.caretRangeFromPoint && document.caretRangeFromPoint(x, y);
    const node = caret && (caret.offsetNode || caret.startContainer);
    const offset = caret ? caret.offset ?? caret.startOffset : 0;
    const around = node && (node.nodeType === Node.TEXT_NODE ? node.parentElement : node);
    let element = own && this.root.contains(own) ? own : null;
    if (!element) element = around && around.closest && this.root.contains(around) ? around.closest(".s") : null;
    if (!element) return null;
    const [start, end] = [Number(element.dataset.s), Number(element.dataset.e)];
    if (!around || around.closest(".s") !== element) return start;
    let place = start;
    let width = 0;
    while (place < end - 1) {
      width += this.signs[place].length;
      if (width > offset) break;
      if (width === offset) { // the caret stands between two characters: the point is on one of them
        const [size, more] = [this.signs[place].length, this.signs[place + 1].length];
        const before = boxOf(element.firstChild, offset - size, offset);
        const behind = boxOf(element.firstChild, offset, offset + more); // on its left in text from right to left
        if (behind.top < before.bottom && behind.left <= x && x < behind.right) place += 1;
        break;
      }
      place += 1;
    }
    return place;
  }

  listen() {
    const { root } = this;
    let from = null;
    let moved = false;
    let last = { at: 0, place: -1 }; // of clicks; the browser's own count is lost when the text is drawn anew
    root.addEventListener("pointerdown", event => {
      if (event.button !== 0 || this.readOnly) return;
      from = this.characterAt(event.clientX, event.clientY);
      moved = false;
    });
    root.addEventListener("pointermove", event => {
      if (from === null) return this.hover(event);
      const to = this.characterAt(event.clientX, event.clientY);
      if (to === null || (to === from && !moved && !event.shiftKey)) return undefined;
      if (!moved) root.setPointerCapture(event.pointerId);
      moved = true;
      this.hideTip();
      const [start, end] = this.snapped(from, to, { characters: event.shiftKey });
      if (!this.selection || this.selection.start !== start || this.selection.end !== end) this.select(start, end);
      return undefined;
    });
    root.addEventListener("pointerup", event => {
      if (from === null) { // on a token without text
        this.holdToken(event.target);
        return;
      }
      const place = from;
      from = null;
      if (moved) return;
      if (event.shiftKey && this.selection) {
        const [start, end] = this.snapped(Math.min(place, this.selection.start), Math.max(place, this.selection.end - 1));
        this.select(start, end);
        return;
      }
      const again = event.timeStamp - last.at < DOUBLE_MS && nearest(this.words, place) === nearest(this.words, last.place);
      last = { at: again ? 0 : event.timeStamp, place };
      const [start, end] = this.snapped(place, place, { sentence: again });
      this.cursor = this.anchor = nearest(this.words, start);
      this.select(start, end);
      this.holdToken(event.target);
    });
    root.addEventListener("pointercancel", () => { from = null; });
    root.addEventListener("pointerleave", event => { // a finger that is lifted leaves, too
      if (from === null && event.pointerType === "mouse") this.hideTip();
    });
    root.addEventListener("keydown", event => this.key(event));
    root.addEventListener("blur", () => {
      this.hints = null;
      this.hideTip();
      if (this.hasHints) this.draw();
    });
  }

  hover(event) {
    if (event.pointerType !== "mouse") return;
    const element = event.target.closest ? event.target.closest(".t") : null;
    if (element) this.showTip(Number(element.dataset.t), element);
    else this.hideTip();
  }

  holdToken(target) {
    const element = target.closest ? target.closest(".t") : null;
    if (element) this.showTip(Number(element.dataset.t), this.root.querySelector(`[data-t="${element.dataset.t}"]`));
  }

  showTip(token, element) {
    if (!this.columns.length || !element) return;
    this.hold(token);
    const [start, end] = this.offsets[token];
    const text = visible(this.chars.slice(start, end).join(""));
    const rows = this.columns.map(name => [NAMES[name], this.record[name][token]]);
    fillTip(this.tip, text, `token ${token + 1} of ${this.offsets.length}`, rows);
    if (wide.matches) placeTip(this.tip, element, { above: true }); // the buttons are below
  }

  hideTip() {
    this.tip.hidden = true;
    this.hold(-1);
  }

  /** Frame a token, and no other. */
  hold(token) {
    if (token === this.heldToken) return;
    for (const element of this.root.querySelectorAll(`.at, [data-t="${token}"]`)) element.classList.toggle("at", element.dataset.t === String(token));
    this.heldToken = token;
  }

  /** Move the cursor to a word, and extend the selection to it if asked. */
  moveTo(word, extend) {
    this.cursor = Math.max(0, Math.min(this.words.length - 1, word));
    if (!extend || this.anchor < 0) this.anchor = this.cursor;
    const [low, high] = [Math.min(this.anchor, this.cursor), Math.max(this.anchor, this.cursor)];
    this.select(this.words[low].start, this.words[high].end);
    const here = this.words[this.cursor];
    const element = this.root.querySelector(`[data-s="${here.start}"]`);
    if (element) {
      for (let fold = element.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
      element.scrollIntoView({ block: "nearest" });
      this.holdToken(element);
    }
  }

  /** Move the cursor to the first word of the policy's next turn, or back to that of this or an earlier one. */
  moveTurn(step) {
    const within = ({ start, end }) => this.words.findIndex(word => start <= word.start && word.start < end);
    const firsts = this.turns.map(within).filter(word => word >= 0);
    const word = step > 0 ? firsts.find(first => first > this.cursor) : firsts.findLast(first => first < this.cursor);
    if (word === undefined) return;
    this.root.focus({ preventScroll: true });
    this.moveTo(word, false);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (this.hints) {
      this.hintKey(event);
      return;
    }
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (step !== undefined && this.words.length) {
      event.preventDefault();
      event.stopPropagation();
      const first = this.cursor < 0 ? (step > 0 ? -1 : this.words.length) : this.cursor;
      this.moveTo(first + step, event.shiftKey);
      return;
    }
    if (event.key === "Escape" && this.selection) {
      event.stopPropagation();
      this.select(null, null);
    }
  }

  /** Show two letters on each word; the first pair chooses the word, the second the last word of the range. */
  startHints(label) {
    const letters = this.words.length > HINTS.length ** 2 ? 3 : 2;
    const labels = this.words.map((range, n) => {
      if (!range.word) return "";
      let text = "";
      for (let rest = n, k = 0; k < letters; k += 1, rest = Math.floor(rest / HINTS.length)) {
        text = HINTS[rest % HINTS.length] + text;
      }
      return text;
    });
    this.hints = { label, labels, typed: "", first: -1 };
    this.root.focus();
    this.draw();
  }

  hintKey(event) {
    event.preventDefault();
    event.stopPropagation();
    const { hints } = this;
    if (event.key === "Escape") {
      this.hints = null;
      this.select(null, null);
      return;
    }
    if (event.key === "Enter" && hints.first >= 0) {
      this.finishHints(hints.first);
      return;
    }
    if (!/^[a-z]$/i.test(event.key)) return;
    const typed = hints.typed + event.key.toLowerCase();
    if (!hints.labels.some(label => label.startsWith(typed) && label)) return;
    hints.typed = typed;
    const word = hints.labels.indexOf(typed);
    if (word >= 0 && hints.first < 0) {
      hints.first = word;
      hints.typed = "";
      this.cursor = this.anchor = word;
      this.select(this.words[word].start, this.words[word].end);
    } else if (word >= 0) {
      this.finishHints(word);
    } else {
      this.draw();
    }
  }

  finishHints(last) {
    const { first, label } = this.hints;
    this.hints = null;
    this.anchor = first;
    this.moveTo(last, true);
    this.onCommand(label);
  }
}
