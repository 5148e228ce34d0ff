// A list of any length: only the rows in the window exist, and pages of rows are fetched when they come near.

import { line } from "./tokens.js";

const ROW = 76; // pixels, as in studio.css
const PAGE = 100;
const AROUND = 6;

export class VirtualList {
  /**
   * `fetchPage(start, count, first)` answers {total, rows}, and null if it cannot; `first` is its first answer since the
   * rows were forgotten with their place, null before. `fill(element, row)` shows a row; `choose(row, index)` opens it and
   * answers whether it is shown; `opened(shown)` hears of it when no other row is on its way.
   */
  constructor(root, { fetchPage, fill, choose, opened }) {
    this.root = root;
    this.fetchPage = fetchPage;
    this.fill = fill;
    this.choose = choose;
    this.opened = opened;
    this.opening = 0; // rows on their way
    this.shown = false; // whether the row that was asked for last is shown
    this.space = root.appendChild(line("div", "", "space"));
    this.elements = new Map();
    this.reset();
    root.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(root);
    root.addEventListener("click", event => {
      const row = event.target.closest(".item");
      if (row) this.open(Number(row.dataset.index));
    });
    root.addEventListener("keydown", event => {
      const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -Infinity, End: Infinity }[event.key];
      if (step === undefined || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      this.move(step);
    });
  }

  reset() {
    this.pages = new Map();
    this.asked = new Map(); // page → the answer that is on its way
    this.stale = false; // whether the pages are those before a refresh
    this.first = null;
    this.total = 0;
    this.at = -1;
    this.turn = (this.turn || 0) + 1;
    for (const element of this.elements.values()) element.remove();
    this.elements.clear();
    this.root.removeAttribute("aria-activedescendant");
  }

  /**
   * Fetch the rows anew. With `keep` the old rows can be opened until the new ones come, and the open one stays open;
   * then `place()` is its place among the new ones.
   */
  async refresh({ keep = false, place = null } = {}) {
    if (keep) {
      this.asked.clear();
      this.stale = true;
      this.turn += 1;
    } else {
      this.reset();
      this.root.scrollTop = 0;
    }
    const { turn, at: before } = this;
    await this.need(Math.floor(this.root.scrollTop / ROW / PAGE));
    if (turn !== this.turn) return; // a later refresh has its own place
    const at = keep ? (place ? place() : before) : -1; // rows that came before the open one push it down, and the view follows
    const pushed = before >= 0 && at >= 0 ? at - before : 0;
    if (pushed) this.root.scrollTop += pushed * ROW;
    this.at = this.at === before ? at : this.at + pushed; // another row was opened meanwhile
    this.draw();
  }

  need(page) {
    if (this.pages.has(page) && !this.stale) return Promise.resolve();
    if (!this.asked.has(page)) this.asked.set(page, this.ask(page));
    return this.asked.get(page);
  }

  async ask(page) {
    const { turn } = this;
    const answer = await this.fetchPage(page * PAGE, PAGE, this.first);
    if (turn !== this.turn) return;
    this.asked.delete(page);
    if (!answer) return; // asked again at the next look
    if (this.stale) this.pages.clear();
    this.stale = false;
    this.first ||= answer;
    this.total = answer.total;
    this.pages.set(page, answer.rows);
    this.space.style.setProperty("--height", `${this.total * ROW}px`);
    this.draw();
  }

  row(index) {
    const page = this.pages.get(Math.floor(index / PAGE));
    return page ? page[index % PAGE] : undefined;
  }

  draw() {
    const first = Math.max(0, Math.floor(this.root.scrollTop / ROW) - AROUND);
    const last = Math.min(this.total, Math.ceil((this.root.scrollTop + this.root.clientHeight) / ROW) + AROUND);
    for (const [index, element] of this.elements) {
      if (index < first || index >= last) {
        element.remove();
        this.elements.delete(index);
      }
    }
    for (let index = first; index < last; index += 1) {
      let element = this.elements.get(index);
      if (!element) {
        element = this.space.appendChild(line("div", "", "item", { id: `item-${index}`, role: "option", "aria-posinset": index + 1, "data-index": index }));
        element.style.setProperty("--top", `${index * ROW}px`);
        this.elements.set(index, element);
      }
      element.setAttribute("aria-setsize", String(this.total));
      element.setAttribute("aria-selected", String(index === this.at));
      const row = this.row(index);
      if (row && element.shown !== row) {
        this.fill(element, row);
        element.shown = row;
      }
      if (!row || this.stale) this.need(Math.floor(index / PAGE));
    }
    const chosen = document.getElementById(`item-${this.at}`); // absent while its page is on the way
    if (chosen) this.root.setAttribute("aria-activedescendant", chosen.id);
    else this.root.removeAttribute("aria-activedescendant");
  }

  async move(step) {
    if (!this.total) return;
    await this.open(Math.max(0, Math.min(this.total - 1, (this.at < 0 && step > 0 ? -1 : this.at) + step)));
  }

  async open(index) {
    await this.openBy(() => this.openNow(index));
  }

  /** Open a response, of the list or not, by an action that answers whether it is shown. */
  async openBy(act) {
    this.opening += 1;
    this.shown = false;
    try {
      if (await act()) this.shown = true; // one that was asked for before answers false
    } finally {
      this.opening -= 1;
      if (!this.opening) this.opened(this.shown);
    }
  }

  /** Scroll to a row. */
  reveal(index) {
    const top = index * ROW;
    if (top < this.root.scrollTop) this.root.scrollTop = top;
    const bottom = top + ROW - this.root.clientHeight;
    if (bottom > this.root.scrollTop) this.root.scrollTop = bottom;
  }

  async openNow(index) {
    this.at = index;
    this.reveal(index);
    for (let asked = 0; !this.row(index) && this.at === index && asked !== this.turn;) { // a refresh drops the answer
      asked = this.turn;
      await this.need(Math.floor(index / PAGE));
    }
    this.draw();
    const row = this.row(index);
    return row ? this.choose(row, index) : false;
  }

  /** Show a changed row. */
  touch(test, change) {
    for (const rows of this.pages.values()) {
      for (let n = 0; n < rows.length; n += 1) if (test(rows[n])) rows[n] = { ...rows[n], ...change };
    }
    this.draw();
  }
}
