// The picture of the cluster: links with load, drops and faults, nodes with CPU and programs. The server sends the positions.

import { setAttribute, setText, svg } from "./elements.js";

const MARGIN = 40; // around the centres of the outermost elements
const MAX_SCALE = 1.6;
const MAX_ZOOM = 40;
const READABLE = 0.75; // minimum scale at which names can be read
const CROWD = 40; // more links than this are drawn thinner
const MAX_WORDS = 16; // if more links than this are impaired, their impairments are not written beside them
const WORDS_WIDTH = 17; // characters in a line
const WORDS_LINES = 3;
const WORDS_ROOM = 52; // height of the words below a row of nodes

/** Width of a line by its load: each decade of bit/s adds a step. */
const widthOf = (bits) => (bits < 1 ? 1.4 : Math.min(9, 1.6 + 1.15 * Math.log10(1 + bits / 1000)));
/** Colour level of a line by its load, 0 to 5. */
const levelOf = (bits) => (bits < 1 ? 0 : Math.min(5, Math.max(1, Math.floor(Math.log10(bits)) - 2)));

export class Picture {
  /** onSelect: called with kind and name of a clicked element. onOpen: the same for a double click. */
  constructor(root, onSelect, onOpen) {
    this.root = root;
    this.elements = new Map(); // "kind name" -> {kind, name, x, y, group}
    this.links = [];
    this.nodes = [];
    this.selected = "";
    this.zoom = 1;
    this.centre = [0, 0];
    const target = (event) => event.target.closest?.("[data-name]");
    root.addEventListener("click", (event) => {
      if (this.dragged) return;
      const group = target(event);
      onSelect(group?.dataset.kind ?? "", group?.dataset.name ?? "");
    });
    root.addEventListener("dblclick", (event) => {
      const group = target(event);
      if (group) onOpen(group.dataset.kind, group.dataset.name);
    });
    this.#panByPointer();
  }

  /** Draw the picture from new positions. */
  draw(picture) {
    this.picture = picture;
    this.elements.clear();
    const places = new Map([...picture.nodes, ...picture.switches].map(([name, x, y]) => [name, [x, y]]));
    const links = svg("g", { class: "links" });
    const words = svg("g", { class: "words-layer" });
    this.links = picture.links.map(([name, a, b, via, above]) => {
      const link = drawLink(name, places.get(a), places.get(b), via);
      link.below = above && [places.get(above)[0], places.get(above)[1] + picture.nodeSize[1] / 2 + 16];
      links.append(link.group);
      words.append(link.words);
      this.elements.set(`link ${name}`, { kind: "link", name, x: link.middle[0], y: link.middle[1], group: link.group });
      return link;
    });
    const elements = svg("g");
    for (const [name, x, y, kind] of picture.switches) {
      const group = drawSwitch(name, x, y, kind, picture.switchSize);
      elements.append(group);
      this.elements.set(`switch ${name}`, { kind: "switch", name, x, y, group });
    }
    this.nodes = picture.nodes.map(([name, x, y]) => {
      const node = drawNode(name, x, y, picture.nodeSize);
      elements.append(node.group);
      this.elements.set(`node ${name}`, { kind: "node", name, x, y, group: node.group });
      return node;
    });
    this.root.replaceChildren(links, elements, words);
    this.root.classList.toggle("crowded", picture.links.length > CROWD);
    this.fit();
    this.select(...(this.selection() ?? ["", ""]));
  }

  /** Show the states of the nodes, which are in the order of the picture. */
  updateNodes(states) {
    this.nodes.forEach((node, index) => states[index] && updateNode(node, states[index]));
  }

  /** Show the states of the links, which are in the order of the picture. */
  updateLinks(states) {
    const impaired = states.filter((state) => isImpaired(state)).length;
    this.links.forEach((link, index) => states[index] && updateLink(link, states[index], impaired <= MAX_WORDS));
  }

  select(kind, name) {
    this.elements.get(this.selected)?.group.classList.remove("selected");
    this.selected = kind ? `${kind} ${name}` : "";
    const element = this.elements.get(this.selected);
    element?.group.classList.add("selected");
    if (element) this.#show(element);
  }

  /** Kind and name of the selected element, if it exists. */
  selection() {
    const element = this.elements.get(this.selected);
    return element && [element.kind, element.name];
  }

  /** Names of the links of an element. */
  linksOf(kind, name) {
    const links = this.picture?.links ?? [];
    return new Set(links.filter(([link, a, b]) => (kind === "link" ? link === name : [a, b].includes(name))).map(([link]) => link));
  }

  /** Nearest element in a direction from the selected one: [kind, name]. */
  next(dx, dy) {
    const from = this.elements.get(this.selected);
    if (!from) return [...this.elements.values()].filter((element) => element.kind === "node").map(pair)[0];
    let best;
    let least = Infinity;
    for (const element of this.elements.values()) {
      const along = (element.x - from.x) * dx + (element.y - from.y) * dy;
      const aside = Math.abs((element.x - from.x) * dy) + Math.abs((element.y - from.y) * dx);
      const distance = along + 2.2 * aside;
      if (along > 1 && distance < least) [best, least] = [element, distance];
    }
    return best && pair(best);
  }

  fit() {
    this.zoom = 1;
    const [x, y, width, height] = this.picture.box;
    this.centre = [x + width / 2, y + height / 2 + (this.links.some((link) => link.below) ? WORDS_ROOM / 2 : 0)];
    this.#view();
  }

  zoomBy(factor) {
    this.zoom = Math.min(MAX_ZOOM, Math.max(0.5, this.zoom * factor));
    this.#view();
  }

  #view() {
    if (!this.picture) return;
    const [, , width, height] = this.picture.box;
    const [nodeWidth] = this.picture.nodeSize;
    const across = Math.max(width + nodeWidth + 2 * MARGIN, this.root.clientWidth / MAX_SCALE) / this.zoom;
    const words = this.links.some((link) => link.below) ? WORDS_ROOM : 0;
    const down = Math.max(height + 2 * MARGIN + words, this.root.clientHeight / MAX_SCALE) / this.zoom;
    const [x, y] = this.centre;
    setAttribute(this.root, "viewBox", [x - across / 2, y - down / 2, across, down].map((n) => n.toFixed(1)).join(" "));
  }

  /** Enlarge the picture until names can be read, with an element in the middle. */
  show(kind, name) {
    const element = this.elements.get(`${kind} ${name}`);
    if (!element || this.#scale() >= READABLE) return;
    this.zoomBy(READABLE / this.#scale());
    this.#show(element);
  }

  #scale() {
    return this.root.getScreenCTM().a;
  }

  /** In an enlarged picture, move an element to the middle of the view. */
  #show({ x, y }) {
    if (this.zoom <= 1) return;
    this.centre = [x, y];
    this.#view();
  }

  #panByPointer() {
    let last = null;
    this.root.addEventListener("pointerdown", (event) => {
      last = [event.clientX, event.clientY];
      this.dragged = false;
    });
    addEventListener("pointermove", (event) => {
      if (!last || !this.picture) return;
      const [dx, dy] = [event.clientX - last[0], event.clientY - last[1]];
      if (!this.dragged && Math.hypot(dx, dy) < 5) return;
      this.dragged = true;
      last = [event.clientX, event.clientY];
      const scale = this.#scale();
      this.centre = [this.centre[0] - dx / scale, this.centre[1] - dy / scale];
      this.#view();
    });
    addEventListener("pointerup", () => (last = null));
    this.root.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.zoomBy(Math.exp(-event.deltaY / 500));
      },
      { passive: false },
    );
    new ResizeObserver(() => this.#view()).observe(this.root);
  }
}

const pair = (element) => [element.kind, element.name];

function drawLink(name, a, b, via) {
  const control = via ?? [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
  const mean = (p, q) => [(p[0] + q[0]) / 2, (p[1] + q[1]) / 2];
  const [first, second] = [mean(a, control), mean(control, b)];
  const middle = mean(first, second);
  const curve = (p, q, r) => `M${p}Q${q} ${r}`;
  const fullCurve = curve(a, control, b);
  const link = {
    middle,
    tooltip: svg("title"),
    casing: svg("path", { class: "casing", d: fullCurve }),
    forward: svg("path", { class: "half", d: curve(a, first, middle) }),
    backward: svg("path", { class: "half", d: curve(b, second, middle) }),
    mark: svg("g", { class: "mark", transform: `translate(${middle})` }),
    words: svg("text", { class: "words" }),
    state: "",
  };
  link.cross = svg("path", { class: "cross", d: "M-5 -5l10 10m0-10l-10 10", visibility: "hidden" });
  link.dot = svg("circle", { class: "dot", r: 4, visibility: "hidden" });
  link.mark.append(link.dot, link.cross);
  const hit = svg("path", { class: "hit", d: fullCurve });
  link.group = svg(
    "g",
    { class: "link", "data-kind": "link", "data-name": name },
    link.tooltip, link.casing, link.forward, link.backward, link.mark, hit,
  );
  link.name = name;
  return link;
}

const isImpaired = (link) =>
  [link.forward, link.backward].some((direction) => direction.injected || direction.declared || direction.drops) || link.state !== "up";

function updateLink(link, state, withWords) {
  const key = JSON.stringify([state, withWords]);
  if (key === link.state) return;
  link.state = key;
  const down = state.state !== "up";
  for (const [path, direction] of [[link.forward, state.forward], [link.backward, state.backward]]) {
    const classes = ["half", `l${levelOf(direction.bits)}`, ...(direction.drops ? ["dropping"] : []), ...(down ? ["down"] : [])];
    setAttribute(path, "class", classes.join(" "));
    setAttribute(path, "stroke-width", down ? 1.6 : widthOf(direction.bits).toFixed(1));
  }
  const directions = [state.forward, state.backward];
  const injected = directions.some((direction) => direction.injected);
  const declared = directions.some((direction) => direction.declared);
  const dropping = directions.some((direction) => direction.drops);
  setAttribute(link.casing, "class", `casing${declared ? " declared" : ""}${injected ? " injected" : ""}`);
  setAttribute(link.cross, "visibility", down ? "visible" : "hidden");
  setAttribute(link.dot, "visibility", !withWords && !down && (injected || dropping) ? "visible" : "hidden");
  setAttribute(link.dot, "class", `dot${dropping ? " dropping" : ""}`);
  writeWords(link, withWords ? wordsOf(state) : [], down);
  const lines = directions.map((direction, index) => {
    const parts = [direction.load, direction.drops && `${direction.drops} drops/s`, direction.injected && `injected ${direction.injected}`];
    parts.push(direction.declared && `declared ${direction.declared}`);
    return `${"→←"[index]} ${parts.filter(Boolean).join(", ")}`;
  });
  setText(link.tooltip, [`${link.name} ${state.state}, ${state.datapath}`, ...lines].join("\n"));
}

/** Impairments in force and drops of a link, as pairs of class and text. */
function wordsOf({ forward, backward }) {
  const words = [];
  for (const what of ["declared", "injected", "drops"]) {
    const [out, back] = [forward[what], backward[what]].map((text) => (text && what === "drops" ? `${text} drops/s` : text));
    if (what !== "drops" && out === back) words.push([what, out]);
    else words.push([what, out && `→ ${out}`], [what, back && `← ${back}`]);
  }
  return words.filter(([, text]) => text);
}

function writeWords(link, words, down) {
  const lines = words.flatMap(([kind, text]) => wrap(text, WORDS_WIDTH).map((line) => [kind, line])).slice(0, 2 * WORDS_LINES);
  const key = JSON.stringify(lines);
  if (link.written === key) return;
  link.written = key;
  const [x, y] = link.below || link.middle;
  const first = link.below ? y : down ? y + 20 : y - 6 * (lines.length - 1) + 4; // the cross of a link that is down is in the middle
  link.words.replaceChildren(
    ...lines.map(([kind, line], index) => svg("tspan", { class: kind, x, y: (first + 12 * index).toFixed(1) }, line)),
  );
}

/** Break a text between words into lines of about `width` characters, at most WORDS_LINES; long words are cut. */
export function wrap(text, width) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const line = lines.at(-1);
    if (!line) lines[lines.length - 1] = word;
    else if (line.length + 1 + word.length <= width) lines[lines.length - 1] = `${line} ${word}`;
    else lines.push(word);
  }
  const cut = lines.map((line) => (line.length > width + 3 ? `${line.slice(0, width + 2)}…` : line));
  return cut.length > WORDS_LINES ? [...cut.slice(0, WORDS_LINES - 1), `${cut[WORDS_LINES - 1]} …`] : cut;
}

function drawSwitch(name, x, y, kind, [width, height]) {
  const group = svg(
    "g",
    { class: "switch", "data-kind": "switch", "data-name": name, transform: `translate(${x} ${y})` },
    svg("title", {}, `switch ${name} (${kind})`),
    svg("rect", { x: -width / 2, y: -height / 2, width, height, rx: height / 2 }),
    svg("text", { y: 4 }, short(name, width - 16)),
  );
  return group;
}

/** Cut a name to a width in the picture. */
const short = (name, room) => (name.length * 6.6 <= room ? name : `${name.slice(0, Math.floor(room / 6.6) - 1)}…`);

function drawNode(name, x, y, [width, height]) {
  const node = {
    name,
    tooltip: svg("title"),
    box: svg("rect", { class: "box", x: -width / 2, y: -height / 2, width, height, rx: 5 }),
    bar: svg("rect", { class: "bar", x: -width / 2 + 4, y: height / 2 - 6, width: 0, height: 3, rx: 1.5 }),
    badge: svg("g", { class: "badge", transform: `translate(${width / 2 - 2} ${-height / 2 + 1})`, visibility: "hidden" }),
    count: svg("text", { y: 3 }),
    room: width - 8,
    state: "",
  };
  node.badge.append(svg("circle", { r: 7 }), node.count);
  const track = svg("rect", { class: "track", x: -width / 2 + 4, y: height / 2 - 6, width: node.room, height: 3, rx: 1.5 });
  node.group = svg(
    "g",
    { class: "node", "data-kind": "node", "data-name": name, transform: `translate(${x} ${y})` },
    node.tooltip, node.box, track, node.bar, svg("text", { y: 2 }, short(name, width - 6)), node.badge,
  );
  return node;
}

function updateNode(node, state) {
  const key = JSON.stringify(state);
  if (key === node.state) return;
  node.state = key;
  const classes = ["node", ...(state.up ? [] : ["gone"]), ...(state.dropping ? ["dropping"] : [])];
  if (node.group.classList.contains("selected")) classes.push("selected");
  setAttribute(node.group, "class", classes.join(" "));
  setAttribute(node.bar, "width", (node.room * Math.min(1, state.cpu)).toFixed(1));
  setAttribute(node.bar, "class", state.cpu >= 0.9 ? "bar busy" : "bar");
  setAttribute(node.badge, "visibility", state.programs ? "visible" : "hidden");
  setText(node.count, state.programs > 99 ? "…" : String(state.programs || ""));
  setText(node.tooltip, state.tooltip);
}
