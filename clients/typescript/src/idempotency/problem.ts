/** Problem documents (RFC 9457) with the codes, statuses and titles of every other edge of hapax. */
import { utf8 } from "../runtime.js"

/** A response that is ready to be sent. */
export interface OutgoingResponse {
  status: number
  headers: [name: string, value: string][]
  body: Uint8Array
}

const KINDS = {
  "invalid-request": [400, "The request is not valid", false],
  "key-missing": [400, "The request needs an Idempotency-Key", false],
  "invalid-key": [400, "The Idempotency-Key is not valid", false],
  "scope-missing": [400, "The caller of the request cannot be identified", false],
  "request-timeout": [408, "The request took too long to arrive", true],
  "in-progress": [409, "Another attempt is still running", true],
  "outcome-unknown": [409, "The outcome of an attempt is unknown", false],
  "response-not-kept": [409, "The request ran, but its response was not kept", false],
  "payload-too-large": [413, "The request body is too large", false],
  "key-reused": [422, "The key belongs to another request", false],
  internal: [500, "The server failed", false],
  "store-unavailable": [503, "The store did not answer", true],
  "shutting-down": [503, "The server is shutting down", true],
} as const

export type ProblemCode = keyof typeof KINDS

/** Thrown where a request is refused; `response` is the answer. */
export class RefusedRequest extends Error {
  readonly response: OutgoingResponse

  constructor(code: ProblemCode, detail: string, more: { retryAfterMs?: number | undefined; members?: object; retryable?: boolean } = {}) {
    super(code)
    const [status, title, isRetryable] = KINDS[code]
    const headers: [string, string][] = [["content-type", "application/problem+json"]]
    const document: Record<string, unknown> = {
      type: `https://hapax.dev/problems/${code}`,
      title,
      status,
      detail,
      retryable: more.retryable ?? isRetryable,
    }
    if (more.retryAfterMs !== undefined) {
      document["retry_after_ms"] = more.retryAfterMs
      headers.push(["retry-after", String(Math.max(Math.ceil(more.retryAfterMs / 1000), 1))])
    }
    this.response = { status, headers, body: utf8(JSON.stringify({ ...document, ...more.members })) }
  }
}
