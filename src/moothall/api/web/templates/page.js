"use strict";
// Keeps what is shown as the server has it: a change on the board or in a council, or time while a council runs, fetches this page anew and
// puts its parts marked data-live in place of those shown. Cards of the board are dragged, the coach reads along, and what cannot be sent is kept.
// All of it works without this: then a page is as it was when it was loaded, and a card moves by its buttons.
const main = document.querySelector("main");
const rest = 3000;
const focusable = "a, button, summary, input, textarea, select, [tabindex]";
const silence = 10000;
const spread = 300; // what everybody hears at once, not everybody asks for at once
let soon = 0;
let source = null;
let words = null;
let renewing = false;
let again = false;
let here = true;
let lifted = null;

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
  if (answer.status === 429 || answer.status === 503) setTimeout(() => renew().catch(() => tell(false)), rest * (1 + Math.random()));
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  main.dataset.every = fresh.querySelector("main").dataset.every;
  if (!(main.dataset.growing = fresh.querySelector("main").dataset.growing)) unlisten();
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
    if (next && next.innerHTML !== part.innerHTML && !isWrittenIn(part) && !part.contains(lifted)) put(document.importNode(next, true), part);
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

function renewSoon() {
  soon ||= setTimeout(() => { soon = 0; renew().catch(() => tell(false)); }, Math.random() * spread);
}

function tell(connected) {
  if (here && !connected) document.getElementById("since").textContent = new Date().toLocaleTimeString();
  here = connected;
  document.getElementById("offline").hidden = connected;
  document.body.classList.toggle("away", !connected);
}

function say(text) {
  const told = document.getElementById("told");
  told.hidden = !text;
  told.textContent = text;
}

function busy(is) {
  document.body.classList.toggle("busy", is);
}

// Sends a form as its button would, and returns the page that it leads to.
async function send(form, name, value, to = form.getAttribute("action")) {
  const fields = new URLSearchParams(new FormData(form));
  fields.set(name, value);
  const answer = await fetch(to, { method: "POST", body: fields });
  return { ok: answer.ok, page: new DOMParser().parseFromString(await answer.text(), "text/html") };
}

function way(column) {
  return lifted && column && lifted.querySelector(`[data-to="${column.dataset.state}"]`);
}

// Where a card may go is what the server says on its buttons; whether it goes there, the server decides anew.
async function move(button) {
  say("");
  busy(true);
  try {
    const { ok, page } = await send(button.form, "event", button.value, button.getAttribute("formaction"));
    if (!ok) say(page.querySelector("main [role=alert]")?.textContent ?? "It was not moved.");
    await renew();
  } catch {
    tell(false);
  } finally {
    busy(false);
  }
}

function lay() {
  lifted?.classList.remove("lifted");
  lifted = null;
  for (const column of document.querySelectorAll("[data-state]")) column.classList.remove("way", "shut", "over");
}

document.addEventListener("dragstart", (event) => {
  lifted = event.target.closest?.("[data-card]") ?? null;
  if (!lifted) return;
  event.dataTransfer.effectAllowed = "move";
  event.dataTransfer.setData("text/plain", lifted.dataset.card);
  lifted.classList.add("lifted");
  for (const column of document.querySelectorAll("[data-state]")) {
    const button = way(column);
    if (button) column.classList.add(button.disabled ? "shut" : "way");
  }
});
document.addEventListener("dragover", (event) => {
  const column = event.target.closest?.("[data-state]");
  for (const other of document.querySelectorAll(".over")) if (other !== column) other.classList.remove("over");
  if (!way(column)) return;
  event.preventDefault();
  column.classList.add("over");
});
document.addEventListener("drop", (event) => {
  const button = way(event.target.closest?.("[data-state]"));
  if (!button) return;
  event.preventDefault();
  lay();
  if (button.disabled) say(`It stays where it is: ${button.dataset.why}`);
  else move(button);
});
document.addEventListener("dragend", () => { lay(); renew().catch(() => tell(false)); });

// Nothing is lost to a server that is away: a form is sent where somebody answers, and once.
document.addEventListener("submit", (event) => {
  if (here && !document.body.classList.contains("busy")) { busy(true); return; }
  event.preventDefault();
  if (!here) document.getElementById("offline").focus();
});
addEventListener("pageshow", () => busy(false)); // also of a page that a browser kept
addEventListener("offline", () => tell(false));
document.getElementById("retry").addEventListener("click", () => { take().then(() => tell(true), () => tell(false)); });

// The coach reads along, a moment after the last word.
for (const form of document.querySelectorAll("[data-scores]")) {
  const place = document.getElementById(form.dataset.scores);
  let pause = 0;
  form.addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(async () => {
      try {
        const { ok, page } = await send(form, "do", "score");
        const fresh = page.getElementById(form.dataset.scores);
        if (ok && fresh) place.replaceChildren(...document.importNode(fresh, true).children);
      } catch {
        tell(false);
      }
    }, 400);
  });
}

function follow() {
  source = new EventSource(main.dataset.changes);
  source.onopen = () => { tell(true); renewSoon(); };
  source.onmessage = renewSoon;
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
// Where one request failed, the next that is answered says that the server is there.
setInterval(() => {
  if (document.hidden) return;
  if (!here) take().then(() => tell(true), () => {});
  else if (Number(main.dataset.every)) renew().catch(() => tell(false));
}, rest);
if (!document.hidden) { follow(); listen(); }
