// Lessons from marks, their versions, and answers of two versions to the same prompt.

import { colourOf, line, shown, tableOf } from "./tokens.js";
import { get, post } from "./api.js";
import { button, replaceIn } from "./detail.js";

const POLL_MS = 400;
const LOST = "The server was started anew; the work that was under way ended with the server before.";
const OTHER = "Other work has begun since, perhaps from another tab.";
const DONE = { teach: "The lesson has ended", retrain: "The retraining has ended" };

const field = (text, element) => {
  const label = line("label", text);
  label.append(element);
  return label;
};

const input = (value, attributes = {}) => line("input", "", "", { ...attributes, value });

/** A number with its noun; a dash for a number that a `version.json` lacks, as one made by hand may. */
const counted = (number, noun) => Number.isFinite(number) ? `${number} ${noun}${number === 1 ? "" : "s"}` : "–";

const moved = value => value === null || value === undefined ? "–" : `${value > 0 ? "+" : ""}${shown(value)}`;

/** What a version changed, in words; a dash for a number that is not known. */
const effectOf = ({ kind, steps, negative, positive, unmarked, kl, metric }) => {
  const held = metric ? ` ${metric.name.replaceAll("_", " ")} ${shown(metric.before)} → ${shown(metric.after)},` : "";
  const how = kind === "retraining" ? "reward model" : counted(steps, "step");
  return `${how}:${held} negative ${moved(negative)}, positive ${moved(positive)}, others ${moved(unmarked)}, KL ${shown(kl)}`;
};

/** Neighbouring tokens with the same δ as one span, with the change of their log p. */
const spansOf = ({ offsets, delta, before, after }) => {
  const spans = [];
  offsets.forEach(([start, end], n) => {
    if (!delta[n]) return;
    const last = spans[spans.length - 1];
    const by = after[n] - before[n];
    if (last && last.token === n - 1 && last.sign === Math.sign(delta[n])) {
      Object.assign(last, { end, token: n, by: last.by + by });
    } else {
      spans.push({ start, end, token: n, sign: Math.sign(delta[n]), by });
    }
  });
  return spans;
};

export class Teach {
  constructor(root, context) {
    this.root = root;
    this.context = context; // { rater(), readOnly(), openRecord(record), shown(), followAddress() }
    this.seed = 0;
    this.way = "lesson";
    this.settings = { reward_steps: 60, steps: 20 };
    this.prompt = "";
    this.parent = null;
    this.pair = [0, null]; // the versions to ask
    this.changes = line("div", "", "changes");
    this.changesOf = null;
    this.asked = this.why = this.withdrawn = null; // the last answers
    this.told = ""; // why work was not begun or stopped, or how it was lost
    this.isTold = true; // shown to the person
    this.work = line("section", "", "work", { role: "status" }); // stays, so that what it says is announced
    this.against = line("div", "", "problem against", { role: "status" });
  }

  /** Say why something was not done; it is said until the person has seen it. */
  tell(words) {
    this.told = words;
    this.isTold = false;
  }

  async open(record) {
    if (this.isTold) this.told = "";
    if (record) this.prompt = record.prompt;
    this.marked = (await get("marks", { rater: this.context.rater() })).items.filter(marks => marks.spans.length && marks.state !== "skipped" && !marks.turns);
    this.teaching = (await get("studio")).teaching;
    this.changesOf = null;
    this.changes.replaceChildren();
    this.draw();
    if (this.teaching.work.state === "working") this.watch();
  }

  /** The server's state, as another tab may have changed it; a field that is being filled in stays. */
  hear(teaching) {
    if (!this.teaching || this.watching) return;
    const seen = ({ versions, troubles = [], policy, work }) => JSON.stringify([versions.length, troubles, policy, work.number]);
    const same = seen(teaching) === seen(this.teaching); // the policy is another after a restart
    const { activeElement } = document;
    if (same || (this.root.contains(activeElement) && activeElement.matches("input, textarea, select"))) return;
    this.teaching = teaching;
    this.draw();
    if (teaching.work.state === "working") this.watch();
  }

  /** Take the server's state during work; a version that is made is the one to begin from and to ask. */
  take(teaching) {
    if (teaching.versions.length !== this.teaching.versions.length) this.parent = this.pair[1] = null;
    this.teaching = teaching;
  }

  /** Draw the view, unless a response or a text has taken its place. */
  draw() {
    if (!this.context.shown()) return;
    const { teaching } = this;
    const parts = [line("h2", "Teach")];
    this.root.setAttribute("aria-label", "Teach");
    this.drawWork();
    if (!teaching.policy) {
      const words = "There is no policy to teach: open a run with a checkpoint, or start with --model PATH.";
      replaceIn(this.root, [...parts, line("p", words, "how"), this.work, this.withdrawnPart(), this.whyPart()], this.root);
      return;
    }
    const numbers = [0, ...teaching.versions.map(version => version.version)];
    const orLast = number => numbers.includes(number) ? number : numbers[numbers.length - 1];
    this.parent = orLast(this.parent);
    this.pair = this.pair.map(orLast);
    parts.push(this.lessonPart(), this.work, this.withdrawnPart(), this.whyPart(), this.versionsPart(), this.askPart(), this.answersPart());
    replaceIn(this.root, parts, this.root);
    this.contradict();
  }

  /** Tell before the training which marks contradict the lessons from which it begins. */
  async contradict() {
    const { parent } = this;
    const asked = this.marked.length ? get(`versions/${parent}/against`, { rater: this.context.rater() }) : [];
    const lines = await Promise.resolve(asked).catch(error => [error.message]);
    if (parent === this.parent) this.against.replaceChildren(...lines.map(text => line("p", text)));
  }

  versionChoice(chosen, name, choose) {
    const select = line("select", "", "", { "aria-label": name, id: `choice-${name.toLowerCase().replaceAll(" ", "-")}` });
    select.addEventListener("change", () => choose(Number(select.value)));
    const numbers = [0, ...this.teaching.versions.map(version => version.version)];
    select.append(...numbers.map(number => line("option", number ? `version ${number}` : "the run's policy", "", { value: number })));
    select.value = String(chosen);
    return select;
  }

  lessonPart() {
    const part = line("section", "", "card lesson");
    const spans = this.marked.reduce((sum, marks) => sum + marks.spans.length, 0);
    part.append(line("p", `${this.marked.length} marked response${this.marked.length === 1 ? "" : "s"}, ${spans} span${spans === 1 ? "" : "s"} of ${this.context.rater()}.`));
    part.append(this.waysPart());
    const from = this.versionChoice(this.parent, "Begin from", number => { this.parent = number; this.contradict(); });
    const number = (text, name, attributes) => {
      const element = input(this.settings[name], { type: "number", id: `set-${name}`, ...attributes });
      element.addEventListener("input", () => { this.settings[name] = Number(element.value); });
      return field(text, element);
    };
    const row = line("div", "", "row");
    const request = () => ({ rater: this.context.rater(), parent: this.parent });
    const start = this.way === "lesson"
      ? button("Teach", () => this.begin("teach", request()), { name: "main-button" })
      : button("Retrain", () => this.begin("retrain", { ...request(), retraining: this.settings }), { name: "main-button" });
    start.id = "teach-start";
    start.disabled = this.context.readOnly() || !this.marked.length || this.teaching.work.state === "working";
    const fields = this.way === "lesson" ? [] : [
      number("Steps of the reward model ", "reward_steps", { min: "1", max: "100000" }),
      number("Steps of the policy ", "steps", { min: "1", max: "10000" }),
    ];
    row.append(field("Begin from ", from), ...fields, start);
    part.append(this.against, row);
    return part;
  }

  /** The choice between a lesson on the marked responses and a retraining of the reward model, then of the policy. */
  waysPart() {
    const box = line("fieldset", "", "ways");
    box.append(line("legend", "How"));
    for (const [way, name, about] of [
      ["lesson", "From your words", "The policy answers again with your comments in its prompt, and learns what is better, and what you marked. Minutes."],
      ["retraining", "By the reward model", "The reward model learns from the marks and from annotations that it had; then it trains the policy on the run's prompts."],
    ]) {
      const radio = input(way, { type: "radio", name: "way", id: `way-${way}` });
      radio.checked = this.way === way;
      radio.addEventListener("change", () => { this.way = way; this.draw(); this.root.querySelector(`#way-${way}`).focus(); });
      const label = line("label");
      label.append(radio, line("strong", name), line("span", about, "how"));
      box.append(label);
    }
    return box;
  }

  drawWork() {
    const { work } = this.teaching;
    const parts = [];
    if (work.state === "working") {
      const bar = line("progress", "", "", { "aria-label": "Progress" });
      if (work.share) bar.value = work.share;
      parts.push(bar, line("span", work.progress), button("Stop", () => this.stop(work.number)));
    } else if (work.state === "failed") parts.push(line("p", work.error, "problem"));
    else if (work.state === "stopped") parts.push(line("p", "Stopped; no version was made."));
    else if (work.state === "done" && work.result && DONE[work.kind]) parts.push(line("p", `${DONE[work.kind]}: version ${work.result.version}.`));
    if (this.told) parts.push(line("p", this.told, "problem"));
    replaceIn(this.work, parts, this.root);
    this.isTold = true;
  }

  /** Stop the work that is shown, and no other that another tab has begun since. */
  async stop(number) {
    this.told = "";
    try {
      this.take(await post("stop", { number }));
    } catch (error) {
      this.tell(`Not stopped: ${error.message}`);
    }
    this.draw();
  }

  /** Show the progress in place: a button that is replaced under the pointer would not be clicked. */
  showProgress() {
    const bar = this.context.shown() && this.work.querySelector("progress");
    if (!bar) return;
    const { share, progress } = this.teaching.work;
    if (share) bar.value = share;
    else bar.removeAttribute("value");
    const words = line("span", progress);
    if (bar.nextElementSibling.textContent !== words.textContent) bar.nextElementSibling.replaceWith(words);
  }

  versionsPart() {
    const part = line("section", "", "versions");
    for (const trouble of this.teaching.troubles || []) part.append(line("p", trouble, "problem as-is"));
    const { versions, lessons = [] } = this.teaching;
    if (!versions.length && !lessons.length) return part;
    const list = line("ul", "", "lessons");
    const tell = (name, { words = [], raters = [] }, ...facts) => {
      const row = list.appendChild(line("li"));
      row.append(name, line("q", [...words.slice(0, 3), ...(words[3] ? ["…"] : [])].join("\n") || "–", "words"), line("span", [raters.join(", ") || "–", ...facts].join(" · "), "how"));
    };
    for (const version of [...versions].reverse()) {
      const about = button(`version ${version.version}`, () => this.showChanges(version), { name: "quiet", about: "show its tokens" });
      const from = version.parent ? `version ${version.parent}` : version.parent === 0 ? "the run's policy" : "–";
      const marked = counted(version.spans, "span") + (Number.isFinite(version.responses) ? ` in ${version.responses}` : "");
      const gone = version.withdrawn ? ["learned from marks that were withdrawn"] : [];
      tell(about, version, (version.made || "–").slice(0, 10), `from ${from}`, marked, effectOf(version), ...gone);
    }
    for (const lesson of [...lessons].reverse()) {
      tell(line("strong", lesson.name), lesson, lesson.date, `answers with a mark: ${lesson.effect ? lesson.effect.map(shown).join(" → ") : "–"}`);
    }
    const how = "Effects are mean changes of log p: of words that were marked, and of each other token. To undo a lesson, begin the next one from an earlier version: nothing is overwritten.";
    part.append(line("h3", "Lessons"), list, line("p", how, "how"), this.changes);
    return part;
  }

  /** The figures of a retraining: agreement of its reward model, and the run's metric. */
  retrainedPart({ version, agreement: { before = {}, after = {} } = {}, metric, steps, retraining = {} }) {
    const part = line("div", "", "retrained");
    part.append(line("h4", `The reward model of version ${version}`));
    const list = line("ul");
    const change = (words, from, to) => {
      if (from !== null && from !== undefined) list.append(line("li", `${words}: ${shown(from)} → ${shown(to)}`));
    };
    change("F1 of its labelled tokens against its critiques of your responses, corrected by your marks", before.marks, after.marks);
    change("against held-out earlier annotations", before.held_out, after.held_out);
    if (metric) change(`${metric.name.replaceAll("_", " ")} of the policy on held-out prompts`, metric.before, metric.after);
    if (steps) list.append(line("li", `${counted(steps.reward_model, "step")} on your marks and ${counted(retraining.earlier, "earlier annotation")}; ${counted(steps.policy, "step")} of the policy`));
    part.append(list);
    return part;
  }

  async showChanges(about) {
    this.changesOf = about.version;
    const version = await get(`versions/${about.version}`);
    if (this.changesOf !== about.version) return; // another was asked for meanwhile
    const texts = new Map(this.marked.map(marks => [marks.item, marks]));
    const before = line("a", "Answers before and after the lesson", "", { href: `/api/export/lesson.html?version=${about.version}` });
    const parts = about.kind === "retraining" ? [this.retrainedPart(about)] : Number.isFinite(about.steps) ? [before] : [];
    parts.push(line("h4", `Change of log p of each token, version ${about.version}`));
    for (const change of version.changes || []) {
      const marked = texts.get(change.item);
      if (!marked || ![change.offsets, change.delta, change.before, change.after].every(Array.isArray)) continue;
      const chars = Array.from(marked.response);
      const text = line("p", "", "text changed", { dir: "auto" });
      change.offsets.forEach(([start, end], n) => {
        const by = change.after[n] - change.before[n];
        const look = colourOf(by, 1, false);
        const token = line("span", chars.slice(start, end).join(""), `t ${look}`, { title: `${moved(by)} nats` });
        if (change.delta[n]) token.className += change.delta[n] > 0 ? " positive" : " negative";
        text.append(token);
      });
      text.append(chars.slice(change.offsets.at(-1)?.[1] ?? 0).join(""));
      const words = spansOf(change).map(({ start, end, by }) => `“${chars.slice(start, end).join("").trim()}” ${moved(by)}`);
      parts.push(text, line("p", `change of log p of the marked words: ${words.join(", ")}`, "facts"));
    }
    this.changes.replaceChildren(...parts);
  }

  askPart() {
    const part = line("section", "", "card ask");
    const prompt = line("textarea", "", "", { rows: 3, id: "ask-prompt" });
    prompt.value = this.prompt;
    prompt.addEventListener("input", () => { this.prompt = prompt.value; });
    const [left, right] = ["First version", "Second version"].map((name, n) =>
      this.versionChoice(this.pair[n], name, number => { this.pair[n] = number; }));
    const seed = input(String(this.seed), { type: "number", min: "0", "aria-label": "Seed", id: "ask-seed" });
    seed.addEventListener("input", () => { this.seed = Number(seed.value); });
    const row = line("div", "", "row");
    const ask = button("Ask both", async () => {
      await this.begin("ask", { prompt: prompt.value, versions: this.pair, seed: this.seed });
    }, { name: "main-button" });
    ask.id = "ask-start";
    ask.disabled = this.context.readOnly();
    row.append(left, line("span", "and"), right, field("seed ", seed), ask);
    part.append(line("h3", "Ask two versions the same prompt, with the same random numbers"), field("Prompt ", prompt), row);
    return part;
  }

  answersPart() {
    const part = line("section", "", "answers");
    const { work } = this.teaching;
    if (work.state === "done" && work.kind === "ask") this.asked = work.result;
    if (!this.asked) return part;
    for (const answer of this.asked.answers) {
      const card = line("article", "", "card answer");
      card.append(line("h4", answer.version ? `version ${answer.version}` : "the run's policy"));
      const text = line("p", answer.response, "text", { dir: "auto" });
      card.append(text, button("Mark this answer", () => this.context.openRecord({ ...answer, source: `version ${answer.version}`, place: null })));
      part.append(card);
    }
    return part;
  }

  /** Which versions learned from marks that are to be withdrawn, and what can be done about them. */
  withdrawnPart() {
    const part = line("section", "", "withdrawn");
    const { work } = this.teaching;
    if (work.state === "done" && work.kind === "withdraw") this.withdrawn = work.result;
    if (!this.withdrawn) return part;
    const { marks, learned, sure, ...asked } = this.withdrawn;
    const who = learned.map(number => `version ${number}`).join(", ") || "no version";
    part.append(line("p", `${counted(marks, "mark")} of ${asked.rater} ${sure ? "withdrawn" : "to withdraw"}; ${who} learned from ${marks === 1 ? "it" : "them"}.`));
    if (!sure) part.append(button("Withdraw for good", () => this.begin("withdraw", { ...asked, sure: true }), { name: "main-button" }));
    else if (learned.length) part.append(line("p", "The next lesson begins before these versions, and teaches all other marks.", "how"));
    return part;
  }

  /** Which critiques moved the words that were asked about last, in the order of `text2grad why`. */
  whyPart() {
    const part = line("section", "", "versions why");
    const { work } = this.teaching;
    if (work.state === "done" && work.kind === "why") this.why = work.result;
    if (!this.why) return part;
    const { source, phrase, critiques, before, after, explained, places, shares } = this.why;
    const rows = shares.map(({ step, row, nats, raters, words }) => {
      const link = line("a", `${step}:${row}`, "", { href: `#/${encodeURIComponent(source)}/${step}.${row}` });
      link.addEventListener("click", () => { if (link.hash === location.hash) this.context.followAddress(); }); // which does not change
      return [link, moved(nats), raters.join(", "), words];
    });
    const change = `log p, ${counted(places, "place")}: ${shown(before)} → ${shown(after)} (${moved(after - before)} nats)`;
    part.append(
      line("h3", `Why “${phrase}” became ${after < before ? "less likely" : "likelier"}`),
      line("p", `${change}; all ${counted(critiques, "critique")} together explain ${Math.round(100 * explained)} %`, "how"),
      tableOf("Shares of critiques", ["critique", "nats", "raters", "words"], rows),
    );
    return part;
  }

  async begin(kind, request) {
    this.told = "";
    const teaching = await post(kind, request).then(work => ({ ...this.teaching, work }), async error => {
      this.tell(error.message);
      return get("studio").then(({ teaching }) => teaching, () => this.teaching); // with the work that is under way
    });
    this.take(teaching);
    this.draw();
    if (this.teaching.work.state === "working") await this.watch();
    if (!request.sure) return;
    this.parent = this.withdrawn?.parent ?? this.parent;
    await this.open(null); // the marks that are left
  }

  async watch() {
    if (this.watching) return;
    this.watching = true;
    while (this.teaching.work.state === "working") {
      const { number } = this.teaching.work;
      await new Promise(done => { setTimeout(done, POLL_MS); });
      const overview = await get("studio").catch(() => null);
      if (!overview) continue; // the connection was lost: look again
      const isSame = overview.teaching.work.number === number;
      if (!isSame && number < overview.teaching.began) { // numbers grow from one server to the next
        this.tell(overview.teaching.work.state === "working" ? `${LOST} ${OTHER}` : LOST);
      }
      this.take(overview.teaching);
      if (isSame && this.teaching.work.state === "working") this.showProgress();
      else this.draw();
    }
    this.watching = false;
  }
}
