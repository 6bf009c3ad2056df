// Dead letters: grouped by reason; requeue or discard one, the marked ones, or all that match.

import { call, path } from '../api.js';
import { button, code, definitions, el, field, none, replaceChildren, secret, select } from '../dom.js';
import { confirmAction } from '../dialog.js';
import { counted, number, time } from '../format.js';
import { announce, announceChange, openPage } from '../page.js';
import { mayAct } from '../session.js';
import { dataTable, pagedTable } from '../table.js';
import { followTask } from '../tasks.js';

const PAGE = 50;
const MARKED_AT_MOST = 1000;

const VERBS = {
  requeue: { title: 'Requeue', consequence: 'They wait in the queue again, with their attempts counted from zero.', isDangerous: false },
  discard: { title: 'Discard', consequence: 'They are deleted for good: nobody will receive them.', isDangerous: true },
};

const COLUMNS = [
  { head: 'Since', cell: ({ at }) => time(at) },
  { head: 'Topic', cell: ({ topic }) => code(topic) },
  { head: 'Key', isWide: true, cell: (row) => secret(row.key, row.masked) },
  { head: 'Attempts', isNumber: true, cell: ({ attempts }) => number(attempts) },
  { head: 'Reason', isWide: true, cell: ({ reason }) => reason },
];

export const dead = {
  name: 'dead',
  title: 'Dead letters',
  async show(context) {
    const { signal, segments, go } = context;
    const chooser = select([], '', { name: 'queue' });
    const marked = new Set();
    const bulk = el('div', { class: 'bulk' });
    const groups = el('div');
    let queue = segments[0] ?? null;
    let reason = segments[1] ?? null;
    let asked = { reveal: false, note: '' };
    let total = null;

    const which = () => `${queue}${reason === null ? '' : ` with the reason “${reason}”`}`;
    async function run(action, what, target) {
      const { title, consequence, isDangerous } = VERBS[action];
      const result = await confirmAction({
        title: `${title} dead letters`,
        what: `${title} ${what}.`,
        consequences: [consequence, 'The server does it one by one; you see its progress and can stop it.'],
        confirm: title,
        isDangerous,
        run: (note) => call('POST', path('v1', 'queues', queue, 'dead', action), { body: target, note }),
      });
      if (!result) return;
      marked.clear();
      followTask(result.value);
    }
    const runMatching = (action, group) => run(action, `${group.count === null ? 'all' : counted(group.count, 'dead letter')} of ${queue}${group.reason === null ? '' : ` with the reason “${group.reason}”`}`,
      { where: group.reason === null ? {} : { reason: group.reason } });
    const runMarked = (action) => run(action, `${counted(marked.size, 'marked dead letter')} of ${queue}`, { ids: [...marked] });
    async function runOne(action, row) {
      const { title, consequence, isDangerous } = VERBS[action];
      const one = path('v1', 'queues', queue, 'dead', row.id);
      const result = await confirmAction({
        title: `${title} a dead letter`,
        what: `${title} the dead letter ${row.id} of ${queue}, topic ${row.topic}.`,
        consequences: [consequence.replace('They are', 'It is').replace('They wait', 'It waits').replace('with their', 'with its').replace('them', 'it')],
        confirm: title,
        isDangerous,
        run: (note) => (action === 'requeue' ? call('POST', `${one}/requeue`, { note }) : call('DELETE', one, { note })),
      });
      if (!result) return;
      marked.delete(row.id);
      announce(action === 'requeue' ? 'The dead letter was requeued.' : 'The dead letter was discarded.');
      announceChange();
    }

    function showGroups(reasons) {
      total = reasons.reduce((sum, { count }) => sum + count, 0);
      const columns = [
        { head: 'Count', isNumber: true, cell: ({ count }) => number(count) },
        { head: 'Reason', isWide: true, cell: (group) => el('a', { href: hash(queue, group.reason), 'aria-current': group.reason === reason ? 'true' : null }, group.reason) },
        { head: 'First', cell: (group) => time(group.first_at) },
        { head: 'Last', cell: (group) => time(group.last_at) },
      ];
      const actions = (group) => [
        button('Requeue all…', () => runMatching('requeue', group), { class: 'small', 'data-focus': `requeue-${group.reason}` }),
        button('Discard all…', () => runMatching('discard', group), { class: 'small', 'data-focus': `discard-${group.reason}` }),
      ];
      if (mayAct()) columns.push({ head: 'Actions', isAction: true, cell: actions });
      replaceChildren(groups, dataTable({ caption: `Dead letters of ${queue} by reason`, columns, rows: reasons, id: (group) => group.reason, empty: `${queue} has no dead letters.` }));
    }
    function showBulk() {
      const count = marked.size;
      const canMark = count > 0 && count <= MARKED_AT_MOST;
      replaceChildren(bulk,
        reason !== null && el('span', null, 'Only the reason “', reason, '”. ', el('a', { href: hash(queue) }, 'Show all')),
        mayAct() && canMark && button(`Requeue ${number(count)} marked…`, () => runMarked('requeue'), { 'data-focus': 'requeue-marked' }),
        mayAct() && canMark && button(`Discard ${number(count)} marked…`, () => runMarked('discard'), { 'data-focus': 'discard-marked' }));
    }
    const actions = {
      head: 'Actions',
      isAction: true,
      cell: (row) => [
        button('Requeue…', () => runOne('requeue', row), { class: 'small', 'data-focus': `requeue-${row.id}` }),
        button('Discard…', () => runOne('discard', row), { class: 'small', 'data-focus': `discard-${row.id}` }),
      ],
    };
    const table = pagedTable({
      load: async (after) => {
        const query = { reason, after, limit: PAGE, payload: asked.reveal || null, reveal: asked.reveal };
        const answer = await call('GET', path('v1', 'queues', queue, 'dead'), { signal, query, note: asked.note });
        return { rows: answer.items, next: answer.next };
      },
      table: (rows) => dataTable({
        caption: `Dead letters of ${which()}`, columns: mayAct() ? [...COLUMNS, actions] : COLUMNS, rows, id: ({ id }) => id, details,
        marked: mayAct() ? marked : null, onMark: showBulk, empty: total === 0 ? ' ' : 'No dead letter matches.',
      }),
    });
    const page = openPage({
      context,
      title: 'Dead letters',
      intro: 'Items that a worker gave up. They wait here until a person decides.',
      reveals: 'keys and payloads',
      filters: [field('Queue', chooser)],
      canRefresh: () => table.isFirstPage() && marked.size === 0,
      load: async (reveal, note) => {
        asked = { reveal, note };
        const { queues } = await call('GET', '/v1/operator/queues', { signal });
        queue ??= (queues.find((one) => one.dead > 0) ?? queues[0])?.queue ?? null;
        if (queue === null) return el('p', { class: 'empty' }, 'There is no queue yet.');
        const names = queues.map((one) => [one.queue, `${one.queue} (${number(one.dead)})`]);
        if (!names.some(([name]) => name === queue)) names.push([queue, queue]);
        chooser.replaceChildren(...select(names, queue).children);
        chooser.value = queue;
        const { reasons } = await call('GET', path('v1', 'queues', queue, 'dead', 'reasons'), { signal });
        showGroups(reasons);
        if (!table.isConnected) replaceChildren(page.content, groups, bulk, table);
        showBulk();
        await table.reload();
      },
    });
    chooser.addEventListener('change', () => go(hash(chooser.value)));
    page.reload();
  },
};

function hash(queue, reason) {
  const parts = reason === undefined ? [queue] : [queue, reason];
  return `#/dead/${parts.map(encodeURIComponent).join('/')}`;
}

/** Attempts with their errors, payload and headers. */
function details(row) {
  const payload = row.payload ?? row.payload_base64;
  const headers = Object.entries(row.headers ?? {}).map(([name, value]) => `${name}: ${value}`);
  const first = Math.max(1, row.attempts - (row.errors?.length ?? 0) + 1);
  return [
    definitions([['Id', code(row.id)], ['Attempts', number(row.attempts)]]),
    el('h3', null, 'Errors of its attempts'),
    row.errors?.length ? el('ol', { start: String(first) }, row.errors.map((error) => el('li', null, error))) : none(),
    el('h3', null, 'Payload'),
    payload === null || payload === undefined ? el('p', null, el('span', { class: 'hidden-value' }, 'hidden')) : el('pre', { tabindex: '0', 'aria-label': 'Payload' }, payload),
    headers.length > 0 && [el('h3', null, 'Headers'), el('pre', { tabindex: '0', 'aria-label': 'Headers' }, headers.join('\n'))],
  ];
}
