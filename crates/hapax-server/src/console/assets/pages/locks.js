// Locks: who holds what, for how long, and a way to take it away.

import { call, path } from '../api.js';
import { button, code, none, replaceChildren, secret } from '../dom.js';
import { confirmAction } from '../dialog.js';
import { duration } from '../format.js';
import { announce, announceChange, openPage } from '../page.js';
import { mayAct } from '../session.js';
import { dataTable, pagedTable } from '../table.js';

const PAGE = 50;

const COLUMNS = [
  { head: 'Lock', cell: (row) => [secret(row.key, row.masked), ' ', row.key === null && code(row.key_hash)], isWide: true },
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
    let asked = { reveal: false, note: '', after: null };
    const actions = {
      head: 'Actions',
      isAction: true,
      cell: (row) => [
        row.key !== null && button('Its life', () => go('#/key', { kind: 'lock', key: row.key }), { class: 'small', 'data-focus': `life-${row.key_hash}` }),
        mayAct() && button('Force release…', () => forceRelease(row), { class: 'small', 'data-focus': `force-${row.key_hash}` }),
      ],
    };
    async function forceRelease(row) {
      // A lock whose name is hidden is named by its hash, which the server finds on this page.
      const query = row.key === null ? { by: 'hash', after: asked.after } : {};
      const result = await confirmAction({
        title: 'Force a release',
        what: `Release the lock ${row.key ?? `whose name has the hash ${row.key_hash}`}${row.label ? `, held by ${row.label},` : ''} with fence ${row.fence}.`,
        consequences: ['Its owner is not told and may go on working: only what checks the fence is safe from it.', 'The next one who waits gets the lock at once.'],
        confirm: 'Force release',
        isDangerous: true,
        run: (note) => call('DELETE', path('v1', 'operator', 'locks', row.key ?? row.key_hash), { query, note }),
      });
      if (!result) return;
      announce('The lock was released.');
      announceChange();
    }
    const table = pagedTable({
      load: async (after) => {
        asked.after = after;
        const answer = await call('GET', '/v1/operator/locks', { signal, query: { after, limit: PAGE, reveal: asked.reveal }, note: asked.note });
        return { rows: answer.locks, next: answer.next };
      },
      table: (rows) => {
        const hasActions = mayAct() || rows.some((row) => row.key !== null);
        return dataTable({ caption: 'Locks that are held now', columns: hasActions ? [...COLUMNS, actions] : COLUMNS, rows, id: (row) => row.key_hash, empty: 'No lock is held.' });
      },
    });
    const page = openPage({
      context,
      title: 'Locks',
      intro: 'Held now. A lock ends by itself when its time is over and its owner does not renew it.',
      reveals: 'names',
      canRefresh: () => table.isFirstPage(),
      load: async (reveal, note) => {
        asked = { ...asked, reveal, note };
        if (!table.isConnected) replaceChildren(page.content, table);
        await table.reload();
      },
    });
    page.reload();
  },
};
