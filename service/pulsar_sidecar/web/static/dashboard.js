// What htmx does not do by itself: read live parts again while the page is visible, and draw charts from tables.
"use strict";

// A live part that has a form in use, or that a pointer has selected text of, is left alone until its next turn.
function isInUse(part) {
  const focused = document.activeElement;
  const selected = document.getSelection();
  return (
    (focused && focused !== part && part.contains(focused) && focused.matches("input, select, textarea")) ||
    (selected && !selected.isCollapsed && part.contains(selected.anchorNode))
  );
}

const due = new Map();

setInterval(() => {
  if (document.visibilityState !== "visible") return;
  const now = Date.now();
  for (const part of document.querySelectorAll("[data-seconds]")) {
    const next = due.get(part.id) ?? now + 1000 * part.dataset.seconds;
    if (next <= now && !isInUse(part)) {
      due.set(part.id, now + 1000 * part.dataset.seconds);
      part.dispatchEvent(new CustomEvent("refresh"));
    } else {
      due.set(part.id, next);
    }
  }
}, 1000);

// Commands are copied by a click; without a script they can be selected.
document.addEventListener("click", async (event) => {
  const code = event.target.closest(".command code");
  if (code && navigator.clipboard && document.getSelection().isCollapsed) {
    await navigator.clipboard.writeText(code.textContent);
    code.classList.add("copied");
    setTimeout(() => code.classList.remove("copied"), 1500);
  }
});

// Charts: the rows of the table below, in the page's own colours. A page with charts loads uPlot in its block `scripts`.
const steps = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function bytes(value) {
  const step = value < 1 ? 0 : Math.min(steps.length - 1, Math.floor(Math.log2(value) / 10));
  return `${(value / 1024 ** step).toFixed(step ? 1 : 0)} ${steps[step]}`;
}

function draw(figure) {
  const rows = Array.from(figure.querySelectorAll("[data-row]"), (row) => JSON.parse(row.dataset.row));
  const names = Array.from(figure.querySelectorAll("th.number"), (head) => head.textContent);
  const plot = figure.querySelector(".plot");
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const lines = ["--plan", "--findings", "--clean", "--stopped"].map(colour);
  const shown = (value) => (value == null ? "" : figure.dataset.unit === "bytes" ? bytes(value) : value.toLocaleString("en"));
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { stroke: colour("--rule") } };
  plot.replaceChildren();
  if (rows.length < 2 || typeof uPlot === "undefined") return;
  const columns = rows[0].map((_, column) => rows.map((row) => (column ? row[column] : row[0] / 1000)));
  new uPlot(
    {
      width: Math.max(280, plot.clientWidth),
      height: 240,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      series: [
        { label: "time (UTC)" },
        ...names.map((label, index) => ({ label, stroke: lines[index % lines.length], width: 2, value: (_, value) => shown(value) })),
      ],
      axes: [axis, { ...axis, size: 80, values: (_, values) => values.map(shown) }],
    },
    columns,
    plot,
  );
}

const drawAll = () => document.querySelectorAll("figure.chart").forEach(draw);
drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
let resized;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(drawAll, 200);
});
