"use strict";
// Tables sort by the column whose heading is pressed; #sort=3 (or #sort=-3, backwards) does so on opening.
(() => {
  const value = (row, place) => row.children[place].dataset.sort || "";
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    if (a !== "" && b !== "" && Number.isFinite(x) && Number.isFinite(y)) return x - y;
    return a.localeCompare(b, undefined, { numeric: true });
  };
  const sort = (table, place, backwards) => {
    const heading = table.tHead.rows[0].children[place];
    if (!heading || !heading.querySelector("button")) return;
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, index) => [row, index]);
    rows.sort(([a, i], [b, j]) => (compare(value(a, place), value(b, place)) || i - j) * (backwards ? -1 : 1));
    body.append(...rows.map(([row]) => row));
    for (const other of heading.parentElement.children) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", backwards ? "descending" : "ascending");
    const said = document.getElementById("said");
    if (said) said.textContent = "Sorted by " + heading.textContent + (backwards ? ", descending" : ", ascending");
  };
  const tables = [...document.querySelectorAll("table.sortable")];
  for (const table of tables) {
    [...table.tHead.rows[0].children].forEach((heading, place) => {
      const button = heading.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const backwards = heading.getAttribute("aria-sort") === "ascending";
        sort(table, place, backwards);
        if (table === tables[0]) history.replaceState(null, "", "#sort=" + (backwards ? "-" : "") + (place + 1));
      });
    });
  }
  const asked = /^#sort=(-?)(\d+)$/.exec(location.hash);
  if (asked && tables.length) sort(tables[0], Number(asked[2]) - 1, asked[1] === "-");
})();
