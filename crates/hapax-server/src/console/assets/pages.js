// The pages, in the order of the navigation.

import { audit } from './pages/audit.js';
import { conflicts } from './pages/conflicts.js';
import { dead } from './pages/dead.js';
import { jobs } from './pages/jobs.js';
import { key } from './pages/key.js';
import { line } from './pages/line.js';
import { locks } from './pages/locks.js';
import { overview } from './pages/overview.js';
import { queues } from './pages/queues.js';
import { streams } from './pages/streams.js';
import { suppressed } from './pages/suppressed.js';
import { tenants } from './pages/tenants.js';
import { unknown } from './pages/unknown.js';

export const GROUPS = [
  { title: 'Now', pages: [overview, suppressed] },
  { title: 'Needs a decision', pages: [unknown, dead] },
  { title: 'Look up', pages: [key, jobs] },
  { title: 'Running', pages: [queues, locks, conflicts, streams, line] },
  { title: 'Accounts', pages: [tenants, audit] },
];

/** The page of this name; the overview for any other. */
export function findPage(name) {
  return GROUPS.flatMap((group) => group.pages).find((page) => page.name === name) ?? overview;
}
