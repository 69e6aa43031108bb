"use strict";
// The board: fetches changed cards and puts them into their columns, fetches older cards of a
// column when it is scrolled to its end, and lets the user drag cards. It uses functions of page.js,
// which is loaded first. Without this script, the links and buttons of the board have the same
// effect.
let draggedCard = null;
const board = document.getElementById("board");

function fragmentUrl(name, value) {
  const parameters = new URLSearchParams(location.search);
  parameters.set(name, value);
  return `/cards?${parameters}`;
}

function refreshHead(next) {
  const head = document.getElementById("board-head");
  main.dataset.seq = next.dataset.seq;
  main.dataset.every = next.dataset.every;
  if (head.innerHTML === next.innerHTML) Object.assign(head.dataset, next.dataset);
  else replacePart(document.importNode(next, true), head);
}

// Inserts a card at the top of its column. A card without a later event keeps its position.
function placeCard(fresh, list) {
  const current = document.getElementById(fresh.id);
  const next = document.importNode(fresh, true);
  const isUnchanged = current?.dataset.seq === fresh.dataset.seq && list.contains(current);
  if (isUnchanged) return replacePart(next, current);
  if (current) replacePart(next, current);
  list.prepend(next);
}

refresh = async () => {
  const fresh = await fetchPage(fragmentUrl("after", main.dataset.seq));
  const head = fresh?.getElementById("board-head");
  if (!head || draggedCard) return; // the end of a drag renews the board
  for (const id of head.dataset.changed.split(" ")) {
    if (id && !fresh.getElementById(`card-${id}`)) document.getElementById(`card-${id}`)?.remove();
  }
  for (const column of fresh.querySelectorAll("[data-state]")) {
    const current = document.getElementById(column.id);
    if (!current) continue;
    current.querySelector(".count").textContent = column.querySelector(".count").textContent;
    current.classList.toggle("bare", column.classList.contains("bare"));
    const cards = [...column.querySelectorAll(".cards > li")].reverse();
    for (const card of cards) placeCard(card, current.querySelector(".cards"));
  }
  refreshHead(head);
};

// Replaces the link to further cards of a column with these cards.
async function loadMore(link) {
  const more = link.parentElement;
  if (more.ariaBusy) return;
  more.ariaBusy = "true";
  try {
    const column = link.closest("[data-state]");
    const fresh = (await fetchPage(link.href.replace("/?", "/cards?")))?.getElementById(column.id);
    if (!fresh) return;
    const hadFocus = link === document.activeElement;
    const cards = [...fresh.querySelectorAll(".cards > li")]
      .filter((card) => !document.getElementById(card.id))
      .map((card) => document.importNode(card, true));
    for (const card of cards) showTimes(card);
    column.querySelector(".cards").append(...cards);
    const next = fresh.querySelector(".more");
    if (next) more.replaceWith(observeEnd(document.importNode(next, true)));
    else more.remove();
    if (hadFocus) cards[0]?.querySelector("a").focus();
  } catch {
    setConnected(false);
  } finally {
    more.ariaBusy = null;
  }
}

const endObserver = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    const isScrolled = isIntersecting && target.closest(".scroll").scrollTop > 0;
    if (isScrolled) loadMore(target.querySelector("a"));
  }
});
function observeEnd(more) {
  endObserver.observe(more);
  return more;
}
for (const more of board.querySelectorAll(".more")) observeEnd(more);
board.addEventListener("click", (event) => {
  const link = event.target.closest?.(".more a");
  if (!link || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  loadMore(link);
});

function moveButton(column) {
  return draggedCard && column && draggedCard.querySelector(`[data-to="${column.dataset.state}"]`);
}

// Moves a card with one of its buttons, which define the allowed moves. The server checks the move
// again.
async function move(button) {
  showMessage("");
  setBusy(true);
  try {
    const url = button.getAttribute("formaction");
    const { ok, page } = await send(button.form, "event", button.value, url);
    const error = page.querySelector("main [role=alert]");
    if (!ok) showMessage(error?.textContent ?? "The story was not moved.");
    await renew();
  } catch {
    setConnected(false);
  } finally {
    setBusy(false);
  }
}

function endDrag() {
  draggedCard?.classList.remove("lifted");
  draggedCard = null;
  for (const column of document.querySelectorAll("[data-state]")) {
    column.classList.remove("way", "shut", "over");
  }
}

document.addEventListener("dragstart", (event) => {
  draggedCard = event.target.closest?.("[data-card]") ?? null;
  if (!draggedCard) return;
  event.dataTransfer.effectAllowed = "move";
  event.dataTransfer.setData("text/plain", draggedCard.dataset.card);
  draggedCard.classList.add("lifted");
  for (const column of document.querySelectorAll("[data-state]")) {
    const button = moveButton(column);
    if (button) column.classList.add(button.disabled ? "shut" : "way");
  }
});
document.addEventListener("dragover", (event) => {
  const column = event.target.closest?.("[data-state]");
  for (const other of document.querySelectorAll(".over")) {
    if (other !== column) other.classList.remove("over");
  }
  if (!draggedCard || !column) return;
  event.preventDefault();
  if (moveButton(column)) column.classList.add("over");
});
document.addEventListener("drop", (event) => {
  const column = event.target.closest?.("[data-state]");
  if (!draggedCard || !column) return;
  event.preventDefault();
  const button = moveButton(column);
  const from = draggedCard.closest("[data-state]").dataset.state;
  endDrag();
  if (!button) {
    const to = column.dataset.state;
    if (from !== to) showMessage(`You cannot move a story from ${from} to ${to}.`);
    return;
  }
  if (button.disabled) showMessage(`The story cannot be moved: ${button.dataset.why}`);
  else move(button);
});
document.addEventListener("dragend", () => {
  endDrag();
  renewOrDisconnect();
});

