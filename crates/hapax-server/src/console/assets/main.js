// Starts the console: signs in where tokens are needed, then shows the page that the address names.

import { call } from './api.js';
import { el } from './dom.js';
import { updateTimes } from './format.js';
import { LiveActivity, throttled } from './live.js';
import { findPage } from './pages.js';
import { readSession, session, signOut } from './session.js';
import { Shell } from './shell.js';
import { showSignIn } from './sign_in.js';

const app = document.getElementById('app');
const live = new LiveActivity();
const OVERVIEW_MS = 5000;
// A node that dies is news too, although nothing tells of it; this is rare enough to cost nothing.
const QUIET_OVERVIEW_MS = 120_000;

let shell = null;
let pageEnd = null;
let consoleEnd = null;

/** What several pages hand to the next one. Not in the address, which stays in the browser's history: it may have a key. */
let handover = null;

function go(hash, values = null) {
  handover = values;
  if (location.hash === hash) showPage();
  else location.hash = hash;
}

function showPage() {
  if (!shell) return;
  pageEnd?.abort();
  pageEnd = new AbortController();
  // A dialog belongs to the page that opened it.
  for (const dialog of document.querySelectorAll('dialog[open]')) dialog.close();
  const segments = location.hash.replace(/^#\/?/, '').split('/').map(decodeSegment);
  const page = findPage(segments[0]);
  shell.showCurrent(page);
  const values = handover;
  handover = null;
  shell.main.replaceChildren();
  page.show({ root: shell.main, live, signal: pageEnd.signal, segments: segments.slice(1), values, go, shell });
  // Screen readers read the new page; a page that has put the focus into its search keeps it there.
  if (!shell.main.contains(document.activeElement)) shell.main.querySelector('h1')?.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

function decodeSegment(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

async function readOverview() {
  if (!shell) return;
  const { signal } = consoleEnd;
  try {
    const overview = await call('GET', '/v1/operator/overview', { signal });
    if (signal.aborted) return;
    shell.showOverview(overview);
    // Some stores count in the background; the counts that are on their way are asked for once more.
    if (overview.counting) refreshOverview();
  } catch (error) {
    if (!signal.aborted) shell.showOverviewProblem(error);
  }
}

function showConsole() {
  consoleEnd = new AbortController();
  shell = new Shell(session.current, live, { leave, readOverview });
  app.replaceChildren(shell.element);
  showPage();
  live.start();
  readOverview();
}

/** Ends all that asks the server. */
function endConsole() {
  pageEnd?.abort();
  consoleEnd?.abort();
  live.stop();
  shell = null;
}

function showGate(problem = null) {
  endConsole();
  showSignIn(app, showConsole, problem);
}

async function leave() {
  // Before the session ends: a page that asks without it would be refused.
  endConsole();
  try {
    await signOut();
    showGate();
  } catch (error) {
    showGate(`You may still be signed in. ${error.message}.`);
  }
}

async function start() {
  try {
    const current = await readSession();
    if (current.signed_in) showConsole();
    else showGate();
  } catch (error) {
    app.replaceChildren(el('main', { class: 'sign-in', id: 'main' },
      el('h1', null, 'hapax'), el('p', { class: 'problem', role: 'alert' }, error.message),
      el('button', { type: 'button', onclick: start }, 'Try again')));
  }
}

/** `/` goes to the search of this page, or to the page that finds keys. */
function onKey(event) {
  const isTyping = event.target.closest?.('input, textarea, select, dialog');
  if (event.key !== '/' || isTyping || event.ctrlKey || event.metaKey || event.altKey || !shell) return;
  event.preventDefault();
  const search = shell.main.querySelector('[data-search]');
  if (search) search.focus();
  else go('#/key');
}

const refreshOverview = throttled(OVERVIEW_MS, readOverview);
live.listen(refreshOverview);
live.listenToState((state) => state === 'live' && refreshOverview());
setInterval(() => document.hidden || readOverview(), QUIET_OVERVIEW_MS);
setInterval(() => document.hidden || updateTimes(), 5000);
window.addEventListener('hashchange', showPage);
window.addEventListener('hapax:changed', () => readOverview());
window.addEventListener('hapax:signed-out', () => shell && showGate());
document.addEventListener('keydown', onKey);
start();
