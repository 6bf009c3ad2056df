// Who is signed in, and what this person may do. The server checks everything again.

import { call } from './api.js';

export const session = { current: null };

/** Reads the session from the server. */
export async function readSession() {
  session.current = await call('GET', '/v1/session');
  return session.current;
}

/** Signs in; the server answers with a cookie that scripts cannot read. */
export async function signIn(token) {
  session.current = await call('POST', '/v1/session', { body: { token } });
}

export async function signOut() {
  await call('DELETE', '/v1/session');
  session.current = null;
}

/** Whether this person may change something. */
export function mayAct() {
  return session.current?.scopes?.includes('admin') ?? false;
}

/** Whether this person may see keys, payloads and answers. */
export function mayReveal() {
  return mayAct() && session.current?.reveal === true;
}
