// The neighbours of a node in the graph are fetched when they are opened for the first time.
document.addEventListener("toggle", async (event) => {
  const list = event.target;
  if (!list.open || !list.dataset.expand || list.dataset.fetched !== undefined) return;
  list.dataset.fetched = "";
  try {
    const answer = await fetch(list.dataset.expand);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("neighbours");
    if (answer.ok && fresh) list.lastElementChild.replaceWith(...document.importNode(fresh, true).children);
  } catch {
    delete list.dataset.fetched;
    setConnected(false);
  }
}, true);
