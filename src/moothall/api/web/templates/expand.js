// Fetches the neighbours of a node in the graph when their list is opened for the first time.
document.addEventListener("toggle", async (event) => {
  const list = event.target;
  if (!list.open || !list.dataset.expand || list.dataset.fetched !== undefined) return;
  list.dataset.fetched = "";
  try {
    const fresh = (await fetchPage(list.dataset.expand))?.getElementById("neighbours");
    if (fresh) list.lastElementChild.replaceWith(...document.importNode(fresh, true).children);
  } catch {
    delete list.dataset.fetched;
    setConnected(false);
  }
}, true);
