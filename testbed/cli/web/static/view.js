// The view. A WebSocket receives the changed parts of the page, and sends the viewer's choices and commands.

import { byId, html, setAttribute, setText } from "./elements.js";
import { Forms } from "./forms.js";
import { allowHeal, showDetails, showEvents, showFaults, showHead, showJobs, showRuns, showTable } from "./panels.js";
import { Picture } from "./picture.js";

const TABS = ["Nodes", "Links", "NICs", "Faults", "Events", "Runs"];
const KIND_OF_TAB = { Nodes: "node", NICs: "node", Links: "link" };
const THEMES = ["Auto", "Light", "Dark"];
const RETRY_DELAY = 1000; // ms until the next attempt to connect

const choices = { panel: "Nodes", sort: 0, reverse: false, kind: "", name: "", paused: false };
let parts = {};
let socket = null;

const send = (message) => socket?.readyState === WebSocket.OPEN && socket.send(JSON.stringify(message));
const run = (command, values, name = "") => send({ command, values, name });
const sendChoices = () => send({ show: choices });

const picture = new Picture(byId("topology"), select, (kind, name) => {
  select(kind, name);
  actions.inject();
});
const forms = new Forms(run);

const target = () => (["node", "link"].includes(choices.kind) ? choices.name : "");
const faultsOn = (links) => (parts.faults ?? []).filter((fault) => fault.links.some((name) => links.has(name))).map((fault) => fault.number);
const link = (action) => target() && run("link", { target: target(), action });
const heal = (numbers) => numbers?.length && run("heal", { [forms.forms.heal.parameters[0].name]: numbers.join(" ") });
const actions = {
  inject: () => target() && forms.open("inject", { target: target() }),
  cut: () => target() && forms.open("link", { target: target(), action: "down" }),
  plug: () => link("up"),
  heal: () => heal(faultsOn(picture.linksOf(choices.kind, choices.name))),
  capture: () => target() && forms.open("capture", { target: target() }),
  load: () => forms.open("load", { nodes: target() }),
};

// Messages from the server

function connect() {
  const address = new URL("socket", location.href);
  address.protocol = "ws:";
  socket = new WebSocket(address);
  socket.addEventListener("open", () => {
    parts = {};
    sendChoices();
  });
  socket.addEventListener("message", (event) => {
    const changed = JSON.parse(event.data);
    Object.assign(parts, changed);
    show(changed);
  });
  socket.addEventListener("close", (event) => {
    notice(event.code === 1008 ? `The server rejected a message: ${event.reason}` : "The connection to the view is lost. To start the view again: testbed top --web", true);
    setTimeout(connect, RETRY_DELAY);
  });
}

function show(changed) {
  if (changed.forms) forms.forms = changed.forms;
  if (changed.jobs) {
    showJobs(changed.jobs, (number) => send({ stop: number }));
    forms.showJob(changed.jobs);
  }
  if (changed.runs && choices.panel === "Runs") showRuns(byId("panel"), changed.runs);
  if ("absent" in changed || changed.head) {
    document.body.classList.toggle("absent", Boolean(parts.absent));
    notice(parts.absent || parts.head?.warning || "", Boolean(parts.absent));
  }
  if (parts.absent) return;
  if (changed.picture && changed.picture !== picture.picture) {
    picture.draw(changed.picture);
    picture.select(choices.kind, choices.name);
    const names = [...changed.picture.nodes, ...changed.picture.switches, ...changed.picture.links].map(([name]) => name);
    byId("names").replaceChildren(...[...names, "all"].map((name) => html("option", { value: name })));
  }
  if (changed.head) showHead(changed.head);
  if (changed.nodes || changed.picture) picture.updateNodes(parts.nodes);
  if (changed.links || changed.picture) picture.updateLinks(parts.links);
  if (changed.faults) showFaults(changed.faults, heal);
  if (changed.events) showEvents(changed.events);
  if ("details" in changed) showDetails(changed.details, actions);
  if (changed.faults || "details" in changed) allowHeal(faultsOn(picture.linksOf(choices.kind, choices.name)).length > 0);
  if (changed.panel) showPanel();
}

function showPanel() {
  const table = parts.panel;
  if (!table || table.name !== choices.panel) return;
  const place = byId("panel");
  if (table.rows.length) {
    showTable(place, table, (name) => name && select(KIND_OF_TAB[choices.panel] ?? "", name), choices.name);
  } else place.replaceChildren(html("p", { className: "muted" }, table.none));
  setText(byId("sorting"), [table.sort && `by ${table.sort}`, choices.reverse && "reversed"].filter(Boolean).join(", "));
  byId("sort").hidden = !table.sorts.length;
}

function notice(text, isAlarm) {
  const element = byId("notice");
  setText(element, text);
  element.hidden = !text;
  setAttribute(element, "class", isAlarm ? "alarm" : "changed");
}

// Actions of the viewer

function select(kind, name) {
  if (!kind) name = "";
  Object.assign(choices, { kind, name });
  picture.select(kind, name);
  if (!kind) showDetails(null, actions);
  showPanel();
  sendChoices();
}

function openTab(name) {
  Object.assign(choices, { panel: name, sort: 0, reverse: false });
  for (const tab of byId("tabs").querySelectorAll("[role=tab]")) {
    const isOpen = tab.textContent === name;
    setAttribute(tab, "aria-selected", isOpen);
    tab.tabIndex = isOpen ? 0 : -1;
  }
  byId("panel").replaceChildren();
  setText(byId("sorting"), "");
  byId("sort").hidden = true;
  if (name === "Runs") showRuns(byId("panel"), parts.runs ?? []);
  showPanel(); // the server does not send unchanged parts again
  sendChoices();
}

function sort(reverse) {
  const orders = (parts.panel?.sorts.length ?? 0) + 1;
  if (reverse) choices.reverse = !choices.reverse;
  else choices.sort = (choices.sort + 1) % orders;
  sendChoices();
}

function pause() {
  choices.paused = !choices.paused;
  setAttribute(byId("pause"), "aria-pressed", choices.paused);
  setText(byId("pause"), choices.paused ? "Paused" : "Pause");
  sendChoices();
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
  if (!name || !KIND_OF_TAB[choices.panel]) return;
  select(KIND_OF_TAB[choices.panel], name);
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
  const kind = ["node", "switch", "link"].find((candidate) => picture.elements.has(`${candidate} ${name}`));
  setAttribute(byId("find"), "aria-invalid", Boolean(name) && !kind);
  if (!kind) {
    if (name) setText(byId("selection"), `no element is named ${name}`);
    return;
  }
  select(kind, name);
  picture.show(kind, name);
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
  const { target: element, key } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (element.closest("input, textarea, select")) {
    if (key === "Escape") element.blur();
    if (key === "Enter" && element === byId("find")) find(element.value.trim());
    return;
  }
  if (key === "Enter" && element !== byId("topology")) return; // it activates a button or a link
  if (element.getAttribute("role") === "tab" && key.startsWith("Arrow")) {
    const by = key === "ArrowRight" ? 1 : key === "ArrowLeft" ? -1 : 0;
    openTab(TABS[(TABS.indexOf(choices.panel) + by + TABS.length) % TABS.length]);
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
