// Elements of the page and of its pictures. Text is only ever set as text: what nodes and events contain is no markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** Create an HTML element: properties as in the DOM, then children, elements or text. */
export function html(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Create an SVG element with attributes, then children, elements or text. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Set an attribute or text if it differs: what stays as it is need not be drawn again. */
export function setAttribute(element, name, value) {
  const text = String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Make a list's items those of `rows`: items are kept by key, changed in place, added and removed. Rows may have the same key. */
export function keepItems(list, rows, keyOf, create, update) {
  const present = new Map([...list.children].map((item) => [item.dataset.key, item]));
  const times = new Map();
  rows.forEach((row, index) => {
    const name = String(keyOf(row));
    const before = times.get(name) ?? 0;
    times.set(name, before + 1);
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
