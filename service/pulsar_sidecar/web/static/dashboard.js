// What htmx does not do by itself: read live parts again while the page is visible, and copy commands.
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
