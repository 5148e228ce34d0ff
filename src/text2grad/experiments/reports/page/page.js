
"use strict";
(() => {
  const tip = document.getElementById("tip");
  const legend = document.querySelector(".legend");
  if (!legend) return;
  const names = legend.dataset.names.split(" ");
  const wide = matchMedia("(min-width: 721px)");
  const numbers = token => token.dataset.v.split(" ").map(Number);
  const shown = x => Number.isNaN(x) ? "–" : String(Number(x.toPrecision(3))).replace("-", "−");
  let at = null;
  let held = false;

  const line = (tag, text) => {
    const element = document.createElement(tag);
    element.textContent = text;
    return element;
  };

  const hide = () => {
    if (at) at.classList.remove("at");
    at = null;
    held = false;
    tip.hidden = true;
  };

  const place = token => {
    const box = token.getClientRects()[0] || token.getBoundingClientRect();
    const left = Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8));
    const below = box.bottom + 10 + tip.offsetHeight < innerHeight;
    tip.style.setProperty("--x", `${left}px`);
    tip.style.setProperty("--y", `${below ? box.bottom + 10 : box.top - tip.offsetHeight - 10}px`);
  };

  const show = token => {
    if (token === at) return;
    hide();
    at = token;
    token.classList.add("at");
    const tokens = [...token.parentNode.querySelectorAll(".t")];
    const text = token.textContent ? JSON.stringify(token.textContent) : "no text of its own";
    const values = numbers(token).map((value, n) => {
      const row = document.createElement("div");
      row.append(line("span", names[n]), line("span", shown(value)));
      return row;
    });
    tip.replaceChildren(
      line("b", text), line("small", `token ${tokens.indexOf(token) + 1} of ${tokens.length}`), ...values);
    tip.hidden = false;
    if (wide.matches) place(token);
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
  document.addEventListener("scroll", () => { if (at && wide.matches) place(at); }, { passive: true });

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
    const sizes = tokens.map(token => Math.abs(numbers(token)[column] || 0)).sort((a, b) => a - b);
    const top = column === 0 ? 1 : sizes[Math.floor(0.98 * (sizes.length - 1))] || 1;
    for (const token of tokens) {
      const value = sign * numbers(token)[column] || 0;
      const level = Math.min(4, Math.ceil(4 * Math.abs(value) / top - (column === 0 ? 0 : 0.5)));
      token.className = token.className.replace(/ [pn][1-4]/g, "");
      if (level > 0) token.className += ` ${value > 0 ? "p" : "n"}${level}`;
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
