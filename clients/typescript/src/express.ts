/** `Idempotency-Key` for Express 4 and 5, and for `connect`-like frameworks. */
import { Buffer } from "node:buffer"
import type { IncomingMessage, ServerResponse } from "node:http"
import { IdempotencyGate } from "./idempotency/gate.js"
import type { IdempotencyOptions } from "./idempotency/gate.js"
import { captureResponse, headOf, peekBody, send, tellAttempt } from "./idempotency/node.js"
import { RefusedRequest } from "./idempotency/problem.js"
import type { OutgoingResponse } from "./idempotency/problem.js"
import type { RequestHead } from "./idempotency/request.js"
import { canonicalJson } from "./runtime.js"

export type { IdempotencyEvent, IdempotencyOptions } from "./idempotency/gate.js"
export type { CallerScope, RequestHead } from "./idempotency/request.js"
export type { Verdict } from "./idempotency/response.js"

/** A middleware. `drain` refuses new keyed requests and waits for the running ones. */
export interface IdempotencyMiddleware {
  (request: IncomingMessage, response: ServerResponse, next: (error?: unknown) => void): void
  drain: (timeoutMs?: number) => Promise<void>
}

type ExpressRequest = IncomingMessage & { originalUrl?: string; body?: unknown; rawBody?: unknown }

/**
 * Runs a request with an `Idempotency-Key` once; every other request with that key gets the same answer. Put it before the body
 * parsers, so that it sees the bytes that the client sent.
 */
export function idempotency(options: IdempotencyOptions): IdempotencyMiddleware {
  const gate = new IdempotencyGate(options)
  const handle = async (request: ExpressRequest, response: ServerResponse): Promise<boolean> => {
    tellAttempt(request, undefined)
    const head = headOf(request, request.originalUrl ?? request.url ?? "/")
    const key = await gate.readKey(head)
    if (key === undefined) return true
    const body = await bodyOf(request, gate)
    const admission = await gate.admit(head, key, body)
    if (admission.answer !== undefined) {
      send(response, admission.answer)
      return false
    }
    // A body parser behind takes the body of a closed connection for empty, and the handler would run without it.
    if (body.length > 0 && !request.readableEnded && !request.socket.readable) {
      await admission.run?.giveBack()
      throw new RefusedRequest("invalid-request", "the client left before the run began; nothing was run", { retryable: true })
    }
    if (admission.run === undefined) {
      response.setHeader("hapax-unprotected", "store-unavailable")
      return true
    }
    tellAttempt(request, admission.run)
    captureResponse(response, admission.run, gate.maxBodyBytes)
    return true
  }
  const middleware = (request: IncomingMessage, response: ServerResponse, next: (error?: unknown) => void) => {
    handle(request, response).then(
      (runs) => runs && next(),
      (error: unknown) => {
        if (!(error instanceof RefusedRequest)) return next(error)
        gate.record("refused", request.method ?? "")
        // The rest of a body that is not read would be taken for the next request.
        if (!request.complete) response.setHeader("connection", "close")
        send(response, error.response)
      },
    )
  }
  return Object.assign(middleware, { drain: (timeoutMs?: number) => gate.drain(timeoutMs) })
}

/** The head and the body of a request, for `answerOnce` of `hapax-client/pg`. The body parsers behind still find the body. */
export async function keyedRequest(request: IncomingMessage, maxBodyBytes = 1024 * 1024): Promise<{ head: RequestHead; body: Uint8Array }> {
  const head = headOf(request, (request as ExpressRequest).originalUrl ?? request.url ?? "/")
  return { head, body: await peekBody(request, maxBodyBytes, 30_000) }
}

/** Sends an answer of `answerOnce`. */
export function sendAnswer(response: ServerResponse, answer: OutgoingResponse): void {
  send(response, answer)
}

/** The bytes of the body; where a body parser was faster, what it made of them. */
function bodyOf(request: ExpressRequest, gate: IdempotencyGate): Promise<Uint8Array> {
  if (!request.readableEnded) return peekBody(request, gate.maxBodyBytes, gate.bodyTimeoutMs)
  const { rawBody, body } = request
  if (rawBody instanceof Uint8Array) return Promise.resolve(rawBody)
  if (body instanceof Uint8Array) return Promise.resolve(body)
  return Promise.resolve(Buffer.from(typeof body === "string" ? body : canonicalJson(body ?? null)))
}
