"use strict";
// Remembers in this tab which files of a diff were viewed, until their content changes. Viewed
// files are collapsed.
{
  const key = (box) => `moothall:viewed:${location.pathname}:${box.dataset.viewed}`;

  function show(box) {
    const input = box.querySelector("input");
    box.hidden = false;
    input.checked = sessionStorage.getItem(key(box)) !== null;
    if (input.checked) document.getElementById(box.dataset.file).open = false;
  }

  // Shows how many files of the first candidate were viewed.
  function showCount() {
    const label = document.getElementById("viewed-count");
    const boxes = [...document.querySelectorAll(`[data-viewed][data-file^="file-1-"]`)];
    if (!label || !boxes.length) return;
    const viewed = boxes.filter((box) => box.querySelector("input").checked);
    const text = `${viewed.length} of ${boxes.length} files viewed`;
    if (label.textContent !== text) label.textContent = text;
  }

  function showNew() {
    for (const box of document.querySelectorAll("[data-viewed][hidden]")) show(box);
    showCount();
  }

  document.addEventListener("change", (event) => {
    const box = event.target.closest?.("[data-viewed]");
    if (!box) return;
    if (event.target.checked) sessionStorage.setItem(key(box), "");
    else sessionStorage.removeItem(key(box));
    document.getElementById(box.dataset.file).open = !event.target.checked;
    showCount();
  });
  // Parts of the page are replaced.
  const observer = new MutationObserver(showNew);
  observer.observe(document.querySelector("main"), { childList: true, subtree: true });
  showNew();
}
