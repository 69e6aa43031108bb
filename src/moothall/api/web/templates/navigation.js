"use strict";
// Moves between views: the palette (Ctrl-K), shortcuts of the keyboard, the menu of the account, and how many stories need the user.
const singleKeys = "moothall:single-keys";
const searchMilliseconds = 150;

// Searches stories and runs on the server. Links of the header are found by their names.
class CommandPalette extends HTMLElement {
  connectedCallback() {
    const button = this.querySelector("button");
    button.hidden = false;
    button.addEventListener("click", () => this.open());
  }

  open() {
    if (!this.dialog) this.build();
    if (this.dialog.open) return;
    this.input.value = "";
    this.dialog.showModal();
    this.search();
  }

  build() {
    this.dialog = document.createElement("dialog");
    this.dialog.className = "palette";
    this.dialog.setAttribute("aria-label", "Search");
    this.dialog.innerHTML = `<input role="combobox" aria-expanded="true" aria-controls="palette-list" aria-autocomplete="list" aria-label="Search stories and runs, or go to a view" placeholder="Search stories and runs, or go to a view" maxlength="200" autocomplete="off" spellcheck="false">
<div id="palette-list" role="listbox" aria-label="Results"></div><p class="hint" role="status"></p>`;
    [this.input, this.list, this.status] = this.dialog.children;
    this.append(this.dialog);
    this.input.addEventListener("input", () => {
      this.show(this.views(), "");
      clearTimeout(this.pause);
      this.pause = setTimeout(() => this.search(), searchMilliseconds);
    });
    this.dialog.addEventListener("keydown", (event) => this.press(event));
    this.dialog.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) location.assign(option.dataset.url);
      else if (event.target === this.dialog) this.dialog.close();
    });
  }

  views() {
    const query = this.input.value.trim().toLowerCase();
    const links = [...document.querySelectorAll(".views a, .controls > a")].map((link) => ({ title: link.querySelector("span").textContent, detail: "Go to", url: link.getAttribute("href") }));
    return links.filter((view) => view.title.toLowerCase().includes(query));
  }

  async search() {
    clearTimeout(this.pause);
    this.pause = 0;
    const query = this.input.value.trim();
    this.show(this.views(), "");
    if (!query) return;
    try {
      const answer = await fetch(`/search?${new URLSearchParams({ q: query })}`, { redirect: "manual" });
      if (answer.type === "opaqueredirect") location.reload(); // the session has ended
      if (!answer.ok || query !== this.input.value.trim()) return;
      const results = [...this.views(), ...(await answer.json())];
      this.show(results, results.length ? "" : "Nothing matches.");
    } catch {
      this.status.textContent = "The server does not answer.";
    }
  }

  show(results, status) {
    this.list.replaceChildren(...results.map(({ title, detail, url }, index) => {
      const option = document.createElement("div");
      option.id = `palette-${index}`;
      option.setAttribute("role", "option");
      option.dataset.url = url;
      for (const text of [title, detail]) option.append(Object.assign(document.createElement("span"), { textContent: text }));
      return option;
    }));
    this.status.textContent = status || `${results.length} ${results.length === 1 ? "result" : "results"}. Enter opens, Escape closes.`;
    this.select(0);
  }

  select(index) {
    const options = [...this.list.children];
    this.selected = options.length ? (index + options.length) % options.length : -1;
    options.forEach((option, place) => option.setAttribute("aria-selected", String(place === this.selected)));
    this.input.setAttribute("aria-activedescendant", options[this.selected]?.id ?? "");
    options[this.selected]?.scrollIntoView({ block: "nearest" });
  }

  async enter() {
    if (this.pause) await this.search();
    if (this.selected >= 0) location.assign(this.list.children[this.selected].dataset.url);
  }

  press(event) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") this.select(this.selected + (event.key === "ArrowDown" ? 1 : -1));
    else if (event.key === "Enter") this.enter();
    else return;
    event.preventDefault();
  }
}
customElements.define("command-palette", CommandPalette);

function step(by) {
  const items = [...main.querySelectorAll(".cards li > a, .runs tbody td:first-child a")].filter((item) => item.checkVisibility());
  const current = document.activeElement?.closest(".cards li, .runs tr");
  const at = items.findIndex((item) => current?.contains(item));
  const next = at < 0 ? (by > 0 ? 0 : items.length - 1) : Math.min(Math.max(at + by, 0), items.length - 1);
  items[next]?.focus();
  items[next]?.scrollIntoView({ block: "nearest" });
}

// A key only moves the focus to a button that decides; Enter presses it.
function focusFirst(selector) {
  const button = [...main.querySelectorAll(selector)].find((item) => !item.disabled && item.checkVisibility());
  button?.focus();
  button?.scrollIntoView({ block: "nearest" });
}

const shortcuts = {
  "/": () => { const field = main.querySelector("[type=search]"); if (field) field.focus(); else document.querySelector("command-palette").open(); },
  c: () => location.assign("/stories/new"),
  j: () => step(1),
  k: () => step(-1),
  a: () => focusFirst(".review-bar button:not(.bad), .actions .buttons > button:not(.quiet):not(.bad)"),
  r: () => focusFirst(".review-bar .bad, .actions .bad"),
  "?": () => document.getElementById("shortcuts").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey) {
    event.preventDefault();
    document.querySelector("command-palette").open();
    return;
  }
  const isTyping = event.target.closest?.("input, textarea, select, dialog[open]");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || localStorage.getItem(singleKeys) === "off") return;
  const act = Object.hasOwn(shortcuts, event.key) ? shortcuts[event.key] : null;
  if (!act) return;
  event.preventDefault();
  act();
});

const singleKeysBox = document.getElementById("single-keys");
singleKeysBox.checked = localStorage.getItem(singleKeys) !== "off";
singleKeysBox.addEventListener("change", () => localStorage.setItem(singleKeys, singleKeysBox.checked ? "on" : "off"));
// The browser asks for permission when notifications are switched on.
const notifyBox = document.getElementById("notify");
if (window.Notification && navigator.locks) {
  notifyBox.closest("p").hidden = false;
  notifyBox.checked = mayNotify();
  notifyBox.addEventListener("change", async () => {
    localStorage.setItem(notifications, notifyBox.checked ? "on" : "off");
    const isDenied = notifyBox.checked && await Notification.requestPermission() !== "granted";
    if (isDenied) notifyBox.checked = false;
    document.getElementById("notify-denied").hidden = !isDenied;
    takeNotifications();
  });
}

const showShortcuts = document.getElementById("show-shortcuts");
showShortcuts.hidden = false;
showShortcuts.addEventListener("click", shortcuts["?"]);

// The menu closes with Escape, and with a click elsewhere.
const menu = document.querySelector(".menu");
document.addEventListener("click", (event) => { if (!menu.contains(event.target)) menu.open = false; });
menu.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !menu.open) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});
