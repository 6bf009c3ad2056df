// Tables, and tables of many pages. On a narrow window each row becomes a card (see content.css), hence the
// explicit roles: browsers drop those of a table that is not displayed as one.

import { el, button, replaceChildren, uniqueId } from './dom.js';

/**
 * A table. A column is `{ head, cell(row), isNumber, isAction }`. `id(row)` names a row, for marks and the focus;
 * `details(row)` gives what opens beneath a row, `marked` is a Set of the ids of marked rows.
 */
export function dataTable({ caption, columns, rows, id, empty, details, marked, onMark }) {
  if (rows.length === 0) return el('p', { class: 'empty' }, empty ?? 'Nothing here.');
  const all = [...columns];
  if (marked) all.unshift({ head: 'Mark', isMark: true, cell: (row) => markBox(row, id, marked, onMark) });
  if (details) all.push({ head: 'Details', isAction: true, cell: (row) => detailsButton(id(row)) });
  const heads = all.map(({ head, isNumber }) =>
    el('th', { scope: 'col', role: 'columnheader', class: isNumber ? 'number' : null }, head));
  const body = el('tbody', { role: 'rowgroup' });
  for (const row of rows) {
    const cells = all.map((column) => el('td', {
      role: 'cell', 'data-label': column.head,
      class: [column.isNumber && 'number', column.isAction && 'actions', column.isMark && 'mark', column.isWide && 'wide'].filter(Boolean).join(' ') || null,
    }, column.cell(row)));
    const shown = el('tr', { role: 'row' }, cells);
    body.append(shown);
    if (details) openOnDemand(shown, all.length, () => details(row));
  }
  const captionId = uniqueId('table');
  return el('div', { class: 'table-frame' },
    el('table', { role: 'table', 'aria-labelledby': captionId },
      el('caption', { id: captionId }, caption),
      el('thead', { role: 'rowgroup' }, el('tr', { role: 'row' }, heads)), body));
}

function markBox(row, id, marked, onMark) {
  const box = el('input', { type: 'checkbox', 'aria-label': `Mark ${id(row)}`, checked: marked.has(id(row)), 'data-focus': `mark-${id(row)}` });
  box.addEventListener('change', () => {
    if (box.checked) marked.add(id(row));
    else marked.delete(id(row));
    onMark();
  });
  return box;
}

function detailsButton(id) {
  return button('Show', null, { class: 'small', 'aria-expanded': 'false', 'data-details': '', 'data-focus': `details-${id}` });
}

/** What opens is made when it is opened: a page of rows stays cheap. */
function openOnDemand(row, width, make) {
  const toggle = row.querySelector('[data-details]');
  let opened = null;
  toggle.addEventListener('click', () => {
    if (opened) {
      opened.remove();
      opened = null;
    } else {
      opened = el('tr', { role: 'row', class: 'details' }, el('td', { role: 'cell', colspan: String(width) }, make()));
      row.after(opened);
    }
    toggle.setAttribute('aria-expanded', String(opened !== null));
    toggle.textContent = opened ? 'Hide' : 'Show';
  });
}

/**
 * A table whose rows come in pages by cursor. `load(after)` gives `{ rows, next }`, `table(rows)` the element. The
 * returned element has `reload()` and `isFirstPage()`.
 */
export function pagedTable({ load, table }) {
  let cursors = [null];
  const place = el('div');
  const label = el('span', { class: 'page-number', 'aria-live': 'polite' });
  const previous = button('‹ Previous', () => go(cursors.slice(0, -1)), { class: 'small', 'data-focus': 'previous' });
  const next = button('Next ›', () => go([...cursors, following]), { class: 'small', 'data-focus': 'next' });
  const pager = el('nav', { class: 'pager', 'aria-label': 'Pages of the table', hidden: true }, previous, label, next);
  let following = null;

  async function go(wanted) {
    let page = await load(wanted.at(-1));
    // A page may be empty while more follow: the rows between were filtered out.
    for (let more = 0; page.rows.length === 0 && page.next && more < 5; more += 1) page = await load(page.next);
    cursors = wanted;
    following = page.next;
    label.textContent = `Page ${cursors.length}`;
    previous.disabled = cursors.length === 1;
    next.disabled = !following;
    pager.hidden = cursors.length === 1 && !following;
    replaceChildren(place, table(page.rows));
  }
  const element = el('div', { class: 'paged' }, place, pager);
  element.reload = () => go(cursors);
  element.restart = () => go([null]);
  element.isFirstPage = () => cursors.length === 1;
  return element;
}
