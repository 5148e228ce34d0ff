// Small curves over the steps; a step leads to its responses.

import { line, shown } from "./tokens.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, EDGE] = [170, 44, 3];
const MOST = 4; // metrics of evaluations
const CURVES = { reward: "reward", kl: "KL per response", negative: "with negative spans", tokens: "tokens" };

const node = (name, attributes) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  return element;
};

/** The series to draw: means of the rollouts, then the metrics of evaluations on held-out prompts. */
const seriesOf = ({ steps, evaluations }) => {
  const series = Object.entries(CURVES).map(([name, title]) => ({ title, points: steps.map(mean => [mean.step, mean[name]]) }));
  const names = [...new Set(evaluations.flatMap(evaluation => Object.keys(evaluation.values)))];
  for (const name of names.slice(0, MOST)) {
    series.push({ title: `held-out ${name.replaceAll("_", " ")}`, points: evaluations.map(evaluation => [evaluation.step, evaluation.values[name] ?? null]) });
  }
  return series.map(curve => ({ ...curve, points: curve.points.filter(([, value]) => value !== null) })).filter(curve => curve.points.length > 1);
};

/** Draw the curves of {steps, evaluations}; `choose(step)` is called for a step. */
export const drawCurves = (root, given, choose) => {
  root.replaceChildren();
  for (const { title, points } of seriesOf(given)) {
    const values = points.map(([, value]) => value);
    const steps = points.map(([step]) => step);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const [first, last] = [steps[0], steps[steps.length - 1]];
    const x = step => EDGE + ((step - first) / (last - first || 1)) * (WIDTH - 2 * EDGE);
    const y = value => HEIGHT - EDGE - ((value - low) / (high - low || 1)) * (HEIGHT - 2 * EDGE);
    const figure = line("figure", "", "curve");
    const caption = document.createElement("figcaption");
    const say = words => caption.replaceChildren(line("span", title), line("span", words)); // a long title is cut, not the value
    say(` ${shown(values[values.length - 1])}`);
    const svg = node("svg", { preserveAspectRatio: "none", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, tabindex: 0, role: "slider",
      "aria-label": `${title} over the steps; arrow keys choose a step, Enter shows its responses`,
      "aria-valuemin": 0, "aria-valuemax": steps.length - 1, "aria-valuenow": steps.length - 1 });
    svg.append(node("polyline", { points: points.map(([step, value]) => `${x(step)},${y(value)}`).join(" ") }));
    const dot = node("ellipse", { rx: 2.5, ry: 2.5, visibility: "hidden" });
    svg.append(dot);
    let at = steps.length - 1;
    const show = n => {
      at = Math.max(0, Math.min(steps.length - 1, n));
      dot.setAttribute("visibility", "visible");
      dot.setAttribute("cx", String(x(steps[at])));
      dot.setAttribute("cy", String(y(values[at])));
      const words = `step ${steps[at]}: ${shown(values[at])}`;
      say(`, ${words}`);
      svg.setAttribute("aria-valuenow", String(at));
      svg.setAttribute("aria-valuetext", words);
    };
    svg.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect();
      const step = first + ((event.clientX - box.left) / box.width) * (last - first);
      show(steps.reduce((best, other, n) => (Math.abs(other - step) < Math.abs(steps[best] - step) ? n : best), 0));
    });
    svg.addEventListener("click", () => choose(steps[at]));
    svg.addEventListener("keydown", event => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) show(at + step);
      else if (event.key === "Enter") choose(steps[at]);
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
  const alarms = [];
  if (last.failed > 0.1) alarms.push(`${share(last.failed)} of the critiques of step ${last.step} could not be read`);
  if (last.truncated > 0.5) alarms.push(`${share(last.truncated)} of the responses of step ${last.step} were cut by the length limit`);
  if (steps.length > 2 && steps.every(mean => mean.reward === 0)) alarms.push("every reward is 0: the critic marks nothing");
  const first = steps[0];
  if (steps.length > 5 && first.tokens && last.tokens > 2 * first.tokens) {
    alarms.push(`responses grew from ${shown(first.tokens)} to ${shown(last.tokens)} tokens`);
  }
  if (steps.length > 5 && first.tokens && last.tokens < first.tokens / 2) {
    alarms.push(`responses shrank from ${shown(first.tokens)} to ${shown(last.tokens)} tokens`);
  }
  return alarms;
};
