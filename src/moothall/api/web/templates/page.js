"use strict";
// Keeps the page up to date: after a change on the board or in a council, and regularly while a
// council runs, it fetches the page again and replaces the parts marked data-live; board.js does so
// for cards. It also scores drafts of stories while the user writes them, keeps input while the
// server is unavailable, and stores drafts of forms, so that a restart or the end of a session
// loses no input. Without this script the page is not updated, and cards are moved by their buttons.
const main = document.querySelector("main");
const pollMilliseconds = 3000;
const focusable = "a, button, summary, input, textarea, select, [tabindex]";
const partialReplyMilliseconds = 10000;
const jitterMilliseconds = 300; // spreads the requests of clients that are notified simultaneously
let renewalTimer = 0;
let renewedAt = Date.now();
let changeStream = null;
let textStream = null;
let renewing = false;
let renewAgain = false;
let isConnected = true;
const servedHtml = new WeakMap(); // the HTML of live parts before the script changed times in them
for (const part of document.querySelectorAll("[data-live]")) servedHtml.set(part, part.innerHTML);

// Drafts are stored for each tab, user, page and form, until the form was sent and the server
// responded with a redirect.
const draftPrefix = "moothall:draft:";
const sentDraft = "moothall:sent";
const isSignedIn = main.dataset.signedIn !== undefined;
function draftName(form) {
  const url = `${location.pathname}${location.search}`;
  return `${draftPrefix}${main.dataset.signedIn}:${url}:${form.getAttribute("action")}`;
}

function draftFields(form) {
  const inputs = "input:not([type=hidden]):not([type=password]):not([type=checkbox])";
  const fields = [...form.querySelectorAll(`${inputs}, textarea, select`)];
  return fields.filter((field) => field.name);
}

// The value that the server sent.
function servedValue(field) {
  if (field.tagName !== "SELECT") return field.defaultValue;
  const selected = [...field.options].find((option) => option.defaultSelected);
  return (selected ?? field.options[0])?.value ?? "";
}

function formsWithDrafts() {
  if (!isSignedIn) return [];
  const forms = [...main.querySelectorAll("form[method=post]")];
  return forms.filter((form) => draftFields(form).length);
}

function storeDraft(form) {
  const changed = draftFields(form).filter((field) => field.value !== servedValue(field));
  const draft = changed.map((field) => [field.name, field.value, servedValue(field)]);
  sessionStorage.setItem(draftName(form), JSON.stringify(draft));
}

// Restores a field only if the server still sends the value that the user changed, so that no newer
// value is overwritten.
function restoreDrafts() {
  const sent = sessionStorage.getItem(sentDraft);
  const wasRedirected = performance.getEntriesByType("navigation")[0]?.redirectCount > 0;
  sessionStorage.removeItem(sentDraft);
  const wasAccepted = wasRedirected && main.dataset.failed === undefined;
  if (isSignedIn && sent && wasAccepted) sessionStorage.removeItem(sent);
  for (const form of formsWithDrafts()) {
    const draft = JSON.parse(sessionStorage.getItem(draftName(form)) ?? "[]");
    for (const [name, value, served] of draft) {
      const field = draftFields(form).find((other) => other.name === name);
      if (field && servedValue(field) === served) field.value = value;
    }
  }
}

function deleteDrafts() {
  for (const name of Object.keys(sessionStorage)) {
    if (name.startsWith(draftPrefix)) sessionStorage.removeItem(name);
  }
}

function showTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    const full = moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    time.title = full;
    time.textContent = time.classList.contains("ago") ? relativeTime(moment) : full;
  }
}

function relativeTime(moment) {
  const seconds = (Date.now() - moment.getTime()) / 1000;
  const units = [["day", 86400], ["hour", 3600], ["minute", 60]];
  const [unit, size] = units.find(([, size]) => seconds >= size) ?? ["minute", 60];
  const format = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "narrow" });
  return format.format(-Math.floor(seconds / size), unit);
}

function addCopyButtons(root) {
  for (const part of root.querySelectorAll(".copied")) {
    if (part.querySelector("button") || !navigator.clipboard) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet copy";
    const show = (icon, name) => {
      const sprite = document.querySelector(".views use").getAttribute("href").split("#")[0];
      const use = `<use href="${sprite}#${icon}"/>`;
      button.innerHTML = `<svg class="icon" aria-hidden="true">${use}</svg>`;
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

// A step of the timeline is in closed lists. Open them when a link to the step is clicked.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.(".timeline a");
  const step = link && document.getElementById(link.getAttribute("href").slice(1));
  if (!step) return;
  for (let part = step.firstElementChild; part; part = part.parentElement) {
    if (part.tagName === "DETAILS") part.open = true;
  }
  event.preventDefault();
  step.scrollIntoView({ block: "center" });
  step.querySelector("summary").focus({ preventScroll: true });
});

// A link to further lines of a file is replaced with these lines when it becomes visible or is
// clicked.
const unloadedObserver = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) loadLines(entry.target);
}, { rootMargin: "400px" });
function watchUnloaded(root) {
  for (const link of root.querySelectorAll("a[data-part]")) unloadedObserver.observe(link);
}

async function loadLines(link) {
  if (link.ariaBusy) return;
  link.ariaBusy = "true";
  unloadedObserver.unobserve(link);
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

// Open lists stay open when the user returns to the page.
const openLists = `moothall:open:${location.pathname}`;
function storeOpenLists() {
  const lists = [...document.querySelectorAll("details[data-keep][open]")];
  const names = lists.map((details) => details.dataset.keep);
  sessionStorage.setItem(openLists, JSON.stringify(names));
}
function restoreOpenLists() {
  for (const name of JSON.parse(sessionStorage.getItem(openLists) ?? "[]")) {
    const details = document.querySelector(`details[data-keep="${CSS.escape(name)}"]`);
    if (details) details.open = true;
  }
}

function editedFields(part) {
  const inputs = "input:not([type=hidden]):not([type=checkbox])";
  const fields = [...part.querySelectorAll(`${inputs}, textarea, select`)];
  return fields.filter((field) =>
    field === document.activeElement || field.value !== servedValue(field));
}

// Replaces a part, but keeps fields that are being edited, open details and keyboard focus. If the
// new version lacks such a field, the part is not replaced.
function replacePart(next, part) {
  const newField = ({ id }) => id && next.querySelector(`#${CSS.escape(id)}`);
  const kept = editedFields(part).map((field) => [field, newField(field)]);
  if (kept.some(([, replaced]) => !replaced)) return;
  const active = part.contains(document.activeElement) ? document.activeElement : null;
  const focusIndex = [...part.querySelectorAll(focusable)].indexOf(active);
  const isActiveKept = kept.some(([field]) => field === active);
  const selection = isActiveKept && [active.selectionStart, active.selectionEnd];
  for (const details of next.querySelectorAll("[data-keep]")) {
    const current = part.querySelector(`[data-keep="${CSS.escape(details.dataset.keep)}"]`);
    if (current) details.open = current.open;
  }
  showTimes(next);
  addCopyButtons(next);
  watchUnloaded(next);
  for (const [field, replaced] of kept) replaced.replaceWith(field);
  part.replaceWith(next);
  if (selection) {
    active.focus({ preventScroll: true });
    if (selection[0] !== null) active.setSelectionRange(...selection);
  } else if (focusIndex >= 0) {
    next.querySelectorAll(focusable)[focusIndex]?.focus({ preventScroll: true });
  }
}

// Returns a page or a fragment of one, or null if the request failed.
async function fetchPage(url) {
  const response = await fetch(url, { redirect: "manual" });
  if (response.type === "opaqueredirect") location.reload(); // the session has ended
  if (response.status === 429 || response.status === 503) {
    setTimeout(renewOrDisconnect, pollMilliseconds * (1 + Math.random()));
  }
  if (!response.ok) return null;
  return new DOMParser().parseFromString(await response.text(), "text/html");
}

// A page may replace this with a function that fetches less.
let refresh = refreshPage;

async function refreshPage() {
  const fresh = await fetchPage(location.href);
  if (!fresh) return;
  const { every, seq, growing } = fresh.querySelector("main").dataset;
  Object.assign(main.dataset, { every, seq, growing });
  if (!growing) closeTextStream();
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
    if (next && next.innerHTML !== (servedHtml.get(part) ?? part.innerHTML)) {
      const copy = document.importNode(next, true);
      servedHtml.set(copy, next.innerHTML);
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

function renewOrDisconnect() {
  renew().catch(() => setConnected(false));
}

function scheduleRenewal() {
  renewalTimer ||= setTimeout(() => {
    renewalTimer = 0;
    renewOrDisconnect();
  }, Math.random() * jitterMilliseconds);
}

function setConnected(connected) {
  if (isConnected && !connected) {
    document.getElementById("since").textContent = new Date().toLocaleTimeString();
  }
  isConnected = connected;
  document.getElementById("offline").hidden = connected;
  document.body.classList.toggle("away", !connected);
}

function showMessage(text) {
  const notice = document.getElementById("notice");
  notice.hidden = !text;
  notice.textContent = text;
}

function setBusy(busy) {
  document.body.classList.toggle("busy", busy);
}

// Sends a form as its button does, and returns the resulting page. A redirect counts as success and
// is not followed.
async function send(form, name, value, url = form.getAttribute("action")) {
  const body = new URLSearchParams(new FormData(form));
  body.set(name, value);
  const response = await fetch(url, { method: "POST", body, redirect: "manual" });
  const ok = response.ok || response.type === "opaqueredirect";
  return { ok, page: new DOMParser().parseFromString(await response.text(), "text/html") };
}

// Send a form only once, and only while the server is available, so that no input is lost.
document.addEventListener("submit", (event) => {
  if (isConnected && !document.body.classList.contains("busy")) {
    if (formsWithDrafts().includes(event.target)) {
      storeDraft(event.target);
      sessionStorage.setItem(sentDraft, draftName(event.target));
    }
    setBusy(true);
    return;
  }
  event.preventDefault();
  if (!isConnected) document.getElementById("offline").focus();
});
addEventListener("pageshow", () => setBusy(false)); // also for a page from the browser's cache
document.querySelector("form[action='/sign-out']")?.addEventListener("submit", deleteDrafts);
document.addEventListener("input", (event) => {
  if (formsWithDrafts().includes(event.target.form)) storeDraft(event.target.form);
});
addEventListener("pagehide", storeOpenLists);
addEventListener("offline", () => setConnected(false));
document.getElementById("retry").addEventListener("click", () => {
  refresh().then(() => setConnected(true), () => setConnected(false));
});

// Score a draft shortly after the last input.
for (const form of document.querySelectorAll("[data-scores]")) {
  const score = document.getElementById(form.dataset.scores);
  let timer = 0;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      try {
        const { ok, page } = await send(form, "do", "score");
        const fresh = page.getElementById(form.dataset.scores);
        if (ok && fresh) score.replaceChildren(...document.importNode(fresh, true).children);
      } catch {
        setConnected(false);
      }
    }, 400);
  });
}

// Follows the changes after the last event that the page shows. A page without such an event is
// fetched again when the stream reconnects.
function openChangeStream(isReconnect = false) {
  const { changes, seq } = main.dataset;
  changeStream = new EventSource(seq ? `${changes}?after=${seq}` : changes);
  changeStream.onopen = () => {
    setConnected(true);
    if (isReconnect && !main.dataset.seq) scheduleRenewal();
    isReconnect = true;
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

// Shows a partial reply as plain text, and hides it when it stops growing.
function showPartialReply({ seat, text }) {
  for (const part of document.querySelectorAll("[data-grows]")) {
    if (part.dataset.grows !== seat) continue;
    clearTimeout(part.hideTimer);
    part.hideTimer = setTimeout(() => { part.hidden = true; }, partialReplyMilliseconds);
    part.hidden = !text;
    part.lastElementChild.textContent = text;
    part.lastElementChild.scrollTop = part.lastElementChild.scrollHeight;
  }
}

// The title contains the number of stories that need the user. The number is stored for the next
// page, whose stream may open later.
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

// Notifications are optional. One tab shows them. While it is hidden, it continues to follow the
// changes.
const notifications = "moothall:notify";
let isNotifying = false;
function mayNotify() {
  const isAllowed = window.Notification?.permission === "granted";
  return isSignedIn && isAllowed && localStorage.getItem(notifications) === "on";
}

function notify(count) {
  if (!isNotifying || !mayNotify()) return;
  const text = Number(count) === 1 ? "1 story needs you" : `${count} stories need you`;
  const shown = new Notification("Moothall", { body: text, tag: "moothall-needed" });
  shown.onclick = () => { window.focus(); location.assign("/?show=needs-you"); };
}

// Requests the lock for notifications, which this tab then holds until it is closed.
function requestNotifications() {
  if (!mayNotify() || isNotifying) return;
  navigator.locks?.request(notifications, () => {
    isNotifying = true;
    return new Promise(() => {});
  });
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
// Browsers ignore autofocus if the URL has a fragment, and go to the fragment after this script.
addEventListener("load", () => document.querySelector("[autofocus]")?.focus());

function isFollowing() {
  return isSignedIn && (!document.hidden || isNotifying && mayNotify());
}

// Browsers allow few connections to a host. Only visible pages and the tab that shows notifications
// keep connections open.
document.addEventListener("visibilitychange", () => {
  if (changeStream) changeStream.close();
  closeTextStream();
  if (isFollowing()) { openChangeStream(true); openTextStream(); }
});
// After a failed request, the first successful one shows that the server is available again.
setInterval(() => {
  if (!isFollowing()) return;
  const interval = 1000 * main.dataset.every;
  if (!isConnected) refresh().then(() => setConnected(true), () => {});
  else if (interval && Date.now() - renewedAt > interval - 500) renewOrDisconnect();
}, 1000);
if (isSignedIn) showNeeded(sessionStorage.getItem(neededCount) ?? "0");
requestNotifications();
if (isFollowing()) { openChangeStream(); openTextStream(); }
{% include "review.js" %}
{% include "expand.js" %}
