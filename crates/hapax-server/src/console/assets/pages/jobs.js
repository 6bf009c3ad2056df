// Jobs: the events of a job as a timeline, live.

import { call, path } from '../api.js';
import { badge, button, code, definitions, el, field, none, replaceChildren, secret } from '../dom.js';
import { clockTime, millis, number, time } from '../format.js';
import { throttled } from '../live.js';
import { openPage } from '../page.js';
import { dataTable } from '../table.js';

const PAGE = 200;
const READ_ON_MS = 1000;

export const jobs = {
  name: 'jobs',
  title: 'Jobs',
  show(context) {
    if (context.values?.jobId) showJob(context, context.values);
    else showRecent(context);
  },
};

function showRecent(context) {
  const domain = el('input', { name: 'domain', required: true, spellcheck: 'false', autocomplete: 'off', 'data-search': '' });
  const jobId = el('input', { name: 'job', required: true, spellcheck: 'false', autocomplete: 'off' });
  const open = (job) => context.go('#/jobs', { domain: job.domain, jobId: job.job_id });
  const form = el('form', {
    class: 'filters', onsubmit: (event) => {
      event.preventDefault();
      open({ domain: domain.value.trim(), job_id: jobId.value });
    },
  }, field('Domain', domain), field('Job', jobId), el('button', { type: 'submit', class: 'primary' }, 'Open job'));
  const columns = [
    { head: 'Domain', cell: (job) => code(job.domain) },
    { head: 'Job', isWide: true, cell: (job) => secret(job.job_id, job.masked) },
    { head: 'Stage', cell: ({ stage }) => (stage ? code(stage) : none()) },
    { head: 'Last event', cell: ({ at }) => time(at) },
    { head: 'Actions', isAction: true, cell: (job) => (job.job_id === null ? none() : button('Open', () => open(job), { class: 'small', 'data-focus': `open-${job.domain}-${job.job_id}` })) },
  ];
  const page = openPage({
    context,
    title: 'Jobs',
    intro: 'Jobs that published lately. Open one to see its events as they come.',
    reveals: 'ids',
    filters: [form],
    load: async (reveal, note) => {
      const { jobs: rows } = await call('GET', '/v1/operator/jobs', { signal: context.signal, query: { reveal }, note });
      return dataTable({ caption: 'Recent jobs', columns, rows, id: (job) => `${job.domain} ${job.job_id}`, empty: 'No job has published lately.' });
    },
  });
  page.reload();
}

function showJob(context, { domain, jobId }) {
  const { signal, live, go } = context;
  const facts = el('div');
  const list = el('ol', { class: 'timeline events', 'aria-live': 'polite', 'aria-relevant': 'additions' });
  const more = el('div', { class: 'bulk' });
  let events = [];
  let next = null;
  let epoch = null;
  let isClosed = false;
  const isMore = () => next !== null;

  async function read(reveal, note, after) {
    const target = path('v1', 'operator', 'jobs', domain, jobId);
    const answer = await call('GET', target, { signal, query: { after, limit: PAGE, reveal }, note });
    // A job that was created anew begins again.
    if (after !== null && answer.epoch !== epoch) return read(reveal, note, null);
    if (after === null) events = [];
    const known = new Set(events.map(({ offset }) => offset));
    events.push(...answer.events.filter(({ offset }) => !known.has(offset)));
    ({ next, epoch, closed: isClosed } = answer);
    showFacts(answer);
    replaceChildren(list, events.map((event) => eventItem(event, answer.masked)));
    replaceChildren(more, isMore() && button('More events', () => read(page.isRevealed(), '', next), { 'data-focus': 'more' }));
    return answer;
  }
  function showFacts(job) {
    const stream = `${path('v1', 'jobs', domain, jobId)}/events`;
    replaceChildren(facts, definitions([
      ['State', job.closed ? badge('good', 'Closed') : badge('info', 'Open')],
      ['Stage', job.stage ? code(job.stage) : none()],
      ['Sequence', number(job.seq)],
      ['Events', job.offset >= job.first ? `${number(job.first)} to ${number(job.offset)}` : 'none'],
      ['Followers', number(job.followers)],
      ['Gaps', job.gaps.length === 0 ? 'none' : job.gaps.map(({ before, reason }) => `${reason} before ${number(before)}`).join(', ')],
      ['Epoch', code(job.epoch)],
      ['Stream', el('a', { href: stream, target: '_blank', rel: 'noopener' }, 'Open as a browser would')],
    ]));
  }
  const page = openPage({
    context,
    title: `Job ${domain} / ${jobId}`,
    reveals: 'data',
    isLive: false,
    load: async (reveal, note) => {
      const back = el('p', null, button('All jobs', () => go('#/jobs'), { class: 'small' }));
      try {
        await read(reveal, note, null);
      } catch (error) {
        if (error.status !== 404) throw error;
        return [back, el('p', { class: 'empty' }, badge('off', 'Not found'), ' No such job is stored.')];
      }
      if (!list.isConnected) replaceChildren(page.content, back, facts, el('h2', null, 'Events'), list, more);
      return null;
    },
  });
  // The activity tells that something was published, but not by which job: ids may identify a person.
  const readOn = throttled(READ_ON_MS, () => {
    if (isClosed || isMore() || page.isRevealed()) return;
    read(false, '', events.at(-1)?.offset ?? null).catch(() => null);
  }, signal);
  live.listen(readOn, signal);
  page.reload();
}

function eventItem({ offset, stage, seq, timestamp, data }, isMasked) {
  const at = timestamp === null || timestamp === undefined ? null : millis(timestamp);
  return el('li', { 'data-offset': offset },
    el('strong', null, stage), ` #${offset}, sequence ${number(seq)} `,
    at && el('span', { class: 'event-time' }, clockTime(at), ' ', time(at)),
    data === null || data === undefined
      ? el('div', null, secret(null, isMasked))
      : el('pre', { tabindex: '0', 'aria-label': `Data of event ${offset}` }, typeof data === 'string' ? data : JSON.stringify(data, null, 2)));
}
