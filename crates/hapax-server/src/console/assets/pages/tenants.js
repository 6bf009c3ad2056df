// Tenants: what is stored, what is in flight, limits and refusals.

import { call } from '../api.js';
import { badge, code, el, none } from '../dom.js';
import { number, time } from '../format.js';
import { openPage } from '../page.js';
import { dataTable } from '../table.js';

function used(row, name, label) {
  const [now, limit] = [row.used?.[name], row.limits?.[name]];
  if (now === undefined && limit === undefined) return none();
  return [
    `${number(now ?? 0)} of ${limit === null || limit === undefined ? '∞' : number(limit)} `,
    limit && el('meter', { min: '0', max: String(limit), high: String(limit * 0.8), value: String(now ?? 0), 'aria-label': label }),
  ];
}

const COLUMNS = [
  { head: 'Tenant', cell: ({ tenant }) => code(tenant) },
  { head: 'Keys stored', isNumber: true, cell: ({ keys, keys_more: isMore }) => (keys === null ? none() : `${isMore ? 'at least ' : ''}${number(keys)}`) },
  { head: 'Pending', isNumber: true, cell: ({ pending }) => number(pending) },
  { head: 'Unknown', isNumber: true, cell: ({ unknown }) => (unknown > 0 ? el('a', { href: '#/unknown' }, number(unknown)) : number(unknown)) },
  { head: 'Failed', isNumber: true, cell: ({ failed }) => number(failed) },
  { head: 'Counted', cell: ({ as_of: at }) => (at === null ? 'just now' : time(at)) },
  { head: 'Requests in flight', cell: (row) => used(row, 'in_flight_requests', 'Requests in flight, of the limit') },
  { head: 'Streams', cell: (row) => used(row, 'sse_connections', 'Streams open, of the limit') },
  { head: 'Refusals', isNumber: true, cell: ({ refusals }) => (refusals > 0 ? badge('warn', number(refusals)) : number(refusals)) },
];

export const tenants = {
  name: 'tenants',
  title: 'Tenants',
  show(context) {
    const page = openPage({
      context,
      title: 'Tenants',
      intro: 'The tenant of your token: what it stores, and how much of its limits it uses on this node. A refusal is a request that the limits turned away since the node was started.',
      load: async () => {
        const { tenants: rows } = await call('GET', '/v1/operator/tenants', { signal: context.signal });
        return dataTable({ caption: 'Tenants', columns: COLUMNS, rows, id: ({ tenant }) => tenant });
      },
    });
    page.reload();
  },
};
