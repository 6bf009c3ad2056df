// Locks: who holds what, for how long, and a way to take it away.

import { call, path } from '../api.js';
import { button, code, el, none, replaceChildren, secret } from '../dom.js';
import { confirmAction } from '../dialog.js';
import { duration } from '../format.js';
import { announce, announceChange, openPage } from '../page.js';
import { mayAct, mayReveal } from '../session.js';
import { dataTable, pagedTable } from '../table.js';

const PAGE = 50;

const COLUMNS = [
  { head: 'Lock', cell: (row) => secret(row.key, row.masked), isWide: true },
  { head: 'Owner', cell: (row) => (row.label ? code(row.label) : none()) },
  { head: 'Held for', isNumber: true, cell: (row) => duration(row.taken_ms_ago) },
  { head: 'Fence', isNumber: true, cell: (row) => String(row.fence) },
  { head: 'Time left', isNumber: true, cell: (row) => duration(row.expires_in_ms) },
];

export const locks = {
  name: 'locks',
  title: 'Locks',
  show(context) {
    const { signal, go } = context;
    let asked = { reveal: false, note: '' };
    const actions = {
      head: 'Actions',
      isAction: true,
      cell: (row) => [
        button('Its life', () => go('#/key', { kind: 'lock', key: row.key }), { class: 'small', 'data-focus': `life-${row.fence}` }),
        mayAct() && button('Force release…', () => forceRelease(row), { class: 'small', 'data-focus': `force-${row.fence}` }),
      ],
    };
    async function forceRelease(row) {
      const result = await confirmAction({
        title: 'Force a release',
        what: `Release the lock ${row.key}${row.label ? `, held by ${row.label},` : ''} with fence ${row.fence}.`,
        consequences: ['Its owner is not told and may go on working: only what checks the fence is safe from it.', 'The next one who waits gets the lock at once.'],
        confirm: 'Force release',
        isDangerous: true,
        run: (note) => call('DELETE', path('v1', 'operator', 'locks', row.key), { note }),
      });
      if (!result) return;
      announce('The lock was released.');
      announceChange();
    }
    const table = pagedTable({
      load: async (after) => {
        const answer = await call('GET', '/v1/operator/locks', { signal, query: { after, limit: PAGE, reveal: asked.reveal }, note: asked.note });
        return { rows: answer.locks, next: answer.next };
      },
      table: (rows) => {
        const isMasked = rows.some((row) => row.masked);
        return [
          isMasked && mayReveal() && el('p', { class: 'hint' }, 'To release a lock by force, reveal the names first.'),
          dataTable({ caption: 'Locks that are held now', columns: isMasked ? COLUMNS : [...COLUMNS, actions], rows, id: ({ fence, key }) => `${fence} ${key}`, empty: 'No lock is held.' }),
        ];
      },
    });
    const page = openPage({
      context,
      title: 'Locks',
      intro: 'Held now. A lock ends by itself when its time is over and its owner does not renew it.',
      reveals: 'names',
      canRefresh: () => table.isFirstPage(),
      load: async (reveal, note) => {
        asked = { reveal, note };
        if (!table.isConnected) replaceChildren(page.content, table);
        await table.reload();
      },
    });
    page.reload();
  },
};
