// Small curves over the steps; a step leads to its responses.

import { line, shown } from "./tokens.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, EDGE] = [170, 44, 3];
const CURVES = { reward: "reward", kl: "KL per response", negative: "with poor spans", tokens: "tokens" };

const node = (name, attributes) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  return element;
};

/** Draw the curves of {steps}; `choose(step)` is called for a step. */
export const drawCurves = (root, { steps }, choose) => {
  root.replaceChildren();
  if (steps.length < 2) return;
  for (const [name, title] of Object.entries(CURVES)) {
    const values = steps.map(one => one[name]);
    const known = values.filter(value => value !== null);
    if (known.length < 2) continue;
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const x = n => EDGE + (n / (steps.length - 1)) * (WIDTH - 2 * EDGE);
    const y = value => HEIGHT - EDGE - ((value - low) / (high - low || 1)) * (HEIGHT - 2 * EDGE);
    const figure = line("figure", "", "curve");
    const caption = line("figcaption", `${title} ${shown(known[known.length - 1])}`);
    const svg = node("svg", { preserveAspectRatio: "none", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, tabindex: 0, role: "slider",
      "aria-label": `${title} over the steps; arrow keys choose a step, Enter shows its responses`,
      "aria-valuemin": 0, "aria-valuemax": steps.length - 1, "aria-valuenow": steps.length - 1 });
    const points = values.map((value, n) => [n, value]).filter(([, value]) => value !== null);
    svg.append(node("polyline", { points: points.map(([n, value]) => `${x(n)},${y(value)}`).join(" ") }));
    const dot = node("ellipse", { rx: 2.5, ry: 2.5, visibility: "hidden" });
    svg.append(dot);
    let at = steps.length - 1;
    const show = n => {
      at = Math.max(0, Math.min(steps.length - 1, n));
      if (values[at] === null) return;
      dot.setAttribute("visibility", "visible");
      dot.setAttribute("cx", String(x(at)));
      dot.setAttribute("cy", String(y(values[at])));
      const words = `step ${steps[at].step}: ${shown(values[at])}`;
      caption.textContent = `${title}, ${words}`;
      svg.setAttribute("aria-valuenow", String(at));
      svg.setAttribute("aria-valuetext", words);
    };
    svg.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect();
      show(Math.round(((event.clientX - box.left) / box.width) * (steps.length - 1)));
    });
    svg.addEventListener("click", () => choose(steps[at].step));
    svg.addEventListener("keydown", event => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) show(at + step);
      else if (event.key === "Enter") choose(steps[at].step);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    figure.append(svg, caption);
    root.append(figure);
  }
};

/** Words about runs that need a look, from the means of the steps. */
export const alarmsOf = ({ steps }) => {
  const last = steps[steps.length - 1];
  if (!last) return [];
  const share = value => `${Math.round(100 * value)} %`;
  const found = [];
  if (last.failed > 0.1) found.push(`${share(last.failed)} of the critiques of step ${last.step} could not be read`);
  if (last.truncated > 0.5) found.push(`${share(last.truncated)} of the responses of step ${last.step} were cut by the length limit`);
  if (steps.length > 2 && steps.every(one => one.reward === 0)) found.push("every reward is 0: the critic marks nothing");
  const first = steps[0];
  if (steps.length > 5 && first.tokens && last.tokens > 2 * first.tokens) {
    found.push(`responses grew from ${shown(first.tokens)} to ${shown(last.tokens)} tokens`);
  }
  if (steps.length > 5 && first.tokens && last.tokens < first.tokens / 2) {
    found.push(`responses shrank from ${shown(first.tokens)} to ${shown(last.tokens)} tokens`);
  }
  return found;
};
