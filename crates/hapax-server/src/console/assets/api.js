// Calls of the public operator API. The console has no other way to the server than scripts have.

import { session } from './session.js';

const TIMEOUT_MS = 30_000;

/** A problem document (RFC 9457) of the server, or a failure on the way to it (status 0). */
export class ApiProblem extends Error {
  constructor(status, problem) {
    super([problem.title, problem.detail].filter(Boolean).join(': '));
    this.status = status;
    this.code = (problem.type ?? '').split('/').pop();
  }
}

/** A path whose segments are percent-encoded: a key may contain slashes. */
export function path(...segments) {
  return `/${segments.map(encodeURIComponent).join('/')}`;
}

/**
 * Calls the server; gives the JSON of the answer, or null if there is none.
 * `note` is what the operator wrote for the audit log. Empty query parameters are left out.
 */
export async function call(method, target, { query, body, note, signal } = {}) {
  const url = new URL(target, location.origin);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== null && value !== undefined && value !== '') url.searchParams.set(name, value);
  }
  const headers = { Accept: 'application/json' };
  if (method !== 'GET' && session.current?.csrf) headers['Hapax-Csrf'] = session.current.csrf;
  if (note) headers['Hapax-Note'] = encodeURIComponent(note);
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  let answer;
  try {
    answer = await fetch(url, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
      credentials: 'same-origin',
      cache: 'no-store',
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiProblem(0, { title: 'The server does not answer', detail: 'what is shown may be old' });
  }
  if (answer.ok) return answer.status === 204 ? null : answer.json();
  const problem = await answer.json().catch(() => ({}));
  if (answer.status === 401 && target !== '/v1/session') window.dispatchEvent(new Event('hapax:signed-out'));
  throw new ApiProblem(answer.status, { title: `Status ${answer.status}`, ...problem });
}
