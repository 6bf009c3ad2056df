/** Which responses are stored, their stored form, and the replay of one. */
import type { StoredResponse } from "../command.js"
import { RefusedRequest } from "./problem.js"
import type { OutgoingResponse } from "./problem.js"

/** The fate of a response: stored, the key given back for a retry, or the outcome unknown. */
export type Verdict = "keep" | "give-back" | "unknown"

/** Marks what is stored instead of a response that is not kept. */
const NOT_KEPT = "hapax-not-kept"
const NEVER_STORED = new Set([
  "set-cookie",
  "date",
  "content-length",
  "idempotency-store",
  "connection",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
])

/** The verdict for a response: its own `Idempotency-Store: never`, a configured one, or the one of its status. */
export function judge(status: number, store: string | undefined, verdicts: Readonly<Record<number, Verdict>>): Verdict {
  if (store?.trim().toLowerCase() === "never") return "give-back"
  const configured = verdicts[status]
  if (configured !== undefined) return configured
  if ([401, 403, 408, 425, 429].includes(status)) return "give-back"
  if (status === 502 || status === 504) return "unknown"
  return status >= 200 && status < 500 ? "keep" : "give-back"
}

/** The stored form of a response; a tombstone where it is larger than `maxBytes` or has no body to store. */
export function capture(status: number, headers: readonly [string, string][], body: Uint8Array | undefined, maxBytes: number): StoredResponse {
  const connection = headers.filter(([name]) => name === "connection").flatMap(([, value]) => value.toLowerCase().split(","))
  const named = new Set(connection.map((name) => name.trim()))
  const kept = headers.filter(([name]) => !NEVER_STORED.has(name) && !named.has(name))
  const size = kept.reduce((sum, [name, value]) => sum + name.length + value.length, 0)
  if (body === undefined || body.length > maxBytes || size > maxBytes) return tombstone(status)
  const stored: StoredResponse = { status, headers: {}, body }
  for (const [name, value] of kept) {
    const earlier = stored.headers[name]
    stored.headers[name] = earlier === undefined ? value : [earlier, value].flat()
  }
  return stored
}

/** Stored instead of a response that is not kept: the request ran, and must not run again. */
export function tombstone(status: number): StoredResponse {
  return { status, headers: { [NOT_KEPT]: "true" }, body: new Uint8Array() }
}

/** The response of the first request, for a retry. */
export function replay(stored: StoredResponse, expiresInMs: number | undefined): OutgoingResponse {
  if (stored.headers[NOT_KEPT] !== undefined) {
    const detail = "it was too large, or an event stream; a retry runs nothing: ask the service for the outcome"
    return new RefusedRequest("response-not-kept", detail, { members: { original_status: stored.status } }).response
  }
  const headers = Object.entries(stored.headers)
    .filter(([name]) => !NEVER_STORED.has(name.toLowerCase()))
    .flatMap(([name, values]) => [values].flat().map((value): [string, string] => [name, value]))
  headers.push(["idempotent-replayed", "true"])
  if (expiresInMs !== undefined) {
    headers.push(["idempotency-expires", new Date(Math.min(Date.now() + expiresInMs, 253_402_300_799_000)).toUTCString()])
  }
  return { status: stored.status, headers, body: stored.body }
}
