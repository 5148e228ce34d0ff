// Marks of one person on one response: operations with inverses, undo and redo without limit, and their saving.

import { post } from "./api.js";

const PENDING = "text2grad-pending-";
const RETRY_MS = 2000;
const LEAVING_MS = [100, 300, 900, 2700, 8100]; // a page that is being left, as by a reload, lives on for a moment
const MALFORMED = 400; // the status of an operation that would be refused for ever
const OVERTAKEN = 409; // and of an undo that does not know another tab's last act
const MEANWHILE = "Another tab changed these marks meanwhile";
const ALL_SHOWN = "All marks are shown now, and undo takes back the last act, whichever tab made it.";

/** A name for a span that no other tab can choose. */
export const newId = () => crypto.randomUUID().replaceAll("-", "").slice(0, 16);

/**
 * Operations on their way to the server; they wait in the browser's storage until they are saved.
 *
 * `onState({ waiting, problem, refused, kept })` hears how many batches wait, why they could not be sent yet, why the
 * server refused a batch for ever, and whether the browser's storage has all that waits. `onAdopted(items)` hears of
 * which responses there were marks that another page had left behind, when the server has them.
 * `onOvertaken(rater, item, words)` hears of a response whose marks another page changed; it answers whether the words
 * are shown with it.
 */
export class Outbox {
  constructor(onState, onAdopted, onOvertaken) {
    this.onState = onState;
    this.onAdopted = onAdopted;
    this.onOvertaken = onOvertaken;
    this.tab = null;
    this.opened = new Set();
    this.queue = []; // {id, rater, events, seen}
    this.added = 0; // acts of this page
    this.flushing = null;
    this.retry = 0;
    this.problem = "";
    this.refused = "";
    this.kept = true;
  }

  /** Begin with the name of the server's store; marks for another store on the same port wait for its own page. */
  begin(store) {
    this.store = store;
    this.key = `${PENDING}${store}-${crypto.randomUUID()}`;
    navigator.locks.request(this.key, () => new Promise(() => {})); // held as long as this page lives
    return this.adopt();
  }

  /** Take over what pages left behind that were closed, or crashed, before the server had it. */
  async adopt(waits = LEAVING_MS) {
    const ofStore = `${PENDING}${this.store}-`;
    const items = new Set();
    let living = false;
    for (const key of Object.keys(localStorage).filter(name => name.startsWith(ofStore) && name !== this.key)) {
      await navigator.locks.request(key, { ifAvailable: true }, async lock => {
        living ||= !lock; // its page lives
        if (!lock) return;
        while (this.flushing) await this.flushing; // which sends the first batch, and then takes it away
        const left = JSON.parse(localStorage.getItem(key) || "[]");
        this.queue.unshift(...left);
        localStorage.removeItem(key);
        for (const { item } of left.flatMap(batch => batch.events)) items.add(item);
      });
    }
    if (items.size) {
      this.keep();
      this.flush().then(() => this.onAdopted(items));
    }
    if (living && waits.length) setTimeout(() => this.adopt(waits.slice(1)), waits[0]);
  }

  /** Save an act; `seen` counts the operations on the response that this page knew before. */
  add(rater, events, seen) {
    this.queue.push({ id: newId(), rater, events, seen });
    this.added += 1;
    this.keep();
    return this.flush();
  }

  keep() {
    this.kept = true;
    try {
      if (this.queue.length) localStorage.setItem(this.key, JSON.stringify(this.queue));
      else localStorage.removeItem(this.key);
    } catch { // the browser gives a page about five million characters, and keeps what was there
      this.kept = false;
    }
    this.tell();
  }

  tell() {
    const problem = this.queue.length ? this.problem : "";
    this.onState({ waiting: this.queue.length, problem, refused: this.refused, kept: this.kept });
  }

  /** The acts on a response of which no answer says that the server has them: {id, events}. */
  pending(rater, item) {
    return this.queue.filter(batch => batch.rater === rater)
      .map(({ id, events }) => ({ id, events: events.filter(event => event.item === item) }))
      .filter(({ events }) => events.length);
  }

  /** Send all that waits; resolves when nothing does, or when the server cannot be reached. */
  flush() {
    this.flushing ||= this.send().finally(() => { this.flushing = null; });
    return this.flushing;
  }

  async send() {
    clearTimeout(this.retry);
    while (this.queue.length) {
      const [first] = this.queue;
      const { id, rater, events, seen } = first;
      const { item } = events[events.length - 1];
      let before = 0;
      try {
        if (!this.tab) this.tab = (await post("tab")).tab;
        ({ before } = await post("marks", { act: id, rater, tab: this.tab, events, seen, store: this.store }));
      } catch (error) {
        if (error.status === OVERTAKEN) {
          this.overtaken(rater, item);
          continue;
        }
        if (error.status === MALFORMED) {
          this.drop(first);
          this.refused = error.message;
          this.keep();
          continue;
        }
        this.problem = error.message;
        this.tell();
        this.retry = setTimeout(() => this.flush(), RETRY_MS);
        return;
      }
      this.problem = "";
      this.queue.shift();
      if (before > seen) this.overtaken(rater, item);
      this.keep();
    }
  }

  /** Another page changed the marks of a response: no undo or redo that waits fits them any more. */
  overtaken(rater, item) {
    const unfit = this.queue.filter(batch => batch.rater === rater && batch.events.some(event => event.item === item && event.by));
    for (const batch of unfit) this.drop(batch);
    const words = unfit.length ? `${MEANWHILE}, so nothing was undone or redone` : MEANWHILE;
    const isShown = this.onOvertaken(rater, item, `${words}. ${ALL_SHOWN}`);
    if (unfit.length && !isShown) this.refused = "an undo or redo, since another tab changed the marks meanwhile";
    this.keep();
  }

  /** Give up a batch; the text of the response that it holds goes with the next marks on it. */
  drop(batch) {
    this.queue = this.queue.filter(other => other !== batch);
    const { rater, events } = batch;
    const { item } = events[events.length - 1];
    const open = events.find(event => event.op === "open");
    const next = open && this.queue.find(batch => batch.rater === rater && batch.events.some(event => event.item === item));
    if (next) next.events.unshift(open);
    else this.opened.delete(item + rater);
  }
}

/** The marks of one response. */
export class Marks {
  /** `saved` is the server's answer, `pending` the acts that it perhaps did not have: an answer can be lost. */
  constructor(record, saved, pending, rater, outbox, onChange) {
    this.record = record;
    this.rater = rater;
    this.outbox = outbox;
    this.onChange = onChange;
    this.spans = new Map();
    this.critique = "";
    this.state = "";
    this.suggestions = {};
    this.undone = [];
    this.done = [];
    this.seen = 0; // operations
    this.stale = false; // another page changed the marks, and they are on their way
    const known = new Set(saved.history.map(([{ act }]) => act));
    const more = pending.filter(({ id }) => !known.has(id)).map(({ events }) => events);
    for (const events of [...saved.history, ...more]) this.replay(events);
    this.others = saved.others;
  }

  /** Apply an act that was made before; what was undone is not undone again. */
  replay(events) {
    this.seen += events.length;
    const inverse = events.map(event => this.take(event)).reverse();
    const [{ by }] = events;
    if (by === "undo") this.done.pop();
    else if (by === "redo") this.undone.pop();
    else this.undone = [];
    (by === "undo" ? this.undone : this.done).push(inverse);
  }

  /** Apply an operation and return its inverse. */
  take(event) {
    const { op, id, start, end, label, note, from } = event;
    if (op === "span" || op === "unspan") {
      const before = this.spans.get(id);
      if (op === "unspan") this.spans.delete(id);
      else this.spans.set(id, { id, start, end, label, note: note || "", from: from || "" });
      return before ? { ...before, op: "span" } : { op: "unspan", id };
    }
    if (op === "suggestion") {
      const before = this.suggestions[id] || "";
      this.suggestions[id] = event.value;
      return { op, id, value: before };
    }
    const key = op === "critique" ? "text" : "value"; // else of the state
    const before = this[op];
    this[op] = event[key];
    return { op, [key]: before };
  }

  /** Apply operations as one act of the person, and save them. */
  act(...events) {
    this.done.push(this.make(events));
    this.undone = [];
    this.onChange();
  }

  make(events, by = "") {
    const inverse = events.map(event => this.take(event)).reverse();
    const { item, prompt, response, turns, ids = null, source = "", place = null } = this.record;
    const known = this.outbox.opened.has(item + this.rater); // each tab's file holds the text itself
    const first = known ? [] : [{ op: "open", prompt, response, turns, ids, run: source, place }];
    this.outbox.opened.add(item + this.rater);
    this.outbox.add(this.rater, [...first, ...events.map(event => ({ ...event, item, by }))], this.seen);
    this.seen += events.length;
    return inverse;
  }

  undo() {
    const inverse = this.stale ? null : this.done.pop();
    if (!inverse) return false;
    this.undone.push(this.make(inverse, "undo"));
    this.onChange();
    return true;
  }

  redo() {
    const inverse = this.stale ? null : this.undone.pop();
    if (!inverse) return false;
    this.done.push(this.make(inverse, "redo"));
    this.onChange();
    return true;
  }

  add(start, end, label, from = "", note = "") {
    const id = newId();
    const accepted = from ? [{ op: "suggestion", id: from, value: "accepted" }] : [];
    this.act({ op: "span", id, start, end, label, note, from }, ...accepted);
    return id;
  }

  /** The spans in the order of the text. */
  list() {
    return [...this.spans.values()].sort((a, b) => a.start - b.start || a.end - b.end);
  }
}
