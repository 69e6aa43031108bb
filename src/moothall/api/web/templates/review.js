"use strict";
// Remembers in this tab which files of a diff were viewed, as long as their content stays the same. A viewed file is folded.
{
  const key = (box) => `moothall:viewed:${location.pathname}:${box.dataset.viewed}`;

  function show(box) {
    const input = box.querySelector("input");
    box.hidden = false;
    input.checked = sessionStorage.getItem(key(box)) !== null;
    if (input.checked) document.getElementById(box.dataset.file).open = false;
  }

  function count() {
    const place = document.getElementById("viewed-count");
    const boxes = [...document.querySelectorAll(`[data-viewed][data-file^="file-1-"]`)]; // of the first candidate
    if (!place || !boxes.length) return;
    const text = `${boxes.filter((box) => box.querySelector("input").checked).length} of ${boxes.length} files viewed`;
    if (place.textContent !== text) place.textContent = text;
  }

  function showNew() {
    for (const box of document.querySelectorAll("[data-viewed][hidden]")) show(box);
    count();
  }

  document.addEventListener("change", (event) => {
    const box = event.target.closest?.("[data-viewed]");
    if (!box) return;
    if (event.target.checked) sessionStorage.setItem(key(box), "");
    else sessionStorage.removeItem(key(box));
    document.getElementById(box.dataset.file).open = !event.target.checked;
    count();
  });
  new MutationObserver(showNew).observe(document.querySelector("main"), { childList: true, subtree: true }); // parts of the page are replaced
  showNew();
}
