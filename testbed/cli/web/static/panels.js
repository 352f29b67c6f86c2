// The panels around the picture: totals, selection, faults, commands, events, tables, runs.

import { byId, html, keepItems, setAttribute, setText } from "./elements.js";

/** Show the totals of the cluster. */
export function showHead(head) {
  document.title = `${head.cluster} – testbed`;
  setText(byId("cluster"), head.cluster);
  setText(byId("summary"), `${head.summary} · up for ${head.age}`);
  const facts = [
    ["frames/s", head.frames, ""],
    ["bit/s", head.bits, ""],
    ["drops/s", head.drops, head.dropping ? "alarm" : ""],
    ["injected", String(head.faults), head.faults ? "changed" : ""],
    ["own CPU", head.carriers.join(", "), "small"],
  ].filter(([, text]) => text);
  keepItems(
    byId("totals"), facts, ([title]) => title,
    ([title]) => html("div", {}, html("dt", {}, title), html("dd")),
    (item, [, text, kind]) => {
      setText(item.lastChild, text);
      setAttribute(item, "class", kind);
    },
  );
}

/** Show a table. pick: called with the target of a clicked row. selected: target of the selected rows. */
export function showTable(place, table, pick, selected = "") {
  let element = place.querySelector(":scope > table");
  const titles = JSON.stringify(table.columns);
  if (!element || element.dataset.titles !== titles) {
    element = html(
      "table", {},
      html("thead", {}, html("tr", {}, ...table.columns.map((column) => html("th", { scope: "col", className: column.right ? "number" : "" }, column.title)))),
      html("tbody"),
    );
    element.dataset.titles = titles;
    place.replaceChildren(element);
  }
  keepItems(
    element.tBodies[0], table.rows, (row) => row.key,
    () => {
      const line = html("tr", {}, ...table.columns.map((column) => html("td", { className: column.right ? "number" : "" })));
      if (pick) line.addEventListener("click", () => pick(line.dataset.target));
      return line;
    },
    (line, row) => {
      row.cells.forEach((cell, index) => setText(line.cells[index], cell));
      const target = row.target ?? "";
      line.dataset.target = target;
      const classes = [row.alarm && "alarm", row.changed && "changed", pick && target && "pickable"];
      if (target && target === selected) classes.push("selected");
      setAttribute(line, "class", classes.filter(Boolean).join(" "));
    },
  );
}

/** Show the selected element: facts, tables, and buttons for its commands. */
export function showDetails(details, actions) {
  const place = byId("details");
  if (!details) {
    if (place.dataset.key !== "") {
      place.dataset.key = "";
      place.replaceChildren(html("h2", {}, "Selection"), html("p", { className: "muted" }, "Click a node, a link or a switch, or use the arrow keys."));
    }
    return;
  }
  const key = `${details.kind} ${details.name}`;
  if (place.dataset.key !== key) {
    place.dataset.key = key;
    place.replaceChildren(
      html("h2", {}, details.name),
      html("div", { className: "buttons" }, ...buttonsOf(details, actions)),
      html("dl"),
      ...details.tables.map((table) => html("div", { className: "scrolls", "data-table": table.name })),
    );
    setText(byId("selection"), `${details.kind} ${details.name} selected`);
  }
  keepItems(
    place.querySelector("dl"), details.facts, ([title]) => title,
    ([title]) => html("div", {}, html("dt", {}, title), html("dd")),
    (item, [, text]) => setText(item.lastChild, text),
  );
  for (const table of details.tables) {
    const part = [...place.querySelectorAll("[data-table]")].find((child) => child.dataset.table === table.name);
    part.hidden = !table.rows.length;
    if (table.rows.length) showTable(part, table);
  }
}

/** Enable the button that heals the selected element. isInjected: whether a fault is injected on it. */
export function allowHeal(isInjected) {
  const button = byId("details").querySelector("[data-action=heal]");
  if (button) button.disabled = !isInjected;
}

function buttonsOf(details, actions) {
  if (details.kind === "switch") return [];
  const buttons = [
    ["inject", "Inject…", "i"], ["cut", "Cut…", "d: down at once"], ["plug", "Plug in", "u"], ["heal", "Heal", "h"],
    ["capture", "Capture…", "c"], ...(details.kind === "node" ? [["load", "Load…", ""]] : []),
  ];
  return buttons.map(([action, text, key]) =>
    html("button", { type: "button", title: key, "data-action": action, onclick: () => actions[action]() }, text),
  );
}

export function showFaults(faults, heal) {
  const list = byId("faults");
  keepItems(
    list, faults, (fault) => fault.number,
    (fault) =>
      html("li", {}, html("span", { className: "words" }), html("button", { type: "button", onclick: () => heal([fault.number]) }, "Heal")),
    (item, fault) => setText(item.firstChild, `${fault.number}: ${fault.what}${fault.left ? ` (${fault.left} left)` : ""}`),
  );
  setAttribute(list, "class", faults.length ? "" : "empty");
}

export function showEvents(events) {
  keepItems(
    byId("events"), events, (event) => event.cells.join(" "),
    () => html("li", {}, html("time"), html("b"), html("span")),
    (item, { cells: [time, kind, where, what], alarm }) => {
      setText(item.children[0], time.slice(0, 8));
      setText(item.children[1], kind);
      setText(item.children[2], [where, what].filter(Boolean).join(": "));
      setAttribute(item, "class", alarm ? "alarm" : "");
    },
  );
}

/** Show the commands that were started here, with the output of captures. */
export function showJobs(jobs, stop) {
  byId("jobs-section").hidden = !jobs.length;
  keepItems(
    byId("jobs"), jobs, (job) => job.number,
    (job) =>
      html("li", {},
        html("code"),
        html("div", {}, html("p"), html("button", { type: "button", onclick: () => stop(job.number) }, "Stop")),
        html("pre", { tabIndex: 0 })),
    (item, job) => {
      const [command, line, output] = item.children;
      const [message, button] = line.children;
      setText(command, job.command);
      setText(message, job.state === "done" || job.state === "failed" ? job.message : `${job.state} …`);
      setText(output, job.state === "failed" ? "" : job.lines.slice(-12).join("\n").trimEnd());
      output.hidden = !output.textContent;
      button.hidden = !job.stoppable;
      setAttribute(item, "class", job.state);
    },
  );
}

/** Show the runs with their progress, and a link to the report of each. */
export function showRuns(place, runs) {
  let list = place.querySelector(":scope > ul.runs");
  if (!list) {
    list = html("ul", { className: "runs" });
    place.replaceChildren(list);
  }
  keepItems(
    list, runs, (run) => run.name,
    (run) =>
      html("li", {},
        html("span", { className: "description" }), html("span", { className: "label" }), html("progress", { ariaLabel: "progress" }),
        html("span", { className: "muted" }),
        html("a", { href: `runs/${encodeURIComponent(run.name)}`, target: "_blank", rel: "noopener" }, "Report")),
    (item, run) => {
      const [description, label, bar, words] = item.children;
      setText(description, run.description);
      setAttribute(description, "title", run.name);
      setText(label, run.grade || run.status);
      setAttribute(label, "class", `label ${run.grade || run.status}`);
      bar.hidden = run.status !== "running";
      if (run.fraction_done === null) bar.removeAttribute("value");
      else bar.value = run.fraction_done;
      setText(words, run.progress || run.error || run.name);
    },
  );
  setAttribute(list, "class", runs.length ? "runs" : "runs empty");
}
