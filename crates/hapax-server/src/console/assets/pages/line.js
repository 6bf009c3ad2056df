// LINE: events by state, locks, busy replies, unprotected handling, pushes against the quota.

import { call } from '../api.js';
import { badge, code, definitions, el, none } from '../dom.js';
import { number, share } from '../format.js';
import { openPage } from '../page.js';
import { dataTable } from '../table.js';

const MEANINGS = {
  accepted: ['Accepted', 'Events of the webhook that were stored.'],
  duplicate: ['Duplicate', 'Redeliveries that were dropped.'],
  done: ['Done', 'Events that the bot has handled.'],
  refused: ['Refused', 'Requests of the webhook that were not stored; LINE sends them again.'],
  failed: ['Failed', 'Handling that failed and is tried again.'],
  dead: ['Dead', 'Events that were given up.'],
  busy: ['Busy', 'Told “busy”, because the same person’s earlier event was being handled.'],
  unprotected: ['Unprotected', 'Handled without a lock, because the store was away.'],
  pushed: ['Pushed', 'Messages pushed; these count against the quota.'],
  replied: ['Replied', 'Messages sent as replies, which are free.'],
};

export const line = {
  name: 'line',
  title: 'LINE',
  show(context) {
    const page = openPage({
      context,
      title: 'LINE',
      intro: 'Gateways of LINE bots on this store, and what they did within the last hour.',
      load: async () => {
        const { counts, gateways, queues, locks } = await call('GET', '/v1/operator/line', { signal: context.signal });
        const known = Object.keys(MEANINGS);
        const rank = (name) => (known.indexOf(name) + known.length + 1) % (known.length + 1);
        const rows = Object.entries(counts).sort(([one], [other]) => rank(one) - rank(other)).map(([name, count]) => ({ name, count }));
        return [
          definitions([['Locks held', number(locks)], ['Unprotected', counts.unprotected > 0 ? badge('warn', number(counts.unprotected)) : '0'], ['Pushed', number(counts.pushed ?? 0)]]),
          dataTable({
            caption: 'Gateways', rows: gateways, id: ({ node }) => node, empty: 'No LINE gateway reports to this store.',
            columns: [
              { head: 'Node', cell: ({ node }) => code(node) },
              { head: 'Bot', cell: (row) => (row.bot_up === null || row.bot_up === undefined ? none() : badge(row.bot_up ? 'good' : 'bad', row.bot_up ? 'Up' : 'Away')) },
              { head: 'Quota of pushes', cell: ({ quota }) => quotaShown(quota) },
            ],
          }),
          dataTable({
            caption: 'Events of the last hour', rows, id: ({ name }) => name, empty: 'No event within the last hour.',
            columns: [
              { head: 'State', cell: ({ name }) => MEANINGS[name]?.[0] ?? name },
              { head: 'Count', isNumber: true, cell: ({ count }) => number(count) },
              { head: 'Meaning', isWide: true, cell: ({ name }) => MEANINGS[name]?.[1] ?? none() },
            ],
          }),
          dataTable({
            caption: 'Queues of events', rows: queues, id: ({ queue }) => queue, empty: 'No queue of LINE events.',
            columns: [
              { head: 'Queue', cell: ({ queue }) => el('a', { href: `#/queues/${encodeURIComponent(queue)}`, 'data-focus': `queue-${queue}` }, queue) },
              { head: 'Waiting', isNumber: true, cell: ({ depth }) => number(depth) },
              { head: 'In flight', isNumber: true, cell: (row) => number(row.in_flight) },
              { head: 'Dead', isNumber: true, cell: ({ queue, dead }) => (dead > 0 ? el('a', { href: `#/dead/${encodeURIComponent(queue)}` }, number(dead)) : number(dead)) },
            ],
          }),
        ];
      },
    });
    page.reload();
  },
};

function quotaShown(quota) {
  if (!quota) return none();
  const { limit, used } = quota;
  if (!limit) return `${number(used)} used, no limit`;
  return [
    el('meter', { min: '0', max: String(limit), high: String(limit * 0.8), value: String(used), 'aria-label': 'Pushes used, of the quota' }),
    ` ${number(used)} of ${number(limit)} (${share(used, limit)})`,
  ];
}
