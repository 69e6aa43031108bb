"use strict";
// Keeps what is shown as the house has it: a change on the board or in a council, or time while a council runs, fetches this page anew and
// puts its parts marked data-live in place of those shown. All of it works without this: then a page is as it was when it was loaded.
const main = document.querySelector("main");
const rest = 3000;
const focusable = "a, button, summary, input, textarea, select, [tabindex]";
const silence = 10000;
let source = null;
let words = null;
let renewing = false;
let again = false;

function isWrittenIn(part) {
  return part.contains(document.activeElement) && /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)
    || [...part.querySelectorAll("input:not([type=hidden]), textarea")].some((field) => field.value !== field.defaultValue);
}

// What a reader has opened, scrolled and reached by the keyboard stays so.
function put(next, part) {
  const at = [...part.querySelectorAll(focusable)].indexOf(document.activeElement);
  for (const kept of next.querySelectorAll("[data-keep]")) {
    const before = part.querySelector(`[data-keep="${kept.dataset.keep}"]`);
    if (before) kept.open = before.open;
  }
  part.replaceWith(next);
  if (at >= 0) next.querySelectorAll(focusable)[at]?.focus({ preventScroll: true });
}

async function take() {
  const answer = await fetch(location.href, { redirect: "manual" });
  if (answer.type === "opaqueredirect") location.reload(); // not signed in any more
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  main.dataset.every = fresh.querySelector("main").dataset.every;
  if (!(main.dataset.growing = fresh.querySelector("main").dataset.growing)) unlisten();
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
    if (next && next.innerHTML !== part.innerHTML && !isWrittenIn(part)) put(document.importNode(next, true), part);
  }
}

async function renew() {
  again = true;
  if (renewing) return;
  renewing = true;
  try {
    while (again) {
      again = false;
      await take();
    }
  } finally {
    renewing = false;
  }
}

function tell(connected) {
  document.getElementById("offline").hidden = connected;
}

function follow() {
  source = new EventSource(main.dataset.changes);
  source.onopen = () => { tell(true); renew().catch(() => tell(false)); };
  source.onmessage = () => renew().catch(() => tell(false));
  source.onerror = () => {
    tell(false);
    if (source.readyState !== EventSource.CLOSED) return; // it tries again by itself
    setTimeout(follow, 2000);
    renew().catch(() => {});
  };
}

// What a seat is writing is text and nothing else. Where no more of it comes, it is shown no longer.
function grow({ seat, text }) {
  for (const part of document.querySelectorAll("[data-grows]")) {
    if (part.dataset.grows !== seat) continue;
    clearTimeout(part.silent);
    part.silent = setTimeout(() => { part.hidden = true; }, silence);
    part.hidden = !text;
    part.lastElementChild.textContent = text;
    part.lastElementChild.scrollTop = part.lastElementChild.scrollHeight;
  }
}

function listen() {
  if (!main.dataset.growing) return;
  words = new EventSource(main.dataset.growing);
  words.onmessage = (message) => grow(JSON.parse(message.data));
}

function unlisten() {
  if (words) words.close();
  words = null;
  for (const part of document.querySelectorAll("[data-grows]")) part.hidden = true;
}

// A browser has few connections to one host: only the page that is looked at holds any.
document.addEventListener("visibilitychange", () => {
  if (source) source.close();
  unlisten();
  if (!document.hidden) { follow(); listen(); }
});
setInterval(() => { if (Number(main.dataset.every) && !document.hidden) renew().catch(() => tell(false)); }, rest);
if (!document.hidden) { follow(); listen(); }
