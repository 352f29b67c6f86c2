// The view: a WebSocket that brings the parts of the page that have changed, and takes what the viewer looks at and does.

import { byId, html, setAttribute, setText } from "./elements.js";
import { Forms } from "./forms.js";
import { allowHeal, showDetails, showEvents, showFaults, showHead, showJobs, showRuns, showTable } from "./panels.js";
import { Picture } from "./picture.js";

const TABS = ["Nodes", "Links", "NICs", "Faults", "Events", "Runs"];
const KIND_OF_TAB = { Nodes: "node", NICs: "node", Links: "link" };
const THEMES = ["Auto", "Light", "Dark"];
const RETRY = 1000; // ms until the next attempt to connect

const wishes = { panel: "Nodes", sort: 0, reverse: false, kind: "", name: "", paused: false };
let parts = {};
let socket = null;

const send = (message) => socket?.readyState === WebSocket.OPEN && socket.send(JSON.stringify(message));
const run = (command, values, name = "") => send({ command, values, name });
const ask = () => send({ show: wishes });

const picture = new Picture(byId("topology"), select, (kind, name) => {
  select(kind, name);
  actions.inject();
});
const forms = new Forms(run);

const target = () => (["node", "link"].includes(wishes.kind) ? wishes.name : "");
const faultsOn = (links) => (parts.faults ?? []).filter((fault) => fault.links.some((name) => links.has(name))).map((fault) => fault.number);
const link = (action) => target() && run("link", { target: target(), action });
const heal = (numbers) => numbers?.length && run("heal", { [forms.forms.heal.parameters[0].name]: numbers.join(" ") });
const actions = {
  inject: () => target() && forms.open("inject", { target: target() }),
  cut: () => target() && forms.open("link", { target: target(), action: "down" }),
  plug: () => link("up"),
  heal: () => heal(faultsOn(picture.linksOf(wishes.kind, wishes.name))),
  capture: () => target() && forms.open("capture", { target: target() }),
  load: () => forms.open("load", { nodes: target() }),
};

// What comes

function connect() {
  const address = new URL("socket", location.href);
  address.protocol = "ws:";
  socket = new WebSocket(address);
  socket.addEventListener("open", () => {
    parts = {};
    ask();
  });
  socket.addEventListener("message", (event) => {
    const fresh = JSON.parse(event.data);
    Object.assign(parts, fresh);
    show(fresh);
  });
  socket.addEventListener("close", (event) => {
    notice(event.code === 1008 ? `The view refused a message: ${event.reason}` : "The view has ended, or is out of reach. Start it again with: testbed top --web", true);
    setTimeout(connect, RETRY);
  });
}

function show(fresh) {
  if (fresh.forms) forms.forms = fresh.forms;
  if (fresh.jobs) {
    showJobs(fresh.jobs, (number) => send({ stop: number }));
    forms.jobs(fresh.jobs);
  }
  if (fresh.runs && wishes.panel === "Runs") showRuns(byId("panel"), fresh.runs);
  if ("absent" in fresh || fresh.head) {
    document.body.classList.toggle("absent", Boolean(parts.absent));
    notice(parts.absent || parts.head?.warning || "", Boolean(parts.absent));
  }
  if (parts.absent) return;
  if (fresh.picture && fresh.picture !== picture.picture) {
    picture.draw(fresh.picture);
    picture.select(wishes.kind, wishes.name);
    const names = [...fresh.picture.nodes, ...fresh.picture.switches, ...fresh.picture.links].map(([name]) => name);
    byId("names").replaceChildren(...[...names, "all"].map((name) => html("option", { value: name })));
  }
  if (fresh.head) showHead(fresh.head);
  if (fresh.nodes || fresh.picture) picture.updateNodes(parts.nodes);
  if (fresh.links || fresh.picture) picture.updateLinks(parts.links);
  if (fresh.faults) showFaults(fresh.faults, heal);
  if (fresh.events) showEvents(fresh.events);
  if ("details" in fresh) showDetails(fresh.details, actions);
  if (fresh.faults || "details" in fresh) allowHeal(faultsOn(picture.linksOf(wishes.kind, wishes.name)).length > 0);
  if (fresh.panel) showPanel();
}

function showPanel() {
  const table = parts.panel;
  if (!table || table.name !== wishes.panel) return;
  const place = byId("panel");
  if (table.rows.length) {
    showTable(place, table, (name) => name && select(KIND_OF_TAB[wishes.panel] ?? "", name), wishes.name);
  } else place.replaceChildren(html("p", { className: "muted" }, table.none));
  setText(byId("sorting"), [table.sort && `by ${table.sort}`, wishes.reverse && "reversed"].filter(Boolean).join(", "));
  byId("sort").hidden = !table.sorts.length;
}

function notice(text, isAlarm) {
  const element = byId("notice");
  setText(element, text);
  element.hidden = !text;
  setAttribute(element, "class", isAlarm ? "alarm" : "changed");
}

// What the viewer does

function select(kind, name) {
  if (!kind) name = "";
  Object.assign(wishes, { kind, name });
  picture.select(kind, name);
  if (!kind) showDetails(null, actions);
  showPanel();
  ask();
}

function openTab(name) {
  Object.assign(wishes, { panel: name, sort: 0, reverse: false });
  for (const tab of byId("tabs").querySelectorAll("[role=tab]")) {
    const isOpen = tab.textContent === name;
    setAttribute(tab, "aria-selected", isOpen);
    tab.tabIndex = isOpen ? 0 : -1;
  }
  byId("panel").replaceChildren();
  setText(byId("sorting"), "");
  byId("sort").hidden = true;
  if (name === "Runs") showRuns(byId("panel"), parts.runs ?? []);
  showPanel(); // the server sends only what differs from what it has sent
  ask();
}

function sort(reverse) {
  const orders = (parts.panel?.sorts.length ?? 0) + 1;
  if (reverse) wishes.reverse = !wishes.reverse;
  else wishes.sort = (wishes.sort + 1) % orders;
  ask();
}

function pause() {
  wishes.paused = !wishes.paused;
  setAttribute(byId("pause"), "aria-pressed", wishes.paused);
  setText(byId("pause"), wishes.paused ? "Paused" : "Pause");
  ask();
}

function setTheme(name) {
  setText(byId("theme"), name);
  document.documentElement.dataset.theme = name.toLowerCase();
  localStorage.setItem("theme", name);
}

const nextTheme = () => setTheme(THEMES[(THEMES.indexOf(byId("theme").textContent) + 1) % THEMES.length]);

/** Select the row below or above the selected one. */
function step(by) {
  const rows = [...byId("panel").querySelectorAll("tr.pickable")];
  const at = rows.findIndex((row) => row.classList.contains("selected"));
  const targets = [...new Set(rows.map((row) => row.dataset.target))];
  const name = targets[Math.max(0, Math.min(targets.length - 1, targets.indexOf(rows[at]?.dataset.target) + by))];
  if (!name || !KIND_OF_TAB[wishes.panel]) return;
  select(KIND_OF_TAB[wishes.panel], name);
  rows.find((row) => row.dataset.target === name)?.scrollIntoView({ block: "nearest" });
}

function move(dx, dy) {
  if (byId("panel").contains(document.activeElement)) {
    if (dy) step(dy);
    return;
  }
  const next = picture.next(dx, dy);
  if (next) select(...next);
}

function find(name) {
  const found = ["node", "switch", "link"].find((kind) => picture.elements.has(`${kind} ${name}`));
  setAttribute(byId("find"), "aria-invalid", Boolean(name) && !found);
  if (!found) {
    if (name) setText(byId("selection"), `no element is named ${name}`);
    return;
  }
  select(found, name);
  picture.show(found, name);
  byId("find").value = "";
  byId("topology").focus();
}

const KEYS = {
  ArrowLeft: () => move(-1, 0), ArrowRight: () => move(1, 0), ArrowUp: () => move(0, -1), ArrowDown: () => move(0, 1),
  j: () => step(1), k: () => step(-1),
  i: actions.inject, c: actions.capture, h: actions.heal, Enter: actions.inject,
  d: () => link("down"), u: () => link("up"), f: () => link("flap"), H: () => run("heal", {}),
  s: () => sort(false), S: () => sort(true), p: pause, t: nextTheme,
  "/": () => byId("find").focus(), "+": () => picture.zoomBy(1.3), "-": () => picture.zoomBy(1 / 1.3), 0: () => picture.fit(),
  "?": () => byId("help").showModal(), Escape: () => select("", ""),
};

addEventListener("keydown", (event) => {
  const { target: at, key } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (at.closest("input, textarea, select")) {
    if (key === "Escape") at.blur();
    if (key === "Enter" && at === byId("find")) find(at.value.trim());
    return;
  }
  if (key === "Enter" && at !== byId("topology")) return; // of a button or a link
  if (at.getAttribute("role") === "tab" && key.startsWith("Arrow")) {
    const by = key === "ArrowRight" ? 1 : key === "ArrowLeft" ? -1 : 0;
    openTab(TABS[(TABS.indexOf(wishes.panel) + by + TABS.length) % TABS.length]);
    byId("tabs").querySelector("[aria-selected=true]").focus();
    event.preventDefault();
    return;
  }
  const tab = TABS[Number(key) - 1];
  const action = tab ? () => openTab(tab) : KEYS[key];
  if (!action) return;
  event.preventDefault();
  action();
});

byId("tabs").append(
  ...TABS.map((name) => html("button", { type: "button", role: "tab", "aria-controls": "panel", onclick: () => openTab(name) }, name)),
  html("span", { id: "sorting", className: "muted" }),
  html("button", { type: "button", id: "sort", title: "Sort (s), reverse (S)", onclick: () => sort(false) }, "Sort"),
);
byId("partition").onclick = () => forms.open("partition");
byId("load").onclick = () => forms.open("load", {});
byId("heal-all").onclick = () => run("heal", {});
byId("pause").onclick = pause;
byId("theme").onclick = nextTheme;
byId("show-help").onclick = () => byId("help").showModal();
byId("zoom-in").onclick = () => picture.zoomBy(1.3);
byId("zoom-out").onclick = () => picture.zoomBy(1 / 1.3);
byId("zoom-fit").onclick = () => picture.fit();
byId("find").addEventListener("change", (event) => find(event.target.value.trim()));
byId("find").addEventListener("input", (event) => setAttribute(event.target, "aria-invalid", false));

setTheme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "Auto");
showDetails(null, actions);
openTab("Nodes");
connect();
