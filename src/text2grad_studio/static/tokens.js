// Tokens on a page: their colours, their numbers in a tip, and text that cannot act.

const JOINING = "\\u0600-\\u109f\\u1780-\\u18aa\\u1a20-\\u1cff\\ua800-\\uabff\\ufb50-\\ufdff\\ufe70-\\ufefc\\u{10a00}-\\u{11fff}\\u{1e900}-\\u{1e95f}";
const EMOJI = "\\u2190-\\u2bff\\ufe0f\\u{1f000}-\\u{1faff}";
const FLAG = "\\u{1f3f4}[\\u{e0020}-\\u{e007e}]{3,6}\\u{e007f}"; // as types.py
const INVISIBLE = new RegExp(
  `${FLAG}|[\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f`
  + "\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb\\ud800-\\udfff\\u{e0000}-\\u{e007f}]"
  + `|(?<![${JOINING}])\\u200c(?![${JOINING}])|(?<![${JOINING}${EMOJI}])\\u200d(?![${JOINING}])|(?<=[${EMOJI}])\\u200d(?![${JOINING}${EMOJI}])`,
  "gu",
);

const sign = character => {
  const code = character.codePointAt(0);
  if (code === 0x7f) return "␡";
  return code < 0x20 ? String.fromCodePoint(0x2400 + code) : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
};

const isOne = hidden => hidden.length <= 2; // code units; a flag has more

/** Text in which characters that act on a page, or that nobody would see, are visible; as `visible` in types.py. */
export const visible = text => text.replace(INVISIBLE, hidden => (isOne(hidden) ? sign(hidden) : hidden));

/** The characters (code points) of a text as `visible` shows them, one by one. */
export const signs = text => {
  const characters = [];
  let done = 0;
  for (const { 0: hidden, index } of text.matchAll(INVISIBLE)) {
    if (!isOne(hidden)) continue;
    for (const character of text.slice(done, index)) characters.push(character);
    characters.push(sign(hidden));
    done = index + hidden.length;
  }
  for (const character of text.slice(done)) characters.push(character);
  return characters;
};

/** A number with three digits and a true minus sign. */
export const shown = x => x === null || x === undefined || Number.isNaN(x) ? "–"
  : String(Number(Number(x).toPrecision(3))).replace("-", "−");

/** An element with text, a class and attributes; text is never markup. */
export const line = (tag, text = "", name = "", attributes = {}) => {
  const element = document.createElement(tag);
  element.textContent = visible(String(text));
  if (name) element.className = name;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};

/** A table in a frame in which it scrolls; a cell is a text or an element. */
export const tableOf = (label, names, rows) => {
  const rowOf = (tag, values, attributes) => {
    const row = line("tr");
    for (const value of values) {
      const isElement = value instanceof Element;
      const cell = row.appendChild(line(tag, isElement ? "" : value, "", attributes));
      if (isElement) cell.append(value);
    }
    return row;
  };
  const frame = line("div", "", "table", { tabindex: 0, role: "region", "aria-label": label });
  frame.appendChild(line("table")).append(rowOf("th", names, { scope: "col" }), ...rows.map(row => rowOf("td", row)));
  return frame;
};

/** The size that gets the strongest colour: the 98th percentile, so that single outliers do not pale all others. */
export const strongest = sizes => {
  const sorted = sizes.map(Math.abs).sort((a, b) => a - b);
  return sorted[Math.floor(0.98 * (sorted.length - 1))] || 1;
};

/** The colour class of a value: p1 to p4, n1 to n4 or "". δ is exact; other numbers begin at an eighth of the top. */
export const colourOf = (value, top, exact) => {
  const level = Math.min(4, Math.ceil(4 * Math.abs(value || 0) / top - (exact ? 0 : 0.5)));
  return level > 0 ? `${value > 0 ? "p" : "n"}${level}` : "";
};

/** Put the tip below an element, or above it, inside the window. */
export const placeTip = (tip, element, { above = false } = {}) => {
  const box = element.getClientRects()[0] || element.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8));
  const fits = above && box.top - tip.offsetHeight - 10 > 8;
  const below = !fits && box.bottom + 10 + tip.offsetHeight < innerHeight;
  tip.style.setProperty("--x", `${left}px`);
  tip.style.setProperty("--y", `${below ? box.bottom + 10 : box.top - tip.offsetHeight - 10}px`);
};

/** Fill the tip of a token: its text, its place, and a row for each number. */
export const fillTip = (tip, text, place, rows) => {
  const lines = rows.map(([name, value]) => {
    const row = document.createElement("div");
    row.append(line("span", name), line("span", shown(value)));
    return row;
  });
  tip.replaceChildren(line("b", text ? JSON.stringify(text) : "no text of its own"), line("small", place), ...lines);
  tip.hidden = false;
};

/** True where the tip stands beside the token; on a phone it stands at the foot of the window. */
export const wide = matchMedia("(min-width: 721px)");
