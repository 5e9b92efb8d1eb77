"use strict";
// What belongs together: lines of the source and bars have the numbers of their steps in data-steps,
// a step has its own in data-step.
const parts = [...document.querySelectorAll("[data-steps], [data-step]")];
const wordsOf = (part) => (part.dataset.steps || part.dataset.step).split(" ");

function mark(words) {
  for (const part of parts) part.classList.toggle("on", wordsOf(part).some((word) => words.has(word)));
}

function markFor(target) {
  const part = target instanceof Element && target.closest("[data-steps], [data-step]");
  if (part) mark(new Set(wordsOf(part)));
}

function markAddress() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target) markFor(target);
}

document.addEventListener("pointerover", (event) => markFor(event.target));
document.addEventListener("focusin", (event) => markFor(event.target));
window.addEventListener("hashchange", markAddress);
markAddress();
