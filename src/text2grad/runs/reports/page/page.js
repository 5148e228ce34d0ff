
import { colourOf, fillTip, placeTip, strongest, wide } from "./tokens.js";

(() => {
  const tip = document.getElementById("tip");
  const legend = document.querySelector(".legend");
  if (!legend) return;
  const names = legend.dataset.names.split(" ");
  const numbers = token => token.dataset.v.split(" ").map(Number);
  let at = null;
  let held = false;

  const hide = () => {
    if (at) at.classList.remove("at");
    at = null;
    held = false;
    tip.hidden = true;
  };

  const show = token => {
    if (token === at) return;
    hide();
    at = token;
    token.classList.add("at");
    const tokens = [...token.parentNode.querySelectorAll(".t")];
    const rows = numbers(token).map((value, n) => [names[n], value]);
    fillTip(tip, token.textContent, `token ${tokens.indexOf(token) + 1} of ${tokens.length}`, rows);
    if (wide.matches) placeTip(tip, token);
  };

  const tokenOf = event => event.target.closest ? event.target.closest(".text .t") : null;
  document.addEventListener("pointerover", event => {
    if (event.pointerType !== "mouse" || held) return;
    const token = tokenOf(event);
    if (token) show(token);
    else if (at) hide();
  });
  document.addEventListener("click", event => {
    const token = tokenOf(event);
    if (!token || (held && token === at)) return hide();
    show(token);
    held = true;
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", () => { if (at && wide.matches) placeTip(tip, at); }, { passive: true });

  const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
  document.addEventListener("keydown", event => {
    if (event.key === "Escape") return hide();
    const text = document.activeElement;
    if (!text || !text.classList.contains("text") || !(event.key in steps)) return;
    const tokens = [...text.querySelectorAll(".t")];
    if (!tokens.length) return;
    event.preventDefault();
    const from = tokens.indexOf(at);
    const to = from < 0 && event.key === "ArrowLeft" ? tokens.length : from;
    const next = tokens[Math.max(0, Math.min(tokens.length - 1, to + steps[event.key]))];
    show(next);
    held = true;
    next.scrollIntoView({ block: "nearest" });
  });

  const colour = column => {
    const sign = names[column] === "KL" ? -1 : 1; // KL is a cost
    const tokens = [...document.querySelectorAll(".text .t")];
    const top = column === 0 ? 1 : strongest(tokens.map(token => numbers(token)[column] || 0));
    for (const token of tokens) {
      const value = sign * numbers(token)[column] || 0;
      const look = colourOf(value, top, column === 0);
      token.className = token.className.replace(/ [pn][1-4]/g, "");
      if (look) token.className += ` ${look}`;
    }
  };
  const buttons = [...legend.querySelectorAll("button")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      colour(Number(button.dataset.column));
    });
  }
})();
