"use strict";
// Charts in the colours of the page, the table, and the live page. No request is made
// but where the page is served live, and then to where it came from.

let views = [];
let study = {};

// Colours are those of the style sheet, whatever it comes to: light, dark or on paper.
function config() {
  const ink = "var(--ink)";
  const soft = "var(--soft)";
  const line = "var(--line)";
  const text = { labelColor: soft, titleColor: ink };
  return {
    ...study.config,
    background: "transparent",
    axis: { ...study.config.axis, ...text, gridColor: line, domainColor: soft, tickColor: soft },
    legend: { ...study.config.legend, ...text },
    text: { color: ink },
    rule: { color: ink },
    view: { stroke: null },
  };
}

async function draw() {
  views.splice(0).forEach((view) => view.finalize());
  for (const place of document.querySelectorAll("[data-chart]")) {
    const spec = { ...study.charts[place.dataset.chart], width: "container" };
    spec.height ??= 300;
    spec.datasets = { trials: study.trials };
    const drawn = await embedChart(place, spec, {
      actions: false, ast: true, renderer: "svg", logLevel: 1, config: config(), tooltip: { theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light" },
    });
    name(place);
    views.push(drawn);
  }
  document.body.dataset.drawn = String(views.length);
}

// To who does not see it, a chart is one picture with a name: its numbers are in the table.
function name(place) {
  ["role", "aria-label", "aria-roledescription"].forEach((each) => place.removeAttribute(each));
  const svg = place.querySelector("svg");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", place.closest("figure").querySelector("h2").textContent);
  [...svg.children].forEach((child) => child.setAttribute("aria-hidden", "true"));
}

function chooseCell(cell) {
  const choice = document.querySelector(".vega-bindings select");
  if (!choice || ![...choice.options].some((each) => each.value === cell)) return;
  choice.value = cell;
  choice.dispatchEvent(new Event("change"));
}

function sortBy(header) {
  const table = header.closest("table");
  const column = header.cellIndex;
  const down = header.getAttribute("aria-sort") === "ascending";
  table.querySelectorAll("th").forEach((th) => th.removeAttribute("aria-sort"));
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = (row) => {
    const cell = row.cells[column];
    return "sort" in cell.dataset ? Number(cell.dataset.sort) : cell.textContent.trim();
  };
  const compare = (one, other) => {
    const [a, b] = [key(one), key(other)];
    if (a === "" || b === "") return (a === "") - (b === ""); // what is not known comes last
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
    return down ? -order : order;
  };
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort(compare));
}

function filter() {
  if (!document.getElementById("filter")) return; // studies beside each other have no trials
  const words = document.getElementById("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const verdict = document.getElementById("verdict").value;
  let shown = 0;
  for (const row of document.getElementById("table").tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = (verdict && row.dataset.verdict !== verdict) || !words.every((word) => text.includes(word));
    shown += !row.hidden;
  }
  document.getElementById("shown").textContent = `${shown} rows`;
}

function showLog(name) {
  const dialog = document.getElementById("log");
  dialog.querySelector("h2").textContent = name;
  dialog.querySelector("pre").textContent = study.logs[name];
  dialog.showModal();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.closest("thead")) sortBy(button.closest("th"));
  else if (button.classList.contains("log")) showLog(button.dataset.log);
});
document.addEventListener("input", (event) => {
  if (event.target.id === "filter" || event.target.id === "verdict") filter();
});

async function enter() {
  study = JSON.parse(document.getElementById("study").textContent);
  filter();
  await draw();
}

// The live page: the same page again, as soon as it changed.
async function follow() {
  const main = document.getElementById("main");
  try {
    const answer = await fetch("/", { headers: { "If-None-Match": main.dataset.state } });
    if (answer.status === 200) {
      const next = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
      const kept = ["filter", "verdict"].map((id) => [id, document.getElementById(id).value]);
      const sorted = document.querySelector("#table th[aria-sort]");
      const cell = views.map((view) => view.spec.params && view.view.signal("cell")).find(Boolean);
      const scrolled = [...document.querySelectorAll(".scroll")].map((each) => each.scrollTop);
      main.replaceWith(next);
      kept.forEach(([id, value]) => { document.getElementById(id).value = value; });
      if (sorted) {
        const header = document.querySelectorAll("#table th")[sorted.cellIndex];
        sortBy(header);
        if (sorted.getAttribute("aria-sort") === "descending") sortBy(header);
      }
      await enter();
      chooseCell(cell);
      document.querySelectorAll(".scroll").forEach((each, i) => { each.scrollTop = scrolled[i] ?? 0; });
    }
    document.body.dataset.live = "yes";
  } catch {
    document.body.dataset.live = "no"; // the server has gone; the page stays as it is
  }
  setTimeout(follow, 2000);
}

enter().then(() => { if (study.live) follow(); });
