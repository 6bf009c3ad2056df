// Builds elements. Text always becomes a text node, so that a key or payload can never become markup.

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** An HTML element; attributes whose names begin with `on` are listeners. */
export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Replaces the children of an element, and puts the focus back on the control that had it. */
export function replaceChildren(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  element.replaceChildren(...children.flat(Infinity).filter((child) => child));
  if (!focused) return;
  element.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

let count = 0;

/** An id that no other element has, to join labels and inputs. */
export function uniqueId(prefix) {
  count += 1;
  return `${prefix}-${count}`;
}

// Each state has a sign and a word, so that nothing depends on its colour.
const SIGNS = { good: '✓', warn: '!', bad: '✕', info: 'i', off: '–' };

/** A state in words, with a sign and a colour. */
export function badge(tone, text) {
  return el('span', { class: `badge ${tone}` }, el('span', { class: 'sign', 'aria-hidden': 'true' }, SIGNS[tone]), text);
}

/** A value that the server keeps hidden until it is revealed. */
export function secret(value, isMasked) {
  if ((value === null || value === undefined) && isMasked) return el('span', { class: 'hidden-value' }, 'hidden');
  return value === null || value === undefined ? none() : code(value);
}

export function code(text) {
  return el('code', null, text);
}

/** Where there is no value. */
export function none() {
  return el('span', { class: 'none' }, el('span', { 'aria-hidden': 'true' }, '–'), el('span', { class: 'visually-hidden' }, 'none'));
}

export function button(text, onclick, attributes) {
  return el('button', { type: 'button', onclick, ...attributes }, text);
}

/** An input with its label. */
export function field(label, input, hint) {
  input.id ||= uniqueId('field');
  const hintId = hint ? uniqueId('hint') : null;
  if (hintId) input.setAttribute('aria-describedby', hintId);
  return el('div', { class: 'field' }, el('label', { for: input.id }, label), input, hint && el('small', { id: hintId }, hint));
}

/** A select of `[value, text]` pairs. */
export function select(options, chosen, attributes) {
  const option = ([value, text]) => el('option', { value, selected: value === chosen }, text);
  return el('select', attributes, options.map(option));
}

/** A list of terms and what they are; pairs without a value are left out. */
export function definitions(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined);
  return el('dl', { class: 'facts' }, shown.map(([term, value]) => el('div', null, el('dt', null, term), el('dd', null, value ?? none()))));
}
