// Audit: who did what when, with the note; and the bulk tasks of this node.

import { call } from '../api.js';
import { badge, code, el, none, replaceChildren } from '../dom.js';
import { time } from '../format.js';
import { openPage } from '../page.js';
import { dataTable, pagedTable } from '../table.js';
import { taskCounts, taskState, taskTitle } from '../tasks.js';

const PAGE = 50;

function result(text) {
  if (text === 'done') return badge('good', 'Done');
  if (text === 'begun') return badge('info', 'Begun');
  return badge('bad', text);
}

/** The parts of a subject in words; hidden ones are null. */
function subjectShown(subject, isMasked) {
  const parts = Object.entries(subject ?? {}).filter(([, value]) => value !== undefined && (value !== null || isMasked));
  if (parts.length === 0) return none();
  const text = (value) => (typeof value === 'object' ? JSON.stringify(value) : String(value));
  return el('ul', { class: 'plain' }, parts.map(([name, value]) =>
    el('li', null, `${name.replaceAll('_', ' ')} `, value === null ? el('span', { class: 'hidden-value' }, 'hidden') : code(text(value)))));
}

const COLUMNS = [
  { head: 'When', cell: ({ at }) => time(at) },
  { head: 'Who', cell: ({ who }) => who },
  { head: 'Action', cell: ({ action }) => code(action) },
  { head: 'Result', cell: (row) => result(row.result) },
  { head: 'Subject', isWide: true, cell: ({ subject, masked }) => subjectShown(subject, masked) },
  { head: 'Note', isWide: true, cell: ({ note }) => note || none() },
  { head: 'Node', cell: ({ node }) => (node ? code(node) : none()) },
];
const TASK_COLUMNS = [
  { head: 'Started', cell: (task) => time(task.started_at) },
  { head: 'Task', isWide: true, cell: taskTitle },
  { head: 'By', cell: ({ by }) => by },
  { head: 'State', cell: taskState },
  { head: 'Progress', cell: taskCounts },
  { head: 'Error', isWide: true, cell: ({ error }) => error ?? none() },
];

export const audit = {
  name: 'audit',
  title: 'Audit',
  show(context) {
    const { signal } = context;
    const tasks = el('div');
    let asked = { reveal: false, note: '' };
    const table = pagedTable({
      load: async (after) => {
        const query = { after, limit: PAGE, reveal: asked.reveal };
        const answer = await call('GET', '/v1/operator/audit', { signal, query, note: asked.note });
        return { rows: answer.items, next: answer.next };
      },
      table: (rows) => dataTable({ caption: 'Actions and reveals, newest first', columns: COLUMNS, rows, id: ({ id }) => String(id), empty: 'Nobody has done anything yet.' }),
    });
    const page = openPage({
      context,
      title: 'Audit',
      intro: 'Every action and every reveal, written to the store before it was done.',
      reveals: 'subjects',
      canRefresh: () => table.isFirstPage(),
      load: async (reveal, note) => {
        asked = { reveal, note };
        if (!table.isConnected) replaceChildren(page.content, table, tasks);
        const [listed] = await Promise.all([call('GET', '/v1/operator/tasks', { signal }), table.reload()]);
        replaceChildren(tasks, el('h2', null, 'Bulk tasks of this node'),
          dataTable({ caption: 'Tasks, newest first', columns: TASK_COLUMNS, rows: listed.tasks, id: ({ id }) => id, empty: 'No bulk task has run since this node was started.' }));
      },
    });
    page.reload();
  },
};
