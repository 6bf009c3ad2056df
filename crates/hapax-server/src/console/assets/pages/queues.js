// Queues and outbox: depth, rates, what is stuck, and pause.

import { call, path } from '../api.js';
import { badge, button, code, el, none, secret } from '../dom.js';
import { confirmAction } from '../dialog.js';
import { duration, number, rate, time } from '../format.js';
import { announce, announceChange, openPage } from '../page.js';
import { mayAct } from '../session.js';
import { dataTable } from '../table.js';

const WAITING = 50;

export const queues = {
  name: 'queues',
  title: 'Queues',
  show(context) {
    const [queue] = context.segments;
    if (queue) showQueue(context, queue);
    else showAll(context);
  },
};

function link(queue) {
  return `#/queues/${encodeURIComponent(queue)}`;
}

async function setPaused(queue, isPaused) {
  const result = await confirmAction(isPaused ? {
    title: `Pause ${queue}`,
    what: `Pause the queue ${queue}: workers take no further items from it.`,
    consequences: ['Items that are in flight are finished. New ones are stored and wait; nothing is lost.', 'It stays paused, over restarts, until somebody resumes it.'],
    confirm: 'Pause',
    isDangerous: true,
    run: (note) => call('POST', path('v1', 'queues', queue, 'pause'), { note }),
  } : {
    title: `Resume ${queue}`,
    what: `Resume the queue ${queue}: workers take items again, the oldest first.`,
    confirm: 'Resume',
    run: (note) => call('POST', path('v1', 'queues', queue, 'resume'), { note }),
  });
  if (!result) return;
  announce(`${queue} was ${isPaused ? 'paused' : 'resumed'}.`);
  announceChange();
}

function stateOf({ paused }) {
  return paused ? badge('warn', 'Paused') : badge('good', 'Running');
}

function pauseButton({ queue, paused }) {
  return button(paused ? 'Resume…' : 'Pause…', () => setPaused(queue, !paused), { class: 'small', 'data-focus': `pause-${queue}` });
}

function targets({ targets: all }) {
  if (!all?.length) return none();
  return el('ul', { class: 'plain' }, all.map(({ node, name, up, last_error: error }) =>
    el('li', null, badge(up ? 'good' : 'bad', `${name} ${up ? 'up' : 'away'}`), ' ', code(node), error && el('div', { class: 'error-text' }, error))));
}

function deadLink({ queue, dead }) {
  return dead > 0 ? el('a', { href: `#/dead/${encodeURIComponent(queue)}` }, number(dead)) : number(dead);
}

const COLUMNS = [
  { head: 'Queue', cell: ({ queue }) => el('a', { href: link(queue), 'data-focus': `queue-${queue}` }, queue) },
  { head: 'State', cell: stateOf },
  { head: 'Waiting', isNumber: true, cell: ({ depth }) => number(depth) },
  { head: 'In flight', isNumber: true, cell: (row) => number(row.in_flight) },
  { head: 'Dead', isNumber: true, cell: deadLink },
  { head: 'Oldest', isNumber: true, cell: (row) => (row.oldest_age_ms === null ? none() : duration(row.oldest_age_ms)) },
  { head: 'In', isNumber: true, cell: (row) => rate(row.in_per_s) },
  { head: 'Out', isNumber: true, cell: (row) => rate(row.out_per_s) },
  { head: 'Sinks', cell: targets },
];

function showAll(context) {
  const page = openPage({
    context,
    title: 'Queues',
    intro: 'The outbox and every other queue of this store.',
    load: async () => {
      const { queues: rows } = await call('GET', '/v1/operator/queues', { signal: context.signal });
      const columns = mayAct() ? [...COLUMNS, { head: 'Actions', isAction: true, cell: pauseButton }] : COLUMNS;
      return dataTable({ caption: 'Queues', columns, rows, id: ({ queue }) => queue, empty: 'There is no queue yet.' });
    },
  });
  page.reload();
}

const ITEM_COLUMNS = [
  { head: 'Topic', cell: ({ topic }) => code(topic) },
  { head: 'Key', isWide: true, cell: (row) => secret(row.key, row.masked) },
  { head: 'State', cell: (row) => (row.in_flight ? badge('info', 'In flight') : badge('off', 'Waiting')) },
  { head: 'Age', isNumber: true, cell: (row) => duration(row.age_ms) },
  { head: 'Attempts', isNumber: true, cell: ({ attempts }) => number(attempts) },
  { head: 'Last error', isWide: true, cell: ({ reason }) => reason ?? none() },
  { head: 'Id', cell: ({ id }) => code(id) },
];
const KEY_COLUMNS = [
  { head: 'Key', isWide: true, cell: (row) => secret(row.key, row.key === null) },
  { head: 'Waiting', isNumber: true, cell: ({ waiting }) => number(waiting) },
  { head: 'Oldest', isNumber: true, cell: (row) => duration(row.oldest_age_ms) },
];

function showQueue(context, queue) {
  const { signal } = context;
  const page = openPage({
    context,
    title: `Queue ${queue}`,
    reveals: 'keys',
    load: async (reveal, note) => {
      const [all, waiting] = await Promise.all([
        call('GET', '/v1/operator/queues', { signal }),
        call('GET', path('v1', 'operator', 'queues', queue, 'waiting'), { signal, query: { limit: WAITING, reveal }, note }),
      ]);
      const found = all.queues.filter((one) => one.queue === queue);
      const columns = mayAct() ? [...COLUMNS.slice(1), { head: 'Actions', isAction: true, cell: pauseButton }] : COLUMNS.slice(1);
      const paused = found[0]?.paused;
      return [
        el('p', null, el('a', { href: '#/queues' }, 'All queues')),
        paused && el('p', { class: 'notice' }, badge('warn', 'Paused'), ` by ${paused.by} `, time(paused.at), paused.note ? `: ${paused.note}` : ''),
        dataTable({ caption: `Queue ${queue}`, columns, rows: found, id: () => queue, empty: 'There is no such queue.' }),
        el('h2', null, 'Oldest items'),
        dataTable({ caption: `The oldest ${WAITING} that wait or are in flight`, columns: ITEM_COLUMNS, rows: waiting.items, id: ({ id }) => id, empty: 'Nothing waits.' }),
        el('h2', null, 'Lag per key'),
        dataTable({ caption: 'Keys among the oldest 1,000 items', columns: KEY_COLUMNS, rows: waiting.keys, id: (row) => String(row.key), empty: 'No item with a key waits.' }),
      ];
    },
  });
  page.reload();
}
