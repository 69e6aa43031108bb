"use strict";
// Keeps what is shown as the house has it: a change on the board, or time while a council runs, fetches this page anew and puts its
// parts marked data-live in place of those shown. All of it works without this: then a page is as it was when it was loaded.
const live = "[data-live]";
const every = Number(document.querySelector("main").dataset.every) * 1000;
let source = null;
let wanted = 0;

function isWrittenIn(part) {
  return part.contains(document.activeElement) && /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)
    || [...part.querySelectorAll("input:not([type=hidden]), textarea")].some((field) => field.value !== field.defaultValue);
}

async function renew() {
  const mine = ++wanted;
  const answer = await fetch(location.href, { redirect: "manual" });
  if (answer.type === "opaqueredirect") location.reload(); // not signed in any more
  if (mine !== wanted || !answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll(live)) {
    const next = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
    if (next && next.innerHTML !== part.innerHTML && !isWrittenIn(part)) part.replaceWith(document.importNode(next, true));
  }
}

function tell(connected) {
  document.getElementById("offline").hidden = connected;
}

function follow() {
  source = new EventSource("/changes");
  source.onopen = () => { tell(true); renew().catch(() => tell(false)); };
  source.onmessage = () => renew().catch(() => tell(false));
  source.onerror = () => {
    tell(false);
    if (source.readyState !== EventSource.CLOSED) return; // it tries again by itself
    setTimeout(follow, 2000);
    renew().catch(() => {});
  };
}

// A browser has few connections to one host: only the page that is looked at holds one.
document.addEventListener("visibilitychange", () => {
  if (source) source.close();
  if (!document.hidden) follow();
});
if (every) setInterval(() => { if (!document.hidden) renew().catch(() => tell(false)); }, every);
if (!document.hidden) follow();
