// What needs a person: its words, and the page that deals with it.

import { counted, duration } from './format.js';

// A younger count is as good as a new one.
const COUNTED_AGO_MS = 10_000;

/** Some stores count in the background, so that a count has an age, or may not be complete. */
function unknownOutcomes({ count, more: isMore, as_of: asOf, text }) {
  if (count === null) return text;
  const age = asOf === null ? 0 : Date.now() - asOf;
  return `${isMore ? 'at least ' : ''}${counted(count, 'command')} with an unknown outcome${age > COUNTED_AGO_MS ? `, counted ${duration(age)} ago` : ''}`;
}

const KINDS = {
  unknown: { page: 'unknown', tone: 'bad', text: unknownOutcomes },
  dead: { page: 'dead', tone: 'bad', text: ({ count, queue }) => `${counted(count ?? 0, 'dead letter')} in ${queue}` },
  target_away: { page: 'queues', tone: 'bad', text: ({ queue, text }) => (queue ? `${queue}: ${text}` : text) },
  paused: { page: 'queues', tone: 'warn', text: ({ queue, text }) => `${queue}: ${text}` },
  store: { page: 'overview', tone: 'bad', text: ({ text }) => `The server is not ready: ${text}` },
  finding: { page: 'overview', tone: 'warn', text: ({ text }) => `The doctor: ${text}` },
};
const OTHER = { page: 'overview', tone: 'warn', text: ({ text }) => text };

const kindOf = ({ what }) => KINDS[what] ?? OTHER;

/** The name of the page that deals with it. */
export function attentionPage(one) {
  return kindOf(one).page;
}

/** Its tone, words and link. */
export function attentionShown(one) {
  const { page, tone, text } = kindOf(one);
  const hash = one.queue && (page === 'dead' || page === 'queues') ? `#/${page}/${encodeURIComponent(one.queue)}` : `#/${page}`;
  return { tone, text: text(one), hash: page === 'overview' ? null : hash };
}
