// What htmx does not do by itself: read live parts again while the page is visible, name those that are old, and copy
// commands.
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

// A part that cannot be read again keeps what it showed, named as old; the next good answer replaces all of it.
document.addEventListener("htmx:finally:request", (event) => {
  const part = event.target.closest("[data-seconds]");
  const { response } = event.detail.ctx;
  if (!part || (response && response.status < 400)) return;
  let note = part.querySelector(":scope > .message[role=status]");
  if (!note) {
    note = document.getElementById("outdated").content.firstElementChild.cloneNode(true);
    part.prepend(note);
  }
  const why = response ? `the sidecar answered with status ${response.status}` : "the sidecar does not respond";
  note.querySelector(".why").textContent = `${why}; what follows is what it answered before`;
});

// Commands are copied by a click; without a script they can be selected.
document.addEventListener("click", async (event) => {
  const code = event.target.closest(".command code");
  if (code && navigator.clipboard && document.getSelection().isCollapsed) {
    await navigator.clipboard.writeText(code.textContent);
    code.classList.add("copied");
    setTimeout(() => code.classList.remove("copied"), 1500);
  }
});
