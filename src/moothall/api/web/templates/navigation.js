"use strict";
// Navigation between views: the command palette (Ctrl-K), keyboard shortcuts, and the account menu.
const singleKeys = "moothall:single-keys";
const searchMilliseconds = 150;

// Searches stories and runs on the server, and links of the header by their names.
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
    const label = "Search stories and runs, or go to a view";
    this.dialog.innerHTML = `<input role="combobox" aria-expanded="true"
 aria-controls="palette-list" aria-autocomplete="list" aria-label="${label}" placeholder="${label}"
 maxlength="200" autocomplete="off" spellcheck="false">
<div id="palette-list" role="listbox" aria-label="Results"></div>
<p class="hint" role="status"></p>`;
    [this.input, this.list, this.status] = this.dialog.children;
    this.append(this.dialog);
    this.input.addEventListener("input", () => {
      this.show(this.views(), "");
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.search(), searchMilliseconds);
    });
    this.dialog.addEventListener("keydown", (event) => this.handleKey(event));
    this.dialog.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) location.assign(option.dataset.url);
      else if (event.target === this.dialog) this.dialog.close();
    });
  }

  views() {
    const query = this.input.value.trim().toLowerCase();
    const links = [...document.querySelectorAll(".views a, .controls > a")];
    const views = links.map((link) => ({
      title: link.querySelector("span").textContent,
      detail: "Go to",
      url: link.getAttribute("href"),
    }));
    return views.filter((view) => view.title.toLowerCase().includes(query));
  }

  async search() {
    clearTimeout(this.timer);
    this.timer = 0;
    const query = this.input.value.trim();
    this.show(this.views(), "");
    if (!query) return;
    try {
      const url = `/search?${new URLSearchParams({ q: query })}`;
      const response = await fetch(url, { redirect: "manual" });
      if (response.type === "opaqueredirect") location.reload(); // the session has ended
      if (!response.ok || query !== this.input.value.trim()) return;
      const results = [...this.views(), ...(await response.json())];
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
      for (const textContent of [title, detail]) {
        option.append(Object.assign(document.createElement("span"), { textContent }));
      }
      return option;
    }));
    const count = results.length === 1 ? "1 result" : `${results.length} results`;
    this.status.textContent = status || `${count}. Enter opens, Escape closes.`;
    this.select(0);
  }

  select(index) {
    const options = [...this.list.children];
    this.selected = options.length ? (index + options.length) % options.length : -1;
    options.forEach((option, position) => {
      option.setAttribute("aria-selected", String(position === this.selected));
    });
    this.input.setAttribute("aria-activedescendant", options[this.selected]?.id ?? "");
    options[this.selected]?.scrollIntoView({ block: "nearest" });
  }

  async openSelected() {
    if (this.timer) await this.search();
    if (this.selected >= 0) location.assign(this.list.children[this.selected].dataset.url);
  }

  handleKey(event) {
    if (event.key === "ArrowDown") this.select(this.selected + 1);
    else if (event.key === "ArrowUp") this.select(this.selected - 1);
    else if (event.key === "Enter") this.openSelected();
    else return;
    event.preventDefault();
  }
}
customElements.define("command-palette", CommandPalette);

// Moves the focus by a number of cards or rows.
function moveFocus(offset) {
  const links = [...main.querySelectorAll(".cards li > a, .runs tbody td:first-child a")];
  const items = links.filter((link) => link.checkVisibility());
  const current = document.activeElement?.closest(".cards li, .runs tr");
  const index = items.findIndex((item) => current?.contains(item));
  const last = items.length - 1;
  const first = offset > 0 ? 0 : last;
  const next = index < 0 ? first : Math.min(Math.max(index + offset, 0), last);
  items[next]?.focus();
  items[next]?.scrollIntoView({ block: "nearest" });
}

// Focuses the first enabled button. The user then presses Enter to decide.
function focusFirst(selector) {
  const buttons = [...main.querySelectorAll(selector)];
  const button = buttons.find((item) => !item.disabled && item.checkVisibility());
  button?.focus();
  button?.scrollIntoView({ block: "nearest" });
}

const acceptButtons =
  ".review-bar button:not(.bad), .actions .buttons > button:not(.quiet):not(.bad)";

function focusSearch() {
  const field = main.querySelector("[type=search]");
  if (field) field.focus();
  else document.querySelector("command-palette").open();
}

const shortcuts = {
  "/": focusSearch,
  c: () => location.assign("/stories/new"),
  j: () => moveFocus(1),
  k: () => moveFocus(-1),
  a: () => focusFirst(acceptButtons),
  r: () => focusFirst(".review-bar .bad, .actions .bad"),
  "?": () => document.getElementById("shortcuts").showModal(),
};

document.addEventListener("keydown", (event) => {
  const hasControl = event.ctrlKey || event.metaKey;
  if (event.key.toLowerCase() === "k" && hasControl && !event.altKey && !event.shiftKey) {
    event.preventDefault();
    document.querySelector("command-palette").open();
    return;
  }
  const isTyping = event.target.closest?.("input, textarea, select, dialog[open]");
  if (isTyping || hasControl || event.altKey || localStorage.getItem(singleKeys) === "off") return;
  const action = Object.hasOwn(shortcuts, event.key) ? shortcuts[event.key] : null;
  if (!action) return;
  event.preventDefault();
  action();
});

const singleKeysBox = document.getElementById("single-keys");
singleKeysBox.checked = localStorage.getItem(singleKeys) !== "off";
singleKeysBox.addEventListener("change", () => {
  localStorage.setItem(singleKeys, singleKeysBox.checked ? "on" : "off");
});
// The browser asks for permission when the user enables notifications.
const notifyBox = document.getElementById("notify");
if (window.Notification && navigator.locks) {
  notifyBox.closest("p").hidden = false;
  notifyBox.checked = mayNotify();
  notifyBox.addEventListener("change", async () => {
    localStorage.setItem(notifications, notifyBox.checked ? "on" : "off");
    const isDenied = notifyBox.checked && await Notification.requestPermission() !== "granted";
    if (isDenied) notifyBox.checked = false;
    document.getElementById("notify-denied").hidden = !isDenied;
    requestNotifications();
  });
}

const showShortcuts = document.getElementById("show-shortcuts");
showShortcuts.hidden = false;
showShortcuts.addEventListener("click", shortcuts["?"]);

// Escape and clicks outside the menu close it.
const menu = document.querySelector(".menu");
document.addEventListener("click", (event) => {
  if (!menu.contains(event.target)) menu.open = false;
});
menu.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !menu.open) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});
