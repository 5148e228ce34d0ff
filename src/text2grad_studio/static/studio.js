// The studio: the list of responses, the pane of one, lessons, keys, and the address of what is shown.

import { line, shown, tableOf, visible } from "./tokens.js";
import { ServerError, get, post } from "./api.js";
import { alarmsOf, drawCurves } from "./curves.js";
import { Detail, button } from "./detail.js";
import { VirtualList } from "./list.js";
import { Outbox } from "./marks.js";
import { Teach } from "./teach.js";

const POLL_MS = 2000;
const TYPING_MS = 180;
const FORBIDDEN = 403; // the status of an answer to a page of another session
const KEYS = [
  ["j, k", "next, previous response"], ["Enter", "from the list to the text of the response"], ["/", "search"], ["←, →", "word by word; with Shift: select"],
  [", .", "previous, next turn of a conversation"], ["n, p", "mark the selection as negative, positive; without a selection: letters on the words choose it"],
  ["e", "say why: the note of the last mark"], ["c", "critique of the whole response"],
  ["i", "ask the run's critic about this response"], ["w", "which critiques moved the chosen words"], ["a, x", "accept, reject the critic's next span"], ["m", "move a mark to the selection"], ["Backspace", "remove the marks under the selection"],
  ["u, r", "undo, redo (also Ctrl+Z, Ctrl+Shift+Z)"], ["d, s", "done, skip: the next response"],
  ["o", "the same prompt over the steps and in other runs"], ["t", "teach"], ["Escape", "drop the selection"],
];

const NAME_RULE = "A name begins with a letter or digit, and has letters, digits, spaces and .@_-, at most 40.";
const RATER = /^[\p{L}\p{N}_][\p{L}\p{M}\p{N}_ .@-]{0,39}$/u; // as is_rater in marks.py

const $ = id => document.getElementById(id);
const state = {
  run: 0, runs: [], rater: new URLSearchParams(location.search).get("rater") || "", readOnly: false, view: "read",
  generation: -1, total: 0, lost: "", isForeign: false, faults: [], told: "", // of a server that was started anew
};

const saved = $("saved");
let hasWaited = false; // marks could not be saved for a while
const outbox = new Outbox(({ waiting, problem, refused, kept }) => {
  const lost = problem && !state.isForeign ? "" : state.lost; // a mark that waits says why itself
  saved.className = lost || problem || refused ? "saved problem" : "saved";
  saved.textContent = lost || (problem ? `Not saved: ${problem}. Tried again, ${kept ? "and kept in this browser"
    : "but too much for this browser to keep: leave the page open"}.`
    : refused ? `Refused, and not saved: ${refused}. Reload the page to see the saved marks.`
      : waiting ? "Saving…" : "All marks saved");
  if (problem) hasWaited = true;
  else if (hasWaited && !waiting) { // the list of marks was perhaps fetched without them
    hasWaited = false;
    if (state.view === "mine") list.refresh({ keep: list.total > 0 }).catch(tell);
  }
}, items => { // the response was perhaps opened before
  if (isOpen() && items.has(detail.record.item)) detail.open(detail.record).catch(tell);
}, (rater, item, words) => {
  if (!isOpen() || detail.record.item !== item || detail.marks.rater !== rater) return false;
  detail.marks.stale = true; // what it would undo is another tab's
  detail.open(detail.record, words).catch(tell);
  return true;
});

/** The number of the run that a response comes from; −1 if it is none of the session's. */
const runOf = record => record ? state.runs.findIndex(run => run.name === record.source) : -1;

/** Go back to the list, on a phone. */
const toList = () => {
  document.body.classList.remove("shows-detail");
  $("list").focus();
};

/** Whether a response is shown, and no other is on its way. */
const isOpen = () => detail.record !== null && detail.asked.item === detail.record.item;

const detail = new Detail($("detail"), $("tip"), {
  rater: () => state.rater,
  readOnly: () => state.readOnly,
  run: () => runOf(detail.record),
  keepTyped: () => keepTyped(),
  criticOf: record => {
    const source = runOf(record);
    const number = source >= 0 ? source : state.run;
    return number in state.runs ? (state.runs[number].has_critic ? number : -1) : state.hasCritic ? 0 : -1;
  },
  explains: () => !state.readOnly && Boolean(state.runs[runOf(detail.record)]?.explains),
  askWhy: request => setView("teach").then(() => teach.begin("why", request)),
  withdraw: (item, id) => withdraw(item, id),
  runName: number => state.runs[number].name,
  outbox,
  back: () => toList(),
  move: step => list.move(step),
  openRow: (run, row) => openIn(run, () => openRow(row)),
  onMarks: (record, marks) => list.touch(row => row.item === record.item,
    { marks: marks.spans.size, state: marks.state, words: Boolean(marks.critique.trim()) }),
});

/** Ask which versions learned from a mark, or from all of the rater, before they are taken out of all files. */
const withdraw = async (item = "", id = "") => {
  await Promise.all([outbox.flush(), setView("teach")]);
  await teach.begin("withdraw", { rater: state.rater, item, id, sure: false });
};

const teach = new Teach($("detail"), {
  rater: () => state.rater,
  readOnly: () => state.readOnly,
  shown: () => state.view === "teach",
  followAddress: () => followAddress(),
  openRecord: async record => {
    const own = await post("own", { prompt: record.prompt, response: record.response });
    await list.openBy(() => show({ ...record, item: own.item, offsets: record.offsets || [] }));
  },
});

/** Show why something cannot be opened or listed. */
const tell = error => {
  $("count").textContent = error.message;
  $("count").classList.add("problem");
  return null;
};

/** An act that the server did not answer is told where nobody waited for it. */
addEventListener("unhandledrejection", event => {
  if (!(event.reason instanceof ServerError)) return;
  event.preventDefault();
  tell(event.reason);
});

const filters = () => Object.fromEntries(new FormData($("filters")));

/** A page of the rater's marks of all runs, the last first; the search words filter them. */
const myMarks = async (start, count, item) => {
  const { items, total, at, faults } = await get("marks", { rater: state.rater, text: filters().text, start, count, item });
  state.faults = faults;
  showTroubles(state.runs[state.run]);
  const rows = items.map(marks => ({
    ...marks, step: marks.place ? marks.place[0] : null, reward: null, positive: 0, negative: 0, status: "",
    marks: marks.spans.length, words: Boolean(marks.critique), kept: marks,
  }));
  return { total, rows, at };
};

const list = new VirtualList($("list"), {
  fetchPage: async (start, count, first) => {
    const { run } = state, { turn } = list;
    const row = list.row(list.at); // shown, or on its way
    const open = state.view === "mine" || (row && row.id) ? row : runOf(detail.record) === run ? detail.record : null;
    const { id: near = "", item = "" } = open || {};
    const page = await (state.view === "mine" ? myMarks(start, count, item)
      : get(`runs/${run}/rollouts`, { ...filters(), rater: state.rater, start, count, near, item, operations: first && first.operations }))
      .catch(tell);
    if (!page || run !== state.run || turn !== list.turn) return null; // also of a list that was left
    state.total = page.total;
    if (open) state.at = page.at;
    $("count").classList.remove("problem");
    const unread = page.unread ? `; the expression was too slow for ${page.unread.toLocaleString("en")} of them` : "";
    $("count").textContent = `${page.total.toLocaleString("en")} response${page.total === 1 ? "" : "s"}${unread}`;
    return page;
  },
  fill: (element, row) => {
    const facts = line("p", "", "facts");
    const add = (text, name = "") => facts.append(line("span", text, name));
    if (row.step !== null) add(`step ${row.step}`);
    if (row.reward !== null) add(`reward ${shown(row.reward)}`);
    if (row.positive) add(`+${row.positive}`, "plus");
    if (row.negative) add(`−${row.negative}`, "minus");
    if (row.status && row.status !== "ok") add(row.status, "status");
    if (row.marks || row.words) add(`✎ ${row.marks}`, "mine");
    if (row.state) add(row.state === "done" ? "done ✓" : "skipped", "mine");
    element.replaceChildren(facts, line("p", row.response || "(empty)", "preview"));
  },
  choose: row => openRow(row),
  opened: shown => replay(shown),
});

const placeOf = record => record.place ? `${record.place[0] ?? "-"}.${record.place[1]}` : "";

/** Leave the lessons for a response or a text: what they have to say later must not replace it. */
const leaveTeach = () => {
  if (state.view !== "teach") return;
  state.view = state.runs.length ? "read" : "mine";
  pressView();
  list.refresh({ keep: true });
};

/** Show a response; answers whether it is shown, and not another that was asked for later. */
const show = async record => {
  $("tip").hidden = true;
  leaveTeach();
  const isShown = await detail.open(record).catch(tell);
  if (!isShown) return false;
  document.body.classList.add("shows-detail");
  if (!document.activeElement.checkVisibility()) $("response").focus({ preventScroll: true }); // in the list, on a phone
  const place = placeOf(record);
  history.replaceState(null, "", place ? `#/${encodeURIComponent(record.source)}/${place}` : location.pathname + location.search);
  return true;
};

let turn = 0;

/** Give the place of the response to another view; a response that is on its way does not come back into it. */
const leave = () => {
  turn += 1;
  detail.leave();
};

/** Open a response; answers whether it is shown, and not another that was asked for later. */
const openRow = async row => {
  turn += 1;
  const mine = turn;
  if (row.kept) {
    const { prompt, response, turns, run, place, item, ids } = row.kept;
    const number = state.runs.findIndex(source => source.name === run);
    let record = null;
    if (number >= 0 && place) {
      record = await get(`runs/${number}/places/${place[0] ?? "-"}.${place[1]}`).catch(() => null);
      if (record && record.item !== item) record = null; // the run was made anew: the marks keep their own text
    }
    return mine === turn && show(record || { prompt, response, turns, ids, item, source: run, place: null, own: !run });
  }
  const record = await get(`runs/${state.run}/rollouts/${row.id}`, { item: row.item }).catch(tell);
  return Boolean(record) && mine === turn && show(record);
};

/** Read a run: its responses in the list, and its curves. */
const chooseRun = async run => {
  state.run = run;
  $("run").value = String(run);
  orderOf(state.runs[run]);
  state.generation = state.runs[run].generation;
  showTroubles(state.runs[run]);
  await refresh();
  await showCurves();
};

/** Open a response of a run, which the list then shows, with the response chosen. */
const openIn = (run, open) => list.openBy(async () => {
  const mine = state.view === "mine";
  if (mine) {
    state.view = "read";
    pressView();
  }
  const listed = mine || run !== state.run ? chooseRun(run) : null; // at once: no row of another run can be chosen
  const isShown = await open();
  const now = turn;
  await listed;
  if (!isShown || now !== turn) return false;
  state.at = list.at = -1; // its row is looked for
  await list.refresh({ keep: true, place: () => now === turn ? state.at : list.at });
  if (list.at >= 0) list.reveal(list.at);
  return now === turn;
});

const pressView = () => {
  document.body.classList.toggle("in-mine", state.view === "mine");
  for (const choice of document.querySelectorAll("[data-view]")) {
    choice.setAttribute("aria-pressed", String(choice.dataset.view === state.view));
  }
};

const setView = async view => {
  const before = state.view;
  state.view = view;
  pressView();
  tellRestart("");
  if (view === "teach") {
    $("tip").hidden = true;
    document.body.classList.add("shows-detail");
    const { record } = detail;
    if (before !== "teach") state.left = before === "read" ? record : null;
    if (before === "mine") list.first = null; // the list becomes that of a run
    const { activeElement } = document;
    if ($("detail").contains(activeElement) || !activeElement.checkVisibility()) $("detail").focus({ preventScroll: true });
    $("detail").replaceChildren();
    leave();
    await teach.open(record);
    return;
  }
  if (view === "read" && before === "teach" && state.left) { // back to where the lesson began
    turn += 1;
    const now = turn;
    await list.openBy(async () => {
      await list.refresh({ keep: true });
      return now === turn && show(state.left);
    });
    return;
  }
  document.body.classList.remove("shows-detail");
  detail.empty();
  leave();
  await Promise.all([list.refresh(), view === "mine" ? showSummary() : null]); // the rows of the view before go at once
};

/** My marks: how many, how far raters agree, and files to take away. */
const showSummary = async () => {
  const now = turn;
  const { pairs } = await get("agreement");
  if (now !== turn) return; // a response was asked for meanwhile
  const links = line("p", "", "row");
  for (const [form, words] of [["annotations.jsonl", "Download as annotations (JSONL)"], ["marks.html", "Download as one page (HTML)"]]) {
    links.append(line("a", words, "", { href: `/api/export/${form}?rater=${encodeURIComponent(state.rater)}` }));
  }
  const parts = [line("h2", `Marks of ${state.rater}`),
    line("p", "text2grad reward and text2grad feedback export read the annotations; the page needs no server.", "how"), links];
  if (pairs.length) {
    const names = ["raters", "both finished", "words", "same label", "F1 of marked words", "Krippendorff's α"];
    const rows = pairs.map(({ raters, both, words, same, f1, alpha }) => [raters.join(", "), both, words, ...[same, f1, alpha].map(shown)]);
    parts.push(line("h3", "Agreement on responses that two raters finished, neither seeing the other's marks"), tableOf("Agreement", names, rows));
  } else {
    parts.push(line("p", "Agreement appears here when two raters have finished the same response.", "how"));
  }
  if (!state.readOnly) parts.push(button("Withdraw all marks", () => withdraw(), { name: "quiet" }));
  const box = line("div", "", "summary");
  box.append(button("‹ All marks", () => toList(), { name: "back" }), ...parts);
  $("detail").replaceChildren(box);
  $("detail").setAttribute("aria-label", "My marks");
};

const countActive = () => {
  const { order, text, ...others } = filters();
  const active = Object.values(others).filter(Boolean).length;
  $("active").textContent = active ? ` (${active})` : "";
};

const refresh = async () => { countActive(); await list.refresh(); };

const showCurves = async () => {
  const { run } = state;
  const curves = await get(`runs/${run}/curves`);
  if (run !== state.run) return;
  drawCurves($("curves"), curves, step => {
    $("filters").elements.step_from.value = $("filters").elements.step_to.value = String(step);
    $("more").open = true;
    refresh();
  });
  $("alarms").textContent = alarmsOf(curves).join(" · ");
};

/** Take what the server says of the session; answers whether it was started anew with other runs. */
const takeOverview = overview => {
  const names = overview.runs.map(run => run.name);
  const before = state.runs.map(run => run.name);
  const areOthers = names.length !== before.length || names.some((name, n) => name !== before[n]);
  Object.assign(state, { runs: overview.runs, rater: state.rater || overview.rater, readOnly: overview.read_only, hasCritic: overview.has_critic });
  if (!state.readOnly && !outbox.store) outbox.begin(overview.store);
  const choice = $("run");
  if (areOthers) {
    state.run = Math.max(0, names.indexOf(before[state.run]));
    choice.replaceChildren(...overview.runs.map((run, n) => line("option", run.name, "", { value: n })));
    choice.value = String(state.run);
    choice.parentElement.hidden = !overview.runs.length;
  }
  return areOthers;
};

/** The restart of the server with other runs, troubles with the run's files, or the progress of the index. */
const showTroubles = run => {
  const element = $("troubles");
  const words = [state.told, state.view === "mine" ? faultsOf() : troubleOf(run)].filter(Boolean).join(" ");
  if (element.textContent !== words) element.textContent = words;
};

const tellRestart = words => {
  state.told = words;
  showTroubles(state.runs[state.run]);
};

/** Lines of the person's marks that cannot be read. */
const faultsOf = () => {
  const { length } = state.faults;
  if (!length) return "";
  const [lines, more] = length === 1 ? ["A line", ""] : [`${length} lines`, " The first:"];
  return `${lines} of your marks cannot be read, and ${length === 1 ? "is" : "are"} left out.${more} ${state.faults[0]}. Mend the line, or remove it.`;
};

const troubleOf = run => {
  if (!run) return "";
  const [done, all] = run.bytes;
  return run.trouble || (done < all ? `reading: ${Math.floor((100 * done) / all)} %`
    : run.bad_lines ? `${run.bad_lines} line${run.bad_lines === 1 ? "" : "s"} cannot be read: ${run.problem}` : "");
};

/** Go on with the runs of a server that was started anew; `before` is the run of the list, if there was one. */
const goOnWith = async before => {
  const now = state.runs[state.run];
  document.body.classList.toggle("no-runs", !now);
  const isGone = before && !state.runs.some(run => run.name === before.name);
  if (isGone) {
    tellRestart(`The server was started anew without ${before.name}; ${now ? `the list is that of ${now.name}` : "the list is that of your marks"}.`);
  } else if (!before) tellRestart(`The server was started anew, with ${now.name}.`);
  if (isOpen() && state.view !== "teach") detail.open(detail.record).catch(tell); // its links name other runs
  if (now && (!before || now.name !== before.name)) await chooseRun(state.run);
  if (now) return;
  $("curves").replaceChildren();
  $("alarms").textContent = "";
  if (state.view !== "read") return;
  state.view = "mine";
  pressView();
  await list.refresh();
};

const watch = async () => {
  try {
    const overview = await get("studio");
    const before = state.runs[state.run];
    if (takeOverview(overview)) await goOnWith(before);
    if (state.lost) {
      state.lost = "";
      sayWhatIsSaved();
      list.draw(); // rows that could not be fetched meanwhile
      if ($("count").classList.contains("problem")) state.generation = -1; // the list is fetched anew
      if (state.view === "teach" && !$("detail").firstChild) await teach.open(state.left); // nor could the lesson
    }
    if (state.view === "teach") teach.hear(overview.teaching);
    const run = state.runs[state.run];
    if (run && run.generation !== state.generation) {
      state.generation = run.generation;
      state.at = list.at;
      await list.refresh({ keep: list.total > 0, place: () => state.at });
      await showCurves();
    }
    showTroubles(run);
  } catch (error) {
    state.isForeign = error.status === FORBIDDEN;
    state.lost = state.isForeign
      ? "Another studio answers at this address: open the address that `text2grad studio` printed. Marks wait in this browser."
      : error.status ? `The server cannot say what it has: ${error.message}` : "No connection to the server; marks wait in this browser.";
    sayWhatIsSaved();
  }
  setTimeout(watch, POLL_MS);
};

const sayWhatIsSaved = () => {
  if (!state.readOnly) outbox.tell();
  else Object.assign(saved, { className: state.lost ? "saved problem" : "saved", textContent: state.lost || "read-only" });
};

/** The text of a part of an address; "" if a hand has damaged it. */
const decoded = text => {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
};

const followAddress = async () => {
  const [, name, place] = decoded(location.hash.slice(1)).match(/^\/(.*)\/([-\d]+\.\d+)$/) || [];
  const run = state.runs.findIndex(run => run.name === name);
  if (run < 0) return;
  turn += 1;
  const now = turn;
  await openIn(run, async () => {
    const record = await get(`runs/${run}/places/${place}`).catch(tell);
    return Boolean(record) && now === turn && show(record);
  });
};

const ownText = () => {
  const form = line("form", "", "own-form");
  const prompt = Object.assign(document.createElement("textarea"), { rows: 2, id: "own-prompt" });
  const response = Object.assign(document.createElement("textarea"), { rows: 8, id: "own-response", required: true });
  const labels = [["Prompt", prompt], ["Response", response]].map(([text, area]) => {
    const label = line("label", text);
    label.append(area);
    return label;
  });
  const go = button("Mark it", () => response.value && list.openBy(async () => {
    const now = turn;
    const record = await post("own", { prompt: prompt.value, response: response.value }).catch(tell);
    return Boolean(record) && now === turn && show(record);
  }), { name: "main-button" });
  form.append(line("h2", "A response of your own"), ...labels, go);
  form.addEventListener("submit", event => event.preventDefault());
  leaveTeach();
  $("detail").replaceChildren(form);
  $("detail").setAttribute("aria-label", "A response of your own");
  leave();
  document.body.classList.add("shows-detail");
  prompt.focus();
};

const nameRater = name => {
  state.rater = name;
  const address = new URL(location.href);
  address.searchParams.set("rater", name); // a reload keeps it
  history.replaceState(null, "", address);
};

/** Ask for a name in place of that in the address, which is none; before, nobody's marks are shown or made. */
const askRater = () => new Promise(named => {
  const box = $("help");
  const title = line("h2", "Who marks?", "", { id: "help-title" });
  const problem = line("p", `“${visible(state.rater.slice(0, 80))}” in the address is no name of a rater. ${NAME_RULE}`, "problem", { role: "alert" });
  const rater = document.createElement("input");
  const label = line("label", "Rater ");
  label.append(rater);
  const form = line("form");
  const go = line("button", "Go on", "main-button");
  form.append(title, problem, label, go);
  form.addEventListener("submit", event => {
    event.preventDefault();
    const name = rater.value.trim();
    if (!RATER.test(name)) {
      problem.textContent = NAME_RULE;
      return;
    }
    nameRater(name);
    box.close();
    named();
  });
  box.addEventListener("close", () => { if (!RATER.test(state.rater)) box.showModal(); });
  box.replaceChildren(form);
  box.showModal();
});

/** Go on as another rater: the open response and the views show the marks of that person. */
const changeRater = async name => {
  nameRater(name);
  const record = detail.asked;
  const hasSummary = $("detail").querySelector(".summary") !== null;
  if (record) { // nothing of the rater before can be marked or seen while the marks are on their way
    detail.empty();
    detail.leave();
  }
  if (state.view === "teach") await teach.open(null);
  else if (record) await list.openBy(() => show(record));
  else if (hasSummary) await showSummary();
  state.at = list.at;
  list.first = null; // the filters ask for marks of this person
  await list.refresh({ keep: state.view !== "mine", place: () => state.at });
};

const showHelp = () => {
  const box = $("help");
  const keys = line("dl");
  for (const [key, words] of KEYS) {
    const row = line("div");
    row.append(line("dt", key), line("dd", words));
    keys.append(row);
  }
  const title = line("h2", "Keys", "", { id: "help-title" });
  const rater = document.createElement("input");
  rater.value = state.rater;
  const problem = line("p", "", "problem", { role: "alert" });
  rater.addEventListener("change", () => {
    const name = rater.value.trim();
    const fits = RATER.test(name);
    problem.textContent = fits ? "" : `${NAME_RULE} The rater is still ${state.rater}.`;
    if (fits && name !== state.rater) changeRater(name);
    if (!fits && !box.open) setTimeout(() => box.showModal()); // it was closed with this name
  });
  const label = line("label", "Rater ");
  label.append(rater);
  box.replaceChildren(title, keys, label, problem, button("Close", () => box.close()));
  box.showModal();
};

const typing = target => target instanceof Element && target.closest("input, textarea, select, dialog") !== null;

const PASSING = new Set(["j", "k", "ArrowDown", "ArrowUp", "PageDown", "PageUp", "Home", "End", "Tab", "Shift"]);
const waiting = []; // keys for the response that is on its way
let replaying = false;

/** Keys that are pressed before the next response is shown wait for it: they are not meant for the one before. */
document.addEventListener("keydown", event => {
  const free = !list.opening && !waiting.length;
  const passes = PASSING.has(event.key) && !waiting.length;
  if (replaying || free || passes || event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  waiting.push(event.key);
}, true);

const replay = shown => {
  if (!shown) waiting.length = 0;
  while (waiting.length && !list.opening) {
    const key = waiting.shift();
    const place = document.activeElement || document.body;
    replaying = true;
    if (typing(place)) type(place, key);
    else if (place.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })) && ["Enter", " "].includes(key)) place.click();
    replaying = false;
  }
};

const tellChange = event => event.target.dispatchEvent(new Event("change"));

/** Type a key into a field, as the browser does with a key of its own: a change is told when the field is left. */
const type = (field, key) => {
  field.addEventListener("focusout", tellChange, { once: true });
  if (key === "Backspace") {
    const before = field.value.slice(0, field.selectionStart);
    const [last = ""] = Array.from(before).slice(-1);
    if (field.selectionStart === field.selectionEnd) field.selectionStart -= last.length;
    field.setRangeText("");
    field.dispatchEvent(new Event("input", { bubbles: true }));
  } else if (key.length > 1 && !["Enter", "Escape"].includes(key)) {
    field.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  } else if (key.length > 1) { // leaves the field
    field.dispatchEvent(new Event("change", { bubbles: true }));
    field.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  } else {
    field.setRangeText(key, field.selectionStart, field.selectionEnd, "end");
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
};

document.addEventListener("keydown", event => {
  const undo = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z";
  if (undo && detail.record && !typing(event.target)) {
    event.preventDefault();
    if (event.shiftKey) detail.redo();
    else detail.undo();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || event.defaultPrevented) return;
  const acts = {
    j: () => list.move(1), k: () => list.move(-1), "/": () => $("text").focus(), "?": showHelp, t: () => setView("teach"),
  };
  const act = acts[event.key];
  if (act) act();
  else if (!detail.command(event)) return;
  event.preventDefault();
});

/** A file is read from its beginning, a run from its end; an order that the reader chose stays. */
const orderOf = run => {
  const { order } = $("filters").elements;
  if (run && ["newest", "oldest"].includes(order.value)) order.value = ["file", "prompts"].includes(run.kind) ? "oldest" : "newest";
};

let timer = 0;
$("filters").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(refresh, TYPING_MS); });
$("filters").addEventListener("reset", () => setTimeout(() => { // the fields are emptied after the event
  orderOf(state.runs[state.run]);
  refresh();
}));
$("filters").addEventListener("submit", event => event.preventDefault());
$("filters").addEventListener("keydown", event => { if (event.key === "Escape") $("list").focus(); });
$("list").addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  if (isOpen()) $("response").focus();
  else list.move(list.at < 0 ? 1 : 0);
});
$("run").addEventListener("change", () => {
  state.told = "";
  chooseRun(Number($("run").value));
});
for (const choice of document.querySelectorAll("[data-view]")) choice.addEventListener("click", () => setView(choice.dataset.view));
$("help-open").addEventListener("click", showHelp);
$("own").addEventListener("click", ownText);
$("summary-open").addEventListener("click", async () => {
  leave();
  await showSummary();
  document.body.classList.add("shows-detail");
});
addEventListener("hashchange", followAddress);
/** Words that are being typed are marks, too. */
const keepTyped = () => {
  const field = document.activeElement;
  if (field && field.dataset.field) field.dispatchEvent(new Event("change"));
};

document.addEventListener("visibilitychange", () => { if (document.hidden) keepTyped(); }); // perhaps on its way out

if (state.rater && !RATER.test(state.rater)) await askRater();
takeOverview(await get("studio"));
orderOf(state.runs[state.run]);
if (state.readOnly) { sayWhatIsSaved(); $("own").hidden = true; }
if (state.runs.length) {
  await followAddress();
} else { // one's own texts only
  document.body.classList.add("no-runs");
  state.view = "mine";
  pressView();
  if (!$("own-response")) ownText(); // a quick person has opened it
  await list.refresh();
}
watch();
