// Key reuse and conflicts: callers that use one key for two requests, or too early again.

import { call } from '../api.js';
import { code, definitions, el, none } from '../dom.js';
import { number, time } from '../format.js';
import { openPage } from '../page.js';
import { dataTable } from '../table.js';

const COLUMNS = [
  { head: 'Caller (hash)', cell: ({ caller }) => (caller ? code(caller) : none()) },
  { head: 'Operation', cell: ({ operation }) => code(operation), isWide: true },
  { head: 'Key reused (422)', isNumber: true, cell: ({ reused }) => number(reused) },
  { head: 'In progress (409)', isNumber: true, cell: (group) => number(group.in_progress) },
  { head: 'Last', cell: (group) => time(group.last_at) },
];

export const conflicts = {
  name: 'conflicts',
  title: 'Key reuse and conflicts',
  show(context) {
    const page = openPage({
      context,
      title: 'Key reuse and conflicts',
      intro: 'Who sent another request under a used key (422, a fault of that client), and who came again while the first one was running (409).',
      load: async () => {
        const { groups, since } = await call('GET', '/v1/operator/conflicts', { signal: context.signal });
        const sum = (name) => groups.reduce((all, group) => all + group[name], 0);
        const rows = [...groups].sort((one, other) => other.reused - one.reused || other.in_progress - one.in_progress);
        return [
          definitions([['Keys reused', number(sum('reused'))], ['Still in progress', number(sum('in_progress'))], ['Callers', number(new Set(groups.map(({ caller }) => caller)).size)], ['Since', time(since)]]),
          dataTable({ caption: 'By caller and operation', columns: COLUMNS, rows, id: ({ caller, operation }) => `${caller} ${operation}`, empty: 'No conflict within the last hour.' }),
          el('p', { class: 'hint' }, 'A caller is shown as a hash: the same caller has the same hash everywhere on this console.'),
        ];
      },
    });
    page.reload();
  },
};
