// Elements of the page and of its picture. All texts are set as text, never as markup: they may come from programs.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** Create an HTML element. properties: DOM properties or attributes. children: elements or text. */
export function html(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Create an SVG element. children: elements or text. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Set an attribute if it differs: an unchanged element is not drawn again. */
export function setAttribute(element, name, value) {
  const text = String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/** Set the text of an element if it differs. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Update the items of a list to `rows`: items are matched by key, changed in place, added and removed. Keys may repeat. */
export function keepItems(list, rows, keyOf, create, update) {
  const present = new Map([...list.children].map((item) => [item.dataset.key, item]));
  const counts = new Map(); // of rows with a key
  rows.forEach((row, index) => {
    const name = String(keyOf(row));
    const before = counts.get(name) ?? 0;
    counts.set(name, before + 1);
    const key = before ? `${name} (${before})` : name;
    let item = present.get(key);
    present.delete(key);
    if (!item) {
      item = create(row);
      item.dataset.key = key;
    }
    update(item, row);
    if (list.children[index] !== item) list.insertBefore(item, list.children[index] ?? null);
  });
  for (const item of present.values()) item.remove();
}
