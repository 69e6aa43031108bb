"use strict";
// Keeps the page up to date: after a change on the board or in a council, and regularly while a council runs, it fetches the page again and
// replaces the parts marked data-live; board.js does so for cards. It also scores drafts while they are written, and keeps input while offline.
// It also keeps a draft of what is typed, so that a restart or the end of a session loses nothing.
// The page works without this script: it then stays as loaded, and cards are moved by their buttons.
const main = document.querySelector("main");
const pollMilliseconds = 3000;
const focusable = "a, button, summary, input, textarea, select, [tabindex]";
const partialReplyMilliseconds = 10000;
const spreadMilliseconds = 300; // clients notified at the same moment do not all reload at the same moment
let renewalTimer = 0;
let renewedAt = Date.now();
let changeStream = null;
let textStream = null;
let renewing = false;
let renewAgain = false;
let isConnected = true;
const shownParts = new WeakMap(); // the HTML of live parts as the server sent it, before the script changed times in it
for (const part of document.querySelectorAll("[data-live]")) shownParts.set(part, part.innerHTML);

// What is typed is kept for each tab, user, page and form, until the server has redirected after the form was sent.
const drafts = "moothall:draft:";
const sentDraft = "moothall:sent";
const isSignedIn = main.dataset.signedIn !== undefined;
function draftName(form) {
  return `${drafts}${main.dataset.signedIn}:${location.pathname}${location.search}:${form.getAttribute("action")}`;
}

function typedFields(form) {
  return [...form.querySelectorAll("input:not([type=hidden]):not([type=password]):not([type=checkbox]), textarea, select")].filter((field) => field.name);
}

// The value that the server sent.
function servedValue(field) {
  if (field.tagName !== "SELECT") return field.defaultValue;
  return ([...field.options].find((option) => option.defaultSelected) ?? field.options[0])?.value ?? "";
}

function draftedForms() {
  return isSignedIn ? [...main.querySelectorAll("form[method=post]")].filter((form) => typedFields(form).length) : [];
}

function keepDraft(form) {
  const changed = typedFields(form).filter((field) => field.value !== servedValue(field));
  sessionStorage.setItem(draftName(form), JSON.stringify(changed.map((field) => [field.name, field.value, servedValue(field)])));
}

// A field is restored only if the server still sends the value that was changed, so that nothing newer is overwritten.
function restoreDrafts() {
  const sent = sessionStorage.getItem(sentDraft);
  const wasRedirected = performance.getEntriesByType("navigation")[0]?.redirectCount > 0;
  sessionStorage.removeItem(sentDraft);
  if (isSignedIn && sent && wasRedirected && main.dataset.failed === undefined) sessionStorage.removeItem(sent);
  for (const form of draftedForms()) {
    for (const [name, value, served] of JSON.parse(sessionStorage.getItem(draftName(form)) ?? "[]")) {
      const field = typedFields(form).find((other) => other.name === name);
      if (field && servedValue(field) === served) field.value = value;
    }
  }
}

function forgetDrafts() {
  for (const name of Object.keys(sessionStorage)) if (name.startsWith(drafts)) sessionStorage.removeItem(name);
}

function showTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    const full = moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    time.title = full;
    time.textContent = time.classList.contains("ago") ? ageOf(moment) : full;
  }
}

function ageOf(moment) {
  const seconds = (Date.now() - moment.getTime()) / 1000;
  const [unit, size] = [["day", 86400], ["hour", 3600], ["minute", 60]].find(([, size]) => seconds >= size) ?? ["minute", 60];
  return new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "narrow" }).format(-Math.floor(seconds / size), unit);
}

function addCopyButtons(root) {
  for (const part of root.querySelectorAll(".copied")) {
    if (part.querySelector("button") || !navigator.clipboard) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet copy";
    const show = (icon, name) => {
      const sprite = document.querySelector(".views use").getAttribute("href").split("#")[0];
      button.innerHTML = `<svg class="icon" aria-hidden="true"><use href="${sprite}#${icon}"/></svg>`;
      button.title = name;
      button.setAttribute("aria-label", name);
    };
    show("copy", "Copy");
    button.addEventListener("click", async () => {
      const code = part.querySelector("code");
      await navigator.clipboard.writeText(code.dataset.copy ?? code.textContent);
      show("check", "Copied");
    });
    part.append(button);
  }
}

// A step of the timeline is in closed lists; they open for a link to it.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.(".timeline a");
  const step = link && document.getElementById(link.getAttribute("href").slice(1));
  if (!step) return;
  for (let part = step.firstElementChild; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  event.preventDefault();
  step.scrollIntoView({ block: "center" });
  step.querySelector("summary").focus({ preventScroll: true });
});

// Lines of a file that are not loaded yet are fetched when their link is seen or clicked, and take its place.
const unloaded = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) loadLines(entry.target);
}, { rootMargin: "400px" });
function watchUnloaded(root) {
  for (const link of root.querySelectorAll("a[data-part]")) unloaded.observe(link);
}

async function loadLines(link) {
  if (link.ariaBusy) return;
  link.ariaBusy = "true";
  unloaded.unobserve(link);
  try {
    const fresh = await fetchPage(link.dataset.part);
    if (!fresh) return location.assign(link.href);
    const hadFocus = link === document.activeElement;
    const parts = [...document.importNode(fresh.body, true).children];
    link.parentElement.replaceWith(...parts);
    for (const part of parts) watchUnloaded(part);
    if (hadFocus) parts[0].focus();
  } catch {
    setConnected(false);
  } finally {
    link.ariaBusy = null;
  }
}
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-part]");
  if (!link || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  loadLines(link);
});

// Opened lists stay open when the reader comes back to the page.
const openLists = `moothall:open:${location.pathname}`;
function keepOpenLists() {
  const names = [...document.querySelectorAll("details[data-keep][open]")].map((details) => details.dataset.keep);
  sessionStorage.setItem(openLists, JSON.stringify(names));
}
function restoreOpenLists() {
  for (const name of JSON.parse(sessionStorage.getItem(openLists) ?? "[]")) {
    const details = document.querySelector(`details[data-keep="${CSS.escape(name)}"]`);
    if (details) details.open = true;
  }
}

function editedFields(part) {
  const fields = [...part.querySelectorAll("input:not([type=hidden]):not([type=checkbox]), textarea, select")];
  return fields.filter((field) => field === document.activeElement || field.value !== servedValue(field));
}

// Fields that are being edited, open details and keyboard focus are kept. A part whose new version lacks such a field stays as it is.
function replacePart(next, part) {
  const kept = editedFields(part).map((field) => [field, field.id && next.querySelector(`#${CSS.escape(field.id)}`)]);
  if (kept.some(([, place]) => !place)) return;
  const active = part.contains(document.activeElement) ? document.activeElement : null;
  const at = [...part.querySelectorAll(focusable)].indexOf(active);
  const selection = kept.some(([field]) => field === active) && [active.selectionStart, active.selectionEnd];
  for (const details of next.querySelectorAll("[data-keep]")) {
    const current = part.querySelector(`[data-keep="${CSS.escape(details.dataset.keep)}"]`);
    if (current) details.open = current.open;
  }
  showTimes(next);
  addCopyButtons(next);
  watchUnloaded(next);
  for (const [field, place] of kept) place.replaceWith(field);
  part.replaceWith(next);
  if (selection) {
    active.focus({ preventScroll: true });
    if (selection[0] !== null) active.setSelectionRange(...selection);
  } else if (at >= 0) next.querySelectorAll(focusable)[at]?.focus({ preventScroll: true });
}

// Returns a page or a fragment of one, or null if there is none now.
async function fetchPage(url) {
  const answer = await fetch(url, { redirect: "manual" });
  if (answer.type === "opaqueredirect") location.reload(); // the session has ended
  if (answer.status === 429 || answer.status === 503) setTimeout(() => renew().catch(() => setConnected(false)), pollMilliseconds * (1 + Math.random()));
  return answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
}

// A page may replace this with a function that fetches less.
let refresh = refreshPage;

async function refreshPage() {
  const fresh = await fetchPage(location.href);
  if (!fresh) return;
  for (const name of ["every", "seq"]) main.dataset[name] = fresh.querySelector("main").dataset[name];
  if (!(main.dataset.growing = fresh.querySelector("main").dataset.growing)) closeTextStream();
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
    if (next && next.innerHTML !== (shownParts.get(part) ?? part.innerHTML)) {
      const copy = document.importNode(next, true);
      shownParts.set(copy, next.innerHTML);
      replacePart(copy, part);
    }
  }
}

async function renew() {
  renewAgain = true;
  if (renewing) return;
  renewing = true;
  try {
    while (renewAgain) {
      renewAgain = false;
      renewedAt = Date.now();
      await refresh();
    }
  } finally {
    renewing = false;
  }
}

function scheduleRenewal() {
  renewalTimer ||= setTimeout(() => { renewalTimer = 0; renew().catch(() => setConnected(false)); }, Math.random() * spreadMilliseconds);
}

function setConnected(connected) {
  if (isConnected && !connected) document.getElementById("since").textContent = new Date().toLocaleTimeString();
  isConnected = connected;
  document.getElementById("offline").hidden = connected;
  document.body.classList.toggle("away", !connected);
}

function showMessage(text) {
  const notice = document.getElementById("notice");
  notice.hidden = !text;
  notice.textContent = text;
}

function setBusy(is) {
  document.body.classList.toggle("busy", is);
}

// Sends a form like its button, and returns the resulting page. A redirect is a success, and is not followed.
async function send(form, name, value, to = form.getAttribute("action")) {
  const fields = new URLSearchParams(new FormData(form));
  fields.set(name, value);
  const answer = await fetch(to, { method: "POST", body: fields, redirect: "manual" });
  return { ok: answer.ok || answer.type === "opaqueredirect", page: new DOMParser().parseFromString(await answer.text(), "text/html") };
}

// A form is sent only once, and only while the server answers, so that no input is lost.
document.addEventListener("submit", (event) => {
  if (isConnected && !document.body.classList.contains("busy")) {
    if (draftedForms().includes(event.target)) { keepDraft(event.target); sessionStorage.setItem(sentDraft, draftName(event.target)); }
    setBusy(true);
    return;
  }
  event.preventDefault();
  if (!isConnected) document.getElementById("offline").focus();
});
addEventListener("pageshow", () => setBusy(false)); // also for a page from the browser's cache
document.querySelector("form[action='/sign-out']")?.addEventListener("submit", forgetDrafts);
document.addEventListener("input", (event) => { if (draftedForms().includes(event.target.form)) keepDraft(event.target.form); });
addEventListener("pagehide", keepOpenLists);
addEventListener("offline", () => setConnected(false));
document.getElementById("retry").addEventListener("click", () => { refresh().then(() => setConnected(true), () => setConnected(false)); });

// Score the draft a moment after the last input.
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
        setConnected(false);
      }
    }, 400);
  });
}

// The server sends what changed after the last event that the page shows. Pages without such an event are fetched again if the stream broke off.
function openChangeStream(isAgain = false) {
  changeStream = new EventSource(main.dataset.seq ? `${main.dataset.changes}?after=${main.dataset.seq}` : main.dataset.changes);
  changeStream.onopen = () => {
    setConnected(true);
    if (isAgain && !main.dataset.seq) scheduleRenewal();
    isAgain = true;
  };
  changeStream.onmessage = ({ lastEventId, data }) => {
    const isShown = main.dataset.seq && Number(lastEventId) <= Number(main.dataset.seq);
    const isOther = main.dataset.story && !data.split(" ").includes(main.dataset.story);
    if (!isShown && !isOther) scheduleRenewal();
  };
  changeStream.addEventListener("needed", ({ data }) => showNeeded(data));
  changeStream.onerror = () => {
    setConnected(false);
    if (changeStream.readyState !== EventSource.CLOSED) return; // it reconnects by itself
    setTimeout(() => openChangeStream(true), 2000);
    renew().catch(() => {});
  };
}

// A partial reply is shown as plain text, and hidden when it stops growing.
function showPartialReply({ seat, text }) {
  for (const part of document.querySelectorAll("[data-grows]")) {
    if (part.dataset.grows !== seat) continue;
    clearTimeout(part.silent);
    part.silent = setTimeout(() => { part.hidden = true; }, partialReplyMilliseconds);
    part.hidden = !text;
    part.lastElementChild.textContent = text;
    part.lastElementChild.scrollTop = part.lastElementChild.scrollHeight;
  }
}

// How many stories need the user is part of the title. It is kept for the next page, whose stream may come later.
const pageTitle = document.title;
const neededCount = `moothall:needed:${main.dataset.signedIn}`;
function showNeeded(count) {
  if (document.hidden && Number(count) > Number(sessionStorage.getItem(neededCount))) notify(count);
  sessionStorage.setItem(neededCount, count);
  document.title = Number(count) ? `(${count}) ${pageTitle}` : pageTitle;
  const badge = document.getElementById("needed");
  badge.hidden = !Number(count);
  badge.textContent = count;
  badge.title = `${count} need you`;
}

// Notifications are optional. One tab shows them: while it is hidden, it goes on following the changes.
const notifications = "moothall:notify";
let isNotifying = false;
function mayNotify() {
  return isSignedIn && window.Notification?.permission === "granted" && localStorage.getItem(notifications) === "on";
}

function notify(count) {
  if (!isNotifying || !mayNotify()) return;
  const text = Number(count) === 1 ? "1 story needs you" : `${count} stories need you`;
  const shown = new Notification("Moothall", { body: text, tag: "moothall-needed" });
  shown.onclick = () => { window.focus(); location.assign("/?show=needs-you"); };
}

// The lock is held until the tab is closed; then another tab gets it.
function takeNotifications() {
  if (mayNotify() && !isNotifying) navigator.locks?.request(notifications, () => { isNotifying = true; return new Promise(() => {}); });
}

function openTextStream() {
  if (!main.dataset.growing) return;
  textStream = new EventSource(main.dataset.growing);
  textStream.onmessage = (message) => showPartialReply(JSON.parse(message.data));
}

function closeTextStream() {
  if (textStream) textStream.close();
  textStream = null;
  for (const part of document.querySelectorAll("[data-grows]")) part.hidden = true;
}

restoreDrafts();
restoreOpenLists();
showTimes(document);
addCopyButtons(document);
watchUnloaded(document);
// Browsers skip autofocus where the URL has a fragment, and go to the fragment after this script has run.
addEventListener("load", () => document.querySelector("[autofocus]")?.focus());

function isFollowing() {
  return isSignedIn && (!document.hidden || isNotifying && mayNotify());
}

// Browsers allow few connections to one host, so only the visible page holds any, and the tab that shows notifications.
document.addEventListener("visibilitychange", () => {
  if (changeStream) changeStream.close();
  closeTextStream();
  if (isFollowing()) { openChangeStream(true); openTextStream(); }
});
// After a failed request, the next successful one shows that the server is back.
setInterval(() => {
  if (!isFollowing()) return;
  if (!isConnected) refresh().then(() => setConnected(true), () => {});
  else if (Number(main.dataset.every) && Date.now() - renewedAt > 1000 * main.dataset.every - 500) renew().catch(() => setConnected(false));
}, 1000);
if (isSignedIn) showNeeded(sessionStorage.getItem(neededCount) ?? "0");
takeNotifications();
if (isFollowing()) { openChangeStream(); openTextStream(); }
{% include "review.js" %}
{% include "expand.js" %}
