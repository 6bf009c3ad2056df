// Jobs: the events of a job as a timeline, live.

import { call, path } from '../api.js';
import { confirmAction } from '../dialog.js';
import { badge, button, code, definitions, el, field, none, replaceChildren, secret } from '../dom.js';
import { clockTime, millis, number, time } from '../format.js';
import { openPage } from '../page.js';
import { mayReveal } from '../session.js';
import { dataTable } from '../table.js';

const PAGE = 200;

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
  const { signal, go } = context;
  const target = path('v1', 'operator', 'jobs', domain, jobId);
  const facts = el('div');
  const list = el('ol', { class: 'timeline events', 'aria-live': 'polite', 'aria-relevant': 'additions' });
  const more = el('div', { class: 'bulk' });
  const stream = el('div');
  let events = [];
  let next = null;
  let job = null;
  let source = null;
  const isMore = () => next !== null;

  async function read(reveal, note, after) {
    const answer = await call('GET', target, { signal, query: { after, limit: PAGE, reveal }, note });
    // A job that was created anew begins again.
    if (after !== null && answer.epoch !== job.epoch) return read(reveal, note, null);
    if (after === null) events = [];
    const known = new Set(events.map(({ offset }) => offset));
    events.push(...answer.events.filter(({ offset }) => !known.has(offset)));
    job = answer;
    next = answer.next;
    showFacts();
    replaceChildren(stream, streamAccess(answer.access));
    replaceChildren(list, events.map((event) => eventItem(event, answer.masked)));
    follow();
    replaceChildren(more, isMore() && button('More events', () => read(page.isRevealed(), '', next), { 'data-focus': 'more' }));
    return answer;
  }
  function showFacts() {
    replaceChildren(facts, definitions([
      ['State', job.closed ? badge('good', 'Closed') : badge('info', 'Open')],
      ['Stage', job.stage ? code(job.stage) : none()],
      ['Sequence', number(job.seq)],
      ['Events', job.offset >= job.first ? `${number(job.first)} to ${number(job.offset)}` : 'none'],
      ['Followers', number(job.followers)],
      ['Gaps', job.gaps.length === 0 ? 'none' : job.gaps.map(({ before, reason }) => `${reason} before ${number(before)}`).join(', ')],
      ['Epoch', code(job.epoch)],
    ]));
  }

  /** The job's own stream, as a page of the application would open it. It shows the data. */
  function streamAccess(access) {
    const open = (href) => el('a', { href, target: '_blank', rel: 'noopener', 'data-focus': 'stream' }, 'Open as a browser would');
    if (access === 'open') return open(`${path('v1', 'jobs', domain, jobId)}/events`);
    if (access === 'signed' && mayReveal()) return button('Open as a browser would…', () => askForLink(open), { class: 'small', 'data-focus': 'stream' });
    const needs = access === 'signed' ? 'an operator who may reveal' : ['a token with the scope ', code('data'), ', or a server with ', code('--sse-secret'), ', which signs links for browsers'];
    return el('p', { class: 'hint' }, 'Opening it as a browser would needs ', needs, '.');
  }
  async function askForLink(open) {
    const result = await confirmAction({
      title: 'Open as a browser would',
      what: 'Sign a link to the stream of this job, for five minutes.',
      consequences: ['Whoever has the link sees the data of its events until then.', 'Who asked for it, when and why is written to the audit log.'],
      confirm: 'Sign a link',
      run: (note) => call('POST', `${target}/link`, { note }),
    });
    if (!result || signal.aborted) return;
    const { url, expires_at: expires } = result.value;
    replaceChildren(stream, open(url), ' The link expires ', time(expires), '.');
    stream.querySelector('a').focus();
  }

  /** Follows the job from the last event that is shown. While there are more to be read, there is no end to go on from. */
  function follow() {
    source?.close();
    source = null;
    if (job.closed || isMore() || signal.aborted || document.hidden) return;
    const shown = events.at(-1)?.offset ?? job.offset;
    const opened = new EventSource(`${target}/events?last_event_id=${job.epoch}-${shown}`);
    source = opened;
    opened.addEventListener('message', ({ data }) => take(JSON.parse(data)));
    // What is missing is read anew, unless that would be another reveal; then it waits for a person.
    opened.addEventListener('gap', () => page.isRevealed() || page.reload());
    // The server ends the stream of a closed job. A lost connection is resumed by the browser.
    opened.addEventListener('error', () => {
      if (opened.readyState !== EventSource.CLOSED || opened !== source) return;
      source = null;
      // Not at once: a server that has no room for another stream closes this one, too.
      setTimeout(() => {
        if (source || signal.aborted || page.isRevealed()) return;
        read(false, '', events.at(-1)?.offset ?? null).catch(() => null);
      }, 5000);
    });
  }
  function take(event) {
    if (events.some(({ offset }) => offset === event.offset)) return;
    events.push({ ...event, data: null });
    list.append(eventItem({ ...event, data: null }, true));
    job.offset = Math.max(job.offset, event.offset);
    if (job.seq === null || event.seq >= job.seq) ({ seq: job.seq, stage: job.stage } = event);
    job.closed ||= event.final;
    showFacts();
    if (job.closed) follow();
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
      if (!list.isConnected) replaceChildren(page.content, back, facts, stream, el('h2', null, 'Events'), list, more);
      return null;
    },
  });
  signal.addEventListener('abort', () => source?.close());
  // A hidden tab costs nothing, and goes on where it was.
  document.addEventListener('visibilitychange', () => job && follow(), { signal });
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
