// Streams: connections of this tenant, and how they ended.

import { call } from '../api.js';
import { code, definitions, el } from '../dom.js';
import { number, share } from '../format.js';
import { openPage } from '../page.js';
import { dataTable } from '../table.js';

const ENDS = [
  ['complete', 'Complete', 'The job was closed, or the stream had reached its end.'],
  ['client', 'Client left', 'The reader closed the connection.'],
  ['slow', 'Too slow', 'The reader did not take what was sent, and was cut; it can resume.'],
  ['expired', 'Link expired', 'The signed link was over; a new one resumes.'],
  ['shutdown', 'Shutdown', 'The server stopped; the reader reconnects elsewhere.'],
];

export const streams = {
  name: 'streams',
  title: 'Streams',
  show(context) {
    const page = openPage({
      context,
      title: 'Streams',
      intro: 'Event streams (SSE) of this tenant: open now, and how they ended within the last hour.',
      load: async () => {
        const { open, limit, ended, gaps, nodes } = await call('GET', '/v1/operator/streams', { signal: context.signal });
        const meter = el('meter', { min: '0', max: String(limit || 1), high: String((limit || 1) * 0.8), value: String(open), 'aria-label': 'Streams open, of the limit' });
        const rows = ENDS.map(([name, title, text]) => ({ title, text, count: ended[name] ?? 0 }));
        return [
          definitions([['Open', [number(open), limit ? ` of ${number(limit)} ` : ' ', limit ? meter : '']], ['Used', share(open, limit)], ['Gaps served', number(gaps)]]),
          dataTable({
            caption: 'Ended within the last hour', rows, id: ({ title }) => title,
            columns: [{ head: 'How', cell: ({ title }) => title }, { head: 'Count', isNumber: true, cell: ({ count }) => number(count) }, { head: 'Meaning', isWide: true, cell: ({ text }) => text }],
          }),
          dataTable({
            caption: 'Open by node', rows: nodes, id: ({ node }) => node, empty: 'No stream is open.',
            columns: [{ head: 'Node', cell: ({ node }) => code(node) }, { head: 'Open', isNumber: true, cell: (row) => number(row.open) }],
          }),
        ];
      },
    });
    page.reload();
  },
};
