// The one event stream of a console. It is closed while the tab is hidden, so that a forgotten tab costs nothing.

import { readSession } from './session.js';

const KEPT_MS = 60_000;
const FIRST_RETRY_MS = 2000;
const LONGEST_RETRY_MS = 30_000;

export class LiveActivity {
  #source = null;
  #retry = null;
  #delay = FIRST_RETRY_MS;
  #isStarted = false;
  #listeners = new Set();
  #stateListeners = new Set();

  /** `live`, `waiting` (connecting, or again), `hidden` or `off`. */
  state = 'off';
  /** What happened within the last minute, oldest first. */
  recent = [];

  constructor() {
    document.addEventListener('visibilitychange', () => this.#isStarted && this.#follow());
    // A page that the browser keeps for the back button must not keep its connection.
    window.addEventListener('pagehide', () => this.#close('hidden'));
    window.addEventListener('pageshow', (event) => event.persisted && this.#isStarted && this.#follow());
  }

  start() {
    this.#isStarted = true;
    this.#follow();
  }

  stop() {
    this.#isStarted = false;
    this.recent = [];
    this.#close('off');
  }

  /** Calls `listener` with every entry until the signal is aborted. */
  listen(listener, signal) {
    this.#listeners.add(listener);
    signal?.addEventListener('abort', () => this.#listeners.delete(listener));
  }

  listenToState(listener) {
    this.#stateListeners.add(listener);
    listener(this.state);
  }

  #follow() {
    if (document.hidden) return this.#close('hidden');
    if (this.#source) return;
    this.#setState('waiting');
    const source = new EventSource('/v1/operator/activity');
    this.#source = source;
    source.addEventListener('open', () => {
      this.#delay = FIRST_RETRY_MS;
      this.#setState('live');
    });
    source.addEventListener('message', (event) => this.#take(event.data));
    source.addEventListener('error', () => this.#fail(source));
  }

  #fail(source) {
    if (source !== this.#source) return;
    this.#setState('waiting');
    // The browser reconnects after a lost connection, but not after an answer that is not a stream.
    if (source.readyState !== EventSource.CLOSED) return;
    this.#source = null;
    this.#retry = setTimeout(() => this.#checkSession(), this.#delay);
    this.#delay = Math.min(this.#delay * 2, LONGEST_RETRY_MS);
  }

  /** A stream is refused without a reason that scripts can see; the session tells whether it has ended. */
  async #checkSession() {
    const session = await readSession().catch(() => null);
    if (session && !session.signed_in) return window.dispatchEvent(new Event('hapax:signed-out'));
    if (this.#isStarted && !this.#source) this.#follow();
  }

  #take(data) {
    const entry = JSON.parse(data);
    const oldest = Date.now() - KEPT_MS;
    // After a connection the server may first send what was before.
    this.recent = [...this.recent, entry].filter((kept) => kept.at > oldest);
    for (const listener of this.#listeners) listener(entry);
  }

  #close(state) {
    clearTimeout(this.#retry);
    this.#source?.close();
    this.#source = null;
    this.#setState(state);
  }

  #setState(state) {
    if (state === this.state) return;
    this.state = state;
    for (const listener of this.#stateListeners) listener(state);
  }
}

/** Runs `action` at most once in `interval`, and once more after the last call. */
export function throttled(interval, action, signal) {
  let timer = null;
  let last = 0;
  signal?.addEventListener('abort', () => clearTimeout(timer));
  return () => {
    if (timer || signal?.aborted) return;
    timer = setTimeout(() => {
      timer = null;
      last = Date.now();
      action();
    }, Math.max(0, last + interval - Date.now()));
  };
}
